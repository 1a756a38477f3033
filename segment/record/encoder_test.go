package record

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
)

func TestCompress(t *testing.T) {
	rs := messages(200)
	sound := build(31, rs...)
	Restamp(sound, 31, 4, 9, 2, 55)
	e := NewEncoder()
	for from := None; from <= Zstd; from++ {
		in, err := e.Compress(nil, sound, from)
		if err != nil || Batch(in).Codec() != from {
			t.Fatalf("to %s: codec %s, error %v", from, Batch(in).Codec(), err)
		}
		for to := None; to <= Zstd; to++ {
			prefix := []byte("before")
			out, err := e.Compress(slices.Clone(prefix), in, to)
			if err != nil || !bytes.HasPrefix(out, prefix) {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
			b := Batch(out[len(prefix):])
			checkRecords(t, mustDecode(t, b), rs, 31)
			if to == None && !bytes.Equal(b, sound) {
				t.Errorf("%s to none isn't the batch as built", from)
			}
			if to != None && (len(b) > len(in) || (b.Codec() != to && b.Codec() != from)) {
				t.Errorf("%s to %s: %d bytes of %s from %d", from, to, len(b), b.Codec(), len(in))
			}
			if b.LeaderEpoch() != 4 || b.ProducerID() != 9 || b.ProducerEpoch() != 2 || b.BaseSequence() != 55 ||
				b.BaseTimestamp() != sound.BaseTimestamp() || b.MaxTimestamp() != sound.MaxTimestamp() {
				t.Errorf("%s to %s: header changed: %x", from, to, b[:HeaderBytes])
			}
		}
	}
}

func TestCompressKeepsWhatDoesNotShrink(t *testing.T) {
	e := NewEncoder()
	b := build(3, Record{Timestamp: 5, Value: []byte("x")})
	for c := None; c <= Zstd; c++ {
		if out, err := e.Compress(nil, b, c); err != nil || !bytes.Equal(out, b) {
			t.Errorf("%s: %x, error %v", c, out, err)
		}
	}
	// Beyond what decoders take by default nothing is compressed, however well it would.
	big := build(3, Record{Value: make([]byte, MaxUncompressedBytes)})
	if out, err := e.Compress(nil, big, Zstd); err != nil || !bytes.Equal(out, big) {
		t.Errorf("%d bytes became %d, error %v", len(big), len(out), err)
	}
	checkRecords(t, mustDecode(t, big), []Record{{Value: make([]byte, MaxUncompressedBytes)}}, 3)
}

func TestCompressErrors(t *testing.T) {
	e := NewEncoder()
	dst := []byte("before")
	for name, b := range map[string]Batch{
		"nil":    nil,
		"short":  make(Batch, 30),
		"length": append(build(1, messages(2)...), 0),
	} {
		out, err := e.Compress(dst, b, Zstd)
		checkCorrupt(t, name, err, "record batch at offset")
		if string(out) != "before" {
			t.Errorf("%s: dst is %q", name, out)
		}
	}
	if out, err := e.Compress(dst, build(1, messages(2)...), Codec(5)); err == nil || string(out) != "before" {
		t.Errorf("codec 5: %q, error %v", out, err)
	}
}

// split is rs in batches of the given sizes from offset base on, each with the codec of its turn.
func split(t testing.TB, base int64, rs []Record, codecs []Codec, sizes ...int) []Batch {
	t.Helper()
	e := NewEncoder()
	var batches []Batch
	for i, at := 0, 0; at < len(rs); i++ {
		end := min(at+sizes[i%len(sizes)], len(rs))
		b, err := e.Compress(nil, build(base+int64(at), rs[at:end]...), codecs[i%len(codecs)])
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, b)
		at = end
	}
	return batches
}

