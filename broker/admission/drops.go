package admission

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxPairs bounds the (topic, reason) pairs that are counted apart. Topics come from clients, and a client that makes them
// up must not fill the memory; what comes later is counted under Other.
const maxPairs = 1024

// Other stands for every topic that came after the table was full.
const Other = "(other)"

// Drops counts what was not delivered or not stored, by topic and reason: nothing is lost silently. The zero value is ready.
// It is safe for concurrent use.
type Drops struct {
	mu     sync.RWMutex
	counts map[pair]*atomic.Int64 // under mu; the counters live for ever
	total  atomic.Int64
}

type pair struct{ topic, reason string }

// Drop is one counter.
type Drop struct {
	Topic, Reason string
	Messages      int64
}

// Count adds n messages that were dropped. topic may be a view of a buffer that changes later; reason is one of a few
// constants. No allocation for a pair that is known.
func (d *Drops) Count(topic, reason string, n int64) {
	d.total.Add(n)
	d.mu.RLock()
	c := d.counts[pair{topic, reason}]
	d.mu.RUnlock()
	if c == nil {
		c = d.counter(topic, reason)
	}
	c.Add(n)
}

// counter finds or makes a pair's counter.
func (d *Drops) counter(topic, reason string) *atomic.Int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts == nil {
		d.counts = make(map[pair]*atomic.Int64)
	}
	if c := d.counts[pair{topic, reason}]; c != nil {
		return c
	}
	if len(d.counts) >= maxPairs {
		topic = Other
		if c := d.counts[pair{topic, reason}]; c != nil {
			return c
		}
	}
	c := new(atomic.Int64)
	d.counts[pair{strings.Clone(topic), reason}] = c
	return c
}

// Total is the number of messages dropped since the start.
func (d *Drops) Total() int64 { return d.total.Load() }

// Snapshot returns all counters, ordered by topic and reason.
func (d *Drops) Snapshot() []Drop {
	d.mu.RLock()
	drops := make([]Drop, 0, len(d.counts))
	for p, c := range d.counts {
		drops = append(drops, Drop{p.topic, p.reason, c.Load()})
	}
	d.mu.RUnlock()
	slices.SortFunc(drops, func(a, b Drop) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), strings.Compare(a.Reason, b.Reason))
	})
	return drops
}
