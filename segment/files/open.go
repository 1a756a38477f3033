package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// NoRecoveryPoint is the end for Open when there is no recovery point and no journal for the partition.
const NoRecoveryPoint = int64(-1)

// Recovery is what Open found and did.
type Recovery struct {
	// Scanned is how many bytes of log were read, Cut how many bytes of torn tail were cut off.
	Scanned, Cut int64
	// Damaged is what is wrong and can't be a crash's doing.
	Damaged []Damage
	// Holes are offsets that no segment has, between good ones: a file is missing, or they were left out on purpose.
	Holes []Damage
	// SetAside names the segments taken out of the chain, by the new path of the log file.
	SetAside []string
	// Missing are segments whose log is gone, as the index shows that it left. One below the start offset was dropped, and
	// is not reported here unless Options.Start lagged behind.
	Missing []Damage
	// RebuiltIndexes names the log files whose indexes were missing or wrong and were made anew.
	RebuiltIndexes []string
}

// Damage is a stretch of a log file that readers won't get.
type Damage struct {
	// Path is the log file, Position and Bytes the bad stretch in it.
	Path            string
	Position, Bytes int64
	// From and To bound the offsets lost to readers, From inclusive. The journal may bring them back.
	From, To int64
	// SideFile is the file that has the bytes now, "" if they are still where they were.
	SideFile string
	// Cause is what is wrong.
	Cause error
}

// Open opens the chain of segments in o.Dir, making the directory if need be.
//
// end is the partition's end offset in the recovery point: everything below it was synced, and is trusted without a
// look. From there on batches are kept as far as they follow each other and are valid. The rest is cut off, and segments
// that begin beyond are set aside, for the journal to append again: it must reach back to end. Valid batches after a
// bad one are damage, not a torn tail; the cut part is kept in a side file then.
//
// A topic made since the recovery point has end 0: the journal has all of it. Without a recovery point end is the first
// offset that the journal has of the partition. NoRecoveryPoint is for when it has none: all is scanned and everything
// valid is kept, with whatever damage and holes between, which no journal could fill any more.
//
// NextOffset is then what the files hold, below end if something was lost. What was scanned counts as synced only
// after the next Sync: a predecessor may have left it in the page cache.
//
// What lies below Options.Start is neither missed nor reported, and whole segments there are removed. A log that the
// disk doesn't give is damage of its own offsets: it stays where it is, and the chain goes on at end. If a segment can't
// be synced the chain is opened poisoned, as if its first Sync had failed. An error of Open means that the directory
// can't be listed or that nothing can be written there; bad content is never one.
func Open(o Options, end int64) (*Chain, Recovery, error) {
	o.setDefaults()
	c := &Chain{o: o, handles: o.Handles, dirDirty: true, start: max(o.Start, 0)}
	if c.handles == nil {
		c.handles, c.ownCache = NewHandles(DefaultHandles), true
	}
	r := recoverer{c: c, end: end}
	if err := r.run(); err != nil {
		c.Close()
		return nil, r.report, fmt.Errorf("open segments in %s: %w", o.Dir, err)
	}
	r.raiseToStart()
	return c, r.report, nil
}

// raiseToStart makes the chain begin at the start that the state knows, if the files end before, and forgets what was to be
// reported from below.
func (r *recoverer) raiseToStart() {
	c := r.c
	var missed []Damage
	for _, d := range r.report.Damaged {
		if d.From >= c.start || d.To > c.start {
			d.From = max(d.From, c.start)
			missed = append(missed, d)
		}
	}
	r.report.Damaged = missed
	if c.next >= c.start {
		return
	}
	if c.active != nil {
		c.unsynced = append(c.unsynced, r.closeActive())
	}
	c.next, c.synced, c.syncedAt = c.start, c.start, place{}
}

// recoverer is the work of Open. Nobody else has the chain yet, so it takes no locks.
type recoverer struct {
	c        *Chain
	end      int64 // NoRecoveryPoint or what is trusted
	report   Recovery
	names    map[string]bool // in the directory, but for those of segments
	segments []SegmentInfo
	mended   bool // the last segment or its indexes
}

