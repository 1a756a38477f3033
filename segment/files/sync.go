package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluicemq/sluice/internal/vfs"
)

// syncJob is one segment's part of a Sync.
type syncJob struct {
	h                *handle // nil when there is nothing to do
	log, index, time bool
}

// Sync makes what was appended before the call durable: log files, indexes, and the directory's entries. Appends go on
// meanwhile (the file's Sync runs beside WriteAt). If it fails the chain is poisoned: the same files must not be synced
// again, since the kernel may by now take their lost pages for written ones.
func (c *Chain) Sync() error {
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	c.removeDropped(true)
	c.remakeSuspect()
	jobs, closed, upTo, at, err := c.prepareSync()
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := j.run(); err != nil {
			return c.poison(fmt.Errorf("sync segment: %w", err))
		}
	}
	if err := c.syncDirs(); err != nil {
		return c.poison(err)
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	done := c.unsynced[:closed]
	c.unsynced = append([]*writer(nil), c.unsynced[closed:]...)
	c.syncedAt = at
	c.mu.Lock()
	c.synced = upTo
	err = c.poisoned // an append that failed meanwhile: what was synced is synced, but the caller must know
	c.mu.Unlock()
	for _, w := range done {
		c.handles.unpin(w.h)
	}
	if err == nil {
		c.restLocked()
	}
	return err
}

// prepareSync writes the pending index entries and takes down what there is to sync.
func (c *Chain) prepareSync() (jobs []syncJob, closed int, upTo int64, at place, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.writableLocked(); err != nil {
		return nil, 0, 0, place{}, err
	}
	w := c.active
	if w != nil {
		// A full disk must not keep the log from becoming durable for want of a derivable index: the entries wait.
		if err := c.flushIndexLocked(w); err != nil && !NoSpace(err) {
			return nil, 0, 0, place{}, c.poison(err)
		}
		at = place{w.seg, w.size}
	}
	for _, w := range c.unsynced {
		jobs = append(jobs, w.takeDirty())
	}
	if w != nil {
		jobs = append(jobs, w.takeDirty())
	}
	return jobs, len(c.unsynced), c.NextOffset(), at, nil
}

func (w *writer) takeDirty() syncJob {
	j := syncJob{w.h, w.logDirty, w.indexDirty, w.timeDirty}
	w.logDirty, w.indexDirty, w.timeDirty = false, false, false
	return j
}

func (j syncJob) run() error {
	if j.h == nil {
		return nil
	}
	for _, f := range []struct {
		file  vfs.File
		dirty bool
	}{{j.h.log, j.log}, {j.h.index, j.index}, {j.h.time, j.time}} {
		if !f.dirty {
			continue
		}
		if err := f.file.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// syncDirs makes the names of new files durable. It is a no-op, of a few microseconds, on a directory that is clean.
func (c *Chain) syncDirs() error {
	c.writeMu.Lock()
	dirty := c.dirDirty
	c.dirDirty = false
	c.writeMu.Unlock()
	if !dirty {
		return nil
	}
	if err := c.o.FS.SyncDir(c.o.Dir); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := c.o.FS.SyncDir(filepath.Dir(c.o.Dir)); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// Restart makes a poisoned chain take appends again: it forgets everything from SyncedOffset on and starts a new segment
// file there. The caller appends again, from SyncedOffset on, what it still holds in its journal. Readers get
// ErrOffsetOutOfRange for what was forgotten, until then.
//
// What is left on flash of the forgotten bytes does no harm: they are cut off the old file if it lets us, and anyway
// the base of the new segment ends the old one for readers and for recovery. If Restart fails the chain is still
// poisoned, and Restart can be called again.
func (c *Chain) Restart() error {
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed {
		return errClosed
	}
	if c.Poisoned() == nil {
		return nil
	}
	at := c.forgetUnsyncedLocked()
	if err := c.removeDoomedLocked(); err != nil {
		return fmt.Errorf("restart segment: %w", err)
	}
	if at.seg != nil {
		c.cutBackLocked(at)
	}
	c.mu.Lock()
	base := c.synced
	c.next = base
	c.mu.Unlock()
	w, err := c.createSegment(base)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	c.setActiveLocked(w)
	c.dirDirty, c.syncedAt = true, place{w.seg, 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.segments = append(c.segments, w.seg)
	c.poisoned = nil
	return nil
}

// forgetUnsyncedLocked takes what lies at and beyond the synced offset out of the readers' sight, and returns where the
// rest ends if that is inside a segment.
func (c *Chain) forgetUnsyncedLocked() place {
	for _, w := range c.unsynced {
		c.handles.unpin(w.h)
	}
	if c.active != nil {
		c.handles.unpin(c.active.h)
	}
	c.unsynced = nil
	c.setActiveLocked(nil)
	at := c.syncedAt
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints = [len(c.hints)]hint{}
	c.next = c.synced
	keep := c.segments
	for len(keep) > 0 && keep[len(keep)-1].base >= c.synced {
		s := keep[len(keep)-1]
		c.doomed = append(c.doomed, s.stem+logSuffix, s.stem+indexSuffix, s.stem+timeSuffix)
		keep = keep[:len(keep)-1]
	}
	c.segments = append([]*segment(nil), keep...) // a Read under way has the old slice's segments
	if at.seg == nil || at.seg.base >= c.synced {
		return place{}
	}
	at.seg.size, at.seg.rest = at.position, at.seg.size-at.position
	at.seg.pending = nil
	at.seg.minTime, at.seg.maxTime = unknownTime, unknownTime
	return at
}

// removeDoomedLocked removes files of which nothing was ever synced.
func (c *Chain) removeDoomedLocked() error {
	for len(c.doomed) > 0 {
		last := len(c.doomed) - 1
		if err := c.o.FS.Remove(c.doomed[last]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.doomed = c.doomed[:last]
	}
	return nil
}

// cutBackLocked takes off the old segment what lies beyond the synced offset, and its index entries. It is for tidiness
// only, so what fails is left: the files are suspect as it is.
func (c *Chain) cutBackLocked(at place) {
	c.cutLogLocked(at)
	h := &handle{seg: at.seg}
	defer h.close()
	if h.openForWriting(c.o.FS, 0) != nil {
		return
	}
	x := indexFile{h.index, at.seg.base, make([]byte, timeEntryBytes)}
	entries, timeBytes := at.seg.entries, at.seg.timeBytes
	last := c.SyncedOffset() - 1
	if i, _, _, err := x.search(entries, last); err == nil && h.index.Truncate((i+1)*indexEntryBytes) == nil {
		entries = i + 1
	}
	x.r = h.time
	if i, _, _, err := x.searchTime(timeBytes/timeEntryBytes, last); err == nil && h.time.Truncate((i+1)*timeEntryBytes) == nil {
		timeBytes = (i + 1) * timeEntryBytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at.seg.entries, at.seg.timeBytes = entries, timeBytes
}

// cutLogLocked cuts the log, and counts what can't be cut off it.
func (c *Chain) cutLogLocked(at place) {
	f, err := c.o.FS.OpenFile(at.seg.stem+logSuffix, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_ = f.Truncate(at.position)
	if size, err := f.Size(); err == nil {
		c.mu.Lock()
		at.seg.rest = max(size-at.position, 0)
		c.mu.Unlock()
	}
}
