package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// Severity says how bad a problem is.
type Severity string

// The severities, the gravest first.
const (
	SeverityDamage Severity = "damage" // records or state are lost or can't be read
	SeverityFault  Severity = "fault"  // wrong, and nothing is lost: it can be made anew from what is there
	SeverityNote   Severity = "note"   // normal after a crash, or left over
)

// Fix says what mends a problem.
type Fix int

// The fixes. Those but FixNone and FixStart are Repair's.
const (
	FixNone    Fix = iota // nothing to do
	FixStart              // the next start of the broker
	FixSegment            // writing the segment without what is damaged, with what the journal has of it
	FixIndex              // making the indexes anew
	FixRemove             // removing the file, which nobody reads
)

// Problem is one thing that Check found.
type Problem struct {
	Severity Severity
	Kind     string // one word, for programs: batch, tail, superseded, hole, missing, index, timeindex, leftover, file, …
	Path     string
	// Position is that of the first bad byte in the file, -1 where there is none to name; Bytes how many are bad.
	Position, Bytes int64
	// From and To are the offsets in question, To exclusive; From is -1 where there are none, To where it is unknown.
	From, To int64
	// What is wrong and Remedy are sentences for an operator.
	What, Remedy string
	Fix          Fix
}

// CheckOptions say what Check holds a partition's directory against.
type CheckOptions struct {
	FS  vfs.FS
	Dir string
	// End is the partition's end offset in the recovery point: all below it was synced into segments. NoRecoveryPoint if
	// there is none.
	End int64
	// Start is the log start offset, 0 if there is none: what lies below is nobody's any more.
	Start int64
	// Journal is what the journal holds of the partition.
	Journal Ranges
}

// Checked counts what Check has read.
type Checked struct {
	Files, Segments         int
	Bytes, Batches, Records int64
	// Start is the first offset that the segments hold, Next the offset behind the last: 0 and 0 without any.
	Start, Next int64
}

// maxProblems is how many damaged stretches of one segment are reported one by one.
const maxProblems = 1000

// Check reads all of a partition's directory and reports what is wrong, in order of the offsets. It changes nothing. A
// directory that isn't there has no segments. It holds some KiB, however large the directory is.
//
// Beside a broker that is writing, what Check finds may be something half done: look again. The error is of listing
// the directory.
func Check(o CheckOptions, report func(Problem)) (Checked, error) {
	c := checker{o: o, report: report, end: o.effectiveEnd()}
	err := c.run()
	return c.checked, err
}

// effectiveEnd is where what was synced ends: without a recovery point, where the journal begins, or never.
func (o *CheckOptions) effectiveEnd() int64 {
	switch {
	case o.End >= 0:
		return o.End
	case len(o.Journal) > 0:
		return o.Journal[0].From
	}
	return math.MaxInt64
}

type checker struct {
	o       CheckOptions
	report  func(Problem)
	end     int64 // all below was synced; math.MaxInt64: unknown
	checked Checked
	next    int64   // offset behind the segments so far
	good    int64   // position behind the last good batch of the segment in hand
	orphans []int64 // bases of indexes with entries whose log is gone, in order

	stretches int     // of the segment in hand
	more      Problem // those beyond maxProblems, in one
}

func (c *checker) run() error {
	found, err := c.o.FS.ReadDir(c.o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("check segments: %w", err)
	}
	var list []SegmentInfo
	if err == nil {
		if list, err = List(c.o.FS, c.o.Dir); err != nil {
			return err
		}
	}
	c.next = max(c.o.Start, 0)
	c.findOrphans(found, list)
	for i, seg := range list {
		limit := int64(math.MaxInt64)
		if i+1 < len(list) {
			limit = list[i+1].Base
		}
		if i == 0 {
			c.checked.Start = seg.Base
			c.hole(c.next, seg.Base, seg.Path)
		}
		c.segment(seg, limit)
	}
	c.checked.Next = c.next
	if len(list) == 0 {
		c.checked.Next = 0
		c.missing(Problem{Kind: "missing", Path: c.o.Dir, Position: -1, What: "there is no segment"}, c.next, c.known(), false)
	}
	c.leftovers(found, list)
	return nil
}

// known is the offset behind everything that recovery point and journal tell of.
func (c *checker) known() int64 { return max(c.o.End, c.o.Journal.End()) }

