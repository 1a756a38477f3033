package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestNextSplits(t *testing.T) {
	rs := messages(30)
	first, second := build(0, rs[:10]...), build(10, rs[10:]...)
	buf := slices.Concat(first, second)
	b, rest, err := Next(buf)
	if err != nil || !bytes.Equal(b, first) || !bytes.Equal(rest, second) {
		t.Fatalf("first: %d bytes, %d left, error %v", len(b), len(rest), err)
	}
	if cap(b) != len(b) {
		t.Fatal("appending to the batch would overwrite its successor")
	}
	if b, rest, err = Next(rest); err != nil || !bytes.Equal(b, second) || len(rest) != 0 {
		t.Fatalf("second: %d bytes, %d left, error %v", len(b), len(rest), err)
	}
	if b, rest, err = Next(rest); err != ErrShort || b != nil || len(rest) != 0 {
		t.Fatalf("end: %x, %d left, error %v", b, len(rest), err)
	}
}

func TestNextTruncated(t *testing.T) {
	full := build(5, messages(3)...)
	for n := range len(full) {
		if b, rest, err := Next(full[:n]); err != ErrShort || b != nil || len(rest) != n {
			t.Fatalf("%d of %d bytes: %x, %d left, error %v", n, len(full), b, len(rest), err)
		}
		if n >= posLength {
			var corrupt *CorruptError
			if err := Batch(full[:n]).Verify(); !errors.As(err, &corrupt) || corrupt.Offset != 5 {
				t.Fatalf("%d of %d bytes verify: %v", n, len(full), err)
			}
		}
		if _, err := decode(Batch(full[:n])); err == nil {
			t.Fatalf("%d of %d bytes decode", n, len(full))
		}
	}
}

func TestNextCorrupt(t *testing.T) {
	for name, damage := range map[string]func(b []byte){
		"length zero":               func(b []byte) { binary.BigEndian.PutUint32(b[posLength:], 0) },
		"length below header":       func(b []byte) { binary.BigEndian.PutUint32(b[posLength:], HeaderBytes-logOverhead-1) },
		"length negative":           func(b []byte) { binary.BigEndian.PutUint32(b[posLength:], math.MaxUint32) },
		"length huge":               func(b []byte) { binary.BigEndian.PutUint32(b[posLength:], math.MaxInt32) },
		"length one beyond maximum": func(b []byte) { binary.BigEndian.PutUint32(b[posLength:], MaxBatchBytes-logOverhead+1) },
		"magic 1":                   func(b []byte) { b[posMagic] = 1 },
		"magic 3":                   func(b []byte) { b[posMagic] = 3 },
		"zeros":                     func(b []byte) { clear(b) },
	} {
		b := build(7, messages(2)...)
		damage(b)
		var corrupt *CorruptError
		if got, rest, err := Next(b); !errors.As(err, &corrupt) || got != nil || len(rest) != len(b) {
			t.Errorf("%s: %x, %d left, error %v", name, got, len(rest), err)
		}
		if _, _, err := Next(b[:20]); !errors.As(err, &corrupt) {
			t.Errorf("%s, 20 bytes: error %v, though more bytes can't help", name, err)
		}
	}
}

// TestVerifyFindsEachBit: one flipped bit anywhere but in base offset and leader epoch is found.
func TestVerifyFindsEachBit(t *testing.T) {
	for _, c := range []Codec{None, Zstd} {
		sound, err := NewEncoder().Compress(nil, build(1<<33, messages(20)...), c)
		if err != nil {
			t.Fatal(err)
		}
		for i := range sound {
			for bit := range 8 {
				b := Batch(slices.Clone(sound))
				b[i] ^= 1 << bit
				outside := i < posLength || (i >= posLeaderEpoch && i < posMagic)
				var corrupt *CorruptError
				switch err := b.Verify(); {
				case outside && i > 0 && err != nil:
					t.Fatalf("%s: byte %d bit %d: %v", c, i, bit, err)
				case !outside && !errors.As(err, &corrupt):
					t.Fatalf("%s: byte %d bit %d: error %v", c, i, bit, err)
				}
			}
		}
	}
}

