package files

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// clocks are series of batches whose times go on in different ways.
func clocks(n int) map[string][]record.Batch {
	all := map[string][]record.Batch{}
	add := func(name string, at func(i int) int64) {
		base := int64(0)
		for i := range n {
			b := makeBatch(base, 1+i%3, 100+i*37%700, at(i))
			all[name], base = append(all[name], b), b.NextOffset()
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	add("rising", func(i int) int64 { return 1000 + int64(i)*10 })
	add("equal", func(i int) int64 { return 5000 })
	add("stairs", func(i int) int64 { return 1000 + int64(i/7)*100 })
	add("back", func(i int) int64 { return 100_000 - int64(i)*10 })
	add("step ahead and back", func(i int) int64 {
		if i > n/3 && i < n/2 {
			return 1_000_000 + int64(i)*10
		}
		return 1000 + int64(i)*10
	})
	add("random", func(i int) int64 { return int64(rnd.IntN(10_000)) })
	add("none", func(i int) int64 { return -10 })
	return all
}

// wantTimes asks for all times that make a difference, and compares with a look at every batch.
func (b *bench) wantTimes(c *Chain, list []record.Batch) {
	b.Helper()
	start := c.StartOffset()
	for _, upTo := range []int64{all, list[len(list)/2].BaseOffset(), start} {
		for i := 0; i < len(list); i += 1 + i%4 {
			for _, ms := range []int64{list[i].MaxTimestamp(), list[i].MaxTimestamp() + 1} {
				want, found := int64(0), false
				for _, x := range list {
					if x.MaxTimestamp() >= max(ms, 0) && x.LastOffset() >= start && x.LastOffset() < upTo {
						want, found = max(x.BaseOffset(), start), true
						break
					}
				}
				got, ok, err := c.OffsetForTime(ms, upTo)
				if err != nil || ok != found || ok && got != want {
					b.Fatalf("time %d up to %d: offset %d %v %v, want %d %v", ms, upTo, got, ok, err, want, found)
				}
			}
		}
	}
}

// wantKnown is wantSpan for the times that are known.
func (b *bench) wantKnown(s Span, list []record.Batch) {
	b.Helper()
	least, greatest := timesOf(s, list)
	if s.MinTime != NoTime && s.MinTime != least || s.MaxTime != NoTime && s.MaxTime != greatest {
		b.Errorf("segment of %d to %d: times %d to %d, want %d to %d", s.Base, s.End, s.MinTime, s.MaxTime, least, greatest)
	}
}

func (b *bench) wantSpan(s Span, list []record.Batch) {
	b.Helper()
	if least, greatest := timesOf(s, list); s.MinTime != least || s.MaxTime != greatest {
		b.Errorf("segment of %d to %d: times %d to %d, want %d to %d", s.Base, s.End, s.MinTime, s.MaxTime, least, greatest)
	}
}

func timesOf(s Span, list []record.Batch) (least, greatest int64) {
	least, greatest = NoTime, NoTime
	for _, x := range list {
		if x.BaseOffset() >= s.Base && x.LastOffset() < s.End {
			if x.BaseOffset() == s.Base {
				least = x.BaseTimestamp()
			}
			greatest = max(greatest, x.MaxTimestamp())
		}
	}
	return least, greatest
}

func TestOffsetForTime(t *testing.T) {
	sizes := []int64{3 << 10, 8 << 10, 1 << 20}
	if testing.Short() {
		sizes = sizes[1:2]
	}
	for name, list := range clocks(150) {
		for _, segmentBytes := range sizes {
			t.Run(fmt.Sprint(name, " ", segmentBytes), func(t *testing.T) {
				b := newBench(t)
				b.o.SegmentBytes = segmentBytes
				c, _ := b.open(0)
				b.append(c, list[:100])
				b.wantTimes(c, list[:100])
				b.sync(c)
				b.append(c, list[100:])
				b.wantTimes(c, list)
				b.sync(c)
				end := c.NextOffset()
				c.Close()
				for _, end := range []int64{end, list[70].BaseOffset(), NoRecoveryPoint} {
					c, _ = b.open(end)
					b.wantTimes(c, list)
					for _, s := range c.Spans() {
						b.wantKnown(s, list)
					}
					for c.Segments() > 1 {
						b.sync(c)
						s, ok, err := c.SpanAt(0)
						if err != nil || !ok {
							t.Fatal(ok, err)
						}
						b.wantSpan(s, list)
						if end != NoRecoveryPoint {
							break
						}
						if err := c.Drop(s.End + 1); err != nil {
							t.Fatal(err)
						}
						b.wantTimes(c, list)
					}
					for _, s := range c.segments {
						if s.suspect.Load() {
							t.Errorf("the index of %d is suspect for nothing", s.base)
						}
					}
					c.Close()
				}
			})
		}
	}
}

// TestTimesWithDamagedIndexes cuts, spoils, swaps and removes indexes of closed segments and of the last one. No answer may be
// wrong, and the indexes are made anew.
func TestTimesWithDamagedIndexes(t *testing.T) {
	flip := func(at int) func([]byte) []byte {
		return func(p []byte) []byte {
			if len(p) > 0 {
				p[((at%len(p))+len(p))%len(p)] ^= 1 << (at & 3)
			}
			return p
		}
	}
	damages := map[string]func(p []byte) []byte{"empty": func([]byte) []byte { return nil }}
	for _, n := range []int{1, 8, 11, 12, 13, 16, 24, 36} {
		damages[fmt.Sprint("cut by ", n)] = func(p []byte) []byte { return p[:max(0, len(p)-n)] }
	}
	for i := 0; i < 2*timeEntryBytes; i += 3 {
		damages[fmt.Sprint("flip ", i)], damages[fmt.Sprint("flip from end ", i)] = flip(i), flip(-1-i)
	}
	clocks := clocks(90)
	names := []string{"rising", "step ahead and back", "random"}
	if testing.Short() {
		names = names[2:]
	}
	for _, name := range names {
		list := clocks[name]
		next := list[len(list)-1].NextOffset()
		proto := newBench(t)
		proto.filled(list)
		segs, _ := List(vfs.OS, proto.o.Dir)
		for _, suffix := range []string{indexSuffix, timeSuffix} {
			for what, damage := range damages {
				b := newBench(t)
				if err := os.CopyFS(b.o.Dir, os.DirFS(proto.o.Dir)); err != nil {
					t.Fatal(err)
				}
				for _, seg := range []int64{segs[1].Base, segs[len(segs)-1].Base} {
					b.edit(stem(b.o.Dir, seg)+suffix, damage)
				}
				c, _ := b.open(next)
				t.Run(fmt.Sprint(name, " ", suffix, " ", what), func(t *testing.T) {
					b := &bench{t, b.o}
					b.wantTimes(c, list)
					if err := c.Seal(); err != nil { // what is wrong in the last one is mended once it is closed
						t.Fatal(err)
					}
					for range 4 {
						b.sync(c)
					}
					if suffix == timeSuffix && name == "rising" { // else there are entries that nobody needed
						b.verify()
					}
					for c.Segments() > 2 {
						s, _, err := c.SpanAt(0)
						if err != nil {
							t.Fatal(err)
						}
						b.wantSpan(s, list)
						if err := c.Drop(s.End); err != nil {
							t.Fatal(err)
						}
					}
				})
				c.Close()
			}
		}
	}
}

// TestTimesAfterRestart: what a Restart cut off, or could not cut off, leaves no time behind.
func TestTimesAfterRestart(t *testing.T) {
	for name, list := range clocks(90) {
		for i := range 4 {
			cuts, reopen := i&1 == 0, i&2 == 0
			t.Run(fmt.Sprint(name, " ", cuts, " ", reopen), func(t *testing.T) {
				b := newBench(t)
				f := &faults{op: vfs.OpSync, at: -1, err: errIO}
				f.fs()
				stuck := 0
				b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
					if op == vfs.OpTruncate && stuck > 0 {
						stuck--
						return 0, errIO
					}
					return f.before(op, name)
				}}
				c, _ := b.open(0)
				b.append(c, list[:37])
				b.sync(c)
				b.append(c, list[37:70])
				b.wantTimes(c, list[:70])
				f.at, f.seen = 1, 0
				if err := c.Sync(); err == nil {
					t.Fatal("no error")
				}
				if !cuts {
					stuck = 3 // all that is to be cut
				}
				o := &owner{t: t, c: c, held: list}
				o.mustRestart()
				if stuck > 0 {
					t.Fatal("nothing was cut")
				}
				b.wantTimes(c, list[:37])
				o.catchUp(len(list) - 1)
				b.wantTimes(c, list)
				if reopen {
					b.sync(c)
					end := c.NextOffset()
					c.Close()
					c, _ = b.open(end)
				}
				b.wantOldest(c, list)
				b.wantTimes(c, list)
			})
		}
	}
}

