package files

import (
	"errors"
	"io"
	"io/fs"
	"math"

	"github.com/sluicemq/sluice/segment/record"
)

// NoTime stands for a timestamp that isn't known, or that no record has (Kafka: RecordBatch.NO_TIMESTAMP).
const NoTime = int64(-1)

// unknownTime marks a segment's times that nobody has looked at yet.
const unknownTime = math.MinInt64

// Span describes one segment of a chain.
type Span struct {
	// Base is the offset that the segment begins at, End the one that the next begins at, or NextOffset in the last.
	Base, End int64
	// Bytes is the size of the log and its indexes.
	Bytes int64
	// MinTime is the base timestamp of the first batch, MaxTime the greatest timestamp, in ms, NoTime if not known.
	MinTime, MaxTime int64
	// Active says that it is being written.
	Active bool
}

// Spans describes all segments, oldest first. It does no I/O: times are those that somebody asked for before, and the
// greatest of the active segment.
func (c *Chain) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := make([]Span, len(c.segments))
	for i := range c.segments {
		spans[i] = c.spanLocked(i)
	}
	return spans
}

func (c *Chain) spanLocked(i int) Span {
	s := c.segments[i]
	known := func(ms int64) int64 {
		if ms == unknownTime {
			return NoTime
		}
		return ms
	}
	return Span{s.base, min(c.limitLocked(i), c.next), s.bytesLocked(), known(s.minTime), known(s.maxTime), s == c.writing}
}

// SpanAt describes the segment that holds offset, or the first one, with both times, which are read when they are not known
// yet. Both are NoTime while the disk doesn't give the segment. ok is false for a chain without segments. Errors are those of
// the file system otherwise.
func (c *Chain) SpanAt(offset int64) (s Span, ok bool, err error) {
	for {
		v, ok := c.viewAt(offset)
		if !ok {
			return Span{}, false, nil
		}
		_, err := c.times(v, true)
		if err != nil && c.changed(v.seg, v.size) {
			continue
		}
		if unreadable(err) || errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if s, ok := c.span(v.seg); ok {
			return s, true, err
		}
	}
}

// span describes a segment; ok is false if it has left the chain.
func (c *Chain) span(seg *segment) (s Span, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.findLocked(seg.base)
	if i < 0 || c.segments[i] != seg {
		return Span{}, false
	}
	return c.spanLocked(i), true
}

// OffsetForTime is the base offset of the first batch, in the order of offsets, that has a timestamp of ms or later, that
// ends below upTo and not below StartOffset: what Kafka's offsetsForTimes finds (LogSegment.findOffsetByTimestamp), to
// the batch. If that batch begins below StartOffset the latter is returned. ok is false when there is none. Timestamps
// before 1970 are none.
//
// Segments that end before ms are passed over by their greatest timestamp, which is read once. In the one that matters
// the time index leads to a scan of about an index interval. What is damaged, or what the disk doesn't give, is passed
// over. Errors are those of the file system otherwise.
func (c *Chain) OffsetForTime(ms, upTo int64) (base int64, ok bool, err error) {
	ms = max(ms, 0)
	for from := c.StartOffset(); ; {
		v, more := c.viewAt(from)
		if !more || v.seg.base >= upTo {
			return 0, false, nil
		}
		v.limit = min(v.limit, upTo)
		base, ok, err := c.searchSegment(v, ms)
		if err != nil {
			if c.changed(v.seg, v.size) {
				from = max(from, c.StartOffset())
				continue
			}
			if !unreadable(err) {
				return 0, false, err
			}
		}
		if ok {
			return max(base, v.start), true, nil
		}
		if v.next == math.MaxInt64 {
			return 0, false, nil
		}
		from = v.next
	}
}

// view is one segment as it was at a moment, for a look at its batches by time.
type view struct {
	seg      *segment
	start    int64 // batches that end below are not wanted
	limit    int64 // nor those that end at or beyond
	next     int64 // where the next segment begins, math.MaxInt64 in the last
	size     int64
	entries  int64 // on disk, of the offset index
	times    int64 // on disk, of the time index
	pending  []entry
	active   bool
	maxBatch int

	log, index, time io.ReaderAt
}

