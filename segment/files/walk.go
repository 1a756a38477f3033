package files

import (
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// stretch is a part of a log file that should hold batches and doesn't.
type stretch struct {
	position, end int64 // bytes; end is the file's where nothing valid follows
	from, to      int64 // offsets, to exclusive: that of the next batch, else where the next segment begins, which may be unknown
	resumed       bool  // a valid batch follows in the file
	cause         error
}

// unknownOffset stands for the end of a stretch that nothing tells, math.MaxInt64: the limit of a last segment.
const unknownOffset = int64(math.MaxInt64)

// walked is where a walk ended.
type walked struct {
	position int64 // behind the last good batch
	next     int64 // its next offset
	rest     int64 // bytes behind that which the next segment supersedes
}

// walk calls fn for each good batch of a log file, in order, and bad for each stretch between and behind them. limit is
// the base of the next segment: what follows there counts. An error is fn's or bad's, or of reading where it isn't the disk
// that doesn't give some bytes: those make a stretch like wrong ones do.
func walk(f io.ReaderAt, size, base, limit int64, fn func(b record.Batch, at int64) error, bad func(stretch) error) (walked, error) {
	p := &patient{f: f, endures: true}
	s := scanner{f: p, size: size, maxBatch: record.MaxBatchBytes, expect: base}
	for {
		at, expect := s.position, s.expect
		b, err := s.next()
		switch {
		case err == nil && b.LastOffset() < limit:
			if err := fn(b, at); err != nil {
				return walked{}, err
			}
			continue
		case err == io.EOF:
			return walked{at, expect, 0}, nil
		case expect == limit:
			return walked{at, expect, size - at}, nil
		case readError(err) != nil:
			return walked{}, err
		case err == nil:
			s.position, s.expect = at, expect
			err = corrupt(b, "last offset %d reaches into the next segment", b.LastOffset())
		}
		x := stretch{position: at, end: size, from: expect, to: limit, cause: err}
		ok, err := s.resync(limit)
		switch {
		case err != nil:
			return walked{}, err
		case ok:
			x.end, x.to, x.resumed = s.position, s.expect, true
		case limit != math.MaxInt64:
			x.end = superseded(s, limit)
		}
		if p.err != nil {
			x.cause = fmt.Errorf("bytes can't be read: %w", p.err)
		}
		if err := bad(x); err != nil {
			return walked{}, err
		}
		if !x.resumed {
			return walked{at, expect, size - x.end}, nil
		}
		p.err = nil
	}
}

// superseded finds the position behind bad bytes from which on the file has what the next segment begins with, too; it is
// the file's size if there is none.
func superseded(s scanner, limit int64) int64 {
	s.buf, s.expect = nil, limit
	if ok, _ := s.resync(math.MaxInt64); ok && s.expect == limit {
		return s.position
	}
	return s.size
}

// openSized opens a file for reading and asks for its size.
func openSized(fsys vfs.FS, path string) (vfs.File, int64, error) {
	f, err := fsys.OpenFile(path, 0, 0)
	if err != nil {
		return nil, 0, err
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

// maxFlips is how many bits of a header may be wrong for it to be taken for a damaged one, not for that of another batch.
const maxFlips = 4

// mend is the batch that the stretch was, if only a few bits of what its checksum doesn't cover are wrong: base offset,
// length, leader epoch and magic follow from its place between good neighbours, and the checksum proves the rest. end is
// where the log must end when nothing follows. nil if it isn't so.
func mend(f io.ReaderAt, s stretch, end int64) record.Batch {
	n := s.end - s.position
	if n < record.HeaderBytes || n > record.MaxBatchBytes || !s.resumed && s.position == 0 {
		return nil
	}
	b := make(record.Batch, n)
	if got, _ := f.ReadAt(b, s.position); int64(got) < n {
		return nil
	}
	var was [unchecked]byte
	copy(was[:], b)
	record.SetFrame(b, s.from, 0)
	flips := 0
	for i, x := range was {
		flips += bits.OnesCount8(x ^ b[i])
	}
	to := end
	if s.resumed {
		to = s.to
	}
	if flips > maxFlips || b.Verify() != nil || b.NextOffset() != to {
		return nil
	}
	return b
}

// unchecked is how many bytes at the beginning of a batch its checksum leaves out, but for the checksum itself.
const unchecked = 17