// wantOldest asks for the times of every synced segment, and drops it.
func (b *bench) wantOldest(c *Chain, list []record.Batch) {
	b.Helper()
	for c.Segments() > 2 && c.Spans()[0].End <= c.SyncedOffset() {
		s, ok, err := c.SpanAt(0)
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		b.wantSpan(s, list)
		if err := c.Drop(s.End); err != nil {
			b.Fatal(err)
		}
	}
	if s, _, err := c.SpanAt(0); err != nil {
		b.Fatal(err)
	} else {
		b.wantSpan(s, list)
	}
}

// TestTimesPassDamage: what can't be read has no time.
func TestTimesPassDamage(t *testing.T) {
	list := clocks(90)["rising"]
	b := newBench(t)
	b.filled(list)
	for _, i := range []int{0, 3, 20, 21} {
		flip(b, list[i], 65)
	}
	c, _ := b.open(list[89].NextOffset())
	for i, want := range map[int]int{0: 1, 1: 1, 3: 4, 20: 22, 21: 22, 22: 22, 50: 50} {
		base, ok, err := c.OffsetForTime(list[i].MaxTimestamp(), all)
		if err != nil || !ok || base != list[want].BaseOffset() {
			t.Errorf("time of batch %d: offset %d, %v %v, want that of %d", i, base, ok, err, want)
		}
	}
	if s, ok, err := c.SpanAt(0); err != nil || !ok || s.MinTime != list[1].BaseTimestamp() {
		t.Errorf("oldest: %+v, %v", s, err)
	}
}