// viewAt is the segment that holds offset, or the first one. ok is false if there is none.
func (c *Chain) viewAt(offset int64) (v view, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := max(c.findLocked(offset), 0)
	if i >= len(c.segments) {
		return v, false
	}
	s := c.segments[i]
	return view{
		seg: s, start: c.startLocked(), limit: c.limitLocked(i), next: c.limitLocked(i),
		size: s.size, entries: s.entries, times: s.timeBytes / timeEntryBytes, pending: s.pending,
		active: s == c.writing, maxBatch: c.o.MaxBatchBytes,
	}, true
}

// withFiles calls fn with the files of v open. Without an index there is no index entry.
func (c *Chain) withFiles(v *view, fn func() error) error {
	h := c.handles.acquire(v.seg)
	defer c.handles.release(h)
	log, err := h.logFile(c.o.FS)
	if err != nil {
		return err
	}
	v.log = &patient{f: log}
	index, err1 := h.indexFile(c.o.FS)
	time, err2 := h.timeFile(c.o.FS)
	if err1 != nil || err2 != nil {
		v.seg.suspect.Store(true)
	} else {
		v.index, v.time = index, time
	}
	return fn()
}

// times is the greatest timestamp in v's segment, read and kept if nobody knows it yet, and with first that of its
// first batch, too.
func (c *Chain) times(v view, first bool) (greatest int64, err error) {
	c.mu.Lock()
	least, greatest := v.seg.minTime, v.seg.maxTime
	c.mu.Unlock()
	if greatest != unknownTime && (!first || least != unknownTime) {
		return greatest, nil
	}
	err = c.withFiles(&v, func() (err error) {
		if least == unknownTime {
			least = NoTime
			s := v.scanner()
			err = s.each(v.next, func(b record.Batch, _ int64) bool {
				least = b.BaseTimestamp()
				return false
			})
		}
		if greatest == unknownTime && err == nil {
			greatest, err = v.greatest()
		}
		return err
	})
	if err != nil {
		return NoTime, err
	}
	if log := v.log.(*patient); log.bad > 0 {
		return greatest, log.err // for what can be read now: not to be kept
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// An active segment grows meanwhile, and after a Restart it is another one's end.
	if v.seg.minTime == unknownTime && v.seg.size >= v.size {
		v.seg.minTime = least
	}
	if v.seg.maxTime == unknownTime && v.seg.size == v.size {
		v.seg.maxTime = greatest
	}
	return greatest, nil
}

// searchSegment finds the first wanted batch in v's segment with a timestamp of ms or later.
func (c *Chain) searchSegment(v view, ms int64) (base int64, ok bool, err error) {
	greatest, err := c.times(v, false)
	if err != nil && !unreadable(err) || greatest < ms {
		return 0, false, err
	}
	err = c.withFiles(&v, func() (err error) {
		base, ok, err = v.find(ms)
		return err
	})
	return base, ok, err
}

// errWrongIndex says that an index doesn't agree with the log, or can't be read.
var errWrongIndex = errors.New("index is wrong")

// greatest is the greatest timestamp in the segment: what the last time entry says, if that is true and nothing behind it
// is greater, as it would be if entries were missing.
func (v *view) greatest() (int64, error) {
	greatest := NoTime
	raise := func(b record.Batch, _ int64) bool {
		greatest = max(greatest, b.MaxTimestamp())
		return true
	}
	if v.times > 0 && v.index != nil {
		x := indexFile{v.time, v.seg.base, make([]byte, timeEntryBytes)}
		last, at, err := x.timeEntry(v.times - 1)
		s, right := scanner{}, false
		if err == nil {
			s, right = v.confirmTime(last, at)
		}
		if right {
			if err := s.each(v.next, raise); err != nil {
				return NoTime, err
			}
			if greatest <= last {
				return last, nil
			}
		}
		v.seg.suspect.Store(true)
	}
	greatest = NoTime
	s := v.scanner()
	err := s.each(v.next, raise)
	return greatest, err
}

// find is searchSegment with the files open.
func (v *view) find(ms int64) (base int64, ok bool, err error) {
	if v.index != nil && !v.seg.suspect.Load() {
		base, ok, err = v.findIndexed(ms)
		if !errors.Is(err, errWrongIndex) {
			return base, ok, err
		}
		v.seg.suspect.Store(true)
	}
	s := v.scanner()
	return v.scanFor(&s, ms, math.MaxInt64)
}

// findIndexed lets the indexes say where to begin. Before the last time entry below ms there is nothing to be
// found, nor before the offset entry that is the last one ahead of the next time entry's batch: both were made together.
func (v *view) findIndexed(ms int64) (base int64, ok bool, err error) {
	x := indexFile{v.time, v.seg.base, make([]byte, timeEntryBytes)}
	i, last, at, err := x.searchBefore(v.times, ms)
	if err != nil {
		return 0, false, errWrongIndex
	}
	if i >= 0 {
		if _, right := v.confirmTime(last, at); !right {
			return 0, false, errWrongIndex
		}
	}
	behind := int64(math.MaxInt64) // the offset that is certainly not before the wanted batch
	if i+1 < v.times {
		next, at, err := x.timeEntry(i + 1)
		if err != nil {
			return 0, false, errWrongIndex
		}
		if _, right := v.confirmTime(next, at); !right {
			return 0, false, errWrongIndex
		}
		behind = at
	} else if !v.active && len(v.pending) == 0 {
		return 0, false, errWrongIndex // the greatest timestamp, which is not before ms, has no entry
	} else {
		for _, e := range v.pending {
			if e.maxTime != noTimestamp && e.maxTime >= ms {
				behind = e.maxTimeAt
				break
			}
		}
	}
	first := behind - 1
	if behind < v.start { // then the wanted one is another
		first, behind = v.start-1, math.MaxInt64
	}
	s, ok := v.seek(first)
	if !ok {
		return 0, false, errWrongIndex
	}
	return v.scanFor(&s, ms, behind)
}

// scanFor looks from s on. If there is nothing up to the batch that ends at behind, whatever said so was wrong.
func (v *view) scanFor(s *scanner, ms, behind int64) (base int64, ok bool, err error) {
	wrong := false
	err = s.each(v.limit, func(b record.Batch, _ int64) bool {
		if b.MaxTimestamp() >= ms && b.LastOffset() >= v.start {
			base, ok = b.BaseOffset(), true
			return false
		}
		wrong = b.LastOffset() >= behind && b.MaxTimestamp() < ms
		return !wrong
	})
	if wrong && err == nil {
		err = errWrongIndex
	}
	return base, ok, err
}

func (v *view) scanner() scanner {
	return scanner{f: v.log, size: v.size, maxBatch: v.maxBatch, expect: v.seg.base, chunk: lookChunk}
}

// seek returns a scanner at the batch of the latest index entry up to offset, or at the segment's beginning if there is
// none. It fails when the index doesn't agree with the log.
func (v *view) seek(offset int64) (scanner, bool) {
	s := v.scanner()
	for i := len(v.pending) - 1; i >= 0; i-- {
		if e := v.pending[i]; e.position >= 0 && e.last <= offset {
			return s, s.confirm(e.last, e.position)
		}
	}
	x := indexFile{v.index, v.seg.base, make([]byte, timeEntryBytes)}
	i, last, position, err := x.search(v.entries, offset)
	if err != nil || i >= 0 && !s.confirm(last, position) {
		return s, false
	}
	return s, true
}

// confirmTime checks a time entry: the batch that ends at the offset has that timestamp. s stands there then.
func (v *view) confirmTime(maxTime, at int64) (s scanner, right bool) {
	s, ok := v.seek(at)
	if !ok || at >= v.next { // what lies there was superseded
		return s, false
	}
	for {
		here, expect := s.position, s.expect
		b, err := s.next()
		if err != nil {
			return s, false
		}
		if b.LastOffset() >= at {
			s.position, s.expect = here, expect
			return s, b.LastOffset() == at && b.MaxTimestamp() == maxTime
		}
	}
}

// each calls fn with each good batch from s on that ends below limit, and its position, until fn returns false. Damage is
// stepped over. Errors are those of reading.
func (s *scanner) each(limit int64, fn func(b record.Batch, position int64) bool) error {
	for {
		at := s.position
		b, err := s.next()
		if err == nil {
			if b.LastOffset() >= limit || !fn(b, at) {
				return nil
			}
			continue
		}
		if err == io.EOF {
			return nil
		}
		if err := readError(err); err != nil {
			return err
		}
		if ok, err := s.resync(limit); err != nil || !ok {
			return err
		}
	}
}
