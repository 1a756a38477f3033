package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/sluicemq/sluice/segment/record"
)

// errHole says that a segment ends before the next one begins, without any sign of damage: a file is missing, or a hole was
// left on purpose.
var errHole = errors.New("no segment has them")

// checkEnd looks whether trusted segment i reaches up to the next one: without reading the log as a whole, what is
// missing, cut short or some other segment is found when the broker starts. Two small reads a segment.
func (r *recoverer) checkEnd(i int) {
	info, next := r.segments[i], r.segments[i+1].Base
	d := Damage{Path: info.Path, Bytes: info.Bytes, From: info.Base, To: next, Cause: errHole}
	log, err := r.c.o.FS.OpenFile(info.Path, os.O_RDONLY, 0)
	if err != nil {
		d.Cause = err
		r.report.Damaged = append(r.report.Damaged, d)
		return
	}
	defer log.Close()
	w := endWalker{f: log, base: info.Base, size: info.Bytes, maxBatch: int64(r.c.o.MaxBatchBytes), next: next}
	if at := r.lastIndexed(info); at > 0 && w.walk(at) == nil && w.expect >= next {
		return
	}
	cause := w.walk(0) // the index may have led astray
	if w.expect >= next {
		return
	}
	if cause != nil {
		d.Cause = cause
	}
	d.From, d.Position, d.Bytes = w.expect, w.position, info.Bytes-w.position
	if cause == nil {
		r.report.Holes = append(r.report.Holes, d)
		return
	}
	r.report.Damaged = append(r.report.Damaged, d)
}

// lastIndexed is the position that the last entry of a segment's index names, 0 without one.
func (r *recoverer) lastIndexed(info SegmentInfo) int64 {
	f, err := r.c.o.FS.OpenFile(stem(r.c.o.Dir, info.Base)+indexSuffix, os.O_RDONLY, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size < indexEntryBytes {
		return 0
	}
	x := indexFile{f, info.Base, make([]byte, indexEntryBytes)}
	_, position, err := x.entry(size/indexEntryBytes - 1)
	if err != nil || position >= info.Bytes {
		return 0
	}
	return position
}

// endWalker goes from header to header.
type endWalker struct {
	f interface {
		ReadAt([]byte, int64) (int, error)
	}
	base     int64 // of the segment
	next     int64 // base of the one that follows
	size     int64
	maxBatch int64

	position int64 // behind the last good header's batch
	expect   int64 // the offset there
}

// walk goes from position at to the end. The error says why it got no further.
func (w *endWalker) walk(at int64) error {
	var head [record.HeaderBytes]byte
	w.position, w.expect = at, w.base
	for first := true; w.position < w.size && w.expect < w.next; first = false {
		if n, err := w.f.ReadAt(head[:], w.position); n < len(head) {
			if readError(err) != nil {
				return err
			}
			return errTorn
		}
		base, length := int64(binary.BigEndian.Uint64(head[:])), int64(binary.BigEndian.Uint32(head[lengthEnd-4:]))+lengthEnd
		last := base + int64(int32(binary.BigEndian.Uint32(head[offsetsEnd-4:])))
		switch {
		case head[magicAt] != 2 || length > w.maxBatch:
			return corrupt(head[:], "magic %d, %d bytes", head[magicAt], length)
		case base < w.base || last < base || last == math.MaxInt64 || (!first || at == 0) && base != w.expect:
			return corrupt(head[:], "offsets %d to %d where %d is expected", base, last, w.expect)
		case w.position+length > w.size:
			return fmt.Errorf("%w at offset %d", errTorn, base)
		}
		w.position, w.expect = w.position+length, last+1
	}
	return nil
}
