package files

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// diskBytes is the size of all files in the directory.
func (b *bench) diskBytes() (n int64) {
	b.Helper()
	entries, err := os.ReadDir(b.o.Dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			b.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func TestDrop(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	list := series(0, 100, 1)
	b.append(c, list[:90])
	b.sync(c)
	b.append(c, list[90:])
	if err := c.Drop(c.SyncedOffset() + 1); err == nil {
		t.Error("dropped what isn't synced")
	}
	if c.StartOffset() != 0 {
		t.Fatalf("start %d", c.StartOffset())
	}
	spans := c.Spans()
	to := spans[2].Base + 1 // inside a segment
	if err := c.Drop(to); err != nil {
		t.Fatal(err)
	}
	if c.StartOffset() != to || c.Segments() != len(spans)-2 {
		t.Errorf("start %d, %d segments", c.StartOffset(), c.Segments())
	}
	for _, offset := range []int64{0, spans[2].Base, to - 1} {
		if _, err := c.Read(nil, offset, 1, all); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Errorf("read at %d: %v", offset, err)
		}
	}
	b.wantContent(c, stillThere(list, to))
	b.verify()
	if left, _ := filepath.Glob(filepath.Join(b.o.Dir, "*")); len(left) != 3*c.Segments() {
		t.Errorf("%d segments in %v", c.Segments(), left)
	}
	if err := c.Drop(c.SyncedOffset()); err != nil {
		t.Fatal(err)
	}
	b.sync(c)
	if c.Bytes() != b.diskBytes() {
		t.Errorf("Bytes %d, on disk %d", c.Bytes(), b.diskBytes())
	}
	start, end := c.StartOffset(), c.SyncedOffset()
	c.Close()
	b.o.Start = start
	c, r := b.open(end)
	if c.StartOffset() != start || c.NextOffset() != list[99].NextOffset() || len(r.Damaged) > 0 {
		t.Errorf("reopened: start %d, next %d, %+v", c.StartOffset(), c.NextOffset(), r)
	}
}

func TestSealAndDropAll(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	if err := c.Seal(); err != nil || c.Segments() != 0 {
		t.Fatalf("sealed nothing: %v", err)
	}
	list := series(0, 20, 1)
	b.append(c, list[:10])
	if err := c.Seal(); err != nil {
		t.Fatal(err)
	}
	b.wantContent(c, list[:10])
	b.sync(c)
	if err := c.Drop(c.NextOffset()); err != nil {
		t.Fatal(err)
	}
	next := list[10].BaseOffset()
	if c.StartOffset() != next || c.NextOffset() != next || c.Segments() != 1 || c.Bytes() != 0 {
		t.Errorf("start %d, next %d, %d segments, %d bytes", c.StartOffset(), c.NextOffset(), c.Segments(), c.Bytes())
	}
	b.append(c, list[10:])
	b.sync(c)
	b.wantContent(c, list[10:])
	c.Close()
	for _, b.o.Start = range []int64{0, next} {
		c, r := b.open(list[19].NextOffset())
		if len(r.Damaged) > 0 {
			t.Errorf("%+v", r)
		}
		b.wantContent(c, list[10:])
		c.Close()
	}
}

// stillThere are the batches that a chain with that start still has.
func stillThere(list []record.Batch, start int64) []record.Batch {
	for len(list) > 0 && list[0].NextOffset() <= start {
		list = list[1:]
	}
	return list
}

// TestDropKeepsWhatIsWritten: neither the active segment goes, nor one that isn't synced.
func TestDropKeepsWhatIsWritten(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	list := series(0, 60, 2)
	b.append(c, list[:20])
	b.sync(c)
	segments, synced := c.Segments(), c.SyncedOffset()
	if err := c.Drop(synced); err != nil {
		t.Fatal(err)
	}
	if c.Segments() != 1 || !c.Spans()[0].Active {
		t.Fatalf("%d of %d segments: %+v", c.Segments(), segments, c.Spans())
	}
	b.append(c, list[20:]) // the first segment is closed now, and its end not synced
	first := c.Spans()[0]
	if first.Active || first.End <= synced {
		t.Fatalf("%+v", first)
	}
	if err := c.Drop(first.End); err == nil {
		t.Fatal("dropped what isn't synced")
	}
	if c.StartOffset() != synced || c.Spans()[0] != first {
		t.Errorf("start %d, first %+v", c.StartOffset(), c.Spans()[0])
	}
	b.sync(c)
	if err := c.Drop(first.End); err != nil {
		t.Fatal(err)
	}
	if c.Spans()[0].Base != first.End {
		t.Errorf("%+v", c.Spans()[0])
	}
	b.wantContent(c, stillThere(list, first.End))
}

// TestDropUnderARead: a reader keeps its file, and the bytes count as long as it does.
func TestDropUnderARead(t *testing.T) {
	b := newBench(t)
	reading, finish := make(chan struct{}), make(chan struct{})
	var stall atomic.Bool
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRead && strings.HasSuffix(name, logSuffix) && stall.CompareAndSwap(true, false) {
			close(reading)
			<-finish
		}
		return 0, nil
	}}
	c, _ := b.open(0)
	list := series(0, 60, 3)
	b.append(c, list)
	b.sync(c)
	var got []byte
	var err error
	var wg sync.WaitGroup
	stall.Store(true)
	wg.Go(func() { got, err = c.Read(nil, 0, 1, all) })
	<-reading
	first := c.Spans()[0]
	before := c.Bytes()
	if err := c.Drop(first.End); err != nil {
		t.Fatal(err)
	}
	if c.Bytes() != before {
		t.Errorf("%d bytes of %d while a reader has the file", c.Bytes(), before)
	}
	if _, err := c.Read(nil, 0, 1, all); !errors.Is(err, ErrOffsetOutOfRange) {
		t.Errorf("read below the start: %v", err)
	}
	if _, err := os.Stat(stem(b.o.Dir, 0) + logSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is still there")
	}
	close(finish)
	wg.Wait()
	if err != nil || !bytes.Equal(got, list[0]) {
		t.Errorf("the reader got %d bytes, %v", len(got), err)
	}
	if c.Bytes() != before-first.Bytes || c.Bytes() != b.diskBytes() {
		t.Errorf("%d bytes after the read, want %d; on disk %d", c.Bytes(), before-first.Bytes, b.diskBytes())
	}
}

