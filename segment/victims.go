package segment

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/sluicemq/sluice/segment/files"
)

// A pass is one look at everything that might be evicted.
type pass struct {
	l       *Log
	shelves []*shelf
	byTopic map[*Topic][]*shelf
	pending int64 // bytes of what is removed but held by readers, or could not be removed yet
	soft    int64 // bytes beyond which the budget wants something
	worth   int64 // the least bytes for which active segments are closed

	victims   []victim     // to be evicted, oldest first in each partition
	seal      []*Partition // whose active segment would be next
	uncovered []victim     // those that a checkpoint has to come before
	sides     bool         // copies that were set aside are gone
}

// shelf is a partition with what is left of its segments.
type shelf struct {
	p      *Partition
	spans  []files.Span
	passed int64 // all followers have what is below; -1 without followers
}

// victim is a segment to be evicted.
type victim struct {
	p      *Partition
	span   files.Span
	reason Reason
	// from is the lowest offset that goes. The log may start inside a segment: when a crash left one of which all was
	// evicted, and more was written to it before that was known.
	from int64
}

func (l *Log) newPass() *pass {
	s := &pass{l: l, byTopic: map[*Topic][]*shelf{}, soft: l.plan.SoftBytes, worth: l.plan.HeadroomBytes}
	for _, p := range l.sortedPartitions() {
		sh := &shelf{p: p, spans: l.spansOf(p), passed: -1}
		if offset, followed := p.passed.least(p.topic.followers); followed {
			sh.passed = offset
		}
		bytes := p.chain.Bytes() - p.chain.SideBytes()
		for _, span := range sh.spans {
			bytes -= span.Bytes
		}
		s.pending += max(bytes, 0)
		s.shelves = append(s.shelves, sh)
		s.byTopic[p.topic] = append(s.byTopic[p.topic], sh)
	}
	return s
}

// spansOf are the segments that are left to be evicted. What could not be removed yet of those that were evicted is tried
// again.
func (l *Log) spansOf(p *Partition) []files.Span {
	evicted := func(s files.Span) bool { return s.End <= p.start.Load() && s.End > s.Base }
	spans := p.chain.Spans()
	if len(spans) > 0 && evicted(spans[0]) {
		l.dropBelow(p, p.start.Load())
		spans = slices.DeleteFunc(p.chain.Spans(), evicted)
	}
	return spans
}

func (s *pass) full() bool { return len(s.victims) >= evictBatch }

// plan chooses the victims of this pass: by age, by the topics' bounds, by the budget.
func (s *pass) plan() error {
	s.byAge()
	for _, t := range s.l.Topics() {
		if err := s.byBytes(t); err != nil {
			return err
		}
	}
	return s.byBudget()
}

// closed says whether the shelf's first segment is there and not being written.
func (sh *shelf) closed() bool { return len(sh.spans) > 0 && !sh.spans[0].Active }

// open says whether the shelf has nothing but an active segment, with something in it.
func (sh *shelf) open() bool {
	return len(sh.spans) > 0 && sh.spans[0].Active && sh.spans[0].End > sh.spans[0].Base && sh.spans[0].Bytes > 0
}

// mirrored says whether the first segment is with all followers, of which there is one at least.
func (sh *shelf) mirrored() bool { return sh.passed >= sh.spans[0].End }

// times has the times of a segment read. Of one that the disk doesn't give they stay unknown.
func (sh *shelf) times(i int) error {
	span, ok, err := sh.p.chain.SpanAt(sh.spans[i].Base)
	if err != nil {
		return fmt.Errorf("read the times of a segment of %s: %w", sh.p, err)
	}
	if ok && span.Base == sh.spans[i].Base {
		sh.spans[i].MinTime, sh.spans[i].MaxTime = span.MinTime, span.MaxTime
	}
	return nil
}

// newest is the greatest timestamp of the first segment, or, if that can't be told, of the next one of which it can: what is
// older than that is older than it has to be. It is files.NoTime if none can be told.
func (sh *shelf) newest() (int64, error) {
	for i := range sh.spans {
		if err := sh.times(i); err != nil {
			return files.NoTime, err
		}
		if ms := sh.spans[i].MaxTime; ms != files.NoTime {
			return ms, nil
		}
	}
	return files.NoTime, nil
}

// take makes the first segment of the shelf a victim, unless a checkpoint has to come first.
func (s *pass) take(sh *shelf, reason Reason) bool {
	v := victim{sh.p, sh.spans[0], reason, max(sh.spans[0].Base, sh.p.start.Load())}
	if v.span.End > sh.p.covered.both.Load() {
		s.uncovered = append(s.uncovered, v)
		return false
	}
	s.victims = append(s.victims, v)
	sh.spans = sh.spans[1:]
	return true
}

// byAge takes the segments whose newest record is older than its topic keeps it.
func (s *pass) byAge() {
	for _, sh := range s.shelves {
		keep := sh.p.topic.options.Load().RetentionAge
		for keep > 0 && !s.full() && (sh.closed() || sh.open()) {
			newest, err := sh.newest()
			if err != nil {
				s.l.log.Warn("can't judge the age of a segment", "error", err)
				break
			}
			if newest == files.NoTime || s.l.age(newest) < keep {
				break
			}
			if sh.open() {
				s.seal = append(s.seal, sh.p)
				break
			}
			if !s.take(sh, Age) {
				break
			}
		}
	}
}

