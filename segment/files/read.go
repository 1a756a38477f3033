package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// minRead is the least that a read asks the disk for.
const minRead = 4096

// Read appends whole batches to dst: from the one that holds offset (or, where offset falls into a hole, the next one)
// up to about maxBytes, but at least one, and none with offsets at or beyond upTo. All come from one segment. The CRC
// of each is verified. dst is returned unchanged when there is nothing to read: offset is NextOffset, or lies in a hole
// with nothing behind it yet, or no batch ends below upTo.
//
// The error is ErrOffsetOutOfRange, a *DamageError (go on at its Resume, or get the records elsewhere), or of the file
// system. Usually a read is one pread into dst's spare capacity and allocates nothing if that is maxBytes and an index
// interval.
func (c *Chain) Read(dst []byte, offset int64, maxBytes int, upTo int64) ([]byte, error) {
	for {
		w, err := c.locate(offset, upTo)
		if err != nil || w.at.seg == nil {
			return dst, err
		}
		w.maxBytes = maxBytes
		size := w.size
		out, err := c.readSegment(dst, &w)
		if err != nil && c.changed(w.at.seg, size) {
			continue // it is out of range, or elsewhere
		}
		if err != nil {
			return dst, err
		}
		if len(out) > len(dst) {
			c.remember(w.at, w.expect)
			return out, nil
		}
		if w.nextBase >= upTo {
			return dst, nil
		}
		offset = w.nextBase
	}
}

// changed says that a Drop or Restart removed the segment, or a Restart cut it, while it was read.
func (c *Chain) changed(seg *segment, size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.findLocked(seg.base)
	return i < 0 || c.segments[i] != seg || seg.size < size
}

// walker finds the wanted batches among a segment's bytes.
type walker struct {
	offset   int64 // the wanted one
	limit    int64 // batches that end at or beyond it are not wanted
	nextBase int64 // of the next segment, math.MaxInt64 in the last
	maxBytes int
	maxBatch int   // larger lengths are damage
	size     int64 // of the segment
	entries  int64 // on disk, to be searched; 0 when at is good as it is

	at     place // where the next batch begins: in the file
	expect int64 // its base offset, -1 unknown
	last   int64 // its last offset by the index, -1 unknown
	beyond bool  // a batch was seen that ends at or beyond limit
	strict bool  // check batches to be skipped, too, not only the wanted
	cause  error // why some bytes couldn't be read
}

// locate finds the segment for a read and where to begin in it. It does no I/O.
func (c *Chain) locate(offset, upTo int64) (w walker, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if offset > c.next || offset < c.startLocked() {
		return w, fmt.Errorf("%w: %d is not in %d to %d", ErrOffsetOutOfRange, offset, c.startLocked(), c.next)
	}
	if offset == c.next || offset >= upTo {
		return w, nil
	}
	i := c.findLocked(offset)
	s := c.segments[i]
	w = walker{offset: offset, nextBase: c.limitLocked(i), size: s.size, maxBatch: c.o.MaxBatchBytes, at: place{seg: s}, expect: s.base, last: -1}
	w.limit = min(upTo, w.nextBase, c.next)
	if offset == s.base {
		return w, nil
	}
	for _, h := range c.hints {
		if h.seg == s && h.offset == offset {
			w.at.position, w.expect = h.position, offset
			return w, nil
		}
	}
	for i := len(s.pending) - 1; i >= 0; i-- {
		if p := s.pending[i]; p.position >= 0 && p.last <= offset {
			w.at.position, w.last, w.expect = p.position, p.last, -1
			return w, nil
		}
	}
	w.entries = s.entries
	return w, nil
}

// remember notes where a read ended.
func (c *Chain) remember(at place, offset int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.findLocked(at.seg.base); i < 0 || c.segments[i] != at.seg || at.position > at.seg.size {
		return // forgotten by a Restart
	}
	c.hints[c.nextHint] = hint{at, offset}
	c.nextHint = (c.nextHint + 1) % len(c.hints)
}

// readSegment reads from w's segment. Nothing found is not an error.
func (c *Chain) readSegment(dst []byte, w *walker) ([]byte, error) {
	h := c.handles.acquire(w.at.seg)
	defer c.handles.release(h)
	f, err := h.logFile(c.o.FS)
	if err == nil {
		dst, err = c.readFile(dst, w, h, f)
	}
	if err != nil {
		err = c.readError(w, err)
	}
	return dst, err
}

