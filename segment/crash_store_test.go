package segment

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/sluicemq/sluice/segment/state"
)

// memStore stands for the two state files: they are written in turn, each checkpoint is there or not, and one of them may
// be lost at a crash. It outlives the lives of a log. The real one has tests of its own; it can't run on a file
// system in memory.
type memStore struct {
	rng    *rand.Rand
	begin  func() (last bool) // counts a checkpoint as a file operation
	stop   func()             // ends the life
	files  [2]*memState
	newest int // -1: no file
}

type memState struct {
	number uint64
	point  state.Point
	values map[string]string
}

func (s *memStore) current() *memState {
	if s.newest < 0 {
		return &memState{}
	}
	return s.files[s.newest]
}

func (s *memStore) Point() state.Point {
	p := s.current().point
	p.Ends = maps.Clone(p.Ends)
	return p
}

func (s *memStore) OldestLSN() uint64 {
	if s.files[0] == nil || s.files[1] == nil {
		return 0
	}
	return min(s.files[0].point.LSN, s.files[1].point.LSN)
}

// OldestEnds is what retention asks for.
func (s *memStore) OldestEnds() map[string]int64 {
	if s.files[0] == nil || s.files[1] == nil {
		return nil
	}
	return maps.Clone(s.files[1-s.newest].point.Ends)
}

func (s *memStore) Get(key []byte) ([]byte, bool, error) {
	v, ok := s.current().values[string(key)]
	return []byte(v), ok, nil
}

func (s *memStore) Range(prefix []byte, fn func(key, value []byte) bool) error {
	values := s.current().values
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if strings.HasPrefix(k, string(prefix)) && !fn([]byte(k), []byte(values[k])) {
			return nil
		}
	}
	return nil
}

func (s *memStore) UsedBytes() int64 { return 64 << 10 }

func (s *memStore) Close() error { return nil }

// Checkpoint writes the older file. When the machine stops there it is written or not, or in part, without the point: it
// takes several transactions of which the last has the point.
func (s *memStore) Checkpoint(changes []state.Change, p state.Point) error {
	last := s.begin()
	next := &memState{number: s.current().number + 1, point: p, values: maps.Clone(s.current().values)}
	next.point.Ends = maps.Clone(p.Ends)
	if next.values == nil {
		next.values = map[string]string{}
	}
	for _, c := range changes {
		if c.Delete {
			delete(next.values, string(c.Key))
		} else {
			next.values[string(c.Key)] = string(c.Value)
		}
	}
	target := 0
	if s.newest >= 0 {
		target = 1 - s.newest
	}
	if last {
		switch s.rng.IntN(3) {
		case 0:
			s.stop()
		case 1:
			s.update(s.files[target], next)
			s.stop()
		}
	}
	s.files[target], s.newest = next, target
	if last {
		s.stop()
	}
	return nil
}

// update makes some of the changes that lead to next.
func (s *memStore) update(f, next *memState) {
	if f == nil {
		return // it is being made anew under another name
	}
	keys := map[string]bool{}
	for k := range f.values {
		keys[k] = true
	}
	for k := range next.values {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if s.rng.IntN(2) == 0 {
			continue
		}
		if v, ok := next.values[k]; ok {
			f.values[k] = v
		} else {
			delete(f.values, k)
		}
	}
}

// lose takes one of two files away.
func (s *memStore) lose() {
	if s.files[0] == nil || s.files[1] == nil {
		return
	}
	i := s.rng.IntN(2)
	s.files[i], s.newest = nil, 1-i
}
