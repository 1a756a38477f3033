package files

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// Limits and defaults of Options.
const (
	DefaultSegmentBytes       = 64 << 20
	MaxSegmentBytes           = 1 << 30 // positions are int32 in an index, sizes int on 32-bit machines
	DefaultIndexIntervalBytes = 4096    // Kafka's index.interval.bytes
	DefaultMaxBatchBytes      = 16 << 20
)

// Options of a Chain. FS and Dir are required.
type Options struct {
	FS vfs.FS
	// Dir is the partition's directory. Open makes it; its parent must be there and durable.
	Dir string
	// SegmentBytes is the size of a log file that is not exceeded, except by a single larger batch.
	SegmentBytes int64
	// IndexIntervalBytes is about how many bytes of log each index entry stands for, and so what a read may have to
	// skip to find its offset.
	IndexIntervalBytes int
	// MaxBatchBytes bounds a batch: Append refuses a larger one, recovery takes a larger length for damage.
	MaxBatchBytes int
	// Handles is the cache of files open for reading. Without one the chain has its own.
	Handles *Handles
	// Start is the log start offset that the state knows. Open removes whole segments below it, which a crash may have left.
	Start int64
}

func (o *Options) setDefaults() {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	o.SegmentBytes = min(o.SegmentBytes, MaxSegmentBytes)
	if o.IndexIntervalBytes <= 0 {
		o.IndexIntervalBytes = DefaultIndexIntervalBytes
	}
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = DefaultMaxBatchBytes
	}
	o.MaxBatchBytes = min(o.MaxBatchBytes, record.MaxBatchBytes)
}

// Chain is one partition's segments. All methods are safe for concurrent use: Append, SkipTo and Restart exclude each
// other, Sync runs beside Append except for a short moment, and Read waits for none of them.
type Chain struct {
	o        Options  // immutable
	handles  *Handles // immutable
	ownCache bool     // immutable: handles was made for this chain

	// syncMu is held through Sync, Restart and Close, and taken before writeMu.
	syncMu sync.Mutex

	// writeMu is held by whoever writes files, and taken before mu.
	writeMu  sync.Mutex
	active   *writer   // what Append writes to; nil in an empty chain
	unsynced []*writer // closed segments that Sync has to do with, oldest first
	dirDirty bool      // directory entries may not be durable, the directory's own among them
	syncedAt place     // where syncedOffset is
	doomed   []string  // files that Restart has still to remove
	closed   bool

	held atomic.Int64 // bytes of removed files that readers still have open

	// mu is held shortly and never across I/O.
	mu       sync.Mutex
	segments []*segment // by base offset; changed under writeMu, too
	writing  *segment   // that of active
	start    int64      // no offset below is readable
	next     int64
	synced   int64
	poisoned error
	hints    [4]hint
	nextHint int
	side     []sideFile // oldest first

	dropped        []*segment // out of the chain, but not yet off the disk, oldest first; changed under syncMu, too
	removeFailures int64
	removeError    error // of the last one
}

// segment is one link of the chain.
type segment struct {
	base int64  // immutable
	stem string // immutable: path without suffix

	suspect atomic.Bool // a read found its index wrong
	stuck   bool        // under Chain.syncMu: it could not be removed

	// Under Chain.mu.
	size      int64   // valid bytes of log
	rest      int64   // bytes of log behind them: superseded by the next segment, or not to be cut off
	entries   int64   // offset index entries on disk
	timeBytes int64   // size of the time index on disk
	pending   []entry // entries that are not on disk yet
	minTime   int64   // base timestamp of the first batch, ms; unknownTime until somebody looked
	maxTime   int64   // greatest timestamp, likewise; always known of the active one
	hopeless  bool    // its log can't be read to the end, so its indexes can't be made anew

	// Under Handles.mu.
	h    *handle // nil when not open
	gone bool    // its files are removed
}

