package record

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrHole says that batches to be merged don't follow each other: one batch can't leave offsets out (the sequence numbers
// of a mirrored batch are counted from its offsets).
var ErrHole = errors.New("offsets are missing between record batches")

// Encoder compresses and merges batches. It holds one compressor of each kind that was used. Not safe for concurrent use.
type Encoder struct {
	codecs compressors
	dec    *Decoder
	raw    []byte // merged records before compression
}

// NewEncoder returns an Encoder. Compressors are set up when first used (zstd: fastest level, one goroutine's worth of
// state, a window of 64 KiB, about half a MiB).
func NewEncoder() *Encoder {
	return &Encoder{dec: NewDecoder(MaxUncompressedBytes)}
}

// Compress appends to dst the batch b with its records compressed by c, and returns the longer dst. Offsets, times and
// producer fields stay. Where c doesn't make the batch smaller, or its records are more than MaxUncompressedBytes, b is
// appended as it is; None always decompresses. dst grows by what b has uncompressed, and must not overlap b. On an error (b is malformed) dst is as it was.
func (e *Encoder) Compress(dst []byte, b Batch, c Codec) ([]byte, error) {
	if err := b.checkFrame(); err != nil {
		return dst, err
	}
	if c == b.Codec() || (c != None && b.Codec() == None && len(b)-HeaderBytes > MaxUncompressedBytes) {
		return append(dst, b...), nil
	}
	records, err := e.dec.payload(b)
	if err != nil {
		return dst, err
	}
	defer e.dec.release()
	out, err := e.pack(dst, b[:HeaderBytes], records, c)
	if err != nil {
		return dst, err
	}
	if c != None && len(out)-len(dst) >= len(b) {
		return append(out[:len(dst)], b...), nil
	}
	return out, nil
}

// pack appends a batch with the given header, but for length, codec and CRC, and the given records compressed with c.
func (e *Encoder) pack(dst, header, records []byte, c Codec) ([]byte, error) {
	out := append(slices.Grow(dst, HeaderBytes+len(records)), header...)
	out, err := e.codecs.compress(out, records, c)
	if err != nil {
		return dst, err
	}
	b := Batch(out[len(dst):])
	b[posAttributes+1] = b[posAttributes+1]&^attrCodec | byte(c)
	b.finish()
	return out, nil
}

// Merge appends to dst one batch of ours, with the base offset and leader epoch of the first, that holds the records of
// all batches, compressed by c where that makes it smaller. It returns the longer dst. Only the records' deltas are
// re-encoded: keys, values and headers are copied as they are. A single batch is compressed as by Compress, but like any other
// result without a producer's id, epoch and sequence. dst must not overlap the batches.
//
// Errors, with dst as it was: ErrHole when the batches' offsets don't follow each other, ErrTooLarge when the records are more
// than MaxUncompressedBytes, *CorruptError for a malformed one or one that only a broker makes (control,
// transactional, log append time, compacted). CRCs are not checked.
func (e *Encoder) Merge(dst []byte, batches []Batch, c Codec) ([]byte, error) {
	if len(batches) == 0 {
		return dst, errors.New("merge: no record batches")
	}
	m := merger{buf: dst, start: len(dst)} // what isn't compressed is merged where it belongs
	if c != None {
		m = merger{buf: e.raw[:0]}
		defer e.release(&m)
	}
	m.buf = append(m.buf, emptyHeader[:]...)
	for i, b := range batches {
		if err := e.add(&m, b, i == 0); err != nil {
			return dst, err
		}
	}
	merged := m.header(batches[0])
	if c == None {
		merged.finish()
		return m.buf, nil
	}
	if len(merged)-HeaderBytes > MaxUncompressedBytes {
		merged.finish()
		return append(dst, merged...), nil
	}
	out, err := e.pack(dst, merged[:HeaderBytes], merged[HeaderBytes:], c)
	if err != nil {
		return dst, err
	}
	if len(out)-len(dst) >= len(merged) {
		merged.finish()
		return append(out[:len(dst)], merged...), nil
	}
	return out, nil
}

// release keeps the buffer that m merged in for the next time, unless it is great.
func (e *Encoder) release(m *merger) {
	e.raw = m.buf[:0]
	if cap(e.raw) > keepBufferBytes {
		e.raw = nil
	}
}

// merger is a batch in the making, at buf[start:]: room for the header, and records.
type merger struct {
	buf           []byte
	start         int
	count         int32
	next          int64 // offset that the next batch must have
	baseTimestamp int64
	maxTimestamp  int64
}

// add appends b's records to m.
func (e *Encoder) add(m *merger, b Batch, first bool) error {
	records, err := e.dec.payload(b)
	if err != nil {
		return err
	}
	defer e.dec.release()
	if b.Control() || b.Transactional() || b.LogAppendTime() {
		return b.corrupt(nil, "attributes %#04x: not a batch of ours, can't be merged", b.attributes())
	}
	if first {
		m.next, m.baseTimestamp, m.maxTimestamp = b.BaseOffset(), b.BaseTimestamp(), math.MinInt64
	}
	if b.BaseOffset() != m.next {
		return fmt.Errorf("merge at offset %d, expected %d: %w", b.BaseOffset(), m.next, ErrHole)
	}
	count := b.Count()
	if count < 1 || int64(count) != int64(b.lastOffsetDelta())+1 || count > math.MaxInt32-m.count {
		return b.corrupt(nil, "%d records with last offset delta %d, merged with %d", count, b.lastOffsetDelta(), m.count)
	}
	if have := len(m.buf) - m.start - HeaderBytes; len(records) > MaxUncompressedBytes-have {
		return fmt.Errorf("merge: %d bytes and %d of records: %w", have, len(records), ErrTooLarge)
	}
	if err := m.addRecords(b, records); err != nil {
		return err
	}
	// What comes out is a little more than what went in, as deltas grow: by 14 bytes a record at the very most.
	if size := len(m.buf) - m.start; size > MaxBatchBytes {
		return fmt.Errorf("merge: batch of %d bytes: %w", size, ErrTooLarge)
	}
	m.next = b.NextOffset()
	return nil
}

// header completes the merged batch but for length and CRC; first gives it its place.
func (m *merger) header(first Batch) Batch {
	b := Batch(m.buf[m.start:])
	b.setShape(m.count, m.baseTimestamp, m.maxTimestamp)
	copy(b[posLeaderEpoch:posMagic], first[posLeaderEpoch:posMagic])
	SetBaseOffset(b, first.BaseOffset())
	return b
}

// addRecords appends b's records, which are given uncompressed, with new deltas.
func (m *merger) addRecords(b Batch, records []byte) error {
	shift := b.BaseTimestamp() - m.baseTimestamp
	count, i := int(b.Count()), 0
	var r rawRecord
	for n := range count {
		var err error
		if i, err = r.read(records, i); err != nil {
			return b.corrupt(err, "record %d of %d", n, count)
		}
		if r.offsetDelta != n {
			return b.corrupt(nil, "record %d of %d: offset delta %d", n, count, r.offsetDelta)
		}
		m.appendRecord(&r, r.timestampDelta+shift)
	}
	if i != len(records) {
		return b.corrupt(nil, "%d bytes after the last of %d records", len(records)-i, count)
	}
	return nil
}

// appendRecord writes r with new deltas: the next offset, and timestampDelta to the merged batch's base.
func (m *merger) appendRecord(r *rawRecord, timestampDelta int64) {
	body := 1 + sizeVarint(timestampDelta) + sizeVarint(int64(m.count)) + len(r.rest)
	at := len(m.buf)
	end := at + sizeVarint(int64(body)) + body
	if end > cap(m.buf) {
		m.buf = slices.Grow(m.buf, end-at)
	}
	m.buf = m.buf[:end]
	p := m.buf[at:end]
	i := putVarint(p, 0, int64(body))
	p[i] = r.attributes
	i = putVarint(p, i+1, timestampDelta)
	i = putVarint(p, i, int64(m.count))
	copy(p[i:], r.rest)
	m.count++
	m.maxTimestamp = max(m.maxTimestamp, m.baseTimestamp+timestampDelta)
}
