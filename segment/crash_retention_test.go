package segment

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/journal"
)

// crashOwners are those who may have cursors. Of a topic some follow, or none.
var crashOwners = []string{"m", "n"}

// crashRetention is what a seed wants evicted, and what the driver knows about it.
type crashRetention struct {
	topics    map[string]TopicOptions // as they are made
	followers map[string][]string     // by topic
	divisor   int64                   // of RetentionBytes: as small as these topics are, no options may have it
	worth     int64                   // of pass; 0: as a broker has it
	tight     bool                    // the budget is small

	given   map[string]int64 // when a record was given, by its value
	cursors map[string]int64 // as last given, by key
	forget  map[string]Gap   // that is just being taken out of the state, by partition
}

// planRetention makes up topics, and with some seeds a disk on which there is hardly any room for segments.
func (d *crashDriver) planRetention() {
	r := &d.retention
	*r = crashRetention{
		topics: map[string]TopicOptions{}, followers: map[string][]string{}, given: map[string]int64{},
		divisor: 16 << d.rng.IntN(4), tight: d.chance(3),
	}
	names, partitions := 4, int32(3)
	if r.tight {
		names, partitions = 2, 2
	}
	for i := range names {
		o := TopicOptions{Name: string(rune('p' + i)), Partitions: 1 + d.rng.Int32N(partitions), SegmentBytes: 64 << 10}
		if d.chance(2) {
			o.RetentionBytes = int64(o.Partitions) * 128 << 10
		}
		if d.chance(3) {
			o.RetentionAge = time.Duration(1+d.rng.IntN(100)) * time.Second
		}
		o.Priority = Priority(d.rng.IntN(len(priorityNames)))
		if d.chance(3) {
			o.OnFull = Reject
		}
		r.topics[o.Name] = o
		r.followers[o.Name] = crashOwners[:d.rng.IntN(3)]
	}
	d.o.Followers = func(topic string) []string { return r.followers[topic] }
	if d.chance(2) {
		r.worth = 1 + d.rng.Int64N(8<<10)
	}
	if r.tight {
		d.fillDisk()
	}
}

// fillDisk puts a file into the data directory that leaves a few KiB of the budget for segments: before the oldest of them
// are evicted, or before records are refused.
func (d *crashDriver) fillDisk() {
	d.o.BudgetBytes = 1500 << 10
	plan, err := d.o.Plan(0)
	d.mustNot(err)
	limit := plan.SoftBytes
	if d.chance(3) {
		limit = plan.LimitBytes
	}
	ballast := limit - journal.Files*plan.JournalBytes - d.store.UsedBytes() - d.rng.Int64N(24<<10)
	d.mustNot(d.mem.MkdirAll(d.o.Dir, 0o755))
	f, err := d.mem.OpenFile(filepath.Join(d.o.Dir, "ballast"), os.O_RDWR|os.O_CREATE, 0o644)
	d.mustNot(err)
	d.mustNot(f.Truncate(ballast))
	d.mustNot(f.Sync())
	d.mustNot(f.Close())
	d.mustNot(d.mem.SyncDir(d.o.Dir))
	d.mustNot(d.mem.SyncDir("/"))
}

// read is the clock of the machine.
func (d *crashDriver) read() reading {
	return reading{wall: 1_800_000_000_000 + d.clock, mono: d.clock, synced: true}
}

// stamp is what a record taken now gets.
func (d *crashDriver) stamp() int64 {
	d.log.mu.Lock()
	defer d.log.mu.Unlock()
	return d.writers[0].w.Stamp(time.Time{})
}

// refused says whether there is no room for what a writer wants. Anything else is wrong.
func (d *crashDriver) refused(err error) bool {
	if errors.Is(err, ErrFull) {
		d.note("  refused: %v", err)
		if !d.retention.tight && !strings.Contains(err.Error(), "retention.bytes") {
			d.fail("refused with room for all: %v", err)
		}
		return true
	}
	d.mustNot(err)
	return false
}

// tuneTopics makes the topics keep less than options allow.
func (d *crashDriver) tuneTopics() {
	for _, t := range d.log.Topics() {
		o := *t.options.Load()
		o.RetentionBytes = d.retention.topics[t.name].RetentionBytes / d.retention.divisor
		t.options.Store(&o)
		d.log.checkTopic(t)
	}
}

