package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// A RecordBatch v2, all integers big endian (Kafka: DefaultRecordBatch.java):
//
//	 0  int64   base offset: the offset of the first record      } not under the CRC: a broker sets
//	 8  int32   length of all that follows this field            } them without reading the rest
//	12  int32   partition leader epoch                           }
//	16  int8    magic, 2                                         }
//	17  uint32  CRC-32C of everything from byte 21 on
//	21  int16   attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon
//	23  int32   last offset delta: offset of the last record - base offset
//	27  int64   base timestamp, ms
//	35  int64   max timestamp, ms
//	43  int64   producer id, -1 none
//	51  int16   producer epoch, -1 none
//	53  int32   base sequence, -1 none
//	57  int32   record count
//	61          records, one after the other; with a codec, this part as a whole is compressed
const (
	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posCount           = 57

	// HeaderBytes is the size of a batch's header; the records begin there.
	HeaderBytes = 61
	// MaxBatchBytes bounds a whole batch, header included: Next takes a greater length for damage, so that nobody
	// allocates for a length that a torn write made up, and a Builder must not be filled beyond it.
	MaxBatchBytes = 64 << 20

	logOverhead = 12 // bytes before what the length field counts
	magicV2     = 2

	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrUnused        = 0xff80
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrShort says that the bytes end inside a batch: more of them may complete it.
var ErrShort = errors.New("bytes end inside a record batch")

// CorruptError says what is wrong with a batch. More bytes don't help.
type CorruptError struct {
	// Offset is the base offset that the batch claims, -1 where not even that could be read.
	Offset int64
	// What is wrong, with the numbers.
	What string
	// Err is the cause, nil where What says it all.
	Err error
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("record batch at offset %d: %s", e.Offset, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Batch is the bytes of exactly one RecordBatch v2, as Next, Builder.Seal and Encoder return it. The accessors read the
// header as it stands; they panic on a slice shorter than HeaderBytes.
type Batch []byte

// BaseOffset is the offset of the first record.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// LastOffset is the offset of the last record.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.lastOffsetDelta()) }

// NextOffset is the offset after the last record.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// Count is the number of records that the header states.
func (b Batch) Count() int32 { return int32(binary.BigEndian.Uint32(b[posCount:])) }

// Codec is the compression of the records.
func (b Batch) Codec() Codec { return Codec(b.attributes() & attrCodec) }

// BaseTimestamp is what the records' timestamps are relative to, in ms since the epoch.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[posBaseTimestamp:])) }

// MaxTimestamp is the greatest timestamp of the records, in ms since the epoch.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[posMaxTimestamp:])) }

// ProducerID is the idempotent producer's id, -1 for none.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[posProducerID:])) }

// ProducerEpoch is the epoch of ProducerID, -1 for none.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[posProducerEpoch:])) }

// BaseSequence is the first record's sequence number, -1 for none.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[posBaseSequence:])) }

// LeaderEpoch is the partition leader epoch: 0 in our own log, -1 as producers send it. It is not under the CRC.
func (b Batch) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[posLeaderEpoch:])) }

// LogAppendTime says that every record's timestamp is MaxTimestamp, set by a broker. Never in batches written here.
func (b Batch) LogAppendTime() bool { return b.attributes()&attrLogAppendTime != 0 }

// Transactional says that the batch is part of a transaction. Never in batches written here.
func (b Batch) Transactional() bool { return b.attributes()&attrTransactional != 0 }

// Control says that the records are transaction markers, not messages. Never in batches written here.
func (b Batch) Control() bool { return b.attributes()&attrControl != 0 }

func (b Batch) lastOffsetDelta() int32 { return int32(binary.BigEndian.Uint32(b[posLastOffsetDelta:])) }
func (b Batch) attributes() uint16     { return binary.BigEndian.Uint16(b[posAttributes:]) }
func (b Batch) storedCRC() uint32      { return binary.BigEndian.Uint32(b[posCRC:]) }
func (b Batch) computeCRC() uint32     { return crc32.Checksum(b[posAttributes:], castagnoli) }

// finish writes what depends on everything else: the length and the CRC.
func (b Batch) finish() {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-logOverhead))
	binary.BigEndian.PutUint32(b[posCRC:], b.computeCRC())
}

func (b Batch) corrupt(err error, format string, args ...any) error {
	off := int64(-1)
	if len(b) >= posLength {
		off = b.BaseOffset()
	}
	return &CorruptError{Offset: off, What: fmt.Sprintf(format, args...), Err: err}
}