func TestMerge(t *testing.T) {
	rs := messages(500)
	all := []Codec{None, Gzip, Snappy, LZ4, Zstd}
	e := NewEncoder()
	for _, sizes := range [][]int{{500}, {1}, {1, 2, 3, 50}, {64, 1}, {249, 251}} {
		for _, c := range all {
			prefix := []byte("before")
			out, err := e.Merge(slices.Clone(prefix), split(t, 1<<35, rs, all, sizes...), c)
			if err != nil || !bytes.HasPrefix(out, prefix) {
				t.Fatalf("%v, %s: %v", sizes, c, err)
			}
			b := Batch(out[len(prefix):])
			checkRecords(t, mustDecode(t, b), rs, 1<<35)
			// Merged is the same as built at once.
			want, err := e.Compress(nil, build(1<<35, rs...), c)
			if err != nil || !bytes.Equal(b, want) {
				t.Errorf("%v, %s: merged differs from built at once, error %v", sizes, c, err)
			}
		}
	}
}

// TestMergeExtremes: timestamp deltas that overflow still give the same timestamps.
func TestMergeExtremes(t *testing.T) {
	rs := []Record{{Timestamp: math.MaxInt64}, {Timestamp: math.MinInt64}, {Timestamp: 0}, {Timestamp: -1}, {Timestamp: math.MaxInt64}}
	b, err := NewEncoder().Merge(nil, split(t, 0, rs, []Codec{None}, 1, 2), None)
	if err != nil {
		t.Fatal(err)
	}
	checkRecords(t, mustDecode(t, b), rs, 0)
	if Batch(b).MaxTimestamp() != math.MaxInt64 {
		t.Fatalf("max timestamp %d", Batch(b).MaxTimestamp())
	}
}

// TestMergeHeader: our own header whatever the parts carried, but the first one's leader epoch.
func TestMergeHeader(t *testing.T) {
	batches := split(t, 10, messages(4), []Codec{None}, 2)
	Restamp(batches[0], 10, 6, 77, 1, 5)
	Restamp(batches[1], 12, 8, 77, 1, 7)
	for n := 1; n <= 2; n++ {
		out, err := NewEncoder().Merge(nil, batches[:n], None)
		if err != nil {
			t.Fatal(err)
		}
		if b := Batch(out); b.ProducerID() != -1 || b.ProducerEpoch() != -1 || b.BaseSequence() != -1 || b.LeaderEpoch() != 6 || b.BaseOffset() != 10 {
			t.Errorf("%d merged: header %x", n, out[:HeaderBytes])
		}
	}
}

func TestMergeKeepsWhatDoesNotShrink(t *testing.T) {
	rs := []Record{{Timestamp: 1, Value: []byte("x")}, {Timestamp: 2, Value: []byte("y")}}
	out, err := NewEncoder().Merge([]byte("before"), split(t, 7, rs, []Codec{None}, 1), LZ4)
	if want := "before" + string(build(7, rs...)); err != nil || string(out) != want {
		t.Fatalf("%x, error %v, want %x", out, err, want)
	}
}

