package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/sluicemq/sluice/internal/vfs"
)

// Damage is a stretch of the journal that should hold frames and doesn't.
type Damage struct {
	File           string // empty: a whole file is missing
	FromByte       int64
	ToByte         int64
	FromLSN, ToLSN uint64 // of the frames that are lost, both inclusive
	Cause          string // not empty: what is wrong with File; what is lost by that, if anything, is unknown
}

func (d Damage) String() string {
	if d.Cause != "" {
		return fmt.Sprintf("%s %s", d.File, d.Cause)
	}
	if d.File == "" {
		return fmt.Sprintf("journal frames %d to %d are missing", d.FromLSN, d.ToLSN)
	}
	return fmt.Sprintf("%s: frames %d to %d are damaged (bytes %d to %d)", d.File, d.FromLSN, d.ToLSN, d.FromByte, d.ToByte)
}

// Report says what a replay met.
type Report struct {
	LastLSN uint64 // of the last valid frame; the argument of Replay when there was none beyond it
	Frames  int    // given to the callback
	Torn    bool   // the last file ends in a frame that was being written when the power failed
	Damages []Damage
	// Files is how many files are in use. FirstLSN is where the oldest of them begins, and the newest begins behind PrevLSN.
	Files    int
	FirstLSN uint64
	PrevLSN  uint64
	Cut      bool     // the last file is cut short: nobody knows whether frames are lost
	Notes    []string // what is odd about files and loses nothing by itself
}

// Replay calls fn for each entry of each valid frame beyond the LSN after, in order. Frames that a later file's
// header declares void are left out. Damage is reported and passed over; the frames behind it still count.
// It stops at the first error of fn. It may run at any time: what Append adds meanwhile may be missed, and so may what a
// Release frees.
func (j *Journal) Replay(after uint64, fn func(lsn uint64, e *Entry) error) (Report, error) {
	j.mu.Lock()
	var chain []*use
	var notes []string
	known := after
	for _, f := range j.files {
		if f.used {
			chain = append(chain, &use{f.f, f.header, f.begin, f, 0})
		}
		if f.used && after == 0 {
			known = max(known, f.header.covered) // without a recovery point: those are not missing, they were recycled
		}
		if f.note != "" {
			notes = append(notes, f.note)
		}
	}
	recovering := j.current == nil
	j.mu.Unlock()
	r, err := replay(chain, &scanner{after: after, known: known, fn: fn, salvaging: recovering})
	r.Damages = append(r.Damages, j.unreadable...)
	r.Notes = notes
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil || j.current != nil {
		// A journal that is written to knows better which frames its files have, and the next LSN is settled: it is in the
		// current file's header if that holds no frame yet.
		return r, err
	}
	for _, u := range chain {
		u.file.lastLSN = u.last
		j.nextLSN = max(j.nextLSN, u.header.firstLSN+1, u.last+1)
	}
	return r, nil
}

// use is one use of a file as it was when a replay began: a Release and Roll meanwhile may begin the next.
type use struct {
	f      vfs.File
	header header
	begin  int64  // where its first frame is
	file   *file  // only for Replay
	last   uint64 // LSN of the last valid frame, found by replay
}

// ReplayDir is Replay of all that checkpoints don't cover, for a directory that another process may be writing to. It takes
// no lock and writes nothing. While it reads, files may be recycled that it has not come to yet: then the segments have
// what it misses, and the report may call it damage.
func ReplayDir(fs vfs.FS, dir string, fn func(lsn uint64, e *Entry) error) (Report, error) {
	files, bad, err := openSteady(fs, dir)
	if err != nil {
		return Report{}, err
	}
	defer closeFiles(files)
	var chain []*use
	after := uint64(0)
	for _, f := range files {
		if f.used {
			chain = append(chain, &use{f.f, f.header, f.begin, f, 0})
			after = max(after, f.header.covered)
		}
	}
	r, err := replay(chain, &scanner{after: after, known: after, fn: fn})
	r.Damages = append(r.Damages, bad...)
	return r, err
}

