package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// oneRecord is a batch of one record with the given bytes, which are the record with its length field, in hex.
func oneRecord(t testing.TB, record string) Batch {
	t.Helper()
	p, err := hex.DecodeString(strings.ReplaceAll(record, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	b := Batch(append(slices.Clone(emptyHeader[:]), p...))
	b.setShape(1, 0, 0)
	b.finish()
	return b
}

// TestDamagedRecords: lengths and counts that lie, each with a right CRC.
func TestDamagedRecords(t *testing.T) {
	for _, c := range []struct {
		name, record, want string // want is part of the error, empty for none
	}{
		{"sound", "0c 00 00 00 01 01 00", ""},
		{"sound, one header", "12 00 00 00 01 01 02 02 61 01", ""},
		{"sound, length in two bytes", "8c 00 00 00 00 01 01 00", ""},
		{"no bytes", "", "length"},
		{"length zero", "00", "length"},
		{"length negative", "01", "length"},
		{"length beyond the batch", "0e 00 00 00 01 01 00", "length"},
		{"length short by one", "0a 00 00 00 01 01 00", "number of headers"},
		{"length huge", "feffffff0f 00 00 00 01 01 00", "length"},
		{"length never ends", "ffffffffffffffffffff 00", "length"},
		{"bytes after the record", "0c 00 00 00 01 01 00 00", "after the last"},
		{"bytes left in the record", "0e 00 00 00 01 01 00 00", "left over"},
		{"attributes only", "02 00", "deltas"},
		{"timestamp delta cut", "04 00 80", "deltas"},
		{"timestamp delta of eleven bytes", "1c 00 8080808080808080808000 00 01 01 00", "deltas"},
		{"offset delta 1", "0c 00 00 02 01 01 00", "offset delta 1"},
		{"offset delta -1", "0c 00 00 01 01 01 00", "offset delta -1"},
		{"offset delta of six bytes", "16 00 00 808080808000 01 01 00", "deltas"},
		{"key beyond the record", "0c 00 00 00 10 01 00", "key"},
		{"key length -2", "0c 00 00 00 03 01 00", "key"},
		{"key length huge", "14 00 00 00 feffffff0f 01 00", "key"},
		{"key length smallest", "14 00 00 00 ffffffff0f 01 00", "key"},
		{"no key", "06 00 00 00", "key"},
		{"value beyond the record", "0c 00 00 00 01 10 00", "value"},
		{"value length -2", "0c 00 00 00 01 03 00", "value"},
		{"value length huge", "14 00 00 00 01 feffffff0f 00", "value"},
		{"no header count", "0a 00 00 00 01 01", "number of headers"},
		{"header count -1", "0c 00 00 00 01 01 01", "number of headers"},
		{"header count huge", "14 00 00 00 01 01 feffffff0f", "number of headers"},
		{"more headers than bytes", "10 00 00 00 01 01 04 00 01", "number of headers"},
		{"second header missing", "14 00 00 00 01 01 04 02 61 01 01", "header"},
		{"header key null", "10 00 00 00 01 01 02 01 01", "header"},
		{"header key beyond", "10 00 00 00 01 01 02 10 01", "header"},
		{"header value beyond", "10 00 00 00 01 01 02 00 02", "header"},
		{"header value -2", "10 00 00 00 01 01 02 00 03", "header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := oneRecord(t, c.record)
			if err := b.Verify(); err != nil {
				t.Fatalf("the test's batch: %v", err)
			}
			_, err := decode(b)
			checkCorrupt(t, "Records", err, c.want)
			_, err = NewEncoder().Merge(nil, []Batch{b}, None)
			if c.want == "" && err != nil {
				t.Errorf("Merge: %v", err)
			}
		})
	}
}

func checkCorrupt(t testing.TB, what string, err error, want string) {
	t.Helper()
	var corrupt *CorruptError
	if want == "" {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return
	}
	if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

var seedFlag = flag.Uint64("seed", 0, "replay a failure with the seed that it printed")

// TestFlippedBytes throws random damage with a right CRC at everything that decodes: errors are fine, panics are not, and
// neither is more output than the limit.
func TestFlippedBytes(t *testing.T) {
	const limit = 1 << 20
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	sound := build(0, messages(40)...)
	d, e := NewDecoder(limit), NewEncoder()
	for c := None; c <= Zstd; c++ {
		b, err := e.Compress(nil, sound, c)
		if err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			damaged := Batch(slices.Clone(b))
			for range 1 + rng.IntN(3) {
				damaged[HeaderBytes+rng.IntN(len(b)-HeaderBytes)] = byte(rng.Uint32())
			}
			reCRC(damaged)
			err := d.Records(damaged, func(r *Record) error {
				if len(r.Key)+len(r.Value) > limit {
					t.Fatalf("seed %d: record of %d bytes", seed, len(r.Key)+len(r.Value))
				}
				return nil
			})
			var corrupt *CorruptError
			if err != nil && !errors.As(err, &corrupt) {
				t.Fatalf("seed %d: %s: %v", seed, c, err)
			}
			if _, err := e.Merge(nil, []Batch{damaged}, LZ4); err != nil && !errors.As(err, &corrupt) {
				t.Fatalf("seed %d: merge %s: %v", seed, c, err)
			}
		}
	}
}

func TestRecordsStops(t *testing.T) {
	d, n := NewDecoder(0), 0
	b := build(0, messages(10)...)
	err := d.Records(b, func(*Record) error {
		if n++; n == 4 {
			return io.EOF
		}
		return nil
	})
	if err != io.EOF || n != 4 {
		t.Fatalf("error %v after %d records", err, n)
	}
	if d.rec.Key != nil || d.rec.Value != nil || d.rec.Headers != nil {
		t.Fatalf("decoder still holds %+v", d.rec)
	}
	for _, h := range d.headers[:cap(d.headers)] {
		if h.Key != "" || h.Value != nil {
			t.Fatalf("decoder still holds header %+v", h)
		}
	}
}

// TestForeignBatches: what other writers' batches may have and ours have not.
func TestForeignBatches(t *testing.T) {
	rs := messages(6)
	b := build(50, rs...)
	b[posAttributes+1] |= attrLogAppendTime | attrTransactional
	reCRC(b)
	if !b.LogAppendTime() || !b.Transactional() || b.Control() {
		t.Fatal("attributes not seen")
	}
	for i, r := range mustDecode(t, b) {
		if r.Timestamp != b.MaxTimestamp() {
			t.Fatalf("record %d has time %d, the broker's is %d", i, r.Timestamp, b.MaxTimestamp())
		}
		if !bytes.Equal(r.Value, rs[i].Value) {
			t.Fatalf("record %d: %q", i, r.Value)
		}
	}
}

// TestDecoderLimit: a batch beyond the decoder's limit is told from a damaged one, and the decoder goes on with the next.
func TestDecoderLimit(t *testing.T) {
	rs := []Record{{Value: make([]byte, 2000), Headers: make([]Header, 2*keepHeaders)}}
	d := NewDecoder(1000)
	for c := Gzip; c <= Zstd; c++ {
		b, err := NewEncoder().Compress(nil, build(0, rs...), c)
		if err != nil {
			t.Fatal(err)
		}
		err = d.Records(b, func(*Record) error { t.Fatal("a record"); return nil })
		var corrupt *CorruptError
		if !errors.Is(err, ErrTooLarge) || !errors.As(err, &corrupt) {
			t.Errorf("%s: error %v", c, err)
		}
	}
	n := 0
	if err := d.Records(build(0, rs...), func(r *Record) error { n = len(r.Headers); return nil }); err != nil || n != 2*keepHeaders {
		t.Fatalf("%d headers, error %v", n, err)
	}
	if cap(d.headers) > keepHeaders {
		t.Fatalf("keeps %d headers", cap(d.headers))
	}
}

func TestRecordsAllocateNothing(t *testing.T) {
	sound := build(0, messages(64)...)
	nothing := func(*Record) error { return nil }
	for _, c := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		b, err := NewEncoder().Compress(nil, sound, c)
		if err != nil {
			t.Fatal(err)
		}
		d := NewDecoder(0)
		if n := testing.AllocsPerRun(20, func() {
			if err := d.Records(b, nothing); err != nil {
				t.Fatal(err)
			}
		}); n > 4 || (c == None && n > 0) { // a library may take a few for a frame
			t.Errorf("%s: %v allocations for 64 records", c, n)
		}
	}
}