// byBytes takes the oldest segments of a topic that is larger than it may be. One that rejects gives only what all have.
func (s *pass) byBytes(t *Topic) error {
	o := t.options.Load()
	if o.RetentionBytes == 0 {
		return nil
	}
	limit := o.RetentionBytes
	if o.OnFull == Reject {
		limit = o.softBytes()
	}
	over := t.bytes() - limit
	for _, sh := range s.byTopic[t] {
		left := int64(0)
		for _, span := range sh.spans {
			left += span.Bytes
		}
		over -= sh.p.counted.Load() - left // gone already, or about to
	}
	for over > 0 && !s.full() {
		sh, err := oldest(s.byTopic[t], func(sh *shelf) bool {
			return sh.closed() && (o.OnFull != Reject || sh.mirrored())
		})
		if err != nil {
			return err
		}
		if sh == nil {
			s.sealLarge(t, o)
			return nil
		}
		over -= sh.spans[0].Bytes
		if !s.take(sh, Bytes) {
			return nil
		}
	}
	return nil
}

// sealLarge closes the active segments of a topic if they are what makes it too large.
func (s *pass) sealLarge(t *Topic, o *TopicOptions) {
	for _, sh := range s.byTopic[t] {
		if sh.open() && sh.spans[0].Bytes*4*int64(o.Partitions) >= o.RetentionBytes && (o.OnFull != Reject || sh.mirrored()) {
			s.seal = append(s.seal, sh.p)
		}
	}
}

// oldest is the shelf whose first segment begins with the oldest record, among those that fit. What can't be read goes first.
func oldest(shelves []*shelf, fits func(*shelf) bool) (best *shelf, err error) {
	for _, sh := range shelves {
		if !fits(sh) {
			continue
		}
		if err := sh.times(0); err != nil {
			return nil, err
		}
		if best == nil || sh.spans[0].MinTime < best.spans[0].MinTime {
			best = sh
		}
	}
	return best, nil
}

// class is the place of a shelf's first segment in the order of eviction, the lowest first: what all followers have, then
// the others by priority. It is keep for what must not be evicted.
func (sh *shelf) class() int {
	o := sh.p.topic.options.Load()
	switch {
	case sh.mirrored():
		return 0
	case o.OnFull == Reject:
		return keep
	}
	return 1 + o.Priority.rank()
}

const keep = math.MaxInt

// lowest is the lowest class among the shelves that fit.
func lowest(shelves []*shelf, fits func(*shelf) bool) int {
	class := keep
	for _, sh := range shelves {
		if fits(sh) {
			class = min(class, sh.class())
		}
	}
	return class
}

// byBudget takes what the budget wants, in the order of eviction.
func (s *pass) byBudget() error {
	need := s.l.usedBytes() - s.pending - s.soft
	for _, v := range s.victims {
		need -= v.span.Bytes
	}
	if need > 0 {
		need -= s.removeSides(need)
	}
	for need > 0 && !s.full() {
		class := lowest(s.shelves, (*shelf).closed)
		if class == keep {
			return s.sealForBudget(need)
		}
		sh, err := oldest(s.shelves, func(sh *shelf) bool { return sh.closed() && sh.class() == class })
		if err != nil {
			return err
		}
		need -= sh.spans[0].Bytes
		if !s.take(sh, Budget) {
			return nil
		}
	}
	return nil
}

// sealForBudget closes active segments, in the order of eviction, when nothing else is left. It isn't worth it for a few
// bytes: that would wear the flash out and make room for a moment only.
func (s *pass) sealForBudget(need int64) error {
	total := int64(0)
	for _, sh := range s.shelves {
		if sh.open() && sh.class() != keep {
			total += sh.spans[0].Bytes
		}
	}
	if total < s.worth || len(s.victims) > 0 {
		return nil
	}
	chosen := map[*shelf]bool{}
	fits := func(sh *shelf) bool { return sh.open() && !chosen[sh] }
	for need > 0 {
		class := lowest(s.shelves, fits)
		if class == keep {
			return nil
		}
		sh, err := oldest(s.shelves, func(sh *shelf) bool { return fits(sh) && sh.class() == class })
		if err != nil {
			return err
		}
		chosen[sh] = true
		s.seal = append(s.seal, sh.p)
		need -= sh.spans[0].Bytes
	}
	return nil
}

// removeSides removes copies that were set aside for damage, the oldest first in each place, and says how much that freed.
func (s *pass) removeSides(need int64) (freed int64) {
	l := s.l
	gone := func(path string, bytes int64) {
		l.log.Warn("removed a copy that was set aside for damage: the disk budget is used up", "path", path, "bytes", bytes)
		l.retention.evicted.add("", "set aside", 0, bytes, 0)
		freed += bytes
		s.sides = true
	}
	for len(l.space.asides) > 0 && freed < need {
		a := l.space.asides[0]
		l.space.asides = l.space.asides[1:]
		if err := l.removeAll(a.path); err != nil {
			l.log.Warn("can't remove a copy that was set aside", "path", a.path, "error", err)
			continue
		}
		l.space.others.Add(-a.bytes)
		gone(a.path, a.bytes)
	}
	for _, sh := range s.shelves {
		for freed < need && sh.p.chain.SideBytes() > 0 {
			bytes, path, err := sh.p.chain.RemoveOldestSide()
			if err != nil || path == "" {
				break
			}
			gone(path, bytes)
		}
		if s.sides {
			sh.p.chainMu.Lock()
			l.countLocked(sh.p)
			sh.p.chainMu.Unlock()
		}
	}
	return freed
}

// removeAll removes a file, or a directory with what is in it.
func (l *Log) removeAll(path string) error {
	info, err := l.o.FS.Stat(path)
	if err == nil && info.IsDir() {
		entries, err := l.o.FS.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := l.removeAll(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return l.o.FS.Remove(path)
}
