package files

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/sluicemq/sluice/internal/vfs"
)

// newSuffix marks an index that is being written. One left by a crash is overwritten by the next attempt.
const newSuffix = ".new"

// remakeSuspect makes the indexes of at most one segment anew that a read found wrong. Failing costs only time, now and
// in later reads, so a failure is not reported: the segment stays suspect.
func (c *Chain) remakeSuspect() {
	c.mu.Lock()
	var seg *segment
	limit := int64(math.MaxInt64)
	for i, s := range c.segments {
		if s != c.writing && s.suspect.Load() && !s.hopeless {
			seg, limit = s, c.limitLocked(i)
			break
		}
	}
	c.mu.Unlock()
	if seg == nil {
		return
	}
	c.writeMu.Lock()
	for _, w := range c.unsynced {
		if w.seg == seg {
			seg = nil // its files are to be synced as they are; the next Sync has it
			break
		}
	}
	c.writeMu.Unlock()
	if seg == nil {
		return
	}
	err := c.remakeIndexes(seg, limit)
	if err == nil {
		seg.suspect.Store(false)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	seg.hopeless = unreadable(err)
}

// remakeIndexes makes both indexes of a closed and synced segment anew from its log: as new files, synced, that then take
// the place of the old ones.
//
// Batches that end at limit or beyond were superseded by the next segment.
func (c *Chain) remakeIndexes(seg *segment, limit int64) error {
	c.mu.Lock()
	size := seg.size
	c.mu.Unlock()
	log, err := c.o.FS.OpenFile(seg.stem+logSuffix, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	x := newIndexer(c.o.IndexIntervalBytes)
	entries, err := scanAll(&scanner{f: log, size: size, maxBatch: c.o.MaxBatchBytes, expect: seg.base}, limit, &x)
	if err != nil {
		return fmt.Errorf("index segment: %w", err)
	}
	index, times := encodeEntries(entries, seg.base)
	if err := replaceFile(c.o.FS, seg.stem+indexSuffix, index); err != nil {
		return err
	}
	if err := replaceFile(c.o.FS, seg.stem+timeSuffix, times); err != nil {
		return err
	}
	c.handles.forget(seg) // open files are the old ones
	c.mu.Lock()
	defer c.mu.Unlock()
	seg.entries, seg.timeBytes = int64(len(index)/indexEntryBytes), int64(len(times))
	seg.maxTime = x.maxTime
	return nil
}

func encodeEntries(entries []entry, base int64) (index, times []byte) {
	for _, e := range entries {
		if e.position >= 0 {
			index = appendIndexEntry(index, base, e)
		}
		if e.maxTime != noTimestamp {
			times = appendTimeEntry(times, base, e)
		}
	}
	return index, times
}

func replaceFile(fsys vfs.FS, name string, data []byte) error {
	f, err := fsys.OpenFile(name+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fsys.Rename(name+newSuffix, name)
	}
	if err != nil {
		_ = fsys.Remove(name + newSuffix)
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}
