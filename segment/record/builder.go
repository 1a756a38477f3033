package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// A record within a batch (Kafka: DefaultRecord.java); "varint" as in varint.go:
//
//	varint   length of all that follows this field
//	int8     attributes, 0
//	varlong  timestamp - the batch's base timestamp
//	varint   offset - the batch's base offset
//	varint   key length, -1 for null, and the key
//	varint   value length, -1 for null, and the value
//	varint   number of headers, and for each:
//	           varint key length and key (never null); varint value length, -1 for null, and value

// Header is one of a record's headers. Keys may repeat.
type Header struct {
	Key   string
	Value []byte // nil is null
}

// Record is one message in a log.
type Record struct {
	// Offset is set by decoding only.
	Offset int64
	// Timestamp is the create time in ms since the epoch.
	Timestamp int64
	// Key and Value: nil is null, which differs from empty.
	Key, Value []byte
	Headers    []Header
}

// Header is the value of the first header with the given key.
func (r *Record) Header(key string) (value []byte, ok bool) {
	for i := range r.Headers {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// Builder encodes one uncompressed batch straight into one buffer. The zero value is ready for use. Not safe for
// concurrent use.
//
// Sizes are computed before anything is written, so that no byte is moved afterwards; the header's place is kept free
// until Seal.
type Builder struct {
	buf            []byte // empty, or HeaderBytes of room and the records so far
	count          int32
	firstTimestamp int64
	maxTimestamp   int64
}

// Count is the number of records so far.
func (b *Builder) Count() int { return int(b.count) }

// Len is the size in bytes of the batch so far, header included; 0 when there are no records.
func (b *Builder) Len() int { return len(b.buf) }

// FirstTimestamp is the first record's timestamp in ms, 0 when there are no records.
func (b *Builder) FirstTimestamp() int64 { return b.firstTimestamp }

// MaxTimestamp is the greatest timestamp of the records in ms, 0 when there are none.
func (b *Builder) MaxTimestamp() int64 { return b.maxTimestamp }

// Size is the exact number of bytes by which Append(r) would make Len grow.
func (b *Builder) Size(r *Record) int {
	delta, header := r.Timestamp-b.firstTimestamp, 0
	if b.count == 0 {
		delta, header = 0, HeaderBytes
	}
	body := bodySize(r, delta, b.count)
	return header + sizeVarint(int64(body)) + body
}

// Append encodes r as the next record. It copies r, and allocates only when the buffer must grow. Timestamps may go back
// below the first one. The caller keeps Len() + Size(r) within MaxBatchBytes: beyond it Append panics.
func (b *Builder) Append(r *Record) {
	if b.count == 0 {
		b.buf = append(b.buf[:0], emptyHeader[:]...)
		b.firstTimestamp, b.maxTimestamp = r.Timestamp, r.Timestamp
	}
	delta := r.Timestamp - b.firstTimestamp
	body := bodySize(r, delta, b.count)
	at := len(b.buf)
	end := at + sizeVarint(int64(body)) + body
	if end > MaxBatchBytes || end < at || b.count == math.MaxInt32 {
		panic(fmt.Sprintf("record batch of %d bytes and %d records: can't take a record of %d bytes", at, b.count, body))
	}
	if end > cap(b.buf) {
		b.buf = slices.Grow(b.buf, end-at)
	}
	b.buf = b.buf[:end]
	encode(b.buf[at:end], r, body, delta, b.count)
	b.maxTimestamp = max(b.maxTimestamp, r.Timestamp)
	b.count++
}

// emptyHeader is the header of a batch of ours before Seal: magic 2, create time, no producer, leader epoch 0.
var emptyHeader = func() (h [HeaderBytes]byte) {
	h[posMagic] = magicV2
	for i := posProducerID; i < posCount; i++ {
		h[i] = 0xff // producer id, epoch and sequence -1
	}
	return h
}()

// Seal completes the header and returns the batch, which aliases the builder's buffer: it is valid until the next Append or
// Reset. Nil when there are no records.
func (b *Builder) Seal(baseOffset int64) Batch {
	if b.count == 0 {
		return nil
	}
	batch := Batch(b.buf)
	batch.setShape(b.count, b.firstTimestamp, b.maxTimestamp)
	SetBaseOffset(batch, baseOffset)
	batch.finish()
	return batch
}

// setShape writes the fields that follow from the records.
func (b Batch) setShape(count int32, base, maxTimestamp int64) {
	binary.BigEndian.PutUint32(b[posLastOffsetDelta:], uint32(count-1))
	binary.BigEndian.PutUint64(b[posBaseTimestamp:], uint64(base))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(maxTimestamp))
	binary.BigEndian.PutUint32(b[posCount:], uint32(count))
}

// Reset empties the builder. A buffer whose capacity exceeds keepBytes is freed.
func (b *Builder) Reset(keepBytes int) {
	buf := b.buf[:0]
	if cap(buf) > keepBytes {
		buf = nil
	}
	*b = Builder{buf: buf}
}

// bodySize is the size of an encoded record without its length field.
func bodySize(r *Record, timestampDelta int64, offsetDelta int32) int {
	n := 1 + sizeVarint(timestampDelta) + sizeVarint(int64(offsetDelta)) +
		sizeBytes(r.Key) + sizeBytes(r.Value) + sizeVarint(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += sizeVarint(int64(len(h.Key))) + len(h.Key) + sizeBytes(h.Value)
	}
	return n
}

// sizeBytes is the encoded size of a byte string; null's length -1 takes one byte like 0.
func sizeBytes(p []byte) int { return sizeVarint(int64(len(p))) + len(p) }

// encode writes r into p, which has exactly its size.
func encode(p []byte, r *Record, body int, timestampDelta int64, offsetDelta int32) {
	i := putVarint(p, 0, int64(body))
	p[i] = 0 // attributes
	i = putVarint(p, i+1, timestampDelta)
	i = putVarint(p, i, int64(offsetDelta))
	i = putBytes(p, i, r.Key)
	i = putBytes(p, i, r.Value)
	i = putVarint(p, i, int64(len(r.Headers)))
	for j := range r.Headers {
		h := &r.Headers[j]
		i = putVarint(p, i, int64(len(h.Key)))
		i += copy(p[i:], h.Key)
		i = putBytes(p, i, h.Value)
	}
}

// putBytes writes a byte string at p[i:] and returns the index after it.
func putBytes(p []byte, i int, v []byte) int {
	if v == nil {
		p[i] = 1 // -1, zigzag
		return i + 1
	}
	i = putVarint(p, i, int64(len(v)))
	return i + copy(p[i:], v)
}
