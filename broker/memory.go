package broker

import (
	"log/slog"
	"runtime/debug"

	"github.com/sluicemq/sluice/broker/admission"
)

const (
	// garbagePercent: measured over ten waves of reconnects, GOGC 50 kept the growth at 4 %, 100 at 21 %.
	garbagePercent = 50
	// maxMemoryLimit is a net for machines with little memory, not what the broker is expected to need.
	maxMemoryLimit = 48 << 20
)

// LimitMemory sets Go's garbage collector for a small machine: GOGC 50, and a memory limit of three quarters of what the
// cgroup or the machine gives, at most 48 MiB. GOGC and GOMEMLIMIT in the environment have their way. It acts on the whole
// process; the program calls it before New.
func LimitMemory(getenv func(string) string, lg *slog.Logger) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if getenv("GOMEMLIMIT") != "" {
		return
	}
	m := admission.FindMemory()
	limit := memoryLimit(m)
	debug.SetMemoryLimit(limit)
	lg.Debug("memory limit", "bytes", limit, "available", m.Bytes, "source", m.Source)
}

func memoryLimit(m admission.Memory) int64 {
	if m.Bytes <= 0 {
		return maxMemoryLimit
	}
	return min(m.Bytes/4*3, maxMemoryLimit)
}
