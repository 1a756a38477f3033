package segment

import (
	"cmp"
	"slices"
	"sync"
)

// Eviction counts what left one topic for one reason.
type Eviction struct {
	Topic      string // empty: copies that were set aside for damage
	Reason     string
	Records    int64
	Bytes      int64
	Unmirrored int64 // records that some follower had not passed
}

type evictions struct {
	mu     sync.Mutex
	counts map[[2]string]*Eviction
}

func (e *evictions) add(topic, reason string, records, bytes, unmirrored int64) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil {
		e.counts = map[[2]string]*Eviction{}
	}
	c := e.counts[[2]string{topic, reason}]
	if first = c == nil; first {
		c = &Eviction{Topic: topic, Reason: reason}
		e.counts[[2]string{topic, reason}] = c
	}
	c.Records += records
	c.Bytes += bytes
	c.Unmirrored += unmirrored
	return first
}

// list is all counts, by topic and reason.
func (e *evictions) list() []Eviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []Eviction
	for _, c := range e.counts {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Eviction) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}
