package record

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// seedBatches are sound batches of all codecs.
func seedBatches(f *testing.F) []Batch {
	e := NewEncoder()
	var all []Batch
	for c := None; c <= Zstd; c++ {
		b, err := e.Compress(nil, build(1, messages(12)...), c)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// FuzzBatch: whatever the bytes, splitting, verifying, decoding, merging and recompressing end in a result or in a typed error.
// What decodes must merge into, and recompress to, the same records.
func FuzzBatch(f *testing.F) {
	for _, b := range seedBatches(f) {
		f.Add([]byte(b))
		f.Add([]byte(slices.Concat(b, b[:30])))
	}
	f.Add([]byte{})
	f.Add(make([]byte, HeaderBytes))
	const limit = 1 << 20
	d, e := NewDecoder(limit), NewEncoder()
	f.Fuzz(func(t *testing.T, p []byte) {
		b, rest, err := Next(p)
		var corrupt *CorruptError
		if err != nil {
			if (err != ErrShort && !errors.As(err, &corrupt)) || !bytes.Equal(rest, p) {
				t.Fatalf("Next: %v, %d of %d bytes left", err, len(rest), len(p))
			}
			return
		}
		if len(b)+len(rest) != len(p) {
			t.Fatalf("%d and %d bytes of %d", len(b), len(rest), len(p))
		}
		reCRC(b) // the fuzzer can't guess it
		if err := b.Verify(); err != nil && !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
		var rs []Record
		err = d.Records(b, func(r *Record) error { rs = append(rs, clone(r)); return nil })
		if err != nil && !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
		merged, mergeErr := e.Merge(nil, []Batch{b}, Snappy)
		if err != nil || b.Verify() != nil || mergeErr != nil {
			return
		}
		packed, err := e.Compress(nil, b, LZ4)
		if err != nil {
			t.Fatal(err)
		}
		for _, same := range []Batch{merged, packed} {
			if err := same.Verify(); err != nil {
				t.Fatal(err)
			}
			got, err := decode(same)
			if err != nil {
				t.Fatal(err)
			}
			checkRecords(t, got, rs, b.BaseOffset())
		}
	})
}

// FuzzRecords is FuzzBatch behind a header that is right, so that the records themselves get all the attention.
func FuzzRecords(f *testing.F) {
	for _, b := range seedBatches(f) {
		f.Add(byte(b.Codec()), uint16(b.Count()), []byte(b[HeaderBytes:]))
	}
	d := NewDecoder(1 << 20)
	f.Fuzz(func(t *testing.T, attributes byte, count uint16, records []byte) {
		b := Batch(append(bytes.Clone(emptyHeader[:]), records...))
		b[posAttributes+1] = attributes
		b.setShape(int32(count), 0, 0)
		b.finish()
		last := int64(-1)
		err := d.Records(b, func(r *Record) error {
			if r.Offset <= last || r.Offset >= int64(count) {
				t.Fatalf("offset %d after %d of %d records", r.Offset, last, count)
			}
			last = r.Offset
			return nil
		})
		var corrupt *CorruptError
		if err != nil && !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
	})
}

// FuzzDecompress: no codec gives more than the limit, and nothing panics.
func FuzzDecompress(f *testing.F) {
	for _, b := range seedBatches(f)[1:] {
		f.Add(byte(b.Codec()), []byte(b[HeaderBytes:]))
	}
	const limit = 100_000
	d := decompressors{maxBytes: limit}
	f.Fuzz(func(t *testing.T, c byte, p []byte) {
		out, err := d.decompress(nil, p, Codec(c%6))
		if err == nil && len(out) > limit {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

// FuzzRoundTrip: any content comes back through all codecs, and as a record through Builder and Decoder.
func FuzzRoundTrip(f *testing.F) {
	f.Add(int64(1), []byte("key"), []byte("value"), "header", []byte{})
	f.Add(int64(-1)<<63, []byte(nil), []byte(nil), "", []byte(nil))
	e := NewEncoder()
	f.Fuzz(func(t *testing.T, ts int64, key, value []byte, headerKey string, headerValue []byte) {
		r := Record{Timestamp: ts, Key: key, Value: value, Headers: []Header{{Key: headerKey, Value: headerValue}}}
		rs := []Record{r, {Timestamp: 0}, r}
		sound := build(0, rs...)
		if client := clientBatch(0, rs); !bytes.Equal(client, sound) {
			t.Fatalf("the client builds\n %x, not\n %x", client, sound)
		}
		for c := None; c <= Zstd; c++ {
			b, err := e.Compress(nil, sound, c)
			if err != nil {
				t.Fatal(err)
			}
			checkRecords(t, mustDecode(t, b), rs, 0)
		}
	})
}

// FuzzEnvelope: what parses encodes to an envelope that parses to the same.
func FuzzEnvelope(f *testing.F) {
	for _, c := range envelopes {
		f.Add(c.e.Append(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		e, err := ParseEnvelope(p)
		if err != nil {
			return
		}
		again, err := ParseEnvelope(e.Append(nil))
		if err != nil || !equalEnvelope(e, again) {
			t.Fatalf("%+v became %+v, error %v", e, again, err)
		}
	})
}
