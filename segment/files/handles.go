package files

import (
	"errors"
	"os"
	"sync"

	"github.com/sluicemq/sluice/internal/vfs"
)

// DefaultHandles is how many segments a Handles that no one chose keeps open.
const DefaultHandles = 2

// Handles keeps the most recently read segments open, over all chains that share it: at most max of them, three files
// each, and beyond that only those that a read holds right now. Segments being written are open apart from these. It
// is safe for concurrent use.
type Handles struct {
	max int // immutable

	mu     sync.Mutex
	recent []*handle // least recently used first
}

// NewHandles makes a cache of limit segments, at least 1.
func NewHandles(limit int) *Handles { return &Handles{max: max(limit, 1)} }

// Close closes what is open. Chains must be closed before.
func (hs *Handles) Close() error {
	hs.mu.Lock()
	recent := hs.recent
	hs.recent = nil
	for _, h := range recent {
		h.seg.h = nil
	}
	hs.mu.Unlock()
	var errs []error
	for _, h := range recent {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}

// handle is one segment's open files.
type handle struct {
	seg *segment // immutable

	// Under Handles.mu.
	refs   int    // reads under way; a segment being written holds one more
	pinned bool   // not subject to max
	retire bool   // close with the last reference
	closed func() // called then, if set

	// mu is held while files are opened, so that a slow disk holds up only those who want this segment.
	mu               sync.Mutex
	log, index, time vfs.File // nil until wanted
}

// acquire returns the segment's handle, to be given back with release.
func (hs *Handles) acquire(seg *segment) *handle {
	hs.mu.Lock()
	h := seg.h
	if h == nil {
		h = &handle{seg: seg, retire: seg.gone}
		if !seg.gone {
			seg.h = h
			hs.recent = append(hs.recent, h)
		}
	} else if !h.pinned {
		for i, r := range hs.recent {
			if r == h {
				hs.recent = append(append(hs.recent[:i], hs.recent[i+1:]...), h)
				break
			}
		}
	}
	h.refs++
	evicted := hs.evictLocked()
	hs.mu.Unlock()
	evicted.close()
	return h
}

// evictLocked takes the oldest idle handle out of the cache if there are too many. One at a time is enough: each
// acquire adds at most one.
func (hs *Handles) evictLocked() *handle {
	if len(hs.recent) <= hs.max {
		return nil
	}
	for i, h := range hs.recent {
		if h.refs == 0 {
			hs.recent = append(hs.recent[:i], hs.recent[i+1:]...)
			h.seg.h = nil
			return h
		}
	}
	return nil
}

func (hs *Handles) release(h *handle) {
	hs.mu.Lock()
	h.refs--
	var done *handle
	if h.refs == 0 && h.retire {
		done = h
	} else if h.refs == 0 {
		done = hs.evictLocked()
	}
	hs.mu.Unlock()
	done.close()
	if done != nil && done.closed != nil {
		done.closed()
	}
}

// pin makes h, with its files open for writing, the segment's handle until unpin.
func (hs *Handles) pin(h *handle) {
	hs.mu.Lock()
	old := hs.forgetLocked(h.seg)
	h.pinned, h.refs = true, 1
	h.seg.h = h
	hs.mu.Unlock()
	old.close()
}

// unpin ends pin. The files are closed, after the last read. h may be nil.
func (hs *Handles) unpin(h *handle) {
	if h == nil {
		return
	}
	hs.mu.Lock()
	h.retire = true
	if h.seg.h == h {
		h.seg.h = nil
	}
	hs.mu.Unlock()
	hs.release(h)
}

// forget closes the segment's cached handle, after the last read.
func (hs *Handles) forget(seg *segment) {
	hs.mu.Lock()
	h := hs.forgetLocked(seg)
	hs.mu.Unlock()
	h.close()
}

// forgetLocked takes an unpinned handle out of the cache and returns it if it can be closed at once.
func (hs *Handles) forgetLocked(seg *segment) *handle {
	h := seg.h
	if h == nil || h.pinned {
		return nil
	}
	seg.h = nil
	for i, r := range hs.recent {
		if r == h {
			hs.recent = append(hs.recent[:i], hs.recent[i+1:]...)
			break
		}
	}
	if h.refs > 0 {
		h.retire = true
		return nil
	}
	return h
}

// drop closes the files of a segment that was removed, after the last read, and then calls closed.
func (hs *Handles) drop(seg *segment, closed func()) {
	hs.mu.Lock()
	seg.gone = true
	busy := seg.h
	h := hs.forgetLocked(seg)
	if h == nil && busy != nil {
		busy.closed = closed
		hs.mu.Unlock()
		return
	}
	hs.mu.Unlock()
	h.close()
	closed()
}

func (h *handle) logFile(fsys vfs.FS) (vfs.File, error) { return h.open(fsys, &h.log, logSuffix) }

func (h *handle) indexFile(fsys vfs.FS) (vfs.File, error) { return h.open(fsys, &h.index, indexSuffix) }

func (h *handle) timeFile(fsys vfs.FS) (vfs.File, error) { return h.open(fsys, &h.time, timeSuffix) }

func (h *handle) open(fsys vfs.FS, f *vfs.File, suffix string) (vfs.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if *f == nil {
		file, err := openFile(fsys, h.seg.stem+suffix, os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		*f = file
	}
	return *f, nil
}

// close closes the files; h may be nil.
func (h *handle) close() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, f := range []*vfs.File{&h.log, &h.index, &h.time} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}
