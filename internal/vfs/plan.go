package vfs

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// Fault is one thing that goes wrong. The zero value of Op and of Match stands for any.
type Fault struct {
	Op    Op
	Match string // part of the path
	// Nth is which of the operations that match it strikes; the first is 1, and 0 means 1, too.
	Nth int
	// Lasting: it strikes all from the nth on.
	Lasting bool
	// Err is what the operation fails with, wrapped like the operating system's. Nil: it only stalls.
	Err error
	// Bytes of a write are written before it fails: a torn one.
	Bytes int
	// Stall holds the operation up until the channel is closed (or gives a value). Nil: not at all.
	Stall <-chan struct{}
}

// Plan makes chosen operations of a Faulty fail: &Faulty{FS: fs, Before: plan.Before}. It may be used concurrently.
type Plan struct {
	mu     sync.Mutex
	faults []Fault
	seen   []int // by fault: operations that match
	hits   int
	counts map[operation]int
}

type operation struct {
	op   Op
	name string
}

// NewPlan makes a plan. Each fault counts for itself; where two strike the same operation the first in the list does.
func NewPlan(faults ...Fault) *Plan {
	return &Plan{faults: faults, seen: make([]int, len(faults)), counts: map[operation]int{}}
}

// Before is for Faulty.Before.
func (p *Plan) Before(op Op, name string) (int, error) {
	f := p.next(op, name)
	if f == nil {
		return 0, nil
	}
	if f.Stall != nil {
		<-f.Stall
	}
	return f.Bytes, f.wrap(op, name)
}

// next counts an operation and finds what strikes it.
func (p *Plan) next(op Op, name string) (strikes *Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[operation{op, name}]++
	for i := range p.faults {
		f := &p.faults[i]
		if !matches(f.Op, f.Match, op, name) {
			continue
		}
		p.seen[i]++
		nth := max(f.Nth, 1)
		if strikes == nil && (p.seen[i] == nth || f.Lasting && p.seen[i] > nth) {
			strikes = f
			p.hits++
		}
	}
	return strikes
}

func matches(wantOp Op, match string, op Op, name string) bool {
	return (wantOp == "" || wantOp == op) && strings.Contains(name, match)
}

func (f *Fault) wrap(op Op, name string) error {
	var path *fs.PathError
	var link *os.LinkError
	if f.Err == nil || errors.As(f.Err, &path) || errors.As(f.Err, &link) {
		return f.Err
	}
	return &fs.PathError{Op: string(op), Path: name, Err: f.Err}
}

// Hits is how many times a fault struck, stalls included.
func (p *Plan) Hits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// Count is how many operations of a kind ("" any) there were on paths that contain match, struck or not.
func (p *Plan) Count(op Op, match string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for o, k := range p.counts {
		if matches(op, match, o.op, o.name) {
			n += k
		}
	}
	return n
}
