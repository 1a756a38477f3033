package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

// valuesOf reads a cut batch and checks its offsets.
func valuesOf(t *testing.T, b record.Batch) []string {
	t.Helper()
	if one, rest, err := record.Next(b); err != nil || len(rest) > 0 || len(one) != len(b) {
		t.Fatalf("not one batch: %v, %d bytes left", err, len(rest))
	}
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
	var values []string
	if err := record.NewDecoder(0).Records(b, func(r *record.Record) error {
		values = append(values, string(r.Value))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return values
}

func numbered(from, n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("value %d", from+i)
	}
	return values
}

func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return string(b)
}

func sizeOf(n int) size { return size{limit: n, pass: n, raw: n} }

func TestNextBatch(t *testing.T) {
	big := noise(40 << 10)
	for _, tt := range []struct {
		name   string
		store  func(*memPartition)
		offset int64
		limit  int
		want   span
		as     int // index of the stored batch that must come out byte for byte, -1 for none
		codec  record.Codec
	}{
		{"nothing yet", func(p *memPartition) {}, 0, 1 << 18, span{}, -1, 0},
		{"alone and tiny", func(p *memPartition) { p.store(record.None, "a") }, 0, 1 << 18, span{0, 1}, 0, record.None},
		{"alone, compressed here", func(p *memPartition) { p.store(record.None, strings.Repeat("x", 500)) }, 0, 1 << 18, span{0, 1}, -1, record.Zstd},
		{"small ones merged", func(p *memPartition) {
			for i := range 50 {
				p.store(record.None, numbered(2*i, 2)...)
			}
		}, 0, 1 << 18, span{0, 100}, -1, record.Zstd},
		{"small ones of several codecs", func(p *memPartition) {
			p.store(record.Zstd, numbered(0, 30)...)
			p.store(record.Snappy, numbered(30, 30)...)
			p.store(record.None, numbered(60, 1)...)
		}, 0, 1 << 18, span{0, 61}, -1, record.Zstd},
		{"big as it is", func(p *memPartition) {
			p.store(record.Zstd, big+strings.Repeat("y", 5000), "b")
			p.store(record.None, "c")
		}, 0, 1 << 18, span{0, 2}, 0, record.Zstd},
		{"small ones up to a big one", func(p *memPartition) {
			p.store(record.Zstd, "a")
			p.store(record.Zstd, "b")
			p.store(record.Snappy, big+strings.Repeat("y", 5000))
		}, 0, 1 << 18, span{0, 2}, -1, record.None},
		{"from the middle of a batch", func(p *memPartition) {
			p.store(record.Zstd, numbered(0, 100)...)
			p.store(record.Zstd, numbered(100, 10)...)
		}, 37, 1 << 18, span{37, 110}, -1, record.Zstd},
		{"up to a hole", func(p *memPartition) {
			p.store(record.None, "a")
			p.store(record.None, "b")
			p.hole(5)
			p.store(record.None, "c")
		}, 0, 1 << 18, span{0, 2}, -1, record.None},
		{"from within a hole", func(p *memPartition) {
			p.store(record.None, "a")
			p.hole(5)
			p.store(record.None, "b")
			p.store(record.None, "c")
		}, 3, 1 << 18, span{6, 8}, -1, record.None},
		{"one before a hole as it is", func(p *memPartition) {
			p.store(record.Snappy, numbered(0, 50)...)
			p.hole(1)
			p.store(record.None, "c")
		}, 0, 1 << 18, span{0, 50}, 0, record.Snappy},
		{"above the limit: cut", func(p *memPartition) { p.store(record.Zstd, noise(3000), noise(3000), noise(3000)) }, 0, 7000, span{0, 2}, -1, 0},
		{"one record above the limit", func(p *memPartition) { p.store(record.Zstd, noise(9000), "b") }, 0, 7000, span{0, 1}, -1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newMemLog().topic("t", 1)[0]
			tt.store(p)
			s := sizeOf(tt.limit)
			out, got, err := newCutter(record.Zstd).next([]byte("before"), p, tt.offset, &s)
			if err != nil || got != tt.want {
				t.Fatalf("next: %v, %v, want %v", got, err, tt.want)
			}
			b := record.Batch(out[len("before"):])
			if got.empty() {
				if len(b) > 0 {
					t.Fatalf("%d bytes of nothing", len(b))
				}
				return
			}
			all := p.values()
			from := len(all) - int(p.end-got.from) // holes are before what is tested here, or behind it
			if tt.name == "up to a hole" || tt.name == "one before a hole as it is" {
				from = 0
			}
			if want := all[from : from+int(got.count())]; !slices.Equal(valuesOf(t, b), want) {
				t.Fatalf("values differ: %.80q", valuesOf(t, b))
			}
			if tt.as >= 0 && !slices.Equal(b, p.batches[tt.as]) {
				t.Error("not the stored bytes")
			}
			if tt.as < 0 && int64(b.Count()) != got.count() {
				t.Errorf("%d records, want %d", b.Count(), got.count())
			}
			if b.Codec() != tt.codec && tt.codec != 0 {
				t.Errorf("codec %v, want %v", b.Codec(), tt.codec)
			}
		})
	}
}