func (r *recoverer) run() error {
	if err := r.c.o.FS.MkdirAll(r.c.o.Dir, 0o750); err != nil {
		return err
	}
	if err := r.list(); err != nil {
		return err
	}
	r.dropBelowStart()
	first := 0
	for i, s := range r.segments {
		if s.Base <= r.end {
			first = i
		}
	}
	if r.end >= 0 && len(r.segments) > 0 && r.segments[0].Base > r.end {
		if err := r.setAside(0); err != nil {
			return err
		}
	}
	for i, s := range r.segments[:first] {
		r.trust(s, r.limit(i))
		if s.err != nil {
			r.report.Damaged = append(r.report.Damaged, Damage{Path: s.Path, From: s.Base, To: r.limit(i), Cause: s.err})
			continue
		}
		r.checkEnd(i)
	}
	for i := first; i < len(r.segments); i++ {
		if err := r.scan(i); err != nil {
			return err
		}
	}
	return r.finish()
}

func (r *recoverer) list() error {
	l, err := list(r.c.o.FS, r.c.o.Dir)
	if err != nil {
		return err
	}
	r.names, r.segments = l.others, l.segments
	for _, s := range l.side {
		r.c.addSide(s)
	}
	for _, s := range l.lost {
		r.noteMissing(s)
		l.left = append(l.left, stem(r.c.o.Dir, s.Base)+timeSuffix, stem(r.c.o.Dir, s.Base)+indexSuffix)
	}
	for _, path := range l.left {
		_ = r.c.o.FS.Remove(path) // else it stays, and does no harm
	}
	return nil
}

// noteMissing tells of a log that must have been there: it began below the recovery point.
func (r *recoverer) noteMissing(s SegmentInfo) {
	d := Damage{Path: stem(r.c.o.Dir, s.Base) + logSuffix, From: max(s.Base, r.c.start), To: r.end, Cause: fs.ErrNotExist}
	for i := len(r.segments) - 1; i >= 0 && r.segments[i].Base > s.Base; i-- {
		d.To = r.segments[i].Base
	}
	if d.From < d.To && (r.end < 0 || s.Base < r.end) {
		r.report.Missing = append(r.report.Missing, d)
	}
}

// dropBelowStart removes the segments that a Drop before the crash had still to remove, or that the crash brought back.
func (r *recoverer) dropBelowStart() {
	c := r.c
	if r.end >= 0 {
		r.end = max(r.end, c.start) // what lies below start is not missed
	}
	for len(r.segments) > 1 && r.segments[1].Base <= c.start {
		c.dropped = append(c.dropped, r.segment(r.segments[0]))
		r.segments = r.segments[1:]
	}
	c.removeDropped(true)
}

func (r *recoverer) segment(info SegmentInfo) *segment {
	seg := r.c.newSegment(info.Base)
	seg.size, seg.entries, seg.timeBytes = info.Bytes, max(info.IndexBytes, 0)/indexEntryBytes, max(info.TimeIndexBytes, 0)
	return seg
}

// trust takes a segment that lies wholly below the recovery point into the chain, and looks at no byte of it unless its
// indexes can't be right.
func (r *recoverer) trust(info SegmentInfo, limit int64) {
	seg := r.segment(info)
	r.c.segments = append(r.c.segments, seg)
	if info.IndexBytes < 0 || info.IndexBytes%indexEntryBytes != 0 || info.TimeIndexBytes < 0 || info.TimeIndexBytes%timeEntryBytes != 0 {
		r.report.RebuiltIndexes = append(r.report.RebuiltIndexes, info.Path)
		if err := r.c.remakeIndexes(seg, limit); err != nil {
			seg.suspect.Store(true) // the log is there and readable without; a later Sync tries again
		}
	}
}

