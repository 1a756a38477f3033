package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// telemetry is a JSON message as sensors send it, different for each i.
func telemetry(i int) []byte {
	rng := rand.New(rand.NewPCG(7, uint64(i)))
	return fmt.Appendf(nil, `{"sensor":"motor-%02d","ts":%d,"temperature_c":%.2f,"vibration_mm_s":%.3f,"state":"running"}`,
		i%40, 1_700_000_000_000+int64(i)*250, 60+10*rng.Float64(), 4*rng.Float64())
}

// messages is n records of all shapes: null and empty keys and values, no, one and many headers, times that go back.
func messages(n int) []Record {
	rs := make([]Record, n)
	for i := range rs {
		r := &rs[i]
		r.Timestamp = 1_700_000_000_000 + int64(i)*7
		r.Key = fmt.Appendf(nil, "plant/motor-%d", i%5)
		r.Value = telemetry(i)
		switch i % 8 {
		case 1:
			r.Key, r.Value = nil, nil
		case 2:
			r.Key, r.Value = []byte{}, []byte{}
		case 3:
			r.Headers = []Header{{Key: EnvelopeKey, Value: []byte("\x01abcd\x02c1")}}
		case 4:
			r.Headers = []Header{{Key: "", Value: nil}, {Key: "a", Value: []byte{}}, {Key: "a", Value: []byte("twice")}, {Key: "ключ", Value: []byte{0}}}
			r.Timestamp -= 100_000
		case 5:
			r.Value = []byte(strings.Repeat("long ", 40*(i%100)))
		case 6:
			r.Timestamp += 1 << 40
		}
	}
	return rs
}

// build is a batch of the records.
func build(base int64, rs ...Record) Batch {
	var b Builder
	for i := range rs {
		b.Append(&rs[i])
	}
	return b.Seal(base)
}

// clone is a deep copy with the offset of the decoded record.
func clone(r *Record) Record {
	c := Record{Offset: r.Offset, Timestamp: r.Timestamp, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value)}
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, Header{Key: strings.Clone(h.Key), Value: slices.Clone(h.Value)})
	}
	return c
}

// decode is all records of b.
func decode(b Batch) ([]Record, error) {
	var rs []Record
	err := NewDecoder(0).Records(b, func(r *Record) error {
		rs = append(rs, clone(r))
		return nil
	})
	return rs, err
}

// mustDecode is the records of a batch that must be sound in every way.
func mustDecode(t testing.TB, b Batch) []Record {
	t.Helper()
	got, rest, err := Next(b)
	if err != nil || len(rest) != 0 || len(got) != len(b) {
		t.Fatalf("Next: %d of %d bytes, error %v", len(got), len(b), err)
	}
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
	rs, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func equalBytes(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }

func equalRecord(a, b *Record) bool {
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && equalBytes(a.Key, b.Key) && equalBytes(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y Header) bool { return x.Key == y.Key && equalBytes(x.Value, y.Value) })
}

// checkRecords compares decoded records with what was appended, at offsets from base on.
func checkRecords(t testing.TB, got, want []Record, base int64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		w := want[i]
		w.Offset = base + int64(i)
		if !equalRecord(&got[i], &w) {
			t.Fatalf("record %d:\n got %+v\nwant %+v", i, got[i], w)
		}
	}
}

// clientBatch encodes records as the franz-go client's own structures do.
func clientBatch(base int64, rs []Record) Batch {
	var records []byte
	maxTimestamp := rs[0].Timestamp
	for i, r := range rs {
		k := kmsg.Record{TimestampDelta64: r.Timestamp - rs[0].Timestamp, OffsetDelta: int32(i), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		k.Length = int32(len(k.AppendTo(nil)) - 1) // with length 0 in one byte
		records = k.AppendTo(records)
		maxTimestamp = max(maxTimestamp, r.Timestamp)
	}
	kb := kmsg.RecordBatch{
		FirstOffset: base, PartitionLeaderEpoch: 0, Magic: 2, LastOffsetDelta: int32(len(rs) - 1),
		FirstTimestamp: rs[0].Timestamp, MaxTimestamp: maxTimestamp,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(rs)), Records: records,
	}
	raw := kb.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// reCRC makes the CRC right again after damage, so that what lies behind it is tested.
func reCRC(b Batch) Batch {
	binary.BigEndian.PutUint32(b[posCRC:], b.computeCRC())
	return b
}