// Next splits the first batch off buf. It checks magic and length, so that b is safe to look at; whether its content is
// what was written is Verify's business. The error is ErrShort when buf ends inside the batch (also when it is empty) and a
// *CorruptError when no further bytes can make it a batch; rest is buf then. b and rest alias buf.
func Next(buf []byte) (b Batch, rest []byte, err error) {
	if len(buf) < logOverhead {
		return nil, buf, ErrShort
	}
	length := int64(int32(binary.BigEndian.Uint32(buf[posLength:])))
	if length < HeaderBytes-logOverhead || length > MaxBatchBytes-logOverhead {
		return nil, buf, Batch(buf).corrupt(nil, "length %d is not between %d and %d", length, HeaderBytes-logOverhead, MaxBatchBytes-logOverhead)
	}
	if len(buf) > posMagic && buf[posMagic] != magicV2 {
		return nil, buf, Batch(buf).corrupt(nil, "magic %d, not %d", buf[posMagic], magicV2)
	}
	size := int(length) + logOverhead
	if len(buf) < size {
		return nil, buf, ErrShort
	}
	return Batch(buf[:size:size]), buf[size:], nil
}

// Verify checks that the batch is as it was written and that our log can hold it: length, magic, CRC-32C, known codec, no
// unknown attributes, at least one record, and no offsets missing within (a compacted remote topic may have such
// batches, our log has not). It doesn't decompress or look into records. The error is a *CorruptError.
//
// Base offset and leader epoch are outside the CRC: whoever knows what they should be must compare them.
func (b Batch) Verify() error {
	if err := b.checkFrame(); err != nil {
		return err
	}
	if want, got := b.storedCRC(), b.computeCRC(); want != got {
		return b.corrupt(nil, "CRC-32C is %08x, header says %08x", got, want)
	}
	if attr := b.attributes(); attr&attrUnused != 0 || attr&attrCodec > uint16(Zstd) {
		return b.corrupt(nil, "unknown attributes %#04x", attr)
	}
	count, delta := b.Count(), b.lastOffsetDelta()
	if count < 1 || int64(count) != int64(delta)+1 {
		return b.corrupt(nil, "%d records with last offset delta %d", count, delta)
	}
	if base := b.BaseOffset(); base < 0 || base >= math.MaxInt64-int64(delta) {
		return b.corrupt(nil, "offsets out of range, last offset delta %d", delta)
	}
	return nil
}

// checkFrame holds for everything that Next returns; it guards the other ways to make a Batch.
func (b Batch) checkFrame() error {
	if len(b) < HeaderBytes {
		return b.corrupt(nil, "%d bytes, a header has %d", len(b), HeaderBytes)
	}
	if length := int64(int32(binary.BigEndian.Uint32(b[posLength:]))); length != int64(len(b))-logOverhead {
		return b.corrupt(nil, "length %d in a batch of %d bytes", length, len(b))
	}
	if b[posMagic] != magicV2 {
		return b.corrupt(nil, "magic %d, not %d", b[posMagic], magicV2)
	}
	return nil
}

// SetBaseOffset moves the batch to another offset, in place. The CRC doesn't cover it.
func SetBaseOffset(b Batch, offset int64) {
	binary.BigEndian.PutUint64(b, uint64(offset))
}

// MoveTimestamps adds ms to the timestamps of all records, in place, and renews the CRC. The records hold what they are apart
// from the base, so only the header changes.
func MoveTimestamps(b Batch, ms int64) {
	binary.BigEndian.PutUint64(b[posBaseTimestamp:], uint64(b.BaseTimestamp()+ms))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(b.MaxTimestamp()+ms))
	b.finish()
}

// Restamp makes b, in place, a batch of the given producer at the given place, and renews the CRC. A producer sends
// base offset 0 and leader epoch -1.
func Restamp(b Batch, baseOffset int64, leaderEpoch int32, producerID int64, producerEpoch int16, baseSequence int32) {
	SetBaseOffset(b, baseOffset)
	binary.BigEndian.PutUint32(b[posLeaderEpoch:], uint32(leaderEpoch))
	binary.BigEndian.PutUint64(b[posProducerID:], uint64(producerID))
	binary.BigEndian.PutUint16(b[posProducerEpoch:], uint16(producerEpoch))
	binary.BigEndian.PutUint32(b[posBaseSequence:], uint32(baseSequence))
	b.finish()
}