// TestHeaderFields damages one header field each, with a right CRC: what Verify and Records say, and that neither panics.
func TestHeaderFields(t *testing.T) {
	put32 := func(at int, v uint32) func(Batch) { return func(b Batch) { binary.BigEndian.PutUint32(b[at:], v) } }
	put16 := func(at int, v uint16) func(Batch) { return func(b Batch) { binary.BigEndian.PutUint16(b[at:], v) } }
	const fine = ""
	for _, c := range []struct {
		name            string
		damage          func(b Batch)
		verify, records string // part of the error
	}{
		{"sound", func(Batch) {}, fine, fine},
		{"count lower", put32(posCount, 3), "3 records with last offset delta 3", "after the last of 3"},
		{"count higher", put32(posCount, 5), "5 records with last offset delta 3", "record 4 of 5: length"},
		{"count zero", put32(posCount, 0), "0 records", "after the last of 0"},
		{"count negative", put32(posCount, 1<<31), "records with last offset delta", "-2147483648 records"},
		{"count huge", put32(posCount, math.MaxInt32), "2147483647 records", "record 4 of 2147483647: length"},
		{"count and delta lower", func(b Batch) { put32(posCount, 3)(b); put32(posLastOffsetDelta, 2)(b) }, fine, "after the last of 3"},
		{"count and delta higher", func(b Batch) { put32(posCount, 5)(b); put32(posLastOffsetDelta, 4)(b) }, fine, "record 4 of 5: length"},
		{"last delta lower", put32(posLastOffsetDelta, 2), "4 records with last offset delta 2", "offset delta 3 after 2, last 2"},
		{"last delta higher, as after compaction", put32(posLastOffsetDelta, 9), "4 records with last offset delta 9", fine},
		{"last delta negative", put32(posLastOffsetDelta, math.MaxUint32), "last offset delta -1", "offset delta 0 after -1"},
		{"last delta huge", put32(posLastOffsetDelta, math.MaxInt32), "last offset delta 2147483647", fine},
		{"base offset negative", func(b Batch) { SetBaseOffset(b, -1) }, "offsets out of range", fine},
		{"base offset at the end", func(b Batch) { SetBaseOffset(b, math.MaxInt64-3) }, "offsets out of range", fine},
		{"codec 5", put16(posAttributes, 5), "unknown attributes", "unknown codec"},
		{"codec 7", put16(posAttributes, 7), "unknown attributes", "unknown codec"},
		{"codec that it isn't: gzip", put16(posAttributes, 1), fine, "decompress gzip"},
		{"codec that it isn't: snappy", put16(posAttributes, 2), fine, "decompress snappy"},
		{"codec that it isn't: lz4", put16(posAttributes, 3), fine, "decompress lz4"},
		{"codec that it isn't: zstd", put16(posAttributes, 4), fine, "decompress zstd"},
		{"attribute bit 7", put16(posAttributes, 0x80), "unknown attributes", fine},
		{"attribute bit 15", put16(posAttributes, 0x8000), "unknown attributes", fine},
		{"control", put16(posAttributes, attrControl), fine, fine},
		{"producer fields", func(b Batch) { Restamp(b, 0, -1, 7, 3, 99) }, fine, fine},
		{"leader epoch", put32(posLeaderEpoch, 12), fine, fine},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := build(0, messages(4)...)
			c.damage(b)
			reCRC(b)
			check := func(what string, err error, want string) {
				t.Helper()
				var corrupt *CorruptError
				if want == fine && err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if want != fine && (!errors.As(err, &corrupt) || corrupt.Offset != b.BaseOffset() || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: %v, want %q", what, err, want)
				}
			}
			check("Verify", b.Verify(), c.verify)
			_, err := decode(b)
			check("Records", err, c.records)
		})
	}
}

func TestRestamp(t *testing.T) {
	rs := messages(12)
	b := build(1000, rs...)
	if b.ProducerID() != -1 || b.ProducerEpoch() != -1 || b.BaseSequence() != -1 || b.LeaderEpoch() != 0 {
		t.Fatalf("new batch: producer %d, epoch %d, sequence %d, leader epoch %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LeaderEpoch())
	}
	Restamp(b, 0, -1, 1<<40+5, 7, math.MaxInt32)
	if b.BaseOffset() != 0 || b.ProducerID() != 1<<40+5 || b.ProducerEpoch() != 7 || b.BaseSequence() != math.MaxInt32 || b.LeaderEpoch() != -1 {
		t.Fatalf("restamped: offset %d, producer %d, epoch %d, sequence %d, leader epoch %d", b.BaseOffset(), b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LeaderEpoch())
	}
	checkRecords(t, mustDecode(t, b), rs, 0)
	SetBaseOffset(b, 1<<50)
	checkRecords(t, mustDecode(t, b), rs, 1<<50)
	if b.LastOffset() != 1<<50+11 || b.NextOffset() != 1<<50+12 {
		t.Fatalf("last offset %d, next %d", b.LastOffset(), b.NextOffset())
	}
	Restamp(b, 1000, 0, -1, -1, -1)
	if !bytes.Equal(b, build(1000, rs...)) {
		t.Fatal("restamping back doesn't give the batch as built")
	}
}

func TestMoveTimestamps(t *testing.T) {
	for _, c := range []Codec{None, Zstd} {
		rs := messages(12)
		b, err := NewEncoder().Compress(nil, build(1000, rs...), c)
		if err != nil {
			t.Fatal(err)
		}
		MoveTimestamps(b, 1<<40)
		for i := range rs {
			rs[i].Timestamp += 1 << 40
		}
		checkRecords(t, mustDecode(t, b), rs, 1000)
		if want := build(1000, rs...); Batch(b).BaseTimestamp() != want.BaseTimestamp() || Batch(b).MaxTimestamp() != want.MaxTimestamp() {
			t.Errorf("timestamps %d to %d, want %d to %d", Batch(b).BaseTimestamp(), Batch(b).MaxTimestamp(), want.BaseTimestamp(), want.MaxTimestamp())
		}
	}
}