// TestOldestOfEmpty: a chain without records has no times.
func TestOldestOfEmpty(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	if _, ok, err := c.SpanAt(0); ok || err != nil {
		t.Error(ok, err)
	}
	if _, ok, err := c.OffsetForTime(0, all); ok || err != nil {
		t.Error(ok, err)
	}
	if err := c.SkipTo(7); err != nil {
		t.Fatal(err)
	}
	if s, ok, err := c.SpanAt(0); !ok || err != nil || s.MinTime != NoTime || s.MaxTime != NoTime || s.Base != 7 || s.End != 7 || !s.Active {
		t.Errorf("%+v %v", s, err)
	}
	b.append(c, series(7, 1, 1))
	if s, _, _ := c.SpanAt(0); s.MinTime == NoTime || s.MaxTime == NoTime {
		t.Errorf("%+v", s)
	}
}

// TestTimeLookupReadsLittle: of a large segment a lookup reads about an index interval.
func TestTimeLookupReadsLittle(t *testing.T) {
	b := newBench(t)
	var read atomic.Int64
	b.o.FS = &counting{FS: diskFS, read: &read}
	b.o.SegmentBytes, b.o.IndexIntervalBytes = 8<<20, 4096
	c, _ := b.open(0)
	for c.Bytes() < 4<<20 {
		y := makeBatch(c.NextOffset(), 4, 1000, c.NextOffset()*10)
		b.append(c, []record.Batch{y})
	}
	if err := c.Seal(); err != nil {
		t.Fatal(err)
	}
	b.sync(c)
	size, next := c.Bytes(), c.NextOffset()
	c.Close()
	c, _ = b.open(next)
	for i, most := range []int64{20 * lookChunk, 8 * lookChunk} { // the first one looks for the greatest time, too
		read.Store(0)
		want := next / 8 * 4
		base, ok, err := c.OffsetForTime(want*10, all)
		if err != nil || !ok || base != want {
			t.Fatalf("%d, %v %v, want %d", base, ok, err, want)
		}
		if n := read.Load(); n > most {
			t.Errorf("lookup %d read %d of %d bytes", i, n, size)
		}
	}

}

// counting counts what is read, and the files that are open.
type counting struct {
	vfs.FS
	read         *atomic.Int64
	open, opened atomic.Int64
}

type countingFile struct {
	vfs.File
	c *counting
}

func (c *counting) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	c.opened.Add(1)
	return countingFile{f, c}, nil
}

func (f countingFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(p, at)
	f.c.read.Add(int64(n))
	return n, err
}

func (f countingFile) Close() error {
	f.c.open.Add(-1)
	return f.File.Close()
}
