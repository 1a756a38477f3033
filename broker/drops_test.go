package broker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/broker/admission"
)

func TestDropReportTellsWhatIsNew(t *testing.T) {
	var drops admission.Drops
	var r dropReport
	report := func() string {
		var out bytes.Buffer
		r.log(slog.New(slog.NewTextHandler(&out, nil)), drops.Snapshot())
		return out.String()
	}
	drops.Count("mqtt", "log full", 3)
	drops.Count("mqtt", "subscriber too slow", 1)
	if got := report(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `reason="log full" messages=3 since_start=3`) {
		t.Fatal(got)
	}
	if got := report(); got != "" {
		t.Fatalf("nothing was dropped since, but: %s", got)
	}
	drops.Count("mqtt", "log full", 2)
	if got := report(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "messages=2 since_start=5") {
		t.Fatal(got)
	}
}