// readError makes damage of what the disk doesn't give: nothing behind it in the segment could be found either.
func (c *Chain) readError(w *walker, err error) error {
	if bad := (*DamageError)(nil); errors.As(err, &bad) {
		return err
	}
	if !unreadable(err) {
		return fmt.Errorf("read segment: %w", err)
	}
	bad := &DamageError{Path: w.at.seg.stem + logSuffix, Position: w.at.position, Offset: w.offset, Resume: w.nextBase, Err: err}
	if bad.Resume == math.MaxInt64 {
		bad.Resume = c.NextOffset()
	}
	return bad
}

// readFile is readSegment with the log open.
func (c *Chain) readFile(dst []byte, w *walker, h *handle, f vfs.File) ([]byte, error) {
	dst = slices.Grow(dst, minRead)
	if w.entries > 0 {
		c.seek(w, h, dst[len(dst):cap(dst)])
	}
	begin, misled := *w, false
	for hinted := begin.last >= 0 || begin.at.position > 0; ; {
		out, err := c.walk(dst, w, f)
		bad, _ := err.(*DamageError)
		if misled && (bad == nil || bad.Position != begin.at.position) {
			w.at.seg.suspect.Store(true)
		}
		if bad == nil {
			return out, err
		}
		misled = false
		cause := w.cause
		switch {
		case hinted:
			// The segment's beginning is surer than whatever led us here, and so is every CRC than the lengths by which
			// batches were skipped.
			hinted, misled = false, bad.Position == begin.at.position
			w.at.position, w.expect, w.last, w.strict = 0, w.at.seg.base, -1, true
		case !w.strict:
			*w = begin
			w.strict = true
		case !c.stepOver(bad, w, f):
			if cause != nil {
				bad.Err = fmt.Errorf("%w: %w", cause, bad.Err)
			}
			return dst, bad
		}
		w.beyond, w.cause = false, nil
	}
}

// seek moves w to where the index on disk says. Without a usable index it stays at the segment's beginning.
func (c *Chain) seek(w *walker, h *handle, scratch []byte) {
	f, err := h.indexFile(c.o.FS)
	if err == nil {
		x := indexFile{f, w.at.seg.base, scratch}
		var i, last, position int64
		i, last, position, err = x.search(w.entries, w.offset)
		if err == nil && i >= 0 && position < w.size {
			w.at.position, w.last, w.expect = position, last, -1
			return
		}
	}
	if err != nil {
		w.at.seg.suspect.Store(true)
	}
}

// walk reads from w's place on, until it has what is wanted or the segment ends.
func (c *Chain) walk(dst []byte, w *walker, f vfs.File) ([]byte, error) {
	base, want := len(dst), max(w.maxBytes, minRead)
	if w.expect != w.offset {
		want += c.o.IndexIntervalBytes // what is likely to lie before it
	}
	for w.at.position < w.size {
		n := int(min(int64(want), w.size-w.at.position))
		dst = slices.Grow(dst[:base], n)[:base+n]
		got, err := f.ReadAt(dst[base:], w.at.position)
		if unreadable(err) {
			p := patient{f: f}
			got, err = p.ReadAt(dst[base:], w.at.position)
			w.cause = p.err
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return dst[:base], err
		}
		if got < n {
			w.size = w.at.position + int64(got) // shorter than it was: whatever is missing is damage
		}
		from, to, need, err := w.scan(dst[base : base+got])
		if err != nil {
			return dst[:base], err
		}
		if to > from {
			n := copy(dst[base:], dst[base+from:base+to])
			return dst[:base+n], nil
		}
		want = max(w.maxBytes, minRead, need)
	}
	if w.nextBase == math.MaxInt64 && !w.beyond {
		return dst[:base], w.damaged(errTorn) // offset is below NextOffset, so there must be a batch
	}
	return dst[:base], nil
}

