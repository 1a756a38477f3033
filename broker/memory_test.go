package broker

import (
	"log/slog"
	"runtime/debug"
	"testing"

	"github.com/sluicemq/sluice/broker/admission"
)

// The environment has its way; else the collector is set for a small machine.
func TestLimitMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40))
	lg := slog.New(slog.DiscardHandler)
	set := func() (percent int, limit int64) {
		percent = debug.SetGCPercent(100)
		return percent, debug.SetMemoryLimit(1 << 40)
	}
	LimitMemory(func(name string) string { return map[string]string{"GOGC": "77", "GOMEMLIMIT": "1GiB"}[name] }, lg)
	if percent, limit := set(); percent != 100 || limit != 1<<40 {
		t.Errorf("the environment was overruled: %d %%, %d bytes", percent, limit)
	}
	LimitMemory(func(string) string { return "" }, lg)
	if percent, limit := set(); percent != 50 || limit > 48<<20 || limit <= 0 {
		t.Errorf("set to %d %%, %d bytes", percent, limit)
	}
}

func TestMemoryLimit(t *testing.T) {
	for _, test := range []struct{ available, want int64 }{
		{0, 48 << 20}, {32 << 20, 24 << 20}, {64 << 20, 48 << 20}, {8 << 30, 48 << 20},
	} {
		if got := memoryLimit(admission.Memory{Bytes: test.available}); got != test.want {
			t.Errorf("of %d: %d, want %d", test.available, got, test.want)
		}
	}
}
