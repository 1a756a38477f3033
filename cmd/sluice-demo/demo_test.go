package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Three seconds of the demo, on a port that is taken: records of each sensor arrive, and nothing is left behind.
func TestDemo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var out, log output
	o := options{Listen: taken.Addr().String(), Sensors: 3, Every: 50 * time.Millisecond, Duration: 3 * time.Second}
	if err := run(context.Background(), o, &out, &log); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, topic := range []string{"sensors/pump-1/temperature", "sensors/greenhouse-1/humidity", "sensors/meter-1/power"} {
		line := regexp.MustCompile(`(?m)^demo\.mqtt/[0-3]@\d+\t` + topic + `\t\{"value":[0-9.]+,"unit":"[C%W]"\}$`)
		if n := len(line.FindAllString(text, -1)); n < 10 {
			t.Errorf("%d records of %s arrived", n, topic)
		}
	}
	if !strings.Contains(text, "mosquitto_pub -h 127.0.0.1 -p ") || strings.Contains(text, fmt.Sprint("-p ", taken.Addr().(*net.TCPAddr).Port, " ")) {
		t.Error("it doesn't tell how to publish, or to a port that isn't its own")
	}
	if !strings.Contains(text, " records arrived in the region") || strings.Contains(text, "\n0 records") {
		t.Error("no summary")
	}
	if t.Failed() || log.String() != "" {
		t.Errorf("output:\n%s\nlog:\n%s", text, &log)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestEndsAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out output
	if err := run(ctx, options{Listen: "127.0.0.1:0", Sensors: 1, Every: time.Second}, &out, &out); err != nil {
		t.Fatal(err)
	}
}

func TestBadAddress(t *testing.T) {
	var out output
	for _, address := range []string{"nowhere", "127.0.0.1:http"} {
		if err := run(context.Background(), options{Listen: address}, &out, &out); err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestShown(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", `{"a":1}`: `{"a":1}`, "ä": "ä", "a\x1b[31m": `"a\x1b[31m"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`, "a`b": "a`b",
		strings.Repeat("x", 300): strings.Repeat("x", maxShown) + "…",
	} {
		if got := shown([]byte(in)); got != want {
			t.Errorf("shown(%q) = %q, want %q", in, got, want)
		}
	}
}
