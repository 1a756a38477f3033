package files

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// mends appends to a recovered chain and checks that it then holds want and the new batches, also after reopening.
func (b *bench) mends(c *Chain, want []record.Batch) {
	b.Helper()
	more := series(c.NextOffset(), 6, 77)
	b.append(c, more)
	b.sync(c)
	want = append(want[:len(want):len(want)], more...)
	b.wantContent(c, want)
	b.verify()
	next := c.NextOffset()
	c.Close()
	c, r := b.open(next)
	if r.Cut != 0 || len(r.Damaged)+len(r.SetAside)+len(r.RebuiltIndexes) != 0 {
		b.Fatalf("reopened: %+v", r)
	}
	b.wantContent(c, want)
	c.Close()
}

// lastTwo is a chain whose last two batches stand in one segment, behind others.
func lastTwo() (b func(testing.TB) *bench, list []record.Batch) {
	list = series(0, 30, 21)
	return func(t testing.TB) *bench {
		b := newBench(t)
		b.filled(list)
		return b
	}, list
}

func TestTornTail(t *testing.T) {
	make, list := lastTwo()
	n := len(list)
	a, z := list[n-2], list[n-1]
	for cut := 1; cut <= len(a)+len(z); cut += 1 + cut/40 {
		b := make(t)
		b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return p[:len(p)-cut] })
		want := list[:n-1]
		if cut > len(z) {
			want = list[:n-2]
		}
		if cut == len(a)+len(z) {
			want = list[:n-2]
		}
		c, r := b.open(a.BaseOffset())
		kept := (len(a) + len(z) - cut) - len(joined(want)) + len(joined(list[:n-2]))
		if r.Cut != int64(kept) || len(r.Damaged)+len(r.SetAside) != 0 {
			t.Fatalf("%d bytes off: %+v", cut, r)
		}
		b.wantContent(c, want)
		b.mends(c, want)
	}
}

func TestTornBelowRecoveryPoint(t *testing.T) {
	make, list := lastTwo()
	n := len(list)
	b := make(t)
	b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return p[:len(p)-len(list[n-1])-5] })
	end := list[n-1].NextOffset()
	c, r := b.open(end)
	if len(r.Damaged) != 1 || r.Damaged[0].From != list[n-2].BaseOffset() || r.Damaged[0].To != end {
		t.Fatalf("%+v", r)
	}
	if c.NextOffset() != list[n-2].BaseOffset() || c.SyncedOffset() != c.NextOffset() {
		t.Fatalf("next %d, synced %d", c.NextOffset(), c.SyncedOffset())
	}
	b.mends(c, list[:n-2])
}

// TestBitFlips flips one bit at each byte of the last two batches, not yet covered by a checkpoint.
func TestBitFlips(t *testing.T) {
	make, list := lastTwo()
	n := len(list)
	a, z := list[n-2], list[n-1]
	end := a.BaseOffset()
	b := make(t)
	pristine, _ := os.ReadFile(b.lastFile(logSuffix))
	for back := 1; back <= len(a)+len(z); back++ {
		if back%7 != 0 && back > 70 && len(a)+len(z)-back > 70 && (back < len(z)-70 || back > len(z)) {
			continue // values: a few will do; headers: all
		}
		if testing.Short() && back%5 != 0 {
			continue
		}
		b := make(t)
		at := len(pristine) - back
		b.edit(b.lastFile(logSuffix), func(p []byte) []byte { p[at] ^= 1 << (back % 8); return p })
		c, r := b.open(end)
		if back <= len(z) {
			if r.Cut != int64(len(z)) || len(r.Damaged) != 0 {
				t.Fatalf("last batch, byte %d: %+v", len(z)-back, r)
			}
			b.mends(c, list[:n-1])
			continue
		}
		if r.Cut != 0 || len(r.Damaged) != 1 {
			t.Fatalf("batch before, byte %d: %+v", len(a)+len(z)-back, r)
		}
		d := r.Damaged[0]
		side, err := os.ReadFile(d.SideFile)
		if err != nil || len(side) != len(a)+len(z) || d.Bytes != int64(len(side)) {
			t.Fatalf("side file of %d bytes, %v; %+v", len(side), err, d)
		}
		if d.From != a.BaseOffset() || d.To != z.BaseOffset() {
			t.Fatalf("%+v", d)
		}
		b.mends(c, list[:n-2])
	}
}