// segment checks one segment up to where the next one begins.
func (c *checker) segment(seg SegmentInfo, limit int64) {
	c.checked.Segments++
	if limit <= c.o.Start {
		c.report(Problem{
			Severity: SeverityNote, Kind: "below-start", Path: seg.Path, Position: -1, From: seg.Base, To: limit,
			What: "lies below the log start: it was to be removed", Remedy: "the next start of the broker removes it", Fix: FixStart,
		})
		return
	}
	c.stretches, c.more = 0, Problem{}
	x := newIndexCheck(seg.Base, c.end)
	closeIndexes := c.openIndexes(seg, x) // before the log: a broker writes an entry after its batch
	defer closeIndexes()
	log, size, err := openSized(c.o.FS, seg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return // removed since, by the broker that owns the directory
	}
	if err != nil {
		c.unreadable(seg, limit, err)
		return
	}
	defer log.Close()
	c.checked.Files++
	c.checked.Bytes += size
	var tail *stretch
	w, err := walk(log, size, seg.Base, limit, func(b record.Batch, at int64) error {
		c.checked.Batches++
		c.checked.Records += int64(b.Count())
		x.batch(b, at)
		return nil
	}, func(s stretch) error {
		x.skip(s)
		if limit == math.MaxInt64 && !s.resumed {
			tail = &s
			return nil
		}
		c.stretch(log, seg, s, limit)
		return nil
	})
	if c.more.What != "" {
		c.report(c.more)
	}
	if err != nil {
		c.unreadable(seg, limit, err)
		return
	}
	known := x.finish(size, w.next, limit != math.MaxInt64)
	c.next, c.good = w.next, w.position
	if tail != nil {
		c.tail(log, seg, *tail)
	}
	c.behind(seg, w, size, limit, known, tail != nil)
	c.indexes(seg, x, w, size, limit)
}

func (c *checker) unreadable(seg SegmentInfo, limit int64, err error) {
	to := limit
	if limit == math.MaxInt64 {
		to = max(c.known(), seg.Base)
	}
	c.report(Problem{
		Severity: SeverityDamage, Kind: "file", Path: seg.Path, Position: 0, Bytes: seg.Bytes, From: seg.Base, To: to,
		What: fmt.Sprintf("can't be read: %v", err), Remedy: "give this user the right to read it, or see what the system's log says of the disk",
	})
	c.next = seg.Base
}

// stretch reports a damaged stretch.
func (c *checker) stretch(log vfs.File, seg SegmentInfo, s stretch, limit int64) {
	if b := mend(log, s, min(limit, c.end)); b != nil && s.from < c.end {
		c.mendable(seg, s, b)
		return
	}
	p := Problem{Kind: "batch", Path: seg.Path, Position: s.position, Bytes: s.end - s.position, What: s.cause.Error(), Fix: FixSegment}
	if s.from == s.to {
		p.Severity, p.From, p.To = SeverityFault, s.from, s.to
		p.What += "; no offset is missing"
		p.Remedy = remedyAside
		c.add(p)
		return
	}
	c.missing(p, s.from, s.to, false)
}

func (c *checker) mendable(seg SegmentInfo, s stretch, b record.Batch) {
	c.add(Problem{
		Severity: SeverityFault, Kind: "batch", Path: seg.Path, Position: s.position, Bytes: s.end - s.position, From: b.BaseOffset(), To: b.NextOffset(),
		What:   s.cause.Error() + "; only its header is wrong: the checksum is right",
		Remedy: "run sluice repair: it corrects the header", Fix: FixSegment,
	})
}

// tail reports bytes behind the last good batch of the log.
func (c *checker) tail(log vfs.File, seg SegmentInfo, s stretch) {
	if b := mend(log, s, c.end); b != nil {
		c.mendable(seg, s, b)
		c.next = b.NextOffset()
		return
	}
	p := Problem{Kind: "tail", Path: seg.Path, Position: s.position, Bytes: s.end - s.position, What: s.cause.Error()}
	switch {
	case c.end == math.MaxInt64:
		p.Severity, p.From, p.To, p.Fix = SeverityDamage, s.from, -1, FixSegment
		p.What += "; no recovery point tells whether it was whole once"
		p.Remedy = remedyAside
		c.add(p)
	case s.from >= c.end:
		p.Severity, p.From, p.To, p.Fix = SeverityNote, s.from, -1, FixStart
		p.What = "torn tail: " + p.What
		p.Remedy = remedyStart
		c.add(p)
	default:
		p.Kind, p.Fix = "batch", FixSegment
		c.missing(p, s.from, c.end, false)
		c.next = c.end
	}
}

const (
	remedyNone    = "nothing needs to be done"
	remedyStart   = "the next start of the broker cuts it off; the journal has what was acknowledged"
	remedyReplay  = "the next start of the broker brings them in"
	remedyJournal = "run sluice repair before the broker starts: it brings them back from the journal"
	remedyAside   = "run sluice repair: it keeps the bad bytes in a file beside and goes on behind them"
)