func (c *Chain) newSegment(base int64) *segment {
	return &segment{base: base, stem: stem(c.o.Dir, base), minTime: unknownTime, maxTime: unknownTime}
}

// bytesLocked is the size of its files.
func (s *segment) bytesLocked() int64 {
	return s.size + s.rest + s.entries*indexEntryBytes + s.timeBytes + int64(len(s.pending))*(indexEntryBytes+timeEntryBytes)
}

// place is a position in a segment.
type place struct {
	seg      *segment
	position int64
}

// hint remembers where a read ended, so that the next one of a sequence needs no index.
type hint struct {
	place
	offset int64
}

// StartOffset is the lowest offset that can be read: where the first segment begins, or as far as Drop raised it, or
// NextOffset of a chain without any segment.
func (c *Chain) StartOffset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startLocked()
}

func (c *Chain) startLocked() int64 {
	if len(c.segments) == 0 {
		return max(c.next, c.start)
	}
	return max(c.segments[0].base, c.start)
}

// Start is the offset that the highest Drop, or Options.Start, gave, whatever the files hold.
func (c *Chain) Start() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start
}

// NextOffset is the offset that the next batch must begin at.
func (c *Chain) NextOffset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

// SyncedOffset is where Sync got to: everything below is on flash.
func (c *Chain) SyncedOffset() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

// Segments is the number of segments.
func (c *Chain) Segments() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.segments)
}

// Bytes is the size of all files: segments, what was set aside, what can't be removed yet, and what is removed but still
// open for a reader.
func (c *Chain) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.held.Load()
	for _, s := range c.dropped {
		n += s.bytesLocked()
	}
	for _, s := range c.segments {
		n += s.bytesLocked()
	}
	for _, s := range c.side {
		n += s.bytes
	}
	return n
}

// Poisoned is why the chain takes no appends until Restart: a write or sync failed, and what is on flash of the segment
// beyond SyncedOffset is unknown. It is nil in a healthy chain.
func (c *Chain) Poisoned() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.poisoned
}

// Distrust poisons the chain as a failed write does: what lies beyond SyncedOffset isn't what it should be, and err says why.
func (c *Chain) Distrust(err error) { _ = c.poison(err) }

func (c *Chain) poison(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.poisoned == nil {
		c.poisoned = err
	}
	return err
}

// Append writes one batch at NextOffset, which must be its base offset, in one write, after closing a segment that it
// doesn't fit in. It is in the page cache only until Sync.
//
// An error that leaves Poisoned nil left the chain as it was, and the same batch can be tried again: NoSpace tells that
// space would help. Any other failed write poisons the chain.
func (c *Chain) Append(b record.Batch) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.writableLocked(); err != nil {
		return err
	}
	if err := c.acceptLocked(b); err != nil {
		return err
	}
	if err := c.wakeLocked(); err != nil {
		return err
	}
	w := c.active
	if w == nil || w.full(b, c.o.SegmentBytes) {
		if err := c.rollLocked(b.BaseOffset()); err != nil {
			return err
		}
		w = c.active
	} else if len(w.seg.pending) >= pendingEntries {
		if err := c.flushIndexLocked(w); err != nil {
			return c.failed(err)
		}
	}
	if err := w.append(b); err != nil {
		return c.failed(err)
	}
	e, indexed := w.index.add(b, w.size)
	w.size += int64(len(b))
	w.logDirty = true
	c.mu.Lock()
	w.seg.size, w.seg.maxTime = w.size, w.index.maxTime
	if w.size == int64(len(b)) {
		w.seg.minTime = b.BaseTimestamp()
	}
	if indexed {
		w.seg.pending = append(w.seg.pending, e)
	}
	c.next = b.NextOffset()
	c.mu.Unlock()
	return nil
}

