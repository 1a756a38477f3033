package broker

import (
	"context"
	"log/slog"
	"runtime"
	"syscall"
	"time"
)

const (
	processorTick  = 500 * time.Millisecond
	lightProcessor = 35 // percent of one processor
	heavyProcessor = 60
	lightTicks     = 6 // so many in a row before the others are given up
)

// UseProcessors has Go's scheduler use one processor while the process needs little of it, and all that it may have otherwise,
// until ctx ends. GOMAXPROCS in the environment has its way. It acts on the whole process.
//
// Messages come in bursts. For each one a scheduler that sleeps wakes a second thread, which finds nothing left to do and
// sleeps again, and that costs a quarter of the CPU of a light load: see docs/design.md.
func UseProcessors(ctx context.Context, getenv func(string) string, lg *slog.Logger) {
	if getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	tick := time.NewTicker(processorTick)
	defer tick.Stop()
	defer runtime.SetDefaultGOMAXPROCS()
	var p processors
	for used, at := cpuTime(), time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u, now := cpuTime(), time.Now()
		if p.change(int(100 * (u - used) / max(now.Sub(at), 1))) {
			lg.Debug("processors", "one", p.one)
			if p.one {
				runtime.GOMAXPROCS(1)
			} else {
				runtime.SetDefaultGOMAXPROCS()
			}
		}
		used, at = u, now
	}
}

// processors decides how many are used.
type processors struct {
	one   bool
	light int // ticks with a light load, in a row
}

// change takes the percentage of one processor that was used during a tick, and says whether one has changed.
func (p *processors) change(percent int) bool {
	if percent < lightProcessor {
		p.light++
	} else {
		p.light = 0
	}
	was := p.one
	p.one = p.light >= lightTicks || p.one && percent < heavyProcessor
	return p.one != was
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