func TestMergeErrors(t *testing.T) {
	fresh := func() []Batch { return split(t, 100, messages(9), []Codec{None}, 3) }
	for _, c := range []struct {
		name   string
		make   func() []Batch
		is     error
		reason string
	}{
		{"nothing", func() []Batch { return nil }, nil, "no record batches"},
		{"hole", func() []Batch { b := fresh(); return []Batch{b[0], b[2]} }, ErrHole, ""},
		{"twice", func() []Batch { b := fresh(); return []Batch{b[0], b[0]} }, ErrHole, ""},
		{"back", func() []Batch { b := fresh(); return []Batch{b[1], b[0]} }, ErrHole, ""},
		{"too large", func() []Batch {
			return split(t, 0, []Record{{Value: make([]byte, 9<<20)}, {Value: make([]byte, 9<<20)}}, []Codec{None}, 1)
		}, ErrTooLarge, ""},
		{"control", func() []Batch { b := fresh(); b[1][posAttributes+1] |= attrControl; return b }, nil, "not a batch of ours"},
		{"log append time", func() []Batch { b := fresh(); b[1][posAttributes+1] |= attrLogAppendTime; return b }, nil, "not a batch of ours"},
		{"compacted", func() []Batch { b := fresh(); b[1][posLastOffsetDelta+3]++; return b }, nil, "3 records with last offset delta 3"},
		{"count lower", func() []Batch { b := fresh(); b[1].setShape(2, 0, 0); return b }, nil, "after the last"},
		{"count higher", func() []Batch { b := fresh(); b[1].setShape(4, 0, 0); return b }, nil, "record 3 of 4"},
		{"cut", func() []Batch { b := fresh(); b[2] = b[2][:40]; return b }, nil, "a header has"},
		{"codec 5", func() []Batch { b := fresh(); b[1][posAttributes+1] = 5; return b }, nil, "unknown codec"},
		{"offset deltas", func() []Batch { b := fresh(); b[0][HeaderBytes+sizeVarint(200)+2] = 4; return b }, nil, "offset delta 2"},
	} {
		out, err := NewEncoder().Merge([]byte("before"), c.make(), Zstd)
		if err == nil || string(out) != "before" || (c.is != nil && !errors.Is(err, c.is)) || !bytes.Contains([]byte(err.Error()), []byte(c.reason)) {
			t.Errorf("%s: dst %q, error %v, want %v %s", c.name, out, err, c.is, c.reason)
		}
	}
}

// TestMergeThatGrows: records whose deltas grow beyond what decoders take compressed are left uncompressed, and beyond
// what a batch may be they are refused.
func TestMergeThatGrows(t *testing.T) {
	var b Builder
	tiny := Record{Timestamp: 1 << 62}
	for b.Len() < 8<<20 {
		b.Append(&tiny)
	}
	e := NewEncoder()
	zero := build(0, Record{})
	out, err := e.Merge(nil, []Batch{zero, b.Seal(1)}, Zstd)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) <= MaxUncompressedBytes || Batch(out).Codec() != None || Batch(out).Verify() != nil {
		t.Fatalf("%d bytes of %s, %v", len(out), Batch(out).Codec(), Batch(out).Verify())
	}
	n := 0
	err = NewDecoder(0).Records(out, func(r *Record) error {
		if n > 0 && r.Timestamp != 1<<62 {
			t.Fatalf("record %d has time %d", n, r.Timestamp)
		}
		n++
		return nil
	})
	if err != nil || n != b.Count()+1 {
		t.Fatalf("%d of %d records, error %v", n, b.Count()+1, err)
	}
	// Records without key, value and headers, which no writer makes, grow most: from 4 bytes to 17.
	forged := slices.Clone(emptyHeader[:])
	for n := range byte(64) {
		forged = append(forged, 6, 0, 0, 2*n)
	}
	Batch(forged).setShape(64, 1<<62, 1<<62)
	Batch(forged).finish()
	parts := []Batch{zero}
	for len(parts) < MaxUncompressedBytes/256 {
		b := Batch(slices.Clone(forged))
		SetBaseOffset(b, parts[len(parts)-1].NextOffset())
		parts = append(parts, b)
	}
	if out, err := e.Merge([]byte("before"), parts, None); !errors.Is(err, ErrTooLarge) || string(out) != "before" {
		t.Fatalf("forged: %d bytes, error %v", len(out), err)
	}
}

// TestEncoderReleases: an idle encoder keeps no great buffers.
func TestEncoderReleases(t *testing.T) {
	e := NewEncoder()
	batches := split(t, 0, []Record{{Value: make([]byte, 2<<20)}, {Value: make([]byte, 2<<20)}}, []Codec{Zstd}, 1)
	if _, err := e.Merge(nil, batches, Zstd); err != nil {
		t.Fatal(err)
	}
	if cap(e.raw) > keepBufferBytes || cap(e.dec.buf) > keepBufferBytes {
		t.Fatalf("keeps %d and %d bytes", cap(e.raw), cap(e.dec.buf))
	}
}