// retain is a turn of retention: some passes.
func (d *crashDriver) retain() {
	if d.chance(4) {
		d.clock += d.rng.Int64N(100_000)
	}
	for range 1 + d.rng.IntN(6) {
		if !d.makeRoom() || !d.retainOnce() {
			break
		}
	}
	d.checkReserve()
	d.checkBudget()
}

func (d *crashDriver) retainOnce() (more bool) {
	if d.plant == olderStateLacks {
		for _, p := range d.log.allPartitions() {
			p.covered.both.Store(p.covered.newer.Load())
		}
	}
	d.note("retain")
	l := d.log
	d.during(retaining, func() {
		var err error
		if worth := d.retention.worth; worth > 0 {
			l.checkSpace()
			s := l.newPass()
			s.worth = worth
			more, err = l.makePass(s)
		} else {
			more, err = l.retainOnce()
		}
		d.mustNot(err)
	})
	return more
}

// retainMeanwhile is retain while a checkpoint is just going to store state, unless retention would wait for one.
func (d *crashDriver) retainMeanwhile() {
	if len(d.under) != 1 || !d.commitFits(2<<10) {
		return
	}
	s := d.log.newPass()
	d.mustNot(s.plan())
	if len(s.victims) > 0 && d.makeRoom() {
		d.note("  meanwhile")
		d.retainOnce()
	}
}

// besideRetention does what others may do while retention is at a file operation: most of these are done with the locks of a
// partition's segments.
func (d *crashDriver) besideRetention(op vfs.Op, name string) {
	if filepath.Base(name) == reserveName {
		return
	}
	writable := op == vfs.OpRemove || op == vfs.OpSync || op == vfs.OpSyncDir
	d.during(dropping, func() {
		switch n := d.rng.IntN(100); {
		case n < 20:
			d.write(d.writers[d.rng.IntN(len(d.writers))])
		case n < 30:
			d.writeWithTicket()
		case n < 40:
			d.putLazy()
		case n < 60 && writable:
			d.appendSome()
		case n < 80 && d.commitFits(0):
			d.commit()
		case n >= 80 && op == vfs.OpRemove && !d.isUnder(checkpointing):
			if p := d.log.partitionNamed(filepath.Base(filepath.Dir(name))); p != nil && p.chain.SyncedOffset() >= p.next {
				d.finishCheckpoint()
			}
		}
	})
}

// retentionWaits does what retention waits for: a commit, or a checkpoint.
func (d *crashDriver) retentionWaits() {
	l := d.log
	asked := l.rollWanted
	if d.plant == unlinkEarly {
		for name, start := range startsIn(l.active) {
			if p := l.partitionNamed(name); p.StartOffset() < start {
				d.mustNot(p.chain.Drop(start))
			}
		}
	}
	d.commit()
	if asked && !d.isUnder(checkpointing) {
		d.finishCheckpoint()
	}
}

// forgetGap has a gap taken out of the state, as when the followers have been told.
func (d *crashDriver) forgetGap() {
	p := d.partition()
	gaps, err := d.log.Gaps(p)
	d.mustNot(err)
	if len(gaps) == 0 || !d.makeRoom() {
		return
	}
	g := gaps[d.rng.IntN(len(gaps))]
	d.note("forget the gap %d to %d of %s", g.First, g.Last, p)
	d.retention.forget = map[string]Gap{p.String(): g}
	d.during(retaining, func() { d.mustNot(d.log.ForgetGap(p, g)) })
}

// startsIn are the starts that a group makes durable, by partition.
func startsIn(g *group) map[string]int64 {
	starts := map[string]int64{}
	_ = journal.EachChange(g.changes, g.count, func(e *journal.Entry) {
		if key, ok := strings.CutPrefix(string(e.Key), startPrefix); ok && e.Kind == journal.KindPut {
			topic, id, _ := strings.Cut(key, "/")
			starts[topic+"-"+id] = int64(binary.BigEndian.Uint64(e.Value))
		}
	})
	return starts
}

// modelStart is the eviction of what lies below an offset.
type modelStart struct{ to, passed int64 }

