package files

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/sluicemq/sluice/segment/record"
)

// entries reads an index in order, a chunk at a time. The fields of an entry are as in the file, offsets absolute:
// (last offset, position) in .index, (timestamp, last offset) in .timeindex.
type entries struct {
	r     io.ReaderAt
	base  int64 // of the segment
	width int64
	n     int64 // entries
	i     int64 // the one in hand
	buf   []byte
	at    int64 // entry that buf begins with
	fault error // reading failed
}

// peek returns the fields of the entry in hand.
func (e *entries) peek() (a, b int64, ok bool) {
	const chunk = 512
	if e.i >= e.n || e.fault != nil {
		return 0, 0, false
	}
	if at := (e.i - e.at) * e.width; e.buf == nil || at >= int64(len(e.buf)) {
		e.buf = append(e.buf[:0], make([]byte, min(chunk, e.n-e.i)*e.width)...)
		e.at = e.i
		if n, err := e.r.ReadAt(e.buf, e.i*e.width); n < len(e.buf) {
			e.fault = err
			return 0, 0, false
		}
	}
	p := e.buf[(e.i-e.at)*e.width:]
	if e.width == timeEntryBytes {
		return int64(binary.BigEndian.Uint64(p)), e.base + int64(int32(binary.BigEndian.Uint32(p[8:]))), true
	}
	return e.base + int64(int32(binary.BigEndian.Uint32(p))), int64(int32(binary.BigEndian.Uint32(p[4:]))), true
}

// indexCheck holds both indexes of a segment against its batches, which it is given in order.
type indexCheck struct {
	offsets, times entries
	what           [2]string // what is wrong first in .index and .timeindex
	where          [2]int64  // the entry
	beyond         [2]bool   // it is only for what lies behind the good end
	maxTime        int64
	x              indexer
	end            int64    // of the recovery point: entries for batches below it were synced
	due            [2]int64 // entries that there should be for those
	all            [2]int64 // and for all
}

func newIndexCheck(base, end int64) *indexCheck {
	return &indexCheck{
		offsets: entries{base: base, width: indexEntryBytes},
		times:   entries{base: base, width: timeEntryBytes},
		maxTime: noTimestamp,
		x:       newIndexer(DefaultIndexIntervalBytes),
		end:     end,
	}
}

func (c *indexCheck) wrong(which int, entry int64, format string, args ...any) {
	if c.what[which] == "" {
		c.what[which], c.where[which] = fmt.Sprintf("entry %d ", entry)+fmt.Sprintf(format, args...), entry
	}
}

// batch checks the entries for the batch at position, and those that should be before.
func (c *indexCheck) batch(b record.Batch, position int64) {
	if e, ok := c.x.add(b, position); ok {
		c.count(e, b.LastOffset() < c.end)
	}
	c.maxTime = max(c.maxTime, b.MaxTimestamp())
	for e := &c.offsets; ; e.i++ {
		last, at, ok := e.peek()
		if !ok || at > position {
			break
		}
		if at < position {
			c.wrong(0, e.i, "points to byte %d, where no batch begins", at)
		} else if last != b.LastOffset() {
			c.wrong(0, e.i, "says that the batch at byte %d ends at offset %d, it ends at %d", at, last, b.LastOffset())
		}
	}
	for e := &c.times; ; e.i++ {
		t, last, ok := e.peek()
		if !ok || last > b.LastOffset() {
			break
		}
		if last < b.LastOffset() {
			c.wrong(1, e.i, "is for offset %d, where no batch ends", last)
		} else if t != b.MaxTimestamp() {
			c.wrong(1, e.i, "says timestamp %d at offset %d, the batch has %d", t, last, b.MaxTimestamp())
		} else if t < c.maxTime {
			c.wrong(1, e.i, "says that %d at offset %d is the greatest timestamp so far, it is %d", t, last, c.maxTime)
		}
	}
}

func (c *indexCheck) count(e entry, synced bool) {
	for i, has := range [2]bool{e.position >= 0, e.maxTime != noTimestamp} {
		if has {
			c.all[i]++
		}
		if has && synced {
			c.due[i]++
		}
	}
}

// skip passes over the entries for batches that the log has lost: they are as good as their log.
func (c *indexCheck) skip(s stretch) {
	for e := &c.offsets; ; e.i++ {
		if _, at, ok := e.peek(); !ok || at >= s.end && s.to != unknownOffset {
			break
		}
	}
	for e := &c.times; ; e.i++ {
		if _, last, ok := e.peek(); !ok || last >= s.to {
			break
		}
	}
}

// finish checks what is left behind the last batch of a log of size bytes, and returns the offset behind the last one
// that the indexes know of: beyond the log's if entries that are right in themselves are for batches that it lacks.
func (c *indexCheck) finish(size, next int64, closed bool) (known int64) {
	if e, ok := c.x.final(); ok && closed {
		c.count(e, next <= c.end)
	}
	known = next
	if c.what[0] == "" && c.what[1] == "" {
		known = max(c.offsets.rest(next, size), c.times.rest(next, 0))
	}
	if last, at, ok := c.offsets.peek(); ok {
		c.beyond[0] = c.what[0] == ""
		c.wrong(0, c.offsets.i, "points to byte %d for offset %d, beyond the log's %d bytes", at, last, size)
	}
	if _, last, ok := c.times.peek(); ok {
		c.beyond[1] = c.what[1] == ""
		c.wrong(1, c.times.i, "is for offset %d, beyond the log's end at %d", last, next)
	}
	for i, e := range []*entries{&c.offsets, &c.times} {
		if e.fault != nil {
			c.wrong(i, e.i, "can't be read: %v", e.fault)
		}
	}
	return known
}

// rest is the offset behind the last entry if all that are left increase, from next and least on; else next.
func (e *entries) rest(next, least int64) int64 {
	copied := *e
	copied.buf, e = nil, &copied
	offset, other := next-1, least-1
	if e.width == timeEntryBytes {
		other = math.MinInt64
	}
	for ; ; e.i++ {
		a, b, ok := e.peek()
		if !ok {
			return offset + 1
		}
		if e.width == timeEntryBytes {
			a, b = b, a
		}
		if a <= offset || b <= other {
			return next
		}
		offset, other = a, b
	}
}