// scan checks segment i from the recovery point on, takes it into the chain as its last, and decides about what
// is bad in it.
func (r *recoverer) scan(i int) error {
	info, limit := r.segments[i], r.limit(i)
	w, err := r.openWriter(info)
	if unreadable(err) {
		return r.passOver(i, err)
	}
	if err != nil {
		return err
	}
	r.close(r.c.active)
	r.c.setActiveLocked(w)
	r.c.segments = append(r.c.segments, w.seg)
	t := r.startTail(w, info)
	r.scanTail(w, t, limit)
	if t.s.expect < limit && r.end >= 0 && i+1 < len(r.segments) {
		if err := r.setAside(i + 1); err != nil {
			return err
		}
		if t.overlaps {
			r.scanTail(w, t, math.MaxInt64)
		}
	}
	r.c.next = t.s.expect
	w.size, w.seg.size, w.seg.maxTime = t.s.position, t.s.position, w.index.maxTime
	w.seg.rest = t.fileSize - t.s.position
	if i+1 < len(r.segments) {
		// What the file has beyond is superseded, or the hole is kept.
		r.noteGap(t, limit)
		if t.bad == nil && t.s.expect < limit {
			r.report.Holes = append(r.report.Holes, Damage{Path: t.path, Position: t.s.position, From: t.s.expect, To: limit, Cause: errHole})
		}
		r.settle(w, true)
		return nil
	}
	if r.c.next < r.end {
		r.noteLoss(info.Path, t.s.position, errors.New("the log ends before the recovery point"))
	}
	return r.dropTail(t)
}

// limit is where the segment behind segment i begins.
func (r *recoverer) limit(i int) int64 {
	if i+1 < len(r.segments) {
		return r.segments[i+1].Base
	}
	return math.MaxInt64
}

// passOver goes on without segment i, which the disk doesn't let us scan. Whatever else it has of the chain stays in use.
func (r *recoverer) passOver(i int, cause error) error {
	info, limit := r.segments[i], r.limit(i)
	if limit < math.MaxInt64 && r.end >= 0 { // what follows it can only be beyond the end
		if err := r.setAside(i + 1); err != nil {
			return err
		}
		limit = math.MaxInt64
	}
	r.close(r.c.active) // settled, since it wasn't the last
	r.c.setActiveLocked(nil)
	if r.end >= 0 && r.end <= info.Base {
		r.c.next = info.Base
		return r.setAside(i) // the journal has all of it
	}
	// It stays, for readers to try, and for another start.
	r.trust(info, limit)
	switch {
	case limit < math.MaxInt64:
	case r.end >= 0:
		limit = r.end
	default:
		limit = r.indexedEnd(info)
	}
	r.c.next, r.c.synced, r.c.syncedAt = limit, limit, place{}
	r.report.Damaged = append(r.report.Damaged, Damage{Path: info.Path, Bytes: info.Bytes, From: info.Base, To: limit, Cause: cause})
	return nil
}

// indexedEnd is behind the last offset that the indexes of an unreadable segment know: offsets must not be given twice.
func (r *recoverer) indexedEnd(info SegmentInfo) int64 {
	end := info.Base + 1
	for _, suffix := range []string{indexSuffix, timeSuffix} {
		f, err := openFile(r.c.o.FS, stem(r.c.o.Dir, info.Base)+suffix, os.O_RDONLY)
		if err != nil {
			continue
		}
		x := indexFile{f, info.Base, make([]byte, timeEntryBytes)}
		last := int64(-1)
		if suffix == indexSuffix && info.IndexBytes >= indexEntryBytes {
			last, _, _ = x.entry(info.IndexBytes/indexEntryBytes - 1)
		} else if suffix == timeSuffix && info.TimeIndexBytes >= timeEntryBytes {
			_, last, _ = x.timeEntry(info.TimeIndexBytes/timeEntryBytes - 1)
		}
		end = max(end, last+1)
		f.Close()
	}
	return end
}

func (r *recoverer) close(w *writer) {
	if w != nil {
		r.c.handles.unpin(w.h)
	}
}