// takeRetention finds out what retention put into a group, and whether it might.
func (d *crashDriver) takeRetention(g *modelGroup, sealed *group) {
	d.mustNot(journal.EachChange(sealed.changes, sealed.count, func(e *journal.Entry) {
		key := string(e.Key)
		if strings.HasPrefix(key, cursorPrefix) && e.Kind == journal.KindPut {
			g.lazy[key] = max(g.lazy[key], lazyNumber(e.Value))
		}
		if !strings.HasPrefix(key, startPrefix) && !strings.HasPrefix(key, gapPrefix) {
			return
		}
		if g.state[key] = nil; e.Kind == journal.KindPut {
			value := string(e.Value)
			g.state[key] = &value
		}
	}))
	maps.Copy(g.forgets, d.retention.forget)
	d.retention.forget = nil
	starts := startsIn(sealed)
	for _, name := range slices.Sorted(maps.Keys(starts)) {
		s := modelStart{to: starts[name], passed: d.passed(name)}
		d.note("  %s is going to start at %d, passed %d", name, s.to, s.passed)
		g.starts[name] = s
		d.checkEviction(name, s)
	}
}

// passed is where the slowest follower of a partition is, -1 without any.
func (d *crashDriver) passed(name string) int64 {
	p, least := d.log.partitionNamed(name), int64(-1)
	for i, owner := range d.retention.followers[p.topic.name] {
		if offset := d.retention.cursors[string(cursorKey(p, owner))]; i == 0 || offset < least {
			least = offset
		}
	}
	return least
}

// checkEviction says whether a partition may start there.
func (d *crashDriver) checkEviction(name string, s modelStart) {
	m, o := d.model.parts[name], d.retention.topics[d.log.partitionNamed(name).topic.name]
	if s.to <= m.start || s.to > m.next {
		d.fail("%s is to start at %d, it starts at %d and ends at %d", name, s.to, m.start, m.next)
	}
	for _, f := range d.store.files {
		if f == nil || f.point.Ends[name] < s.to {
			d.fail("%s is to start at %d, and a state file doesn't know of it: %+v", name, s.to, f)
		}
	}
	if o.OnFull == Reject && o.RetentionAge == 0 && s.passed < s.to {
		d.fail("%s rejects when it is full, and loses what lies below %d, passed %d", name, s.to, s.passed)
	}
	if o.RetentionBytes == 0 && o.RetentionAge == 0 && !d.retention.tight {
		d.fail("%s is to start at %d for no reason", name, s.to)
	}
	if o.RetentionBytes > 0 || d.retention.tight {
		return
	}
	for _, r := range m.records {
		if age := time.Duration(d.clock-d.retention.given[r.value]) * time.Millisecond; r.offset < s.to && age < o.RetentionAge-time.Second {
			d.fail("%s loses offset %d at the age of %v, it keeps %v", name, r.offset, age, o.RetentionAge)
		}
	}
}

// evicted is the partition without what lies below a start.
func (p *modelPart) evicted(s modelStart) *modelPart {
	q := *p
	q.start = s.to
	i := 0
	for ; i < len(p.records) && p.records[i].offset < s.to; i++ {
		if offset := p.records[i].offset; s.passed >= 0 && offset >= s.passed {
			q.lost = append(q.lost[:len(q.lost):len(q.lost)], offset)
		} else if s.passed >= 0 {
			q.passed = append(q.passed[:len(q.passed):len(q.passed)], offset)
		}
	}
	q.records = p.records[i:]
	return &q
}

func (m *crashModel) applyRetention(g *modelGroup) {
	for name, s := range g.starts {
		m.parts[name] = m.parts[name].evicted(s)
	}
	for name, f := range g.forgets {
		p := m.parts[name]
		p.lost = slices.DeleteFunc(slices.Clone(p.lost), func(offset int64) bool { return offset >= f.First && offset <= f.Last })
	}
}

// checkGaps: the gaps that the model's state has hold just those records that are lost to followers.
func (d *crashDriver) checkGaps(g *modelGroup) {
	for _, name := range slices.Sorted(maps.Keys(d.model.parts)) {
		_, evicted := g.starts[name]
		if _, forgot := g.forgets[name]; evicted || forgot {
			if err := d.model.checkGaps(name); err != nil {
				d.fail("%s: %v", name, err)
			}
		}
	}
}