// Whatever the log looks like, consecutive cuts give every record once, and a range that was cut before gives the same
// records again although the log has merged its batches meanwhile.
func TestCutsAreComplete(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := newMemLog().topic("t", 1)[0]
		for i := range 1 + rnd.IntN(60) {
			values := numbered(i*1000, 1+rnd.IntN(20))
			for j := range values {
				values[j] += strings.Repeat("z", rnd.IntN(2000))
			}
			if rnd.IntN(8) == 0 {
				values = append(values, noise(rnd.IntN(50<<10)))
			}
			p.store([]record.Codec{record.None, record.Zstd, record.Snappy}[rnd.IntN(3)], values...)
			if rnd.IntN(10) == 0 {
				p.hole(int64(1 + rnd.IntN(3)))
			}
		}
		c := newCutter([]record.Codec{record.None, record.Zstd}[rnd.IntN(2)])
		s := sizeOf(8<<10 + rnd.IntN(100<<10))
		var got []string
		var cuts []span
		for at := int64(0); ; {
			out, cut, err := c.next(nil, p, at, &s)
			if err != nil {
				t.Fatalf("seed %d at %d: %v", seed, at, err)
			}
			if cut.empty() {
				break
			}
			values := valuesOf(t, out)
			if int64(len(values)) != cut.count() || cut.from < at {
				t.Fatalf("seed %d at %d: %d values for %v", seed, at, len(values), cut)
			}
			if len(out) > s.limit+200 && len(values) > 1 {
				t.Fatalf("seed %d at %d: %d bytes, limit %d", seed, at, len(out), s.limit)
			}
			got = append(got, values...)
			cuts = append(cuts, cut)
			at = cut.to
		}
		if want := p.values(); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d records, want %d", seed, len(got), len(want))
		}
		if rnd.IntN(2) == 0 && int64(len(got)) == p.end && p.end > 0 {
			p.merged(t, record.Zstd)
		}
		n := 0
		for _, cut := range cuts {
			out, err := c.exactly(nil, p, cut)
			if err != nil {
				t.Fatalf("seed %d again %v: %v", seed, cut, err)
			}
			if again := valuesOf(t, out); !slices.Equal(again, got[n:n+int(cut.count())]) {
				t.Fatalf("seed %d again %v: other records", seed, cut)
			}
			n += int(cut.count())
		}
	}
}

// A damaged batch must not get a new CRC.
func TestDamageStaysDamage(t *testing.T) {
	for _, merge := range []bool{false, true} {
		p := newMemLog().topic("t", 1)[0]
		p.store(record.None, "first value", "second value")
		if merge {
			p.store(record.None, "third value")
		}
		p.batches[0][record.HeaderBytes+12] ^= 1
		s := sizeOf(1 << 18)
		c := newCutter(record.Zstd)
		if out, got, err := c.next(nil, p, 0, &s); err == nil || len(out) > 0 || !got.empty() {
			t.Errorf("merge %v: damaged batch was cut: %v", merge, got)
		}
		if _, err := c.exactly(nil, p, span{0, 2}); err == nil {
			t.Errorf("merge %v: damaged batch was cut again", merge)
		}
	}
}

func TestExactlyGone(t *testing.T) {
	p := newMemLog().topic("t", 1)[0]
	p.store(record.None, "a")
	p.hole(1)
	p.store(record.None, "b")
	if _, err := newCutter(record.Zstd).exactly(nil, p, span{0, 3}); err == nil {
		t.Error("a range across a hole was cut")
	}
}

func BenchmarkCut(b *testing.B) {
	telemetry := func(i int) string {
		return fmt.Sprintf(`{"device":"pump-%d","temperature":%d.%d,"pressure":%d,"state":"running"}`, i%50, 20+i%7, i%10, 1000+i%33)
	}
	for _, bb := range []struct {
		name string
		per  int
		c    record.Codec
	}{{"as stored", 4000, record.Zstd}, {"merge of 20", 20, record.None}} {
		p := newMemLog().topic("t", 1)[0]
		for i := 0; i < 4000; i += bb.per {
			values := make([]string, bb.per)
			for j := range values {
				values[j] = telemetry(i+j) + noise(8)
			}
			p.store(bb.c, values...)
		}
		b.Run(bb.name, func(b *testing.B) {
			c := newCutter(record.Zstd)
			var buf []byte
			var records, sent int64
			b.ReportAllocs()
			for b.Loop() {
				s := sizeOf(256 << 10)
				for at := int64(0); at < p.end; {
					out, got, err := c.next(buf[:0], p, at, &s)
					if err != nil {
						b.Fatal(err)
					}
					record.Restamp(record.Batch(out), 0, -1, 1, 0, int32(at))
					buf, at = out, got.to
					records += got.count()
					sent += int64(len(out))
				}
			}
			b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
			b.SetBytes(sent / int64(b.N))
		})
	}
}
