package segment

import "sync"

// gate bounds the bytes of durable batches that are in memory and not yet in segments.
type gate struct {
	mu    sync.Mutex
	bytes int
	limit int
	room  chan struct{} // capacity 1: signalled when bytes fall
}

func newGate(limit int) *gate { return &gate{limit: limit, room: make(chan struct{}, 1)} }

// add counts n bytes more, or fewer.
func (g *gate) add(n int) {
	g.mu.Lock()
	g.bytes += n
	g.mu.Unlock()
	if n < 0 {
		wake(g.room)
	}
}

// used is the number of bytes now.
func (g *gate) used() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bytes
}

// wait returns when fewer bytes than the limit are in memory, or stop is closed. For one goroutine.
func (g *gate) wait(stop <-chan struct{}) {
	for g.used() >= g.limit {
		select {
		case <-g.room:
		case <-stop:
			return
		}
	}
}

// wake has whoever waits for ch go on, or not begin to wait. ch has a capacity of 1.
func wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// buffers are empty ones for the next tail, whichever partition's it is: under load they would otherwise be most of what
// the collector has to do.
type buffers struct {
	mu    sync.Mutex
	free  [][]byte
	bytes int // capacity of all in free
	limit int // of bytes
}

// get returns an empty buffer, perhaps nil.
func (b *buffers) get() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.free) == 0 {
		return nil
	}
	last := len(b.free) - 1
	buf := b.free[last]
	b.free[last] = nil
	b.free = b.free[:last]
	b.bytes -= cap(buf)
	return buf
}

// put takes a buffer that nobody uses any more, and lets go of it if there are enough.
func (b *buffers) put(buf []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cap(buf) > 0 && b.bytes+cap(buf) <= b.limit {
		b.free = append(b.free, buf[:0])
		b.bytes += cap(buf)
	}
}

// watchers are told of commits.
type watchers struct {
	mu   sync.Mutex
	list []chan<- struct{}
}

func (w *watchers) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.list {
		wake(ch)
	}
}

// Watch has a value sent to ch, without blocking, after each commit that holds records. Give it a capacity of 1.
func (l *Log) Watch(ch chan<- struct{}) {
	l.watchers.mu.Lock()
	defer l.watchers.mu.Unlock()
	l.watchers.list = append(l.watchers.list, ch)
}

// Unwatch ends Watch.
func (l *Log) Unwatch(ch chan<- struct{}) {
	l.watchers.mu.Lock()
	defer l.watchers.mu.Unlock()
	for i, c := range l.watchers.list {
		if c == ch {
			l.watchers.list = append(l.watchers.list[:i:i], l.watchers.list[i+1:]...)
			return
		}
	}
}
