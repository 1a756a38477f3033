package files

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Seal closes the active segment if it holds anything: the next Append begins a new one. Once synced it can be dropped.
// On a full disk its last index entries are left out, and made up for by a later Sync. Errors are those of Append.
func (c *Chain) Seal() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.writableLocked(); err != nil {
		return err
	}
	w := c.active
	if w == nil || w.size == 0 {
		return nil
	}
	if err := c.wakeLocked(); err != nil {
		return err
	}
	err := c.finishIndexLocked(w)
	switch {
	case NoSpace(err):
		c.giveIndexUpLocked(w)
	case err != nil:
		return c.failed(err)
	}
	c.unsynced = append(c.unsynced, w)
	c.setActiveLocked(nil)
	return nil
}

// Drop raises StartOffset to to, at once and for all readers, and then removes each segment that lies wholly below it,
// oldest first, but never the active one. Beyond SyncedOffset there is nothing to be dropped: that is an error, and
// leaves all as it was. An offset below StartOffset is none, and a way to try again what couldn't be removed before.
//
// The caller has made the new start durable: no directory is synced here, and a file that a crash brings back is removed
// by Open because it lies below Options.Start. Of each segment the log goes last: what a crash in between leaves is a
// segment whose indexes are missing, while an index without a log is the trace of a log that was lost.
//
// Readers under way keep their files. What can't be removed is no error: see Stuck.
func (c *Chain) Drop(to int64) error {
	if err := c.raiseStart(to); err != nil {
		return err
	}
	c.syncMu.Lock()
	c.removeDropped(true)
	c.syncMu.Unlock()
	for {
		if more, err := c.dropOldest(); !more || err != nil {
			return err
		}
	}
}

func (c *Chain) raiseStart(to int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to > c.synced {
		return fmt.Errorf("drop the offsets below %d of %s: only those below %d are synced", to, c.o.Dir, c.synced)
	}
	c.start = max(c.start, to)
	return nil
}

// dropOldest removes one segment. Locks are held for one at a time, so that a Sync never waits for all of them.
func (c *Chain) dropOldest() (more bool, err error) {
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	if err := c.keepOne(); err != nil {
		return false, err
	}
	w, ok := c.takeOldest()
	if !ok {
		return false, nil
	}
	c.removeDropped(false)
	if w != nil {
		c.handles.unpin(w.h)
	}
	return true, nil
}

// keepOne begins a new segment if all others are about to go: its name is where the next offset is kept. Unlike removals
// the names of those that stay must be durable before another goes: a power cut that took both would look like a loss.
func (c *Chain) keepOne() error {
	c.writeMu.Lock()
	needed := c.oldestLocked() != nil
	var err error
	if needed && len(c.segments) == 1 { // segments only change under writeMu
		err = c.rollLocked(c.NextOffset())
	}
	c.writeMu.Unlock()
	if !needed {
		return nil
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.removeFailures++ // the segment stays until it works
		c.removeError = err
		return nil
	}
	if err := c.syncDirs(); err != nil {
		return c.poison(err)
	}
	return nil
}

// takeOldest takes the oldest segment out of the chain, to be removed, if it can go. w is its writer if Sync had still
// something to do with it: its log is synced, since it lies below SyncedOffset, and its indexes go with it.
func (c *Chain) takeOldest() (w *writer, ok bool) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	seg := c.oldestLocked()
	if seg == nil || len(c.segments) == 1 {
		return nil, false
	}
	if i := slices.IndexFunc(c.unsynced, func(w *writer) bool { return w.seg == seg }); i >= 0 {
		w = c.unsynced[i]
		c.unsynced = slices.Delete(c.unsynced, i, i+1)
	}
	if c.syncedAt.seg == seg {
		c.syncedAt = place{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.segments[0] = nil
	c.segments = c.segments[1:]
	c.dropped = append(c.dropped, seg)
	return w, true
}

// oldestLocked is the oldest segment if all of it lies below the start, and so is synced, and it is not being written.
func (c *Chain) oldestLocked() *segment {
	if c.closed || c.Poisoned() != nil && len(c.segments) == 1 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.segments) == 0 {
		return nil
	}
	seg, end := c.segments[0], min(c.limitLocked(0), c.next)
	if end > c.start || seg == c.writing {
		return nil
	}
	return seg
}

// removeDropped removes what has left the chain. What failed before is tried again only when retry is set, so that
// dropping many segments doesn't try each of those each time. Chain.syncMu is held.
func (c *Chain) removeDropped(retry bool) {
	c.mu.Lock()
	list := slices.Clone(c.dropped)
	c.mu.Unlock()
	for _, seg := range list {
		if (retry || !seg.stuck) && c.removeSegment(seg) {
			c.mu.Lock()
			c.dropped = slices.DeleteFunc(c.dropped, func(s *segment) bool { return s == seg })
			c.mu.Unlock()
		}
	}
}

// removeSegment removes the files of a segment that is not in the chain any more.
func (c *Chain) removeSegment(seg *segment) bool {
	seg.stuck = false
	freed := int64(0)
	for _, suffix := range []string{timeSuffix, indexSuffix, logSuffix} {
		if err := c.o.FS.Remove(seg.stem + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.mu.Lock()
			c.removeFailures++
			c.removeError = fmt.Errorf("remove segment: %w", err)
			c.mu.Unlock()
			seg.stuck = true // but the others may go
			continue
		}
		c.mu.Lock()
		n := seg.removedLocked(suffix)
		freed += n
		c.held.Add(n)
		c.mu.Unlock()
	}
	c.handles.drop(seg, func() { c.held.Add(-freed) })
	return !seg.stuck
}

// removedLocked takes a removed file out of the segment's size.
func (s *segment) removedLocked(suffix string) int64 {
	before := s.bytesLocked()
	switch suffix {
	case timeSuffix:
		s.timeBytes = 0
	case indexSuffix:
		s.entries, s.pending = 0, nil
	case logSuffix:
		s.size, s.rest = 0, 0
	}
	return before - s.bytesLocked()
}

// Stuck tells what has left the chain but could not be removed yet: segments, their bytes, how often
// removing failed since Open, and why the last time. The next Drop or Sync tries again.
func (c *Chain) Stuck() (segments int, bytes, failures int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.dropped {
		bytes += s.bytesLocked()
	}
	return len(c.dropped), bytes, c.removeFailures, c.removeError
}
