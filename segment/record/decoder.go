package record

import (
	"unsafe"
)

const (
	// MaxUncompressedBytes is how much a batch's records may decompress to where a caller sets no limit of its own. An
	// Encoder leaves batches uncompressed rather than writing one beyond it.
	MaxUncompressedBytes = 16 << 20

	keepBufferBytes = 256 << 10 // a decompression or merge buffer beyond this is freed after use
	keepHeaders     = 256       // so is a header slice of more headers
)

// Decoder reads the records of batches. It holds what decompression needs for reuse. Not safe for concurrent use.
type Decoder struct {
	codecs  decompressors
	buf     []byte // decompressed records of the batch in hand
	rec     Record
	headers []Header
}

// NewDecoder returns a Decoder that refuses batches whose records decompress to more than maxBytes; 0 or less means
// MaxUncompressedBytes. Codecs are set up when a batch first needs them.
func NewDecoder(maxBytes int) *Decoder {
	if maxBytes <= 0 {
		maxBytes = MaxUncompressedBytes
	}
	return &Decoder{codecs: decompressors{maxBytes: maxBytes}}
}

// Records calls fn for each record of b in order. The *Record, its slices and its headers' keys alias b or the decoder's
// buffers: they are valid, and must not be changed, only until fn returns. An error of fn ends the walk and is returned as it is.
//
// Every length is checked; a malformed batch gives a *CorruptError, wrapping ErrTooLarge where it decompresses to more than
// the decoder's limit, after fn has seen the records before the damage. The CRC is not checked: call Verify first.
// Unlike Verify, Records takes batches from compacted topics, whose records may skip offsets.
// Allocates nothing for a record, once the buffers have grown.
func (d *Decoder) Records(b Batch, fn func(*Record) error) error {
	p, err := d.payload(b)
	if err != nil {
		return err
	}
	defer d.release()
	var (
		count    = int(b.Count())
		last     = int(b.lastOffsetDelta())
		base     = b.BaseOffset()
		baseTime = b.BaseTimestamp()
		appended = b.LogAppendTime()
		raw      rawRecord
		delta    = -1
		i        = 0
	)
	for n := range count {
		if i, err = raw.read(p, i); err != nil {
			return b.corrupt(err, "record %d of %d", n, count)
		}
		if raw.offsetDelta <= delta || raw.offsetDelta > last {
			return b.corrupt(nil, "record %d of %d: offset delta %d after %d, last %d", n, count, raw.offsetDelta, delta, last)
		}
		delta = raw.offsetDelta
		d.rec.Offset = base + int64(delta)
		d.rec.Timestamp = baseTime + raw.timestampDelta
		if appended {
			d.rec.Timestamp = b.MaxTimestamp()
		}
		if err := d.fields(raw.rest); err != nil {
			return b.corrupt(err, "record %d of %d", n, count)
		}
		if err := fn(&d.rec); err != nil {
			return err
		}
	}
	if i != len(p) {
		return b.corrupt(nil, "%d bytes after the last of %d records", len(p)-i, count)
	}
	return nil
}

// payload is b's records, decompressed into d.buf where needed.
func (d *Decoder) payload(b Batch) ([]byte, error) {
	if err := b.checkFrame(); err != nil {
		return nil, err
	}
	if b.Count() < 0 {
		return nil, b.corrupt(nil, "%d records", b.Count())
	}
	c := b.Codec()
	if c == None {
		return b[HeaderBytes:], nil
	}
	p, err := d.codecs.decompress(d.buf[:0], b[HeaderBytes:], c)
	if err != nil {
		d.release()
		return nil, b.corrupt(err, "decompress %s", c)
	}
	d.buf = p
	return p, nil
}

// release forgets the batch in hand, so that an idle decoder keeps neither it nor great buffers alive.
func (d *Decoder) release() {
	d.rec = Record{}
	clear(d.headers)
	if cap(d.headers) > keepHeaders {
		d.headers = nil
	}
	if cap(d.buf) > keepBufferBytes {
		d.buf = nil
	}
}

// rawRecord is a record as far as merging needs to look into it.
type rawRecord struct {
	attributes     byte
	timestampDelta int64
	offsetDelta    int
	rest           []byte // from the key's length to the record's end
}

// malformed is what is wrong with a record's bytes.
type malformed string

func (m malformed) Error() string { return string(m) }

const (
	errRecordLength = malformed("length is beyond the batch's end or malformed")
	errRecordDeltas = malformed("deltas are beyond the record's end or malformed")
	errKey          = malformed("key is beyond the record's end or malformed")
	errValue        = malformed("value is beyond the record's end or malformed")
	errHeaderCount  = malformed("number of headers is more than the record holds or malformed")
	errHeader       = malformed("header is beyond the record's end or malformed")
	errTrailing     = malformed("bytes left over at the record's end")
)

// read splits off the record at p[i:] and returns the index after it.
func (r *rawRecord) read(p []byte, i int) (next int, err error) {
	size, i := varint(p, i)
	if i < 0 || size < 1 || size > len(p)-i {
		return 0, errRecordLength
	}
	next = i + size
	body := p[i:next]
	r.attributes = body[0]
	r.timestampDelta, i = varlong(body, 1)
	r.offsetDelta, i = varint(body, i)
	if i < 0 {
		return 0, errRecordDeltas
	}
	r.rest = body[i:]
	return next, nil
}

// fields reads key, value and headers into d.rec.
func (d *Decoder) fields(p []byte) error {
	var i int
	if d.rec.Key, i = byteString(p, 0); i < 0 {
		return errKey
	}
	if d.rec.Value, i = byteString(p, i); i < 0 {
		return errValue
	}
	count, i := varint(p, i)
	if i < 0 || count < 0 || count > (len(p)-i)/2 { // each header takes two bytes at least
		return errHeaderCount
	}
	d.headers = d.headers[:0]
	for range count {
		var key, value []byte
		if key, i = byteString(p, i); i < 0 || key == nil {
			return errHeader
		}
		if value, i = byteString(p, i); i < 0 {
			return errHeader
		}
		d.headers = append(d.headers, Header{Key: unsafe.String(unsafe.SliceData(key), len(key)), Value: value})
	}
	d.rec.Headers = d.headers
	if i != len(p) {
		return errTrailing
	}
	return nil
}

// byteString reads a length and as many bytes at p[i:]; length -1 is nil. The returned index is -1 where they aren't there.
func byteString(p []byte, i int) ([]byte, int) {
	n, i := varint(p, i)
	if i < 0 || n > len(p)-i || n < -1 {
		return nil, -1
	}
	if n < 0 {
		return nil, i
	}
	return p[i : i+n : i+n], i + n
}