// TestDamageBelowRecoveryPoint flips bits in what was synced: only the bad batch is lost, and readers get past it.
func TestDamageBelowRecoveryPoint(t *testing.T) {
	list := series(0, 34, 31)
	end := list[len(list)-1].NextOffset()
	for i, bad := range list {
		if i%4 != 0 && i < len(list)-2 {
			continue
		}
		for _, at := range []int{3, 10, 14, 16, 18, 22, 25, 60, len(bad) - 1} {
			b := newBench(t)
			b.filled(list)
			seg := flip(b, bad, at)
			c, r := b.open(end)
			if i == len(list)-1 {
				if c.NextOffset() != bad.BaseOffset() || len(r.Damaged) == 0 {
					t.Fatalf("last batch, byte %d: next %d, %+v", at, c.NextOffset(), r)
				}
				c.Close()
				continue
			}
			if c.NextOffset() != end {
				t.Fatalf("batch %d, byte %d: next %d, want %d; %+v", i, at, c.NextOffset(), end, r)
			}
			from := int64(0)
			var got []byte
			for from < end {
				p, err := readAll(c, from, 3000)
				got = append(got, p...)
				if err == nil {
					break
				}
				var de *DamageError
				if !errors.As(err, &de) || de.Offset != bad.BaseOffset() || de.Resume != bad.NextOffset() || de.Path != seg {
					t.Fatalf("batch %d at %d, byte %d: %v", i, bad.BaseOffset(), at, err)
				}
				from = de.Resume
			}
			if want := joined(append(append([]record.Batch{}, list[:i]...), list[i+1:]...)); !bytes.Equal(got, want) {
				t.Fatalf("batch %d, byte %d: %d bytes, want %d", i, at, len(got), len(want))
			}
			for o := bad.NextOffset(); o < bad.NextOffset()+3 && o < end; o++ { // also for whom no hint helps
				c.hints = [4]hint{}
				if _, err := c.Read(nil, o, 10, all); err != nil {
					t.Fatalf("batch %d, byte %d: read at %d behind it: %v", i, at, o, err)
				}
			}
			c.Close()
		}
	}
}

// flip flips a bit of byte at in the stored batch and returns the log's path.
func flip(b *bench, x record.Batch, at int) string {
	b.Helper()
	list, _ := List(vfs.OS, b.o.Dir)
	for _, seg := range list {
		p, _ := os.ReadFile(seg.Path)
		if i := bytes.Index(p, x); i >= 0 {
			p[i+at] ^= 0x10
			if err := os.WriteFile(seg.Path, p, 0o600); err != nil {
				b.Fatal(err)
			}
			return seg.Path
		}
	}
	b.Fatal("batch not found")
	return ""
}

func TestTails(t *testing.T) {
	list := series(0, 30, 41)
	n := len(list)
	next := list[n-1].NextOffset()
	random := make([]byte, 5000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	epoch := makeBatch(next, 1, 100, 1)
	record.Restamp(epoch, next, 3, -1, -1, -1)
	for _, tc := range []struct {
		name    string
		tail    []byte
		damaged bool
	}{
		{"zeros", make([]byte, 4096), false},
		{"few zeros", make([]byte, 5), false},
		{"random", random, false},
		{"stale batch of lower offset", list[n-3], false},
		{"stale batches of higher offset", joined(series(next+5, 3, 1)), true},
		{"batch of another leader epoch", epoch, false},
		{"text", []byte(strings.Repeat("hello, world\n", 100)), false},
		{"zeros, then good batches", append(make([]byte, 700), joined(series(next, 2, 1))...), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.filled(list)
			b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return append(p, tc.tail...) })
			for _, end := range []int64{next, list[n-2].BaseOffset()} {
				c, r := b.open(end)
				if tc.damaged {
					if len(r.Damaged) != 1 || r.Damaged[0].Bytes != int64(len(tc.tail)) || r.Damaged[0].SideFile == "" {
						t.Fatalf("%+v", r)
					}
				} else if r.Cut != int64(len(tc.tail)) || len(r.Damaged) != 0 {
					t.Fatalf("%+v", r)
				}
				b.wantContent(c, list)
				c.Close()
				b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return append(p, tc.tail...) })
			}
			c, _ := b.open(next)
			b.mends(c, list)
		})
	}
}

