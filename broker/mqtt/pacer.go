package mqtt

import (
	"sync"
	"time"
)

// pacer spreads connections that come faster than a rate. It lets as many through at once as the rate allows in a second, by
// the generic cell rate algorithm (ITU-T I.371): one time is all there is to keep.
type pacer struct {
	mu       sync.Mutex
	interval int64 // under mu: ns for each connection
	due      int64 // under mu: when all that was let through would have come at the rate, on the server's clock in ns
}

func newPacer(perSecond int) *pacer {
	p := new(pacer)
	p.setRate(perSecond)
	return p
}

func (p *pacer) setRate(perSecond int) {
	p.mu.Lock()
	p.interval = int64(time.Second) / int64(perSecond)
	p.mu.Unlock()
}

// take counts a connection at now and returns how long to wait before the next one is taken.
func (p *pacer) take(now int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = max(p.due, now) + p.interval
	return time.Duration(max(0, p.due+p.interval-now-int64(time.Second)))
}
