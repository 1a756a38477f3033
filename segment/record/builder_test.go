package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"
)

// The bytes below were written by the franz-go client's own structures (kmsg), not by this package; offsets and lengths
// were checked by hand against Kafka's message format page. TestClientBytes keeps the two encoders equal.
var goldenBatches = []struct {
	name    string
	base    int64
	records []Record
	hex     string
}{
	{
		name:    "one record, null key, no headers",
		base:    0,
		records: []Record{{Timestamp: 1700000000000, Value: []byte("21.5")}},
		hex: "0000000000000000" + "0000003c" + "00000000" + "02" + "0802cd63" + "0000" + "00000000" +
			"0000018bcfe56800" + "0000018bcfe56800" + "ffffffffffffffff" + "ffff" + "ffffffff" + "00000001" +
			"14" + "00" + "00" + "00" + "01" + "08" + "32312e35" + "00",
	},
	{
		name: "three records, headers, null value, time going back",
		base: 4096,
		records: []Record{
			{Timestamp: 1000, Key: []byte("k"), Value: []byte("v"), Headers: []Header{{Key: "mqtt", Value: []byte{1, 2}}}},
			{Timestamp: 1300, Key: []byte("k"), Value: nil, Headers: []Header{{Key: "h", Value: nil}}},
			{Timestamp: 999, Key: []byte{}, Value: []byte{}},
		},
		hex: "0000000000001000" + "00000055" + "00000000" + "02" + "7623e1a5" + "0000" + "00000002" +
			"00000000000003e8" + "0000000000000514" + "ffffffffffffffff" + "ffff" + "ffffffff" + "00000003" +
			"20" + "00" + "00" + "00" + "02" + "6b" + "02" + "76" + "02" + "08" + "6d717474" + "04" + "0102" +
			"16" + "00" + "d804" + "02" + "02" + "6b" + "01" + "02" + "02" + "68" + "01" +
			"0c" + "00" + "01" + "04" + "00" + "00" + "00",
	},
}

func TestGoldenBytes(t *testing.T) {
	for _, g := range goldenBatches {
		t.Run(g.name, func(t *testing.T) {
			want, err := hex.DecodeString(g.hex)
			if err != nil {
				t.Fatal(err)
			}
			got := build(g.base, g.records...)
			if !bytes.Equal(got, want) {
				t.Errorf("built\n %x\nwant\n %x", got, want)
			}
			if client := clientBatch(g.base, g.records); !bytes.Equal(client, want) {
				t.Errorf("the client builds\n %x\nwant\n %x", client, want)
			}
			checkRecords(t, mustDecode(t, want), g.records, g.base)
		})
	}
}

// TestClientBytes holds Builder against the client's encoder over records of all shapes.
func TestClientBytes(t *testing.T) {
	for _, n := range []int{1, 2, 8, 63, 64, 65, 200, 9000} {
		rs := messages(n)
		got, want := build(77, rs...), clientBatch(77, rs)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d records: %d bytes differ from the client's %d", n, len(got), len(want))
		}
		checkRecords(t, mustDecode(t, want), rs, 77)
	}
}

func TestBuilderSizes(t *testing.T) {
	var b Builder
	if b.Len() != 0 || b.Count() != 0 || b.Seal(5) != nil {
		t.Fatalf("empty builder: %d bytes, %d records, batch %x", b.Len(), b.Count(), b.Seal(5))
	}
	rs := messages(300)
	for i := range rs {
		want := b.Len() + b.Size(&rs[i])
		b.Append(&rs[i])
		if b.Len() != want {
			t.Fatalf("record %d: %d bytes, Size said %d", i, b.Len(), want)
		}
	}
	batch := b.Seal(9)
	if len(batch) != b.Len() || b.Count() != len(rs) || batch.Count() != int32(len(rs)) {
		t.Fatalf("%d bytes and %d records, batch has %d and %d", b.Len(), b.Count(), len(batch), batch.Count())
	}
	if b.FirstTimestamp() != batch.BaseTimestamp() || b.MaxTimestamp() != batch.MaxTimestamp() || batch.MaxTimestamp() <= batch.BaseTimestamp() {
		t.Fatalf("times %d %d, batch %d %d", b.FirstTimestamp(), b.MaxTimestamp(), batch.BaseTimestamp(), batch.MaxTimestamp())
	}
}

func TestBuilderTimestamps(t *testing.T) {
	for _, times := range [][]int64{
		{0, 1}, {5, 5}, {1, 0}, {math.MaxInt64, math.MinInt64}, {math.MinInt64, math.MaxInt64}, {-1, -2}, {1 << 40, 0, 1 << 41},
	} {
		var rs []Record
		highest := times[0]
		for _, ts := range times {
			rs = append(rs, Record{Timestamp: ts, Value: []byte("v")})
			highest = max(highest, ts)
		}
		b := build(3, rs...)
		checkRecords(t, mustDecode(t, b), rs, 3)
		if b.BaseTimestamp() != times[0] || b.MaxTimestamp() != highest {
			t.Errorf("%d: base %d, max %d", times, b.BaseTimestamp(), b.MaxTimestamp())
		}
	}
}