// behind reports what lies between the segment's good end and the next one, or what is known of the log's end.
func (c *checker) behind(seg SegmentInfo, w walked, size, limit, known int64, torn bool) {
	if w.rest > 0 {
		c.report(Problem{
			Severity: SeverityNote, Kind: "superseded", Path: seg.Path, Position: size - w.rest, Bytes: w.rest, From: -1, To: -1,
			What: "bytes behind the end: the next segment has taken their place", Remedy: remedyNone,
		})
	}
	if limit == math.MaxInt64 {
		p := Problem{Kind: "missing", Path: seg.Path, Position: size, What: "the log ends here"}
		c.missing(p, c.next, c.known(), false)
		return
	}
	if c.next >= limit || w.position+w.rest < size {
		return // nothing is missing, or a stretch has been reported
	}
	if known > c.next && known <= limit {
		p := Problem{Kind: "batch", Path: seg.Path, Position: size, What: "the log ends here, its indexes know of more"}
		c.missing(p, c.next, limit, false)
		return
	}
	c.hole(c.next, limit, seg.Path)
}

// findOrphans lists the segments of which only an index is left.
func (c *checker) findOrphans(found []fs.DirEntry, list []SegmentInfo) {
	for _, f := range found {
		base, suffix, ok := parseName(f.Name())
		if !ok || suffix == logSuffix || f.IsDir() || slices.ContainsFunc(list, func(s SegmentInfo) bool { return s.Base == base }) {
			continue
		}
		if info, err := f.Info(); err == nil && info.Size() > 0 && !slices.Contains(c.orphans, base) {
			c.orphans = append(c.orphans, base) // ReadDir sorts
		}
	}
}

// hole reports offsets between two segments, which is how offsets are left out that must not be given again.
func (c *checker) hole(from, to int64, path string) {
	for _, base := range c.orphans {
		if from <= base && base < to {
			c.hole(from, base, path)
			lost := stem(c.o.Dir, base) + logSuffix
			c.missing(Problem{Kind: "missing", Path: lost, Position: -1, What: "the log is gone, its index is there"}, base, to, false)
			return
		}
	}
	c.missing(Problem{Kind: "hole", Path: path, Position: -1, What: "the segments leave them out"}, from, to, true)
}

// missing reports offsets that the segments don't have, split by who knows what of them. p says where and why.
func (c *checker) missing(p Problem, from, to int64, hole bool) {
	if to <= from {
		return
	}
	what := p.What
	below := min(max(from, c.o.Start), to)
	if p.From, p.To = from, below; from < below {
		p.Severity, p.What, p.Remedy = SeverityNote, what+"; these offsets are below the log start", remedyNone
		c.add(p)
	}
	end := min(max(below, c.end), to)
	for _, part := range []Range{{below, end}, {end, to}} {
		c.o.Journal.Split(part.From, part.To, func(r Range, inJournal bool) {
			q := p
			q.From, q.To = r.From, r.To
			switch {
			case inJournal && r.From >= c.end:
				q.Severity, q.What, q.Remedy, q.Fix = SeverityNote, what+"; the journal has these offsets", remedyReplay, FixStart
				if p.Kind == "missing" {
					q.Kind = "journal-only"
				}
			case inJournal:
				q.Severity, q.What, q.Remedy, q.Fix = SeverityFault, what+"; only the journal has these offsets", remedyJournal, FixSegment
			case hole:
				q.Severity, q.What, q.Remedy, q.Fix = SeverityNote, "no record has these offsets: "+what, remedyNone, FixNone
			default:
				q.Severity, q.What, q.Remedy, q.Fix = SeverityDamage, what+"; these records are lost", remedyAside, FixSegment
				if p.Kind == "missing" {
					q.Remedy, q.Fix = "run sluice repair, or start the broker: it goes on behind them", FixStart
				}
			}
			c.add(q)
		})
	}
}

// add reports a problem of the segment in hand, or counts it if there are too many.
func (c *checker) add(p Problem) {
	if c.stretches++; c.stretches <= maxProblems {
		c.report(p)
		return
	}
	if c.more.What == "" {
		c.more = p
	}
	n := c.stretches - maxProblems
	if p.Severity == SeverityDamage || c.more.Severity == SeverityNote {
		c.more.Severity, c.more.Remedy, c.more.Fix = p.Severity, p.Remedy, p.Fix
	}
	c.more.What = fmt.Sprintf("%d more like the one before", n)
	c.more.Bytes, c.more.To = p.Position+p.Bytes-c.more.Position, p.To
}

