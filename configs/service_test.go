package configs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The unit's sandbox lets the broker ask whether a time daemon vouches for the clock (segment.Clock).
func TestServiceMayAskForTheClock(t *testing.T) {
	unit, err := os.ReadFile("sluice.service")
	if err != nil {
		t.Fatal(err)
	}
	filters := regexp.MustCompile(`(?m)^SystemCallFilter=(.*)$`).FindAllStringSubmatch(string(unit), -1)
	if len(filters) == 0 || !strings.Contains(filters[len(filters)-1][1], "adjtimex") {
		t.Error("adjtimex is not allowed last: a list before it takes it away")
	}
	if regexp.MustCompile(`(?m)^ProtectClock=(yes|true|1|on)`).Match(unit) {
		t.Error("ProtectClock refuses adjtimex, although it only reads")
	}
}
