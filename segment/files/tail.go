package files

import (
	"errors"
	"io"
	"math"

	"github.com/sluicemq/sluice/segment/record"
)

// tail is how far a segment is good.
type tail struct {
	path     string
	fileSize int64
	log      *patient // what s reads
	s        *scanner // stands behind the last good batch
	bad      error    // what is wrong with the next bytes; nil where the file just ends
	overlaps bool     // the next batch reaches into the next segment
}

// scanTail checks a segment's batches from t on and feeds the indexes with them, up to the segment that begins at limit.
//
// Below the recovery point a bad batch is damage of something that was synced. It is reported and stepped over, because
// what follows was acknowledged too and the journal need not have it any more.
func (r *recoverer) scanTail(w *writer, t *tail, limit int64) {
	from := t.s.position
	t.overlaps = false
	for {
		if r.end >= 0 && t.s.expect <= r.end {
			r.c.syncedAt, r.c.synced = place{w.seg, t.s.position}, t.s.expect
		}
		at := t.s.position
		b, err := t.s.next()
		if err == nil && b.LastOffset() < limit {
			if e, ok := w.index.add(b, at); ok {
				w.seg.pending = append(w.seg.pending, e)
			}
			continue
		}
		if err == nil {
			t.overlaps = true
			t.s.position, t.s.expect = at, b.BaseOffset()
			break
		}
		if err == io.EOF {
			break
		}
		t.bad = t.log.cause(err)
		if !r.stepOver(t, limit) {
			break
		}
	}
	r.report.Scanned += t.s.position - from
}

// stepOver goes on behind damage to what was synced, if there is something behind it.
func (r *recoverer) stepOver(t *tail, limit int64) bool {
	if r.end >= 0 {
		if t.s.expect >= r.end {
			return false // for the journal to bring again
		}
		limit = min(limit, r.end)
	}
	d := Damage{Path: t.path, Position: t.s.position, From: t.s.expect, Cause: t.bad}
	if ok, err := t.s.resync(limit); !ok || err != nil {
		return false
	}
	t.bad = nil
	d.Bytes, d.To = t.s.position-d.Position, t.s.expect
	r.report.Damaged = append(r.report.Damaged, d)
	return true
}

// startTail returns a tail that stands at the last batch below the recovery point that the indexes know, and drops their
// entries for later ones, which the scan makes anew. If the indexes don't agree with the log the scan begins at the
// segment's beginning.
func (r *recoverer) startTail(w *writer, info SegmentInfo) *tail {
	log := &patient{f: w.h.log}
	begin := scanner{f: log, size: info.Bytes, maxBatch: r.c.o.MaxBatchBytes, expect: w.seg.base}
	t := &tail{path: info.Path, fileSize: info.Bytes, log: log, s: &begin}
	keep, right := kept{}, true
	if r.end > w.seg.base {
		start := begin
		if keep, right = w.checkIndexes(&start, r.end-1); keep.entries > 0 {
			t.s = &start
			w.index.maxTime, w.index.maxTimeAt, w.index.written = keep.maxTime, keep.maxTimeAt, keep.maxTime
		}
	}
	if info.Bytes > 0 && (!right || info.IndexBytes != w.seg.entries*indexEntryBytes || info.TimeIndexBytes%timeEntryBytes != 0) {
		r.report.RebuiltIndexes = append(r.report.RebuiltIndexes, info.Path)
		r.mended = true
	}
	// If they can't be cut they are overwritten from there on; what stays behind the end is checked like any entry.
	w.seg.entries, w.seg.timeBytes = keep.entries, keep.times*timeEntryBytes
	_ = errors.Join(w.h.index.Truncate(w.seg.entries*indexEntryBytes), w.h.time.Truncate(w.seg.timeBytes))
	return t
}

// kept is what can stay of a segment's indexes: entries for batches below the recovery point.
type kept struct {
	entries, times     int64
	maxTime, maxTimeAt int64 // of the last time entry
}

// checkIndexes moves s to the batch of the last index entry up to offset. It is right only if that entry and the last
// time entry up to there agree with the log.
func (w *writer) checkIndexes(s *scanner, offset int64) (k kept, right bool) {
	x := indexFile{w.h.index, w.seg.base, make([]byte, timeEntryBytes)}
	i, last, position, err := x.search(w.seg.entries, offset)
	if err != nil {
		return kept{}, false
	}
	if i < 0 {
		return kept{}, true
	}
	if !x.increasing(i+1, indexEntryBytes) || !s.confirm(last, position) {
		return kept{}, false
	}
	x.r = w.h.time
	j, maxTime, at, err := x.searchTime(w.seg.timeBytes/timeEntryBytes, last)
	if err != nil || !x.increasing(j+1, timeEntryBytes) {
		return kept{}, false
	}
	v := view{
		seg: w.seg, next: math.MaxInt64, size: s.size, entries: i + 1, maxBatch: s.maxBatch,
		log: s.f, index: w.h.index, time: w.h.time,
	}
	t := v.scanner()
	if j >= 0 {
		var right bool
		if t, right = v.confirmTime(maxTime, at); !right {
			return kept{}, false
		}
	}
	if !t.noneLater(maxTime, last) {
		return kept{}, false
	}
	return kept{i + 1, j + 1, maxTime, at}, true
}

// noneLater looks for a timestamp beyond maxTime in the batches from s on up to the one that ends at last, which shows
// that the end of a time index is missing. Unless the clock went back there they are those of one index interval. If it
// did it is enough to look at the first of them.
func (s scanner) noneLater(maxTime, last int64) bool {
	for end := s.position + scanChunk; s.position < end; {
		b, err := s.next()
		if err != nil || b.MaxTimestamp() > maxTime {
			return false
		}
		if b.LastOffset() >= last {
			break
		}
	}
	return true
}

// confirm moves s to the batch at position if it is a valid one that ends at last.
func (s *scanner) confirm(last, position int64) bool {
	b, err := s.at(position)
	if err != nil || b.LastOffset() != last || b.BaseOffset() < s.expect {
		return false
	}
	s.position, s.expect = position, b.BaseOffset()
	return true
}

// scanAll feeds x with all good batches of a closed segment that end below limit, and returns its index entries.
func scanAll(s *scanner, limit int64, x *indexer) (entries []entry, err error) {
	err = s.each(limit, func(b record.Batch, at int64) bool {
		if e, ok := x.add(b, at); ok {
			entries = append(entries, e)
		}
		return true
	})
	if e, ok := x.final(); ok {
		entries = append(entries, e)
	}
	return entries, err
}
