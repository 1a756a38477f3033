package mqtt

import (
	"runtime"
	"sync/atomic"
)

// turns lets a TLS handshake compute only when it is its turn: a storm of them would otherwise take the processor from clients
// that are in already. A handshake that waits for its client has no turn.
type turns struct {
	free    chan struct{} // shared by all; a token for each handshake that computes
	clock   func() int64
	waiting *atomic.Int64 // conn.waiting: the time until a turn comes is not the client's
}

// newTurns leaves a processor to others where there is more than one.
func newTurns() chan struct{} { return make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1)) }

// enter waits for a turn, and then until whoever else could compute has done so: Go's scheduler runs a goroutine that a channel
// wakes before all that were ready earlier, so that with one processor turns would follow each other for as long as there are any.
func (t *turns) enter() {
	began, since := t.clock(), t.waiting.Swap(busy)
	t.free <- struct{}{}
	runtime.Gosched()
	t.waiting.Store(since + t.clock() - began)
}

func (t *turns) leave() { <-t.free }