// TestBuilderReuse: a reset builder gives what a new one gives, and great buffers go.
func TestBuilderReuse(t *testing.T) {
	rs := messages(100)
	var b Builder
	for i := range rs {
		b.Append(&rs[i])
	}
	b.Seal(1)
	grown := cap(b.buf)
	b.Reset(grown)
	if cap(b.buf) != grown || b.Len() != 0 || b.Count() != 0 || b.MaxTimestamp() != 0 {
		t.Fatalf("after Reset: capacity %d, want %d, %d bytes", cap(b.buf), grown, b.Len())
	}
	b.Append(&rs[3])
	if want := build(2, rs[3]); !bytes.Equal(b.Seal(2), want) {
		t.Fatalf("reused builder gives %x, a new one %x", b.Seal(2), want)
	}
	b.Reset(grown - 1)
	if cap(b.buf) != 0 {
		t.Fatalf("buffer of %d bytes kept", cap(b.buf))
	}
}

// TestBuilderSealTwice: a batch may be sealed, filled on and sealed again, as a group that is retried.
func TestBuilderSealTwice(t *testing.T) {
	rs := messages(20)
	var b Builder
	for i := range rs {
		b.Append(&rs[i])
		checkRecords(t, mustDecode(t, b.Seal(100)), rs[:i+1], 100)
	}
}

func TestBuilderAppendAllocatesNothing(t *testing.T) {
	r := benchRecord()
	var b Builder
	b.Append(r)
	for range 100 {
		b.Append(r)
	}
	if n := testing.AllocsPerRun(50, func() {
		b.Reset(1 << 20)
		for range 50 {
			b.Append(r)
		}
		b.Seal(1)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestBuilderPanicsBeyondMaxBatchBytes(t *testing.T) {
	var b Builder
	r := Record{Value: make([]byte, MaxBatchBytes-HeaderBytes-20)}
	b.Append(&r)
	size := b.Len()
	defer func() {
		p, _ := recover().(string)
		if !strings.Contains(p, "can't take a record") || b.Len() != size {
			t.Fatalf("panic %q, %d bytes, had %d", p, b.Len(), size)
		}
	}()
	b.Append(&Record{Value: []byte("one too many")})
}

func TestRecordHeader(t *testing.T) {
	r := messages(5)[4]
	if v, ok := r.Header("a"); !ok || v == nil || len(v) != 0 {
		t.Errorf("a: %q %v, want the first of the two", v, ok)
	}
	if v, ok := r.Header("b"); ok || v != nil {
		t.Errorf("b: %q %v", v, ok)
	}
}

func TestVarint(t *testing.T) {
	buf := make([]byte, 16)
	for _, v := range []int64{0, 1, -1, 63, 64, -64, -65, 8191, 8192, -8192, -8193, math.MaxInt32, math.MinInt32, 1 << 34, math.MaxInt64, math.MinInt64} {
		end := putVarint(buf, 2, v)
		if end-2 != sizeVarint(v) {
			t.Errorf("%d: size %d, wrote %d", v, sizeVarint(v), end-2)
		}
		if got, next := varlong(buf[:end], 2); got != v || next != end {
			t.Errorf("varlong: %d gave %d, index %d of %d", v, got, next, end)
		}
		got, next := varint(buf[:end], 2)
		if fits := v == int64(int32(v)); fits != (next == end) || (fits && int64(got) != v) || (!fits && next != -1) {
			t.Errorf("varint: %d gave %d, index %d of %d", v, got, next, end)
		}
		for cut := 2; cut < end; cut++ {
			if _, next := varlong(buf[:cut], 2); next != -1 {
				t.Errorf("varlong of %d cut at %d: index %d", v, cut, next)
			}
			if _, next := varint(buf[:cut], 2); next != -1 {
				t.Errorf("varint of %d cut at %d: index %d", v, cut, next)
			}
		}
	}
	for _, bad := range []string{"ffffffff10", "808080808000", "ffffffffffffffffff02", "80808080808080808080"} {
		p, _ := hex.DecodeString(bad)
		if _, next := varint(p, 0); next != -1 {
			t.Errorf("varint(%s): index %d", bad, next)
		}
		if _, next := varlong(p, 0); next != -1 && len(p) == maxVarlongBytes {
			t.Errorf("varlong(%s): index %d", bad, next)
		}
	}
	if v, next := varint([]byte{0}, -1); v != 0 || next != -1 {
		t.Errorf("failed index: %d %d", v, next)
	}
}
