package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/sluicemq/sluice/segment/record"
)

const (
	scanChunk = 256 << 10 // how much a scan reads at once
	lookChunk = 16 << 10  // and a look at an index interval
)

// errTorn says that a file ends inside a batch.
var errTorn = errors.New("file ends inside a record batch")

// lengthEnd, offsetsEnd and magicAt are places in a batch's header: see package record.
const (
	lengthEnd  = 12
	magicAt    = 16
	offsetsEnd = 27
)

// scanner walks the batches of a log file in order and checks each of them wholly.
type scanner struct {
	f        io.ReaderAt // a *patient where what can't be read is to be stepped over
	size     int64       // bytes of f to look at
	maxBatch int         // larger lengths are damage
	position int64       // of the next batch
	expect   int64       // its base offset

	chunk int64  // how much to read at once; 0: scanChunk
	buf   []byte // bytes of f from bufAt on
	bufAt int64
}

// next returns the batch at s.position, valid until the next call, and steps over it. The error is io.EOF at the end,
// errTorn when the file ends inside the batch, a *record.CorruptError for a bad one, and anything else from reading.
func (s *scanner) next() (record.Batch, error) {
	b, err := s.at(s.position)
	if err != nil {
		return nil, err
	}
	if b.BaseOffset() != s.expect {
		return nil, corrupt(b, "base offset is not %d", s.expect)
	}
	s.position += int64(len(b))
	s.expect = b.NextOffset()
	return b, nil
}

// at returns the valid batch at position, whatever its offsets.
func (s *scanner) at(position int64) (record.Batch, error) {
	left := s.size - position
	if left <= 0 {
		return nil, io.EOF
	}
	head, err := s.bytes(position, min(left, record.HeaderBytes))
	if err != nil {
		return nil, err
	}
	if len(head) < record.HeaderBytes {
		return nil, errTorn
	}
	length := int64(binary.BigEndian.Uint32(head[lengthEnd-4:])) + lengthEnd
	if head[magicAt] != 2 || length > int64(s.maxBatch) {
		return nil, corrupt(head, "magic %d, %d bytes", head[magicAt], length)
	}
	if length > left {
		return nil, errTorn
	}
	p, err := s.bytes(position, length)
	if err != nil {
		return nil, err
	}
	if int64(len(p)) < length {
		return nil, errTorn
	}
	b, _, err := record.Next(p[:length])
	if err != nil {
		return nil, err
	}
	return b, check(b)
}

// check verifies what can be known without the batch's place. Offsets and leader epoch are outside its CRC.
func check(b record.Batch) error {
	if e := b.LeaderEpoch(); e != 0 {
		return corrupt(b, "leader epoch %d, not 0", e)
	}
	return b.Verify()
}

func corrupt(head []byte, format string, args ...any) error {
	return &record.CorruptError{Offset: int64(binary.BigEndian.Uint64(head)), What: fmt.Sprintf(format, args...)}
}

// bytes returns n bytes at position out of the buffer, reading on as needed; fewer only if the file has become shorter.
func (s *scanner) bytes(position, n int64) ([]byte, error) {
	if position < s.bufAt || position+n > s.bufAt+int64(len(s.buf)) {
		chunk := s.chunk
		if chunk == 0 {
			chunk = scanChunk
		}
		want := min(max(n, chunk), s.size-position)
		s.buf = slices.Grow(s.buf[:0], int(want))[:want]
		s.bufAt = position
		got, err := s.f.ReadAt(s.buf, position)
		s.buf = s.buf[:got]
		if err != nil && !errors.Is(err, io.EOF) {
			s.buf = s.buf[:0]
			return nil, err
		}
	}
	p := s.buf[position-s.bufAt:]
	return p[:min(n, int64(len(p)))], nil
}

// resync steps over the damage at s.position to the first valid batch whose offsets lie between s.expect and limit, and
// returns false, without moving, if there is none. Where the bad batch's length leads is tried first: only damage that
// hit the length makes it look at every byte, and take for a batch what may be a record's value that looks like one.
func (s *scanner) resync(limit int64) (bool, error) {
	head, err := s.bytes(s.position, min(record.HeaderBytes, s.size-s.position))
	if err != nil || len(head) < lengthEnd {
		return false, err
	}
	length := int64(binary.BigEndian.Uint32(head[lengthEnd-4:]))
	if ok, err := s.jump(s.position+lengthEnd+length, limit); ok || err != nil {
		return ok, err
	}
	for p := s.position + 1; p+record.HeaderBytes <= s.size; p++ {
		head, err := s.bytes(p, record.HeaderBytes)
		if err != nil || len(head) < record.HeaderBytes {
			return false, err
		}
		if head[magicAt] != 2 || !s.between(head, limit) {
			continue
		}
		if ok, err := s.jump(p, limit); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (s *scanner) between(head []byte, limit int64) bool {
	base := int64(binary.BigEndian.Uint64(head))
	return base >= s.expect && base < limit && base-s.expect <= math.MaxInt32
}

// jump moves s to the batch at position if that can be the next good one. No CRC covers its base offset. Between limits
// that are far apart, one that would mean more missing records than missing bytes must be borne out by the batch behind.
func (s *scanner) jump(position, limit int64) (bool, error) {
	b, err := s.at(position)
	if err != nil {
		return false, readError(err)
	}
	base, next := b.BaseOffset(), b.NextOffset()
	if !s.between(b, limit) || next > limit {
		return false, nil
	}
	if base-s.expect > position-s.position {
		c, err := s.at(position + int64(len(b)))
		if err != nil || c.BaseOffset() != next {
			return false, readError(err)
		}
	}
	s.position, s.expect = position, base
	return true, nil
}

// readError is err unless it only tells what the bytes are.
func readError(err error) error {
	var bad *record.CorruptError
	if err == nil || err == io.EOF || err == errTorn || errors.As(err, &bad) {
		return nil
	}
	return err
}
