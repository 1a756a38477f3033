package files

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

// FuzzIndex takes any bytes for the indexes of a good log: reads must answer rightly, recovery must mend them.
func FuzzIndex(f *testing.F) {
	list := series(0, 30, 201)
	end := list[len(list)-1].NextOffset()
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 5}, []byte{}, int64(3))
	f.Add([]byte{}, make([]byte, 24), end)
	f.Add(bytes.Repeat([]byte{0xff}, 16), bytes.Repeat([]byte{0x7f}, 12), int64(NoRecoveryPoint))
	f.Fuzz(func(t *testing.T, index, times []byte, at int64) {
		b := newBench(t)
		b.filled(list)
		for _, s := range []struct {
			suffix string
			p      []byte
		}{{indexSuffix, index}, {timeSuffix, times}} {
			if err := os.WriteFile(b.lastFile(s.suffix), s.p, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(stem(b.o.Dir, 0)+s.suffix, s.p, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if at < 0 || at > end {
			at = NoRecoveryPoint
		}
		c, r := b.open(at)
		if c.NextOffset() != end && at != NoRecoveryPoint && boundary(list, at) || len(r.Damaged)+len(r.SetAside) != 0 {
			t.Fatalf("next %d, want %d: %+v", c.NextOffset(), end, r)
		}
		for o := range c.NextOffset() {
			if p, err := c.Read(nil, c.NextOffset()-1-o, 1, all); err != nil || len(p) == 0 {
				t.Fatalf("read at %d: %d bytes, %v", c.NextOffset()-1-o, len(p), err)
			}
		}
		b.wantContent(c, list)
	})
}

func boundary(list []record.Batch, offset int64) bool {
	for _, x := range list {
		if x.BaseOffset() == offset {
			return true
		}
	}
	return false
}

// FuzzRecovery puts any bytes into a log, over or behind what was there, and opens it. Whatever is then readable
// must be batches that were written, and appending must work.
func FuzzRecovery(f *testing.F) {
	list := series(0, 12, 202)
	log := joined(list)
	known := map[string]bool{}
	for _, x := range list {
		known[string(x[8:])] = true // a base offset has no checksum
	}
	f.Add([]byte("hello"), 100, int64(0), false)
	f.Add([]byte(list[3]), len(log), int64(0), false)
	f.Add([]byte(list[3]), 5, int64(4), true)
	f.Add(make([]byte, 4096), len(log)-10, int64(-1), false)
	f.Fuzz(func(t *testing.T, p []byte, at int, end int64, insert bool) {
		b := newBench(t)
		b.o.SegmentBytes = 1 << 20
		b.filled(list)
		if at < 0 || at > len(log) {
			return
		}
		b.edit(b.lastFile(logSuffix), func(old []byte) []byte {
			rest := old[at:]
			if !insert {
				rest = rest[min(len(rest), len(p)):]
			}
			return append(append(append([]byte{}, old[:at]...), p...), rest...)
		})
		if end > list[len(list)-1].NextOffset() || end < 0 {
			end = NoRecoveryPoint
		}
		c, _ := b.open(end)
		from := c.StartOffset()
		for from < c.NextOffset() {
			q, err := c.Read(nil, from, 1, all)
			var bad *DamageError
			if errors.As(err, &bad) {
				if bad.Resume <= from || bad.Offset != from {
					t.Fatalf("at %d: %v", from, err)
				}
				from = bad.Resume
				continue
			}
			if err != nil || len(q) == 0 {
				t.Fatalf("at %d of %d: %d bytes, %v", from, c.NextOffset(), len(q), err)
			}
			x := record.Batch(q)
			if x.LastOffset() < from || x.Verify() != nil {
				t.Fatalf("at %d: batch with offsets %d to %d", from, x.BaseOffset(), x.LastOffset())
			}
			if !known[string(q[8:])] && !bytes.Contains(p, q[8:12]) {
				t.Fatalf("at %d: a batch that nobody wrote", from)
			}
			from = x.NextOffset()
		}
		more := series(c.NextOffset(), 3, 1)
		b.append(c, more)
		b.sync(c)
		for _, x := range more {
			if q, err := c.Read(nil, x.BaseOffset(), 1, all); err != nil || !bytes.Equal(q, x) {
				t.Fatalf("what was appended at %d: %d bytes, %v", x.BaseOffset(), len(q), err)
			}
		}
	})
}