// openSteady opens files that were all in that use at one moment. A file that was recycled after its header was read, and
// before that of another one, would be missed with frames that nothing else has yet.
func openSteady(fs vfs.FS, dir string) (files []*file, bad []Damage, err error) {
	for range 10 {
		before := files
		files, bad, err = openFiles(fs, dir, false)
		closeFiles(before)
		if err != nil {
			return nil, nil, err
		}
		if slices.EqualFunc(before, files, func(a, b *file) bool { return a.f.Name() == b.f.Name() && a.header == b.header }) {
			break
		}
	}
	return files, bad, nil
}

func replay(chain []*use, s *scanner) (r Report, err error) {
	slices.SortFunc(chain, func(a, b *use) int { return cmp.Compare(a.header.firstLSN, b.header.firstLSN) })
	r.LastLSN, r.Files = s.after, len(chain)
	s.report = &r
	if len(chain) > 0 {
		r.FirstLSN, r.PrevLSN = chain[0].header.prevLSN+1, chain[len(chain)-1].header.prevLSN
		s.missing("", 0, 0, s.known+1, chain[0].header.prevLSN)
	}
	for i, u := range chain {
		s.limit = math.MaxUint64
		if i+1 < len(chain) {
			s.next, s.limit = chain[i+1], chain[i+1].header.prevLSN
		}
		if u.last, err = s.scan(u); err != nil {
			return r, err
		}
	}
	return r, nil
}

// scanner reads the frames of one file after the other.
type scanner struct {
	after  uint64 // frames up to here are not wanted
	known  uint64 // frames up to here are not missing
	limit  uint64 // the last LSN that is valid in the file in hand
	next   *use   // the file behind it, if there is one
	fn     func(uint64, *Entry) error
	report *Report
	buf    []byte

	salvaging bool // hand on what can be made out of damaged frames, too
}

// missing reports the part of the frames from and to (inclusive) that is beyond what is known already.
func (s *scanner) missing(name string, fromByte, toByte int64, from, to uint64) {
	from = max(from, s.known+1)
	if from <= to {
		s.report.Damages = append(s.report.Damages, Damage{File: name, FromByte: fromByte, ToByte: toByte, FromLSN: from, ToLSN: to})
	}
}

// scan reads one file and returns the LSN of its last valid frame.
func (s *scanner) scan(f *use) (last uint64, err error) {
	last = f.header.prevLSN
	expected, at := f.header.firstLSN, f.begin
	if at > framesAt {
		if err := s.salvage(f, framesAt, at, last, last); err != nil {
			return last, err
		}
	}
	for {
		h, ok := s.read(f, at, expected)
		if !ok {
			var next int64
			var err error
			next, h, err = s.resync(f, at, expected) // from at on: the frame there may be good and only its LSN too high
			if err != nil {
				if s.limit == math.MaxUint64 {
					s.end(f, at, expected)
					return last, nil
				}
				if n := s.next; n.begin > framesAt { // it is there that they were
					s.missing(n.f.Name(), framesAt, n.begin, expected, s.limit)
					return last, nil
				}
				s.missing(f.f.Name(), at, f.header.size, expected, s.limit)
				return last, s.salvage(f, at, f.header.size, expected, s.limit)
			}
			// The frame may have been just being written: it is whole by now if another one follows.
			if whole, ok := s.read(f, at, expected); ok {
				h = whole
			} else if h, ok = s.read(f, next, h.lsn); ok {
				s.missing(f.f.Name(), at, next, expected, h.lsn-1)
				if err := s.salvage(f, at, next, expected, h.lsn-1); err != nil {
					return last, err
				}
				if h, ok = s.read(f, next, h.lsn); !ok { // into s.buf again
					return last, nil
				}
				at = next
			} else {
				return last, nil // the file is being used again
			}
		}
		if h.lsn > s.limit {
			return last, nil
		}
		if h.lsn > s.after {
			if err := s.give(f, at, h); err != nil {
				return last, fmt.Errorf("journal: %s: frame %d: %w", f.f.Name(), h.lsn, err)
			}
			s.report.LastLSN = max(s.report.LastLSN, h.lsn)
		}
		last, expected = h.lsn, h.lsn+1
		at += int64(padded(frameHeaderBytes + int(h.bytes)))
	}
}

