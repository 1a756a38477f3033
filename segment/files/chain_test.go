package files

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func TestAppendReadReopen(t *testing.T) {
	b := newBench(t)
	list := series(0, 200, 1)
	c, _ := b.open(0)
	b.append(c, list)
	b.wantContent(c, list)
	if c.SyncedOffset() != 0 {
		t.Fatalf("synced %d before Sync", c.SyncedOffset())
	}
	b.sync(c)
	end := list[len(list)-1].NextOffset()
	if c.SyncedOffset() != end || c.NextOffset() != end || c.StartOffset() != 0 {
		t.Fatalf("synced %d, next %d, start %d, want %d, %[4]d, 0", c.SyncedOffset(), c.NextOffset(), c.StartOffset(), end)
	}
	if c.Segments() < 10 {
		t.Fatalf("%d segments", c.Segments())
	}
	var size int64
	entries, _ := os.ReadDir(b.o.Dir)
	for _, e := range entries {
		info, _ := e.Info()
		size += info.Size()
		if strings.HasSuffix(e.Name(), logSuffix) && info.Size() > b.o.SegmentBytes {
			t.Errorf("%s has %d bytes, the limit is %d", e.Name(), info.Size(), b.o.SegmentBytes)
		}
	}
	if c.Bytes() != size {
		t.Errorf("Bytes %d, on disk %d", c.Bytes(), size)
	}
	b.verify()
	c.Close()

	c, r := b.open(end)
	if r.Cut != 0 || len(r.Damaged)+len(r.SetAside)+len(r.RebuiltIndexes) != 0 {
		t.Fatalf("clean open: %+v", r)
	}
	if r.Scanned > int64(b.o.IndexIntervalBytes)+2*1024 {
		t.Errorf("clean open scanned %d bytes", r.Scanned)
	}
	if c.Bytes() != size {
		t.Errorf("Bytes %d after reopening, on disk %d", c.Bytes(), size)
	}
	b.wantContent(c, list)
	more := series(end, 50, 2)
	b.append(c, more)
	b.sync(c)
	b.wantContent(c, append(list, more...))
	b.verify()
}

func TestReadFromEveryOffset(t *testing.T) {
	b := newBench(t)
	list := series(0, 60, 3)
	c, _ := b.open(0)
	b.append(c, list[:40])
	b.sync(c)
	b.append(c, list[40:])
	byOffset := map[int64]int{}
	for i, x := range list {
		for o := x.BaseOffset(); o <= x.LastOffset(); o++ {
			byOffset[o] = i
		}
	}
	for _, reopened := range []bool{false, true} {
		if reopened {
			b.sync(c)
			c.Close()
			c, _ = b.open(c.NextOffset())
		}
		for offset := range c.NextOffset() {
			for _, maxBytes := range []int{0, 1, 1000, 1 << 20} {
				got, err := c.Read([]byte("x"), offset, maxBytes, all)
				if err != nil {
					t.Fatalf("offset %d: %v", offset, err)
				}
				want := joined(list[byOffset[offset]:])
				got = got[1:]
				if len(got) == 0 || !bytes.HasPrefix(want, got) {
					t.Fatalf("offset %d, at most %d bytes: %d wrong bytes", offset, maxBytes, len(got))
				}
				if first := len(list[byOffset[offset]]); len(got) > max(maxBytes, first) {
					t.Fatalf("offset %d: %d bytes, asked for %d", offset, len(got), maxBytes)
				}
			}
			// upTo in the middle of the batch, and at its end.
			x := list[byOffset[offset]]
			if got, err := c.Read(nil, offset, 1<<20, x.LastOffset()); err != nil || len(got) != 0 {
				t.Fatalf("offset %d up to %d: %d bytes, %v", offset, x.LastOffset(), len(got), err)
			}
			if got, err := c.Read(nil, offset, 1<<20, x.NextOffset()); err != nil || !bytes.Equal(got, x) {
				t.Fatalf("offset %d up to %d: %d bytes, %v", offset, x.NextOffset(), len(got), err)
			}
		}
	}
}