// acceptLocked guards against callers, not against disks.
func (c *Chain) acceptLocked(b record.Batch) error {
	if len(b) < record.HeaderBytes || len(b) > c.o.MaxBatchBytes {
		return fmt.Errorf("append to %s: batch of %d bytes, not %d to %d", c.o.Dir, len(b), record.HeaderBytes, c.o.MaxBatchBytes)
	}
	if next := c.NextOffset(); b.BaseOffset() != next || b.LastOffset() < next || b.LeaderEpoch() != 0 {
		return fmt.Errorf("append to %s: batch with offsets %d to %d and leader epoch %d at offset %d",
			c.o.Dir, b.BaseOffset(), b.LastOffset(), b.LeaderEpoch(), next)
	}
	return nil
}

func (c *Chain) writableLocked() error {
	if c.closed {
		return errClosed
	}
	return c.Poisoned()
}

// failed decides what a failed write means. A write cut back for want of space did no harm.
func (c *Chain) failed(err error) error {
	var cut *cutBackError
	if NoSpace(err) && !errors.As(err, &cut) {
		return err
	}
	return c.poison(err)
}

// SkipTo leaves the offsets from NextOffset to offset out: the next batch begins at offset. The hole is kept in the
// name of a new segment. Errors are those of Append.
func (c *Chain) SkipTo(offset int64) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.writableLocked(); err != nil {
		return err
	}
	switch next := c.NextOffset(); {
	case offset < next:
		return fmt.Errorf("skip in %s from offset %d back to %d", c.o.Dir, next, offset)
	case offset == next:
		return nil
	}
	if err := c.rollLocked(offset); err != nil {
		return err
	}
	c.mu.Lock()
	c.next = offset
	c.mu.Unlock()
	return nil
}

// rollLocked closes the active segment and starts one at base. When it fails nothing has changed.
func (c *Chain) rollLocked(base int64) error {
	if w := c.active; w != nil {
		if err := c.wakeLocked(); err != nil {
			return err
		}
		if err := c.finishIndexLocked(w); err != nil {
			return c.failed(err)
		}
	}
	w, err := c.createSegment(base)
	if err != nil {
		return err
	}
	if c.active != nil {
		c.unsynced = append(c.unsynced, c.active)
	}
	c.setActiveLocked(w)
	c.dirDirty = true
	c.mu.Lock()
	c.segments = append(c.segments, w.seg)
	c.mu.Unlock()
	return nil
}

// finishIndexLocked writes the entries that a segment to be closed owes.
func (c *Chain) finishIndexLocked(w *writer) error {
	if e, ok := w.index.final(); ok {
		c.mu.Lock()
		w.seg.pending = append(w.seg.pending, e)
		c.mu.Unlock()
	}
	return c.flushIndexLocked(w)
}

func (c *Chain) setActiveLocked(w *writer) {
	c.active = w
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = nil
	if w != nil {
		c.writing = w.seg
	}
}

// Close closes all files. It syncs nothing: recovery treats it like a crash.
func (c *Chain) Close() error {
	c.syncMu.Lock()
	defer c.syncMu.Unlock()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	for _, w := range c.unsynced {
		c.handles.unpin(w.h)
	}
	if c.active != nil {
		c.handles.unpin(c.active.h)
	}
	c.mu.Lock()
	segments := c.segments
	c.poisoned = errClosed
	c.mu.Unlock()
	for _, s := range segments {
		c.handles.forget(s)
	}
	if c.ownCache {
		return c.handles.Close()
	}
	return nil
}

// findLocked is the index of the segment that offset lies in, or -1 if it is below the first.
func (c *Chain) findLocked(offset int64) int {
	return sort.Search(len(c.segments), func(i int) bool { return c.segments[i].base > offset }) - 1
}

// limitLocked is the offset that segment i ends below: what a predecessor holds beyond is superseded.
func (c *Chain) limitLocked(i int) int64 {
	if i+1 < len(c.segments) {
		return c.segments[i+1].base
	}
	return math.MaxInt64
}