// scan looks for the wanted batches in buf, the bytes at w's place, and moves w behind them. If buf doesn't have a whole
// wanted one, w is moved to it as far as known, and need is what it takes; at the end of the segment w is moved there.
func (w *walker) scan(buf []byte) (from, to, need int, err error) {
	start := w.at.position
	for i := 0; ; {
		w.at.position = start + int64(i)
		b, err := w.batch(buf[i:])
		switch {
		case to > from && (err != nil || b == nil || i+len(b)-from > w.maxBytes || b.LastOffset() >= w.limit):
			return from, to, 0, nil
		case err == record.ErrShort:
			need, err = w.short(buf[i:])
			return 0, 0, need, err
		case err != nil:
			return 0, 0, 0, w.damaged(err)
		case b == nil:
			w.at.position = w.size
			return 0, 0, 0, nil
		}
		wanted := b.LastOffset() >= w.offset
		if wanted || w.strict {
			if err := check(b); err != nil {
				if to > from {
					return from, to, 0, nil
				}
				return 0, 0, 0, w.damaged(err)
			}
		}
		if b.LastOffset() >= w.limit {
			w.beyond = true
			w.at.position = w.size
			return 0, 0, 0, nil
		}
		if wanted {
			if to == from {
				from = i
			}
			to = i + len(b)
		}
		w.expect, w.last = b.NextOffset(), -1
		i += len(b)
	}
}

// batch splits the batch at w's place off p and checks that it is the one that belongs there; it is nil at the end.
func (w *walker) batch(p []byte) (record.Batch, error) {
	if w.at.position >= w.size {
		return nil, nil
	}
	b, _, err := record.Next(p)
	if err != nil {
		return nil, err
	}
	switch {
	case w.expect >= 0 && b.BaseOffset() != w.expect:
		return nil, corrupt(b, "base offset is not %d", w.expect)
	case b.BaseOffset() < w.at.seg.base || b.LastOffset() < b.BaseOffset():
		return nil, corrupt(b, "last offset %d in the segment of %d", b.LastOffset(), w.at.seg.base)
	case w.last >= 0 && b.LastOffset() != w.last:
		return nil, corrupt(b, "last offset %d, the index says %d", b.LastOffset(), w.last)
	}
	return b, nil
}

// short handles a batch that p has only the beginning of: it is skipped if it isn't wanted, else need says how many
// bytes it has.
func (w *walker) short(p []byte) (need int, err error) {
	left := w.size - w.at.position
	length := int64(record.HeaderBytes)
	if len(p) >= lengthEnd {
		length = int64(binary.BigEndian.Uint32(p[lengthEnd-4:])) + lengthEnd
	}
	if length > left || length > int64(w.maxBatch) {
		if w.expect == w.nextBase {
			w.at.position = w.size // left over from before a Restart
			return 0, nil
		}
		return 0, w.damaged(errTorn)
	}
	if len(p) >= offsetsEnd && w.expect >= 0 && !w.strict {
		last := int64(binary.BigEndian.Uint64(p)) + int64(binary.BigEndian.Uint32(p[offsetsEnd-4:]))
		if int64(binary.BigEndian.Uint64(p)) == w.expect && last >= w.expect && last < w.offset {
			w.at.position += length
			w.expect, w.last = last+1, -1
			return 0, nil
		}
	}
	return int(length), nil
}

func (w *walker) damaged(err error) error {
	if w.expect == w.nextBase {
		// Whatever lies here was superseded by the next segment.
		w.at.position = w.size
		return nil
	}
	from := w.expect
	if from < 0 {
		from = w.offset
	}
	return &DamageError{Path: w.at.seg.stem + logSuffix, Position: w.at.position, Offset: from, Resume: w.nextBase, Err: err}
}

// stepOver finds where reading can go on behind the damage, and moves w there if that is not beyond the wanted offset.
func (c *Chain) stepOver(bad *DamageError, w *walker, f vfs.File) bool {
	end := w.nextBase
	if end == math.MaxInt64 {
		end = c.NextOffset()
	}
	bad.Resume = end
	s := scanner{f: &patient{f: f}, size: w.size, maxBatch: w.maxBatch, position: bad.Position, expect: bad.Offset + 1}
	ok, err := s.resync(end)
	if err != nil || !ok {
		bad.Offset = max(bad.Offset, w.offset)
		return false
	}
	bad.Resume = s.expect
	at := place{w.at.seg, s.position}
	if s.expect > w.offset {
		bad.Offset = max(bad.Offset, w.offset)
		c.remember(at, s.expect)
		return false
	}
	w.at, w.expect, w.last = at, s.expect, -1
	return true
}
