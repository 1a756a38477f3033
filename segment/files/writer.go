package files

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// pendingEntries is how many index entries wait in memory, for Sync or the segment's end, before they are written on
// their own: about 1 MiB of log at the default interval.
const pendingEntries = 256

const filePerm = 0o640

// writer is a segment open for writing. All fields belong to Chain.writeMu.
type writer struct {
	seg   *segment
	h     *handle // pinned, all three files open; nil while there is nothing to write or sync
	index indexer
	size  int64 // of the log; segment.size follows it

	logDirty, indexDirty, timeDirty bool
}

func (w *writer) full(b record.Batch, segmentBytes int64) bool {
	return w.size > 0 && w.size+int64(len(b)) > segmentBytes || b.LastOffset()-w.seg.base > math.MaxInt32
}

// cutBackError says that a write failed and its beginning could not be taken back.
type cutBackError struct{ write, cut error }

func (e *cutBackError) Error() string   { return fmt.Sprintf("%v; cut back: %v", e.write, e.cut) }
func (e *cutBackError) Unwrap() []error { return []error{e.write, e.cut} }

// append writes b at the end of the log. What a failed write left there is cut off again.
func (w *writer) append(b record.Batch) error {
	n, err := w.h.log.WriteAt(b, w.size)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("append to segment: %w", err)
	if n > 0 {
		if cut := w.h.log.Truncate(w.size); cut != nil {
			return &cutBackError{err, cut}
		}
	}
	return err
}

// createSegment makes the three files of a new segment. They are durable only after a sync of the directory.
// A log file of that name may be there only if it is empty: what a failed earlier attempt left.
func (c *Chain) createSegment(base int64) (*writer, error) {
	seg := c.newSegment(base)
	h := &handle{seg: seg}
	err := h.openForWriting(c.o.FS, os.O_CREATE)
	if err == nil {
		var size int64
		if size, err = h.log.Size(); err == nil && size > 0 {
			err = fmt.Errorf("%w: %d bytes", os.ErrExist, size)
		}
	}
	if err == nil {
		err = errors.Join(h.index.Truncate(0), h.time.Truncate(0))
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("create segment %s: %w", seg.stem+logSuffix, err)
	}
	c.handles.pin(h)
	return &writer{seg: seg, h: h, index: newIndexer(c.o.IndexIntervalBytes)}, nil
}

// openForWriting opens all three files. create is os.O_CREATE or 0, for the log.
func (h *handle) openForWriting(fsys vfs.FS, create int) (err error) {
	if h.log, err = openFile(fsys, h.seg.stem+logSuffix, os.O_RDWR|create); err != nil {
		return err
	}
	if h.index, err = openIndex(fsys, h.seg.stem+indexSuffix, os.O_RDWR|os.O_CREATE); err != nil {
		return err
	}
	h.time, err = openIndex(fsys, h.seg.stem+timeSuffix, os.O_RDWR|os.O_CREATE)
	return err
}

// wakeLocked opens the files of the active segment again after restLocked. An error leaves all as it was.
func (c *Chain) wakeLocked() error {
	w := c.active
	if w == nil || w.h != nil {
		return nil
	}
	h := &handle{seg: w.seg}
	if err := h.openForWriting(c.o.FS, 0); err != nil {
		h.close()
		return fmt.Errorf("open segment for writing: %w", err)
	}
	c.handles.pin(h)
	w.h = h
	return nil
}

// restLocked closes the files of the active segment until something is written to it: only those of busy partitions
// are open. Nothing may be left to be written or synced, so there is no error that a closed file could take with it.
func (c *Chain) restLocked() {
	w := c.active
	if w == nil || w.h == nil || w.logDirty || w.indexDirty || w.timeDirty || len(w.seg.pending) > 0 {
		return
	}
	c.handles.unpin(w.h)
	w.h = nil
}

// openIndex begins a new file where the old one can't be opened.
func openIndex(fsys vfs.FS, name string, flags int) (vfs.File, error) {
	f, err := openFile(fsys, name, flags)
	if unreadable(err) && fsys.Remove(name) == nil {
		f, err = openFile(fsys, name, flags)
	}
	return f, err
}

// flushIndexLocked writes the pending index entries. When it fails they are still pending: they go to the same place again.
func (c *Chain) flushIndexLocked(w *writer) error {
	pending := w.seg.pending // only changed under writeMu
	if len(pending) == 0 {
		return nil
	}
	index, times := encodeEntries(pending, w.seg.base)
	if len(index) > 0 {
		w.indexDirty = true
		if _, err := w.h.index.WriteAt(index, w.seg.entries*indexEntryBytes); err != nil {
			return fmt.Errorf("write index: %w", err)
		}
	}
	if len(times) > 0 {
		w.timeDirty = true
		if _, err := w.h.time.WriteAt(times, w.seg.timeBytes); err != nil {
			return fmt.Errorf("write time index: %w", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.seg.entries += int64(len(index) / indexEntryBytes)
	w.seg.timeBytes += int64(len(times))
	w.seg.pending = nil
	return nil
}

// giveIndexUpLocked closes indexes that couldn't be written: a later Sync makes them anew from the log.
func (c *Chain) giveIndexUpLocked(w *writer) {
	w.seg.suspect.Store(true)
	w.indexDirty, w.timeDirty = false, false
	c.mu.Lock()
	defer c.mu.Unlock()
	w.seg.pending = nil
}
