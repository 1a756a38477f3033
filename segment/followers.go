package segment

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// passed is how far the followers of a partition have come, durable or not.
type passed struct {
	mu      sync.Mutex
	cursors map[string][]byte // by owner, as in the state
}

// set keeps a cursor, of 8 bytes at least. The value belongs to p from then on.
func (p *passed) set(owner string, value []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cursors == nil {
		p.cursors = map[string][]byte{}
	}
	p.cursors[owner] = value
}

// cursor is the owner's cursor as it was last set, nil if it never was.
func (p *passed) cursor(owner string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cursors[owner]
}

// least is the offset below which all of the owners have everything. One without a cursor has nothing. followed is false
// when there are no owners.
func (p *passed) least(owners []string) (offset int64, followed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range owners {
		n := int64(0)
		if value := p.cursors[o]; value != nil {
			n = int64(binary.BigEndian.Uint64(value))
		}
		if i == 0 || n < offset {
			offset = n
		}
	}
	return offset, len(owners) > 0
}

// followers asks who follows a topic.
func (l *Log) followers(topic string) []string {
	if l.o.Followers == nil {
		return nil
	}
	return l.o.Followers(topic)
}

// coverage is the end offset of a partition in the state files: below it they know the segments.
type coverage struct{ newer, both atomic.Int64 }

// add is called after each checkpoint: it replaced the older of the two files.
func (c *coverage) add(end int64) {
	c.both.Store(c.newer.Load())
	c.newer.Store(end)
}