func TestSegmentsBeyondTheEnd(t *testing.T) {
	b := newBench(t)
	list := series(0, 60, 51)
	b.filled(list)
	segs, _ := List(vfs.OS, b.o.Dir)
	if len(segs) < 3 {
		t.Fatalf("%d segments", len(segs))
	}
	// The last but two loses its end, so the last two begin beyond the valid end.
	short := segs[len(segs)-3]
	b.edit(short.Path, func(p []byte) []byte { return p[:len(p)-10] })
	c, r := b.open(short.Base)
	if len(r.SetAside) != 2 || r.Cut == 0 {
		t.Fatalf("%+v", r)
	}
	for i, name := range r.SetAside {
		if info, err := os.Stat(name); err != nil || info.Size() != segs[len(segs)-2+i].Bytes {
			t.Errorf("%s: %v", name, err)
		}
	}
	i := 0
	for list[i].NextOffset() <= c.NextOffset() {
		i++
		if list[i-1].NextOffset() == c.NextOffset() {
			break
		}
	}
	b.wantContent(c, list[:i])
	b.mends(c, list[:i])
	// The same again: names that are taken get a number.
	c, _ = b.open(0)
	c.Close()
	more := segs[len(segs)-1]
	if err := os.WriteFile(stem(b.o.Dir, more.Base+1000)+logSuffix, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, r = b.open(0)
	if len(r.SetAside) != 1 {
		t.Fatalf("%+v", r)
	}
	c.Close()
}

// TestLeftovers is a crash after a Restart whose cut failed: the old segment still holds what the new one has, too.
func TestLeftovers(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes = 1 << 20
	list := series(0, 40, 61)
	b.filled(list)
	at := list[20].BaseOffset()
	again := []record.Batch{makeBatch(at, int(list[22].NextOffset()-at), 300, 9)} // merged otherwise
	again = append(again, series(again[0].NextOffset(), 20, 3)...)
	path := stem(b.o.Dir, at)
	for suffix, p := range map[string][]byte{logSuffix: joined(again), indexSuffix: nil, timeSuffix: nil} {
		if err := os.WriteFile(path+suffix, p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []int64{0, list[10].BaseOffset(), at, again[3].BaseOffset(), NoRecoveryPoint} {
		c, r := b.open(end)
		if len(r.Damaged)+len(r.SetAside) != 0 || r.Cut != 0 {
			t.Fatalf("end %d: %+v", end, r)
		}
		b.wantContent(c, append(list[:20:20], again...))
		b.sync(c)
		b.wantBytes(c)
		c.Close()
		v, _ := OpenReadOnly(vfs.OS, b.o.Dir)
		if got := viewAll(t, v, 0); !bytes.Equal(got, joined(append(list[:20:20], again...))) {
			t.Fatalf("end %d: viewer saw %d bytes", end, len(got))
		}
	}
}

func TestOverlapIntoSegmentSetAside(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes = 1 << 20
	list := series(0, 20, 62)
	b.filled(list)
	inside := list[10]
	for list[10].Count() < 2 { // a base within a batch, so that it can't be where the log goes on
		t.Fatal("choose another seed")
	}
	stray := makeBatch(inside.BaseOffset()+1, 1, 50, 1)
	if err := os.WriteFile(stem(b.o.Dir, stray.BaseOffset())+logSuffix, stray, 0o600); err != nil {
		t.Fatal(err)
	}
	c, r := b.open(0)
	if len(r.SetAside) != 1 || len(r.Damaged) != 0 || r.Cut != 0 {
		t.Fatalf("%+v", r)
	}
	b.mends(c, list)
}

func TestFirstSegmentBeyondTheEnd(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	if err := c.SkipTo(100); err != nil { // crashed before the checkpoint that would have recorded it
		t.Fatal(err)
	}
	b.append(c, series(100, 3, 1))
	c.Close()
	c, r := b.open(0)
	if len(r.SetAside) != 1 || c.NextOffset() != 0 || c.Segments() != 0 {
		t.Fatalf("next %d, %+v", c.NextOffset(), r)
	}
	b.mends(c, nil)
}

// TestSideFileComesFirst: the damaged end is durable elsewhere before it is cut off.
func TestSideFileComesFirst(t *testing.T) {
	b := newBench(t)
	list := series(0, 8, 72)
	b.filled(list)
	flip(b, list[6], 65)
	var synced, entered bool
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		switch {
		case op == vfs.OpSync && strings.Contains(name, damagedInfix):
			synced = true
		case op == vfs.OpSyncDir && synced:
			entered = true
		case op == vfs.OpTruncate && strings.HasSuffix(name, logSuffix) && !entered:
			t.Error("cut before the copy was durable")
		}
		return 0, nil
	}}
	if _, r := b.open(0); len(r.Damaged) != 1 || !entered {
		t.Errorf("%+v", r)
	}
}

func TestSwappedFiles(t *testing.T) {
	b := newBench(t)
	list := series(0, 60, 71)
	b.filled(list)
	segs, _ := List(vfs.OS, b.o.Dir)
	first, last := segs[1], segs[len(segs)-1]
	tmp := filepath.Join(b.o.Dir, "x")
	for _, p := range [][2]string{{first.Path, tmp}, {last.Path, first.Path}, {tmp, last.Path}} {
		if err := os.Rename(p[0], p[1]); err != nil {
			t.Fatal(err)
		}
	}
	end := list[len(list)-1].NextOffset()
	c, r := b.open(end)
	if c.NextOffset() != last.Base || len(r.Damaged) == 0 {
		t.Fatalf("next %d, %+v", c.NextOffset(), r)
	}
	_, err := c.Read(nil, first.Base, 100, all)
	var de *DamageError
	if !errors.As(err, &de) || de.Path != first.Path || de.Position != 0 || de.Resume != segs[2].Base {
		t.Fatalf("read of the swapped file: %v", err)
	}
	if err := c.SkipTo(end); err != nil {
		t.Fatal(err)
	}
	b.append(c, series(end, 3, 1))
	b.sync(c)
}

func TestEverythingGone(t *testing.T) {
	b := newBench(t)
	c, r := b.open(500)
	if c.NextOffset() != 0 || len(r.Damaged) != 1 || r.Damaged[0].From != 0 || r.Damaged[0].To != 500 {
		t.Fatalf("next %d, %+v", c.NextOffset(), r)
	}
	if err := c.SkipTo(500); err != nil {
		t.Fatal(err)
	}
	list := series(500, 3, 1)
	b.append(c, list)
	b.wantContent(c, list)
}

func TestIndexDamage(t *testing.T) {
	list := series(0, 60, 81)
	end := list[len(list)-1].NextOffset()
	garbage := func(p []byte) []byte {
		for i := range p {
			p[i] = byte(rand.Uint32())
		}
		return p
	}
	for name, edit := range map[string]func(p []byte) []byte{
		"missing": nil,
		"empty":   func([]byte) []byte { return nil },
		"short":   func(p []byte) []byte { return p[:len(p)/24*12] },
		"odd":     func(p []byte) []byte { return append(p, 1, 2, 3) },
		"garbage": garbage,
		"zeros":   func(p []byte) []byte { clear(p); return p },
		"more":    func(p []byte) []byte { return append(p, make([]byte, 24)...) },
		"swapped entries": func(p []byte) []byte {
			return append(append([]byte{}, p[len(p)/24*12:]...), p[:len(p)/24*12]...)
		},
	} {
		for _, suffix := range []string{indexSuffix, timeSuffix} {
			for _, which := range []string{"closed", "active"} {
				t.Run(name+" "+which+suffix, func(t *testing.T) {
					b := newBench(t)
					b.filled(list)
					segs, _ := List(vfs.OS, b.o.Dir)
					seg := segs[1]
					if which == "active" {
						seg = segs[len(segs)-1]
					}
					path := strings.TrimSuffix(seg.Path, logSuffix) + suffix
					if edit == nil {
						if err := os.Remove(path); err != nil {
							t.Fatal(err)
						}
					} else {
						b.edit(path, edit)
					}
					c, r := b.open(end)
					if len(r.Damaged)+len(r.SetAside) != 0 || r.Cut != 0 {
						t.Fatalf("%+v", r)
					}
					if must := name == "missing" || name == "odd"; must && len(r.RebuiltIndexes) != 1 {
						t.Errorf("rebuilt %v", r.RebuiltIndexes)
					}
					b.wantContent(c, list)
					for offset := range end { // backwards, so that no hint helps
						if _, err := c.Read(nil, end-1-offset, 1, all); err != nil {
							t.Fatalf("read at %d: %v", end-1-offset, err)
						}
					}
					b.append(c, series(end, 5, 1))
					b.sync(c)
					suspects := 0
					for _, s := range c.segments[:len(c.segments)-1] {
						if s.suspect.Load() {
							suspects++
						}
					}
					if suspects > 0 {
						t.Errorf("%d indexes still wrong after a sync", suspects)
					}
					if suffix == indexSuffix && which == "closed" && (name == "garbage" || name == "zeros" || name == "missing" || name == "odd") || which == "active" && name != "swapped entries" {
						b.verify()
					}
				})
			}
		}
	}
}