// openIndexes gives x what there is of the segment's indexes.
func (c *checker) openIndexes(seg SegmentInfo, x *indexCheck) (closeAll func()) {
	var opened []vfs.File
	for i, suffix := range []string{indexSuffix, timeSuffix} {
		e := []*entries{&x.offsets, &x.times}[i]
		f, size, err := openSized(c.o.FS, stem(c.o.Dir, seg.Base)+suffix)
		if err != nil {
			x.what[i] = "is missing"
			if !errors.Is(err, fs.ErrNotExist) {
				x.what[i] = fmt.Sprintf("can't be opened: %v", err)
			}
			continue
		}
		opened = append(opened, f)
		c.checked.Files++
		c.checked.Bytes += size
		e.r, e.n = f, size/e.width
		if size%e.width != 0 {
			x.what[i], x.where[i] = fmt.Sprintf("has %d bytes, no multiple of %d", size, e.width), e.n
		}
	}
	return func() {
		for _, f := range opened {
			f.Close()
		}
	}
}

// indexes reports what is wrong with them. In the segment that recovery scans, entries for what wasn't synced may be
// anything after a crash.
func (c *checker) indexes(seg SegmentInfo, x *indexCheck, w walked, size, limit int64) {
	for i, e := range []*entries{&x.offsets, &x.times} {
		p := Problem{
			Severity: SeverityFault, Kind: []string{"index", "timeindex"}[i], Path: stem(c.o.Dir, seg.Base) + []string{indexSuffix, timeSuffix}[i],
			Position: x.where[i] * e.width, From: seg.Base, To: c.next, What: x.what[i], Fix: FixIndex,
			Remedy: "run sluice repair: it makes the index anew from the log",
		}
		unsynced := limit > c.end && x.where[i] >= x.due[i]
		switch {
		case p.What == "" && limit != math.MaxInt64 && e.n < x.all[i]:
			p.Severity, p.Position = SeverityNote, e.n*e.width
			p.What = fmt.Sprintf("%d entries, %d would be usual: reading takes longer", e.n, x.all[i])
		case p.What == "":
			continue
		case w.rest > 0 && x.beyond[i]:
			p.Severity = SeverityNote // entries for what the next segment has superseded
		case size == 0 && limit > c.end || unsynced && (e.r != nil || seg.Base >= c.end):
			p.Severity, p.Fix, p.Remedy = SeverityNote, FixStart, "the next start of the broker makes it anew"
		}
		c.report(p)
	}
}

// leftovers reports what else is in the directory.
func (c *checker) leftovers(found []fs.DirEntry, list []SegmentInfo) {
	logs := make(map[int64]bool, len(list))
	for _, s := range list {
		logs[s.Base] = true
	}
	for _, f := range found {
		base, suffix, ok := parseName(f.Name())
		if ok && !f.IsDir() && (suffix == logSuffix || logs[base]) {
			continue
		}
		p := Problem{Severity: SeverityNote, Kind: "leftover", Path: filepath.Join(c.o.Dir, f.Name()), Position: -1, From: -1, To: -1, Remedy: remedyNone}
		info, err := f.Info()
		if err == nil {
			p.Bytes = info.Size()
		}
		switch {
		case ok && !f.IsDir():
			c.orphan(&p, base, list)
		case ok:
			p.Kind, p.What = "file", "is a directory, where a file of a segment should be"
		case IsSetAside(f.Name()):
			p.Kind, p.What = "set-aside", fmt.Sprintf("%d bytes that a recovery or repair set aside", p.Bytes)
			p.Remedy = "look at it or delete it: sluice repair --remove-set-aside"
		case strings.HasSuffix(f.Name(), newSuffix):
			p.What, p.Fix, p.Remedy = "was being written when the power failed", FixRemove, "sluice repair removes it"
		default:
			p.Kind, p.What = "unknown-file", "is not the broker's"
		}
		c.report(p)
	}
}

// orphan judges an index without a log.
func (c *checker) orphan(p *Problem, base int64, list []SegmentInfo) {
	p.What, p.Fix, p.Remedy = "is an index without a log", FixRemove, "sluice repair removes it"
	if p.Bytes > 0 && base >= c.o.Start && len(list) > 0 && base > list[0].Base {
		p.Severity, p.From, p.To = SeverityFault, base, -1
	}
}

// IsSetAside says whether the name is that of a file with bytes that recovery or repair took out of the log.
func IsSetAside(name string) bool {
	return strings.Contains(name, logSuffix+asideSuffix) || strings.Contains(name, logSuffix+damagedInfix)
}