func TestReadLimits(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	if p, err := c.Read(nil, 0, 100, all); err != nil || p != nil {
		t.Fatalf("empty chain: %v, %v", p, err)
	}
	b.append(c, series(0, 10, 1))
	next := c.NextOffset()
	for _, tc := range []struct {
		offset int64
		want   error
	}{{-1, ErrOffsetOutOfRange}, {next, nil}, {next + 1, ErrOffsetOutOfRange}} {
		p, err := c.Read(nil, tc.offset, 100, all)
		if !errors.Is(err, tc.want) || len(p) != 0 {
			t.Errorf("offset %d: %d bytes, %v, want %v", tc.offset, len(p), err, tc.want)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	b := newBench(t)
	b.o.MaxBatchBytes = 2000
	c, _ := b.open(0)
	b.append(c, series(0, 3, 1))
	next := c.NextOffset()
	epoch := makeBatch(next, 1, 50, 1)
	record.Restamp(epoch, next, 7, -1, -1, -1)
	for name, x := range map[string]record.Batch{
		"below": makeBatch(next-1, 1, 50, 1), "beyond": makeBatch(next+1, 1, 50, 1),
		"large": makeBatch(next, 1, 3000, 1), "short": make(record.Batch, 10), "epoch": epoch,
	} {
		if err := c.Append(x); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if c.Poisoned() != nil || c.NextOffset() != next {
		t.Errorf("poisoned %v, next %d", c.Poisoned(), c.NextOffset())
	}
}

func TestOversizeBatchGetsSegment(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	list := []record.Batch{makeBatch(0, 1, 100, 1), makeBatch(1, 2, 20000, 2), makeBatch(3, 1, 100, 3)}
	b.append(c, list)
	if c.Segments() != 3 {
		t.Errorf("%d segments, want 3", c.Segments())
	}
	b.wantContent(c, list)
}

func TestRollBeforeRelativeOffsetOverflows(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	b.append(c, []record.Batch{makeBatch(0, 1, 100, 1)})
	c.active.seg.base -= math.MaxInt32 // as if the segment had begun that far back
	if !c.active.full(makeBatch(1, 1, 100, 1), 1<<30) {
		t.Error("offset 2^31 fits")
	}
	if c.active.full(makeBatch(0, 1, 100, 1), 1<<30) {
		t.Error("offset 2^31-1 doesn't fit")
	}
	c.active.seg.base += math.MaxInt32
}

func TestSkipTo(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	list := series(0, 5, 1)
	b.append(c, list)
	end := c.NextOffset()
	if err := c.SkipTo(end - 1); err == nil {
		t.Error("skipped back")
	}
	if err := c.SkipTo(end); err != nil || c.Segments() != 1 {
		t.Errorf("skip to the same: %v, %d segments", err, c.Segments())
	}
	if err := c.SkipTo(1000); err != nil {
		t.Fatal(err)
	}
	if c.NextOffset() != 1000 {
		t.Fatalf("next %d", c.NextOffset())
	}
	b.sync(c)
	c.Close()
	c, r := b.open(1000) // nothing appended yet
	if c.NextOffset() != 1000 || len(r.Damaged) != 0 {
		t.Fatalf("next %d, %+v", c.NextOffset(), r)
	}
	more := series(1000, 5, 2)
	b.append(c, more)
	for offset := end; offset <= 1000; offset++ {
		got, err := c.Read(nil, offset, 1, all)
		if err != nil || !bytes.Equal(got, more[0]) {
			t.Fatalf("offset %d in the hole: %d bytes, %v", offset, len(got), err)
		}
	}
	if got, err := c.Read(nil, end, 1, 900); err != nil || len(got) != 0 {
		t.Errorf("hole up to 900: %d bytes, %v", len(got), err)
	}
	b.sync(c)
	c.Close()
	c, r = b.open(NoRecoveryPoint)
	if len(r.Damaged)+len(r.SetAside) != 0 {
		t.Fatalf("%+v", r)
	}
	b.wantContent(c, append(list, more...))
	b.verify()
}

func TestBackwardTimestamps(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	var list []record.Batch
	for i := range 300 {
		ts := int64(1_000_000 + i*10)
		switch {
		case i > 100 && i < 200:
			ts = int64(i) // the clock went back to 1970
		case i == 250:
			ts = -5
		}
		list = append(list, makeBatch(int64(i), 1, 300, ts))
	}
	b.append(c, list)
	b.sync(c)
	b.verify()
	c.Close()
	c, _ = b.open(150)
	b.wantContent(c, list)
	b.sync(c)
	b.verify()
}

// TestIndexEntries pins the layout that Kafka reads.
func TestIndexEntries(t *testing.T) {
	b := newBench(t)
	b.o.IndexIntervalBytes = 100
	b.o.SegmentBytes = 1 << 20
	c, _ := b.open(100)
	if err := c.SkipTo(100); err != nil {
		t.Fatal(err)
	}
	list := []record.Batch{makeBatch(100, 3, 90, 5000), makeBatch(103, 2, 90, 4000), makeBatch(105, 4, 90, 6000), makeBatch(109, 1, 90, 9000)}
	b.append(c, list)
	b.sync(c)
	l0, l1, l2 := len(list[0]), len(list[1]), len(list[2])
	hex := func(suffix string) string {
		p, err := os.ReadFile(filepath.Join(b.o.Dir, "00000000000000000100"+suffix))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", p)
	}
	if got, want := hex(indexSuffix), fmt.Sprintf("%08x%08x%08x%08x%08x%08x", 4, l0, 8, l0+l1, 9, l0+l1+l2); got != want {
		t.Errorf("index %s, want %s", got, want)
	}
	if got, want := hex(timeSuffix), fmt.Sprintf("%016x%08x%016x%08x%016x%08x", 5002, 2, 6003, 8, 9000, 9); got != want {
		t.Errorf("time index %s, want %s", got, want)
	}
}

func TestPendingIndexIsBounded(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes, b.o.IndexIntervalBytes = 1<<30, 1
	c, _ := b.open(0)
	for range 4 * pendingEntries {
		b.append(c, []record.Batch{makeBatch(c.NextOffset(), 1, 20, 1)})
		if n := len(c.active.seg.pending); n > pendingEntries {
			t.Fatalf("%d entries in memory", n)
		}
	}
	b.sync(c)
	b.verify()
}

func TestReadAllocatesNothing(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes, b.o.IndexIntervalBytes = 1<<20, 4096
	c, _ := b.open(0)
	b.append(c, series(0, 2000, 1))
	b.sync(c)
	dst := make([]byte, 0, 128<<10)
	next := c.NextOffset()
	for name, step := range map[string]int64{"random": 7919, "same": 0} {
		offset := int64(11)
		n := testing.AllocsPerRun(200, func() {
			if _, err := c.Read(dst, offset, 32<<10, all); err != nil {
				t.Fatal(err)
			}
			offset = (offset + step) % next
		})
		if n > 0 {
			t.Errorf("%s: %v allocations a read", name, n)
		}
	}
}

// TestConcurrentReads reads while batches are appended and synced, and segments are closed.
func TestConcurrentReads(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	list := series(0, 400, 9)
	var wg sync.WaitGroup
	end := list[len(list)-1].NextOffset()
	want := joined(list)
	for range 3 {
		wg.Go(func() {
			var got []byte
			for from := int64(0); from < end; {
				p, err := c.Read(nil, from, 2000, all)
				if err != nil {
					t.Errorf("read at %d: %v", from, err)
					return
				}
				got = append(got, p...)
				for len(p) > 0 {
					x, rest, _ := record.Next(p)
					from, p = x.NextOffset(), rest
				}
			}
			if !bytes.Equal(got, want) {
				t.Error("read something else than was appended")
			}
		})
	}
	wg.Go(func() {
		for c.SyncedOffset() < end {
			if err := c.Sync(); err != nil {
				t.Errorf("sync: %v", err)
				return
			}
		}
	})
	b.append(c, list)
	wg.Wait()
}

func TestHandlesStayFew(t *testing.T) {
	b := newBench(t)
	list := series(0, 300, 4)
	b.filled(list)
	b.o.Handles = NewHandles(3)
	c, _ := b.open(list[len(list)-1].NextOffset())
	b.wantContent(c, list)
	b.wantContent(c, list)
	if n := len(b.o.Handles.recent); n > 3 {
		t.Errorf("%d handles, at most 3 allowed", n)
	}
	c.Close()
	if n := len(b.o.Handles.recent); n != 0 {
		t.Errorf("%d handles after Close", n)
	}
	b.o.Handles.Close()
}

func TestOpenReadsOnlyTheTail(t *testing.T) {
	b := newBench(t)
	list := series(0, 2000, 5)
	b.filled(list)
	reads, opens := 0, 0
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, _ string) (int, error) {
		switch op {
		case vfs.OpRead:
			reads++
		case vfs.OpOpen:
			opens++
		}
		return 0, nil
	}}
	c, _ := b.open(list[len(list)-1].NextOffset())
	// Of each closed segment the last index entry and the headers behind it.
	if n := c.Segments(); opens > 3+2*n || reads > 30+4*n {
		t.Errorf("%d segments: %d files opened, %d reads", c.Segments(), opens, reads)
	}
}