// openWriter opens a segment to be scanned, and noted to be synced: its bytes may come from the page cache of a
// predecessor that was killed.
func (r *recoverer) openWriter(info SegmentInfo) (*writer, error) {
	seg := r.segment(info)
	h := &handle{seg: seg}
	err := info.err
	if err == nil {
		err = h.openForWriting(r.c.o.FS, os.O_CREATE)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	r.c.handles.pin(h)
	return &writer{seg: seg, h: h, index: newIndexer(r.c.o.IndexIntervalBytes), logDirty: true, indexDirty: true, timeDirty: true}, nil
}

// settle writes and syncs what a scanned segment lacks: at once, so that a thousand of them need not stay open. If it
// isn't ok the segment must not be written to, nor synced, again.
//
// A failed sync is final for the file. Where there is a journal, the chain is opened as if the first Sync had failed.
// Where there is none, nothing else can be done about it than to say so.
func (r *recoverer) settle(w *writer, closing bool) (ok bool) {
	c := r.c
	write := c.flushIndexLocked
	if closing {
		write = c.finishIndexLocked
	}
	ok = true
	if err := write(w); err != nil && (closing || !NoSpace(err)) {
		c.giveIndexUpLocked(w)
		ok = false
	}
	err := w.takeDirty().run()
	switch {
	case err == nil:
		return ok
	case r.end >= 0:
		_ = c.poison(fmt.Errorf("sync segment: %w", err))
	default:
		r.report.Damaged = append(r.report.Damaged, Damage{
			Path: w.seg.stem + logSuffix, Position: w.size, From: w.seg.base, To: c.next,
			Cause: fmt.Errorf("readable, but can't be made durable: %w", err),
		})
	}
	return false
}

// finish sets what a Restart before the first Sync would go back to.
func (r *recoverer) finish() error {
	c := r.c
	if len(r.segments) == 0 {
		c.next = max(c.next, c.start)
		c.synced = c.next
		if r.end > c.next {
			r.noteLoss(filepath.Join(c.o.Dir, "*"+logSuffix), 0, fs.ErrNotExist)
		}
	}
	if r.end >= 0 || len(r.segments) == 0 {
		r.rest()
		return nil
	}
	// The journal may not have what was found, so it must not be forgotten: synced now.
	for _, w := range c.unsynced {
		r.settle(w, true)
		r.close(w)
	}
	c.unsynced = nil
	if w := c.active; w != nil && !r.settle(w, false) {
		r.close(w)
		c.setActiveLocked(nil)
	}
	c.syncedAt, c.synced = place{}, c.next
	if w := c.active; w != nil {
		c.syncedAt = place{w.seg, w.size}
	}
	return nil
}

// rest closes the last segment until it is written to, if the recovery point covers all of it and nothing was mended:
// after a clean stop a thousand partitions need no open files.
func (r *recoverer) rest() {
	c, w := r.c, r.c.active
	if w == nil || c.synced != c.next || len(w.seg.pending) > 0 || r.mended {
		return
	}
	w.logDirty, w.indexDirty, w.timeDirty = false, false, false
	c.restLocked()
}

// noteLoss reports that offsets from NextOffset up to the recovery point are gone.
func (r *recoverer) noteLoss(path string, position int64, cause error) {
	r.report.Damaged = append(r.report.Damaged, Damage{Path: path, Position: position, From: r.c.next, To: r.end, Cause: cause})
}

// noteGap reports a bad end of a segment that is kept because others follow.
func (r *recoverer) noteGap(t *tail, limit int64) {
	if t.bad == nil || t.s.expect >= limit {
		return
	}
	r.report.Damaged = append(r.report.Damaged, Damage{
		Path: t.path, Position: t.s.position, Bytes: t.fileSize - t.s.position, From: t.s.expect, To: limit, Cause: t.bad,
	})
}

// setAside takes segments i and following out of the chain. Their logs are renamed last: an index without a log is
// nothing, so a crash in between is harmless.
func (r *recoverer) setAside(i int) error {
	for _, s := range r.segments[i:] {
		path := stem(r.c.o.Dir, s.Base)
		for _, suffix := range []string{timeSuffix, indexSuffix} {
			_ = r.c.o.FS.Remove(path + suffix)
		}
		if s.Bytes == 0 {
			if err := r.c.o.FS.Remove(path + logSuffix); err != nil {
				return err
			}
			continue
		}
		aside := r.free(path + logSuffix + asideSuffix)
		if err := r.c.o.FS.Rename(path+logSuffix, aside); err != nil {
			return err
		}
		r.report.SetAside = append(r.report.SetAside, aside)
		r.c.addSide(sideFile{s.Base, aside, s.Bytes})
	}
	r.segments = r.segments[:i]
	return nil
}

// free is name, or name with a number if that is taken.
func (r *recoverer) free(name string) string {
	try := name
	for i := 1; r.names[filepath.Base(try)]; i++ {
		try = fmt.Sprintf("%s.%d", name, i)
	}
	r.names[filepath.Base(try)] = true
	return try
}