// read reads the frame at at into s.buf if it is the one with that LSN.
func (s *scanner) read(f *use, at int64, lsn uint64) (frameHeader, bool) {
	h, err := readFrame(f.f, at, f.header.size, &s.buf)
	return h, err == nil && h.epoch == f.header.epoch && h.lsn == lsn
}

// give hands on the entries of the frame in s.buf: all, or none if they can't be told apart.
func (s *scanner) give(f *use, at int64, h frameHeader) error {
	entries := s.buf[frameHeaderBytes : frameHeaderBytes+int(h.bytes)]
	if err := eachEntry(entries, h.entries, func(*Entry) error { return nil }); err != nil {
		s.missing(f.f.Name(), at, at+int64(padded(frameHeaderBytes+int(h.bytes))), h.lsn, h.lsn)
		return nil
	}
	s.report.Frames++
	return eachEntry(entries, h.entries, func(e *Entry) error { return s.fn(h.lsn, e) })
}

// end judges what follows the last valid frame of the last file. A file has its size from the time before it was first
// used, so one that is shorter has lost its end.
func (s *scanner) end(f *use, at int64, expected uint64) {
	s.report.Torn = expected > s.known && torn(f, at, expected)
	if size, err := f.f.Size(); err == nil && size < f.header.size {
		s.report.Cut = true
		s.report.Damages = append(s.report.Damages, Damage{File: f.f.Name(), FromByte: size, ToByte: f.header.size,
			Cause: fmt.Sprintf("is cut short, at byte %d of %d: frames from %d on, if there were any, are lost", size, f.header.size, expected)})
	}
}

// torn says whether the block at at begins the frame that should be there: it was being written. Or it was whole, and is
// damaged since: nothing tells these apart.
func torn(f *use, at int64, expected uint64) bool {
	var b [frameHeaderBytes]byte
	n, _ := f.f.ReadAt(b[:], at)
	return n == len(b) && resembles(b[:], expected, f.header.epoch)
}

// resync looks for a valid frame behind a bad one. A single frame is in flight at any time, so one that follows a bad
// frame proves that the bad one was whole once.
func (s *scanner) resync(f *use, at int64, expected uint64) (int64, frameHeader, error) {
	for ; at+frameHeaderBytes <= f.header.size; at += blockBytes {
		var b [frameHeaderBytes]byte
		if n, _ := f.f.ReadAt(b[:], at); n < len(b) {
			continue
		}
		h, ok := parseFrameHeader(b[:])
		if !ok || h.epoch != f.header.epoch || h.lsn <= expected || h.lsn > s.limit {
			continue
		}
		if h, err := readFrame(f.f, at, f.header.size, &s.buf); err == nil {
			return at, h, nil
		}
	}
	return 0, frameHeader{}, io.EOF
}

var errNoFrame = errors.New("no valid frame")

// readFrame reads the frame at at into buf, header included, and checks it. It ends before byte end.
func readFrame(f io.ReaderAt, at, end int64, buf *[]byte) (frameHeader, error) {
	b := grow(*buf, blockBytes)
	n, err := f.ReadAt(b[:blockBytes], at)
	if n < frameHeaderBytes {
		return frameHeader{}, errors.Join(errNoFrame, err)
	}
	h, ok := parseFrameHeader(b)
	if !ok || at+frameHeaderBytes+int64(h.bytes) > end {
		return frameHeader{}, errNoFrame
	}
	total := frameHeaderBytes + int(h.bytes)
	if total > n {
		b = grow(b, total)
		if n, err = f.ReadAt(b[:total], at); n < total {
			return frameHeader{}, errors.Join(errNoFrame, err)
		}
	}
	*buf = b
	if crc32.Checksum(b[8:total], castagnoli) != binary.BigEndian.Uint32(b[4:]) {
		return frameHeader{}, errNoFrame
	}
	return h, nil
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		b = append(make([]byte, 0, n), b...)
	}
	return b[:max(n, len(b))]
}