// TestOpenWithStart tries starts at, between and beyond segments, with ends before and behind.
func TestOpenWithStart(t *testing.T) {
	list := series(0, 90, 11)
	next := list[89].NextOffset()
	proto := newBench(t)
	proto.filled(list)
	segs, _ := List(vfs.OS, proto.o.Dir)
	for _, start := range []int64{0, 1, segs[1].Base - 1, segs[1].Base, segs[2].Base + 1, segs[len(segs)-1].Base, next - 1, next, next + 100} {
		for _, end := range []int64{0, segs[1].Base, list[60].BaseOffset(), next, next + 50, NoRecoveryPoint} {
			b := newBench(t)
			if err := os.CopyFS(b.o.Dir, os.DirFS(proto.o.Dir)); err != nil {
				t.Fatal(err)
			}
			b.o.Start = start
			c, r := b.open(end)
			lost := int64(0)
			for _, d := range r.Damaged {
				lost += d.To - d.From
			}
			want := stillThere(list, start)
			if c.StartOffset() != start || c.NextOffset() != max(next, start) || lost != max(0, end-max(next, start)) {
				t.Errorf("start %d, end %d: start %d, next %d, %+v", start, end, c.StartOffset(), c.NextOffset(), r)
			}
			b.wantContent(c, want)
			more := series(c.NextOffset(), 20, 12)
			b.append(c, more)
			b.sync(c)
			all := append(want[:len(want):len(want)], more...)
			if got, err := readAll(c, more[0].BaseOffset(), 1000); err != nil || !bytes.Equal(got, joined(more)) {
				t.Fatalf("start %d, end %d: %d bytes, %v", start, end, len(got), err)
			}
			b.wantContent(c, all)
			if err := c.Drop(c.NextOffset()); err != nil {
				t.Fatal(err)
			}
			if c.Segments() != 1 {
				t.Errorf("start %d, end %d: %+v", start, end, c.Spans())
			}
			c.Close()
		}
	}
}

