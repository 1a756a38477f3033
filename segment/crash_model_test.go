package segment

import (
	"fmt"
	"maps"
	"slices"
)

// crashModel is what a log must hold: everything that was acknowledged, and nothing else.
type crashModel struct {
	topics map[string]modelTopic
	parts  map[string]*modelPart // by <topic>-<partition>
	state  map[string]string     // under "s/"
	// Values that need not be durable: of each key the number of the last one that a group made durable, and of the last one
	// that was given at all. Numbers rise.
	lazyDurable, lazyGiven map[string]uint64
	lazyPut                map[string]map[uint64]bool // those that were put, not lazily: durable with their group only
}

type modelTopic struct {
	id         uint32 // 0: not known yet
	partitions int32
}

type modelPart struct {
	start   int64         // durable
	records []modelRecord // from start on
	next    int64
	cursors []int64 // all that were ever given

	// Offsets of evicted records: those that some follower had not passed and nobody has been told of yet, and those that
	// all had passed.
	lost, passed []int64
}

type modelRecord struct {
	offset int64
	value  string
}

// modelGroup is a commit group on its way.
type modelGroup struct {
	records map[string][]string // by partition, in order
	parts   map[string]*Partition
	state   map[string]*string // nil: deleted
	lazy    map[string]uint64
	topics  map[string]modelTopic
	starts  map[string]modelStart // of evictions, by partition
	forgets map[string]Gap        // by partition
	tickets []modelTicket
	members map[*crashWriter]bool
	seq     uint64
	seen    bool // somebody was told that it is durable, or could see it
}

type modelTicket struct {
	Ticket
	part  string // empty: of a state change
	index int    // among the records of the partition
}

func newCrashModel() *crashModel {
	return &crashModel{
		topics: map[string]modelTopic{}, parts: map[string]*modelPart{}, state: map[string]string{},
		lazyDurable: map[string]uint64{}, lazyGiven: map[string]uint64{}, lazyPut: map[string]map[uint64]bool{},
	}
}

func newModelGroup() *modelGroup {
	return &modelGroup{
		records: map[string][]string{}, parts: map[string]*Partition{}, state: map[string]*string{},
		lazy: map[string]uint64{}, topics: map[string]modelTopic{}, members: map[*crashWriter]bool{},
		starts: map[string]modelStart{}, forgets: map[string]Gap{},
	}
}

// apply makes a group part of what the log must hold.
func (m *crashModel) apply(g *modelGroup) {
	for name, t := range g.topics {
		m.topics[name] = t
		for i := range t.partitions {
			m.parts[partitionName(name, i)] = &modelPart{}
		}
	}
	for name, values := range g.records {
		p := m.parts[name]
		for _, v := range values {
			p.records = append(p.records, modelRecord{p.next, v})
			p.next++
		}
	}
	for k, v := range g.state {
		if v == nil {
			delete(m.state, k)
		} else {
			m.state[k] = *v
		}
	}
	for k, n := range g.lazy {
		m.lazyDurable[k] = n
	}
	m.applyRetention(g)
}

// compare says what a snapshot lacks or has too much, if the log must hold the model, and g if that isn't nil. stored are
// the numbers of the values in the newer state file that need not be durable.
func (m *crashModel) compare(s *snapshot, g *modelGroup, stored map[string]uint64) error {
	if g == nil {
		g = newModelGroup()
	}
	topics := maps.Clone(m.topics)
	maps.Copy(topics, g.topics)
	if err := compareTopics(s.topics, topics); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.parts)) {
		if err := m.comparePart(name, s.parts[name], g); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	state := maps.Clone(m.state)
	for k, v := range g.state {
		if v == nil {
			delete(state, k)
		} else {
			state[k] = *v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(state)) {
		if got, ok := s.state[k]; !ok || got != state[k] {
			return fmt.Errorf("state %s is %.40q (%v), want %.40q", k, got, ok, state[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.state)) {
		if _, ok := state[k]; !ok {
			return fmt.Errorf("state %s is %.40q, want none", k, s.state[k])
		}
	}
	return m.compareLazy(s, g, stored)
}

func compareTopics(got, want map[string]modelTopic) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, g := want[name], got[name]
		if w.id == 0 {
			w.id = g.id
		}
		if g != w || g.id == 0 {
			return fmt.Errorf("topic %s is %+v, want %+v", name, g, w)
		}
	}
	ids := map[uint32]string{}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("topic %s of %d partitions, want none", name, g.partitions)
		}
		if other, ok := ids[g.id]; ok {
			return fmt.Errorf("topics %s and %s have both id %d", name, other, g.id)
		}
		ids[g.id] = name
	}
	return nil
}

// comparePart: the records follow without a hole, but for those that a cursor forced once.
func (m *crashModel) comparePart(name string, s snapshotPart, g *modelGroup) error {
	p, added := m.parts[name], g.records[name]
	if p == nil {
		p = &modelPart{}
	}
	if g, ok := g.starts[name]; ok {
		p = p.evicted(g)
	}
	if s.start < p.start || s.start > s.next {
		return fmt.Errorf("it starts at offset %d, want %d or more, up to %d", s.start, p.start, s.next)
	}
	for i := range max(len(s.records), len(p.records)+len(added)) {
		var want modelRecord
		switch n := i - len(p.records); {
		case n < 0:
			want = p.records[i]
		case n < len(added):
			want = modelRecord{p.next + int64(n), added[n]}
		default:
			return fmt.Errorf("record %.30q at offset %d, which was never acknowledged", s.records[i].value, s.records[i].offset)
		}
		if i >= len(s.records) {
			return fmt.Errorf("it has %d records up to offset %d, want %d: %.30q at offset %d is lost", i, s.next, len(p.records)+len(added), want.value, want.offset)
		}
		if s.records[i] != want {
			return fmt.Errorf("record %d is %.30q at offset %d, want %.30q at %d", i, s.records[i].value, s.records[i].offset, want.value, want.offset)
		}
	}
	// A cursor beyond the end leaves a hole. One that a recovery before this one had read, and could not finish with, may be
	// gone by now, and its hole not.
	end := max(p.next+int64(len(added)), s.cursor)
	if s.next != end && (s.next < end || !slices.Contains(p.cursors, s.next)) {
		return fmt.Errorf("high watermark %d, want %d (cursor %d)", s.next, end, s.cursor)
	}
	return nil
}

// compareLazy: of each key there is the value that was durable at the crash, or one that was given later. stored are the
// numbers in the newer state file.
func (m *crashModel) compareLazy(s *snapshot, g *modelGroup, stored map[string]uint64) error {
	keys := maps.Clone(m.lazyGiven)
	for k := range s.lazy {
		keys[k] = 0
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		least := max(m.lazyDurable[k], g.lazy[k], stored[k])
		n := s.lazy[k]
		if n < least || n > m.lazyGiven[k] {
			return fmt.Errorf("lazy value %s is number %d, want %d to %d (durable %d, in the group %d, stored %d)",
				k, n, least, m.lazyGiven[k], m.lazyDurable[k], g.lazy[k], stored[k])
		}
		if m.lazyPut[k][n] && n != m.lazyDurable[k] && n != g.lazy[k] && n != stored[k] {
			return fmt.Errorf("value %s is number %d, which was put in a group that was not committed", k, n)
		}
	}
	return nil
}
