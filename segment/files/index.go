package files

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/sluicemq/sluice/segment/record"
)

// Both indexes have an entry for about every IndexIntervalBytes of log, all integers big endian.
//
// .index (Kafka: OffsetIndex.java), 8 bytes an entry, increasing:
//
//	0  int32  last offset of a batch - base offset of the segment
//	4  int32  position of that batch in the log
//
// .timeindex (Kafka: TimeIndex.java), 12 bytes an entry, both fields increasing:
//
//	0  int64  greatest timestamp in the segment so far, ms
//	8  int32  last offset of the batch that holds it - base offset of the segment
//
// An entry is made for a batch when more than the interval was appended since the batch of the entry before (Kafka:
// LogSegment.append). A time entry goes with it only when the greatest timestamp grew, so a clock that goes back leaves
// the time index valid; one more is written when the segment is closed. Nothing is checksummed: recovery and every read
// check an entry against the batch that it points at.
const (
	indexEntryBytes = 8
	timeEntryBytes  = 12
	noTimestamp     = NoTime // lesser ones get no entry, either
)

// entry is what one batch adds to the two indexes.
type entry struct {
	last, position     int64 // offset index; position < 0: none
	maxTime, maxTimeAt int64 // time index; maxTime is noTimestamp for none
}

// indexer decides which batches get entries. It is fed every batch of a segment, or every one from an indexed batch on.
type indexer struct {
	interval  int64
	since     int64 // bytes from the batch of the latest entry on
	maxTime   int64 // greatest timestamp so far
	maxTimeAt int64 // last offset of the batch that holds it
	written   int64 // timestamp of the latest time entry
}

func newIndexer(interval int) indexer {
	return indexer{interval: int64(interval), maxTime: noTimestamp, written: noTimestamp}
}

// add takes the batch at position. The entry is to be appended to the indexes if ok.
func (x *indexer) add(b record.Batch, position int64) (e entry, ok bool) {
	if t := b.MaxTimestamp(); t > x.maxTime {
		x.maxTime, x.maxTimeAt = t, b.LastOffset()
	}
	if x.since > x.interval {
		e, ok = entry{last: b.LastOffset(), position: position, maxTime: noTimestamp}, true
		x.addTime(&e)
		x.since = 0
	}
	x.since += int64(len(b))
	return e, ok
}

func (x *indexer) addTime(e *entry) {
	if x.maxTime > x.written {
		e.maxTime, e.maxTimeAt = x.maxTime, x.maxTimeAt
		x.written = x.maxTime
	}
}

// final returns the time entry that closing the segment owes.
func (x *indexer) final() (e entry, ok bool) {
	e = entry{position: -1, maxTime: noTimestamp}
	x.addTime(&e)
	return e, e.maxTime != noTimestamp
}

func appendIndexEntry(dst []byte, base int64, e entry) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(e.last-base))
	return binary.BigEndian.AppendUint32(dst, uint32(e.position))
}

func appendTimeEntry(dst []byte, base int64, e entry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.maxTime))
	return binary.BigEndian.AppendUint32(dst, uint32(e.maxTimeAt-base))
}

// indexFile searches an index on disk. scratch holds one entry, so that a search allocates nothing.
type indexFile struct {
	r       io.ReaderAt
	base    int64 // of the segment
	scratch []byte
}

// entry reads offset index entry i.
func (x indexFile) entry(i int64) (last, position int64, err error) {
	p := x.scratch[:indexEntryBytes]
	if _, err := x.r.ReadAt(p, i*indexEntryBytes); err != nil {
		return 0, 0, fmt.Errorf("read index: %w", err)
	}
	rel, pos := int32(binary.BigEndian.Uint32(p)), int32(binary.BigEndian.Uint32(p[4:]))
	if rel < 0 || pos < 0 || x.base > math.MaxInt64-int64(rel) {
		return 0, 0, fmt.Errorf("index entry %d: relative offset %d, position %d", i, rel, pos)
	}
	return x.base + int64(rel), int64(pos), nil
}

// timeEntry reads time index entry i.
func (x indexFile) timeEntry(i int64) (maxTime, at int64, err error) {
	p := x.scratch[:timeEntryBytes]
	if _, err := x.r.ReadAt(p, i*timeEntryBytes); err != nil {
		return 0, 0, fmt.Errorf("read time index: %w", err)
	}
	rel := int32(binary.BigEndian.Uint32(p[8:]))
	if rel < 0 || x.base > math.MaxInt64-int64(rel) {
		return 0, 0, fmt.Errorf("time index entry %d: relative offset %d", i, rel)
	}
	return int64(binary.BigEndian.Uint64(p)), x.base + int64(rel), nil
}

// latest finds the last of the first n entries that fits, where none fits behind one that doesn't. It is -1 if there is none.
// Entries out of order make the answer arbitrary but never out of range.
func latest(n int64, fits func(i int64) (bool, error)) (int64, error) {
	lo, hi := int64(0), n
	for lo < hi {
		mid := lo + (hi-lo)/2
		ok, err := fits(mid)
		if err != nil {
			return -1, err
		}
		if ok {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1, nil
}

// search finds the latest of the first n offset entries whose last offset is at most offset. i is -1 if there is none.
func (x indexFile) search(n, offset int64) (i, last, position int64, err error) {
	i, err = latest(n, func(i int64) (bool, error) {
		l, p, err := x.entry(i)
		if err != nil || l > offset {
			return false, err
		}
		last, position = l, p
		return true, nil
	})
	return i, last, position, err
}

// searchTime is search in the time index: the latest of the first n entries for a batch that ends at offset or before.
func (x indexFile) searchTime(n, offset int64) (i, maxTime, at int64, err error) {
	return x.latestTime(n, func(_, last int64) bool { return last <= offset })
}

// searchBefore finds the latest of the first n time entries with a timestamp below ms.
func (x indexFile) searchBefore(n, ms int64) (i, maxTime, at int64, err error) {
	return x.latestTime(n, func(t, _ int64) bool { return t < ms })
}

// latestTime is the latest of the first n time entries that fits; i is -1 and maxTime noTimestamp if there is none.
func (x indexFile) latestTime(n int64, fits func(maxTime, last int64) bool) (i, maxTime, at int64, err error) {
	maxTime = noTimestamp
	i, err = latest(n, func(i int64) (bool, error) {
		t, last, err := x.timeEntry(i)
		if err != nil || !fits(t, last) {
			return false, err
		}
		maxTime, at = t, last
		return true, nil
	})
	return i, maxTime, at, err
}

// increasing says whether both fields of the first n entries, of either index, increase from each to the next.
func (x indexFile) increasing(n, entryBytes int64) bool {
	const chunk = 512
	p := make([]byte, min(n, chunk)*entryBytes)
	first, second := int64(math.MinInt64), int64(math.MinInt64)
	for at := int64(0); at < n; at += chunk {
		q := p[:min(n-at, chunk)*entryBytes]
		if _, err := x.r.ReadAt(q, at*entryBytes); err != nil {
			return false
		}
		for ; len(q) > 0; q = q[entryBytes:] {
			a := int64(int32(binary.BigEndian.Uint32(q)))
			if entryBytes == timeEntryBytes {
				a = int64(binary.BigEndian.Uint64(q))
			}
			b := int64(int32(binary.BigEndian.Uint32(q[entryBytes-4:])))
			if a <= first || b <= second {
				return false
			}
			first, second = a, b
		}
	}
	return true
}