func (m *crashModel) checkGaps(name string) error {
	topic, id, _ := splitPartition(name)
	p := m.parts[name]
	lost := p.lost
	last := int64(-1)
	for _, g := range m.gaps(fmt.Sprintf("%s%s/%d/", gapPrefix, topic, id)) {
		n := 0
		for n < len(lost) && lost[n] <= g.Last {
			n++
		}
		if g.First <= last || g.Last < g.First || g.Last >= p.start || int64(n) != g.Records || n == 0 || lost[0] < g.First {
			return fmt.Errorf("gap %+v behind offset %d, with the start at %d, and lost are %d", g, last, p.start, lost[:n])
		}
		if i, _ := slices.BinarySearch(p.passed, g.First); g.Reason != Several && i < len(p.passed) && p.passed[i] <= g.Last {
			return fmt.Errorf("gap %+v holds offset %d, which all followers have", g, p.passed[i])
		}
		lost, last = lost[n:], g.Last
	}
	if len(lost) > 0 {
		return fmt.Errorf("offsets %d are lost to followers, and in no gap", lost)
	}
	return nil
}

func (m *crashModel) gaps(prefix string) (list []Gap) {
	for k, v := range m.state {
		if strings.HasPrefix(k, prefix) {
			g, err := decodeGap([]byte(k), []byte(v))
			if err != nil {
				panic(crashFailure{err.Error()})
			}
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b Gap) int { return cmp.Compare(a.First, b.First) })
	return list
}

// checkRetention: after a recovery what was evicted is gone, what is there is counted, and nothing was lost in silence.
func (d *crashDriver) checkRetention() {
	d.retention.cursors, d.retention.forget = map[string]int64{}, nil
	gaps := 0
	for _, p := range d.log.allPartitions() {
		m, start := d.model.parts[p.String()], p.StartOffset()
		if start > p.chain.SyncedOffset() {
			d.fail("%s starts at %d and is synced up to %d", p, start, p.chain.SyncedOffset())
		}
		if _, err := p.Read(nil, start-1, 1); start > 0 && !errors.Is(err, ErrOffsetOutOfRange) {
			d.fail("%s starts at %d, and below that there is something: %v", p, start, err)
		}
		for i, owner := range crashOwners {
			offset, _, ok, err := d.log.Cursor(p, owner)
			d.mustNot(err)
			if ok {
				d.retention.cursors[string(cursorKey(p, owner))] = offset
			}
			if n := len(m.passed); i < len(d.retention.followers[p.topic.name]) && n > 0 && m.passed[n-1] >= offset {
				d.fail("%s: offset %d was evicted as one that %s has, whose cursor is %d", p, m.passed[n-1], owner, offset)
			}
		}
		list, err := d.log.Gaps(p)
		d.mustNot(err)
		gaps += len(list)
		o, want := *p.topic.options.Load(), d.retention.topics[p.topic.name]
		if o.Compression = want.Compression; o != want {
			d.fail("%s has %+v, want %+v", p.topic.name, o, want)
		}
	}
	if n := d.log.retention.gaps.Load(); n != int64(gaps) {
		d.fail("%d gaps are counted, there are %d", n, gaps)
	}
	exact := d.chance(4)
	if exact { // index entries that wait in memory are counted
		for _, p := range d.log.allPartitions() {
			d.mustNot(p.chain.Sync())
		}
	}
	segments, counted := d.bytesIn(topicsDir(d.o.Dir)), d.log.used.Load()
	if counted < segments || exact && counted > segments {
		d.fail("%d bytes of segments are counted, the files have %d", counted, segments)
	}
	d.checkReserve()
	d.checkBudget()
}

// checkReserve: it has its size, or records are refused.
func (d *crashDriver) checkReserve() {
	l := d.log
	held, size := l.reserve.held.Load(), int64(0)
	if info, err := d.mem.Stat(filepath.Join(d.o.Dir, reserveName)); err == nil {
		size = info.Size()
	}
	if size != held || held != l.plan.ReserveBytes && l.causes[causeReserve] == nil {
		d.fail("the reserve has %d bytes, %d are held, %d are wanted: %v", size, held, l.plan.ReserveBytes, l.refused)
	}
}

// checkBudget: all files together stay within it.
func (d *crashDriver) checkBudget() {
	if used := d.bytesIn(d.o.Dir) + d.store.UsedBytes(); used > d.log.plan.BudgetBytes {
		d.fail("%d bytes are used of a budget of %d, counted are %d", used, d.log.plan.BudgetBytes, d.log.UsedBytes())
	}
}

// bytesIn is the size of all files in a directory.
func (d *crashDriver) bytesIn(dir string) (n int64) {
	entries, err := d.mem.ReadDir(dir)
	d.mustNot(err)
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); e.IsDir() {
			n += d.bytesIn(path)
		} else {
			info, err := d.mem.Stat(path)
			d.mustNot(err)
			n += info.Size()
		}
	}
	return n
}
