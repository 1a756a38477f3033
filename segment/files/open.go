package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/sluicemq/sluice/internal/vfs"
)

// NoRecoveryPoint is the end for Open when there is no recovery point and no journal for the partition.
const NoRecoveryPoint = int64(-1)

// Recovery is what Open found and did.
type Recovery struct {
	// Scanned is how many bytes of log were read, Cut how many bytes of torn tail were cut off.
	Scanned, Cut int64
	// Damaged is what is wrong and can't be a crash's doing.
	Damaged []Damage
	// SetAside names the segments taken out of the chain, by the new path of the log file.
	SetAside []string
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
// after the next Sync: a predecessor may have left it in the page cache. An error of Open means that the
// directory can't be used now; bad content is never one.
func Open(o Options, end int64) (*Chain, Recovery, error) {
	o.setDefaults()
	c := &Chain{o: o, handles: o.Handles, dirDirty: true}
	if c.handles == nil {
		c.handles, c.ownCache = NewHandles(DefaultHandles), true
	}
	r := recoverer{c: c, end: end}
	if err := r.run(); err != nil {
		c.Close()
		return nil, r.report, fmt.Errorf("open segments in %s: %w", o.Dir, err)
	}
	return c, r.report, nil
}

// recoverer is the work of Open. Nobody else has the chain yet, so it takes no locks.
type recoverer struct {
	c        *Chain
	end      int64 // NoRecoveryPoint or what is trusted
	report   Recovery
	names    map[string]bool // in the directory
	segments []SegmentInfo
}

func (r *recoverer) run() error {
	if err := r.c.o.FS.MkdirAll(r.c.o.Dir, 0o750); err != nil {
		return err
	}
	if err := r.list(); err != nil {
		return err
	}
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
	for i := 0; i < first; i++ {
		r.trust(r.segments[i])
	}
	for i := first; i < len(r.segments); i++ {
		if err := r.scan(i); err != nil {
			return err
		}
	}
	return r.finish()
}

func (r *recoverer) list() error {
	found, err := r.c.o.FS.ReadDir(r.c.o.Dir)
	if err != nil {
		return err
	}
	r.names = make(map[string]bool, len(found))
	for _, e := range found {
		r.names[e.Name()] = true
	}
	r.segments, err = List(r.c.o.FS, r.c.o.Dir)
	return err
}

// trust takes a segment that lies wholly below the recovery point into the chain, and looks at no byte of it unless its
// indexes can't be right.
func (r *recoverer) trust(info SegmentInfo) {
	seg := &segment{
		base: info.Base, stem: stem(r.c.o.Dir, info.Base), size: info.Bytes,
		entries: info.IndexBytes / indexEntryBytes, timeBytes: info.TimeIndexBytes,
	}
	r.c.segments = append(r.c.segments, seg)
	if info.IndexBytes < 0 || info.IndexBytes%indexEntryBytes != 0 || info.TimeIndexBytes < 0 || info.TimeIndexBytes%timeEntryBytes != 0 {
		r.report.RebuiltIndexes = append(r.report.RebuiltIndexes, info.Path)
		seg.entries, seg.timeBytes = max(seg.entries, 0), max(seg.timeBytes, 0)
		if err := r.c.remakeIndexes(seg); err != nil {
			seg.suspect.Store(true) // the log is there and readable without; a later Sync tries again
		}
	}
}

// scan checks segment i from the recovery point on, takes it into the chain as its last, and decides about what
// is bad in it.
func (r *recoverer) scan(i int) error {
	info, limit := r.segments[i], int64(math.MaxInt64)
	if i+1 < len(r.segments) {
		limit = r.segments[i+1].Base
	}
	w, err := r.openWriter(info)
	if err != nil {
		return err
	}
	r.close(r.c.active)
	r.c.active = w
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
	w.size, w.seg.size = t.s.position, t.s.position
	if i+1 < len(r.segments) {
		// What the file has beyond is superseded, or the hole is kept.
		r.noteGap(t, limit)
		return r.closeScanned(w)
	}
	if r.c.next < r.end {
		r.noteLoss(info.Path, t.s.position, errors.New("the log ends before the recovery point"))
	}
	return r.dropTail(t)
}

func (r *recoverer) close(w *writer) {
	if w != nil {
		r.c.handles.unpin(w.h)
	}
}

// openWriter opens a segment to be scanned, and noted to be synced: its bytes may come from the page cache of a
// predecessor that was killed.
func (r *recoverer) openWriter(info SegmentInfo) (*writer, error) {
	seg := &segment{base: info.Base, stem: stem(r.c.o.Dir, info.Base), entries: max(info.IndexBytes, 0) / indexEntryBytes, timeBytes: max(info.TimeIndexBytes, 0)}
	h := &handle{seg: seg}
	if err := h.openForWriting(r.c.o.FS); err != nil {
		h.close()
		return nil, err
	}
	r.c.handles.pin(h)
	return &writer{seg: seg, h: h, index: newIndexer(r.c.o.IndexIntervalBytes), logDirty: true, indexDirty: true, timeDirty: true}, nil
}

// closeScanned finishes a scanned segment that isn't the last. It is synced at once, so that a thousand of them need
// not stay open.
func (r *recoverer) closeScanned(w *writer) error {
	if e, ok := w.index.final(); ok {
		w.seg.pending = append(w.seg.pending, e)
	}
	if err := r.c.flushIndexLocked(w); err != nil && !NoSpace(err) {
		return err
	}
	w.seg.pending = nil
	return w.takeDirty().run()
}

// finish sets what a Restart before the first Sync would go back to.
func (r *recoverer) finish() error {
	c := r.c
	if len(r.segments) == 0 {
		c.next = 0
		if r.end > 0 {
			r.noteLoss(filepath.Join(c.o.Dir, "*"+logSuffix), 0, fs.ErrNotExist)
		}
	}
	if c.active == nil {
		c.synced = c.next
		return nil
	}
	if r.end >= 0 {
		return nil
	}
	// The journal may not have what was found, so it must not be forgotten: synced now.
	if err := c.flushIndexLocked(c.active); err != nil && !NoSpace(err) {
		return err
	}
	if err := c.active.takeDirty().run(); err != nil {
		return err
	}
	c.syncedAt, c.synced = place{c.active.seg, c.active.size}, c.next
	return nil
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
			if err := r.c.o.FS.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
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

// dropTail removes what follows the valid part of the last segment.
func (r *recoverer) dropTail(t *tail) error {
	rest := t.fileSize - t.s.position
	if rest == 0 {
		return nil
	}
	log := r.c.active.h.log
	cut := *t.s
	follows, err := cut.resync(math.MaxInt64)
	if err != nil {
		follows = true // unreadable bytes are no torn tail
	}
	if !follows {
		r.report.Cut += rest
		return log.Truncate(t.s.position)
	}
	side := r.free(fmt.Sprintf("%s%s%d", t.path, damagedInfix, t.s.position))
	d := Damage{Path: t.path, Position: t.s.position, Bytes: rest, From: t.s.expect, To: cut.expect, SideFile: side, Cause: t.bad}
	if err := r.copyTail(log, t.s.position, side); err != nil {
		// Then the bytes stay. A new segment ends this one, as after a failed sync.
		if t.s.position == 0 {
			return r.renameDamaged(d)
		}
		d.SideFile = ""
		r.report.Damaged = append(r.report.Damaged, d)
		return r.supersede()
	}
	r.report.Damaged = append(r.report.Damaged, d)
	return log.Truncate(t.s.position)
}

// copyTail copies the log from position on to a new file and makes that durable before anything is cut.
func (r *recoverer) copyTail(log vfs.File, position int64, side string) (err error) {
	f, err := r.c.o.FS.OpenFile(side, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, r.c.o.FS.Remove(side))
		}
	}()
	buf := make([]byte, scanChunk)
	for at := int64(0); ; {
		n, rerr := log.ReadAt(buf, position+at)
		if _, err := f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			return rerr
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return r.c.o.FS.SyncDir(r.c.o.Dir)
}

// renameDamaged moves a log that is bad from its first byte out of the way and starts it anew.
func (r *recoverer) renameDamaged(d Damage) error {
	if err := r.c.o.FS.Rename(d.Path, d.SideFile); err != nil {
		return err
	}
	r.report.Damaged = append(r.report.Damaged, d)
	r.c.segments = r.c.segments[:len(r.c.segments)-1]
	return r.supersede()
}

// supersede starts a new segment at NextOffset.
func (r *recoverer) supersede() error {
	old := r.c.active
	r.c.active = nil
	if err := r.c.rollLocked(r.c.next); err != nil {
		r.close(old)
		return err
	}
	if old.seg.base < r.c.next {
		r.c.unsynced = append(r.c.unsynced, old)
		return nil
	}
	r.close(old)
	return nil
}