// TestRestartAndDrop: a failed sync, a Drop in between, and the Restart.
func TestRestartAndDrop(t *testing.T) {
	list := series(0, 90, 13)
	b := newBench(t)
	f := &faults{op: vfs.OpSync, at: -1, err: errIO}
	b.o.FS = f.fs()
	c, _ := b.open(0)
	b.append(c, list[:60])
	b.sync(c)
	b.append(c, list[60:])
	f.mu.Lock()
	f.at, f.seen = 1, 0
	f.mu.Unlock()
	if err := c.Sync(); err == nil {
		t.Fatal("no error")
	}
	synced := c.SyncedOffset()
	if err := c.Drop(synced + 1); err == nil {
		t.Error("dropped what isn't synced")
	}
	if err := c.Drop(synced); err != nil {
		t.Fatal(err)
	}
	o := &owner{t: t, c: c, held: list}
	o.mustRestart()
	if err := c.Drop(synced); err != nil {
		t.Fatal(err)
	}
	if c.StartOffset() != synced || c.NextOffset() != synced || c.Segments() != 1 {
		t.Errorf("start %d, next %d of %d, %+v", c.StartOffset(), c.NextOffset(), synced, c.Spans())
	}
	o.catchUp(89)
	o.sync(89)
	if err := c.Drop(synced); err != nil {
		t.Fatal(err)
	}
	b.wantContent(c, stillThere(list, synced))
	if c.Bytes() != b.diskBytes() {
		t.Errorf("%d bytes, on disk %d", c.Bytes(), b.diskBytes())
	}
	if len(f.again) > 0 {
		t.Errorf("synced again: %v", f.again)
	}
}

// readSomewhere reads near a random offset, which may be dropped meanwhile.
func readSomewhere(t *testing.T, c *Chain, rnd *rand.Rand, byBase map[int64][]byte) {
	start := c.StartOffset()
	offset := max(start+rnd.Int64N(c.NextOffset()-start+1)-5, 0)
	p, err := c.Read(nil, offset, 3000, all)
	if err != nil && !errors.Is(err, ErrOffsetOutOfRange) {
		t.Errorf("read at %d: %v", offset, err)
	}
	for len(p) > 0 {
		x, rest, err := record.Next(p)
		if err != nil || !bytes.Equal(x, byBase[x.BaseOffset()]) {
			t.Errorf("read at %d: %v", offset, err)
			return
		}
		p = rest
	}
}

// TestDropWhileBusy lets everything happen at once. Readers get what was appended, or that it is out of range.
func TestDropWhileBusy(t *testing.T) {
	batches := 3000
	if testing.Short() {
		batches = 600
	}
	list := series(0, batches, 14)
	byBase := map[int64][]byte{}
	for _, x := range list {
		byBase[x.BaseOffset()] = x
	}
	b := newBench(t)
	var syncs atomic.Int64
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpSync && syncs.Add(1)%97 == 0 {
			return 0, errIO
		}
		return 0, nil
	}}
	b.o.Handles = NewHandles(3)
	c, _ := b.open(0)
	done := make(chan struct{})
	var wg sync.WaitGroup
	busy := func(fn func(i int)) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					fn(i)
				}
			}
		})
	}
	for range 2 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
		busy(func(int) { readSomewhere(t, c, rnd, byBase) })
	}
	busy(func(i int) {
		ms := list[i*31%len(list)].MaxTimestamp()
		if base, ok, err := c.OffsetForTime(ms, all); err != nil || ok && byBase[base] == nil && base > c.StartOffset() {
			t.Errorf("time %d: %d, %v", ms, base, err)
		}
		if s, ok, err := c.SpanAt(0); err != nil || ok && s.MinTime > s.MaxTime {
			t.Errorf("oldest: %+v, %v", s, err)
		}
		c.Spans()
		c.Bytes()
	})
	busy(func(int) {
		if spans := c.Spans(); len(spans) > 5 {
			if err := c.Drop(min(spans[len(spans)-4].Base+1, c.SyncedOffset())); err != nil && c.Poisoned() == nil {
				t.Error(err)
			}
		}
	})
	o := &owner{t: t, c: c, held: list}
	for i := range list {
		o.catchUp(i)
		if i%50 == 49 {
			o.sync(i)
		}
		if i%170 == 169 && c.Seal() != nil {
			o.mustRestart()
		}
	}
	close(done)
	wg.Wait()
	o.catchUp(len(list) - 1)
	o.sync(len(list) - 1)
	b.wantContent(c, stillThere(list, c.StartOffset()))
	spans := c.Spans()
	if err := c.Drop(spans[len(spans)-2].Base); err != nil {
		t.Fatal(err)
	}
	if c.Segments() != 2 || c.StartOffset() != spans[len(spans)-2].Base {
		t.Errorf("%d segments from %d", c.Segments(), c.StartOffset())
	}
	b.wantContent(c, stillThere(list, c.StartOffset()))
	if c.Bytes() != b.diskBytes() {
		t.Errorf("%d bytes, on disk %d", c.Bytes(), b.diskBytes())
	}
}
