package auth

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// queue hands out places to those who want to compute a hash. Each address has its turn after the others that wait, whatever the
// number of its clients: who guesses passwords from one address delays another one by a hash at most. Within an address whoever came
// first is first. Safe for concurrent use.
type queue struct {
	limit int // of those who wait

	mu      sync.Mutex
	free    int       // under mu: places that nobody has
	waiting int       // under mu
	sources []*source // under mu: those with waiters, the next one first
}

// source is an address with clients that wait, in the order in which they came.
type source struct {
	address netip.Addr
	waiters []chan error
}

func newQueue(places, limit int) *queue { return &queue{free: places, limit: limit} }

// take waits for a place. The error is ErrBusy when too many wait, or ctx's cause; after that there is no place to give back.
func (q *queue) take(ctx context.Context, address netip.Addr) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	s := q.source(address)
	if q.waiting >= q.limit && !q.makeRoom(s) {
		q.drop(s)
		q.mu.Unlock()
		return ErrBusy
	}
	turn := make(chan error, 1)
	s.waiters = append(s.waiters, turn)
	q.waiting++
	q.mu.Unlock()
	select {
	case err := <-turn:
		return err
	case <-ctx.Done():
	}
	q.mu.Lock()
	i := slices.Index(s.waiters, turn)
	if i >= 0 {
		q.leave(s, i)
	}
	q.mu.Unlock()
	if i < 0 && <-turn == nil {
		q.give() // the turn came at the same time
	}
	return context.Cause(ctx)
}

// give gives a place back, to whose turn it is.
func (q *queue) give() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.sources) == 0 {
		q.free++
		return
	}
	s := q.sources[0]
	q.sources = append(q.sources[1:], s) // its next turn is after the others'
	turn := s.waiters[0]
	q.leave(s, 0)
	turn <- nil
}

// crowded says whether somebody waits for a place.
func (q *queue) crowded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting > 0
}

// makeRoom refuses the last client of the address with most waiters, if s has fewer.
func (q *queue) makeRoom(s *source) bool {
	most := slices.MaxFunc(q.sources, func(a, b *source) int { return len(a.waiters) - len(b.waiters) })
	if len(most.waiters) <= len(s.waiters)+1 {
		return false
	}
	last := len(most.waiters) - 1
	turn := most.waiters[last]
	q.leave(most, last)
	turn <- ErrBusy
	return true
}

// source is an address's. A new one has the last turn.
func (q *queue) source(address netip.Addr) *source {
	for _, s := range q.sources {
		if s.address == address {
			return s
		}
	}
	s := &source{address: address}
	q.sources = append(q.sources, s)
	return s
}

// leave takes a waiter out.
func (q *queue) leave(s *source, i int) {
	s.waiters = slices.Delete(s.waiters, i, i+1)
	q.waiting--
	q.drop(s)
}

// drop forgets a source without waiters.
func (q *queue) drop(s *source) {
	if len(s.waiters) == 0 {
		q.sources = slices.DeleteFunc(q.sources, func(o *source) bool { return o == s })
	}
}
