package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// manySegments makes a directory of n segments, each of one index interval or so.
func manySegments(t testing.TB, n int) (b *bench, next int64) {
	t.Helper()
	b = newBench(t)
	b.o.SegmentBytes = 1
	c, _ := b.open(0)
	x := makeBatch(0, 4, 200, 1000)
	for range n {
		record.SetBaseOffset(x, c.NextOffset())
		b.append(c, []record.Batch{x})
		if c.Segments()%50 == 0 {
			b.sync(c) // or all of them stay open
		}
	}
	b.sync(c)
	next = c.NextOffset()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.o.SegmentBytes = 1 << 20
	return b, next
}

// asked counts the calls that list a directory.
type asked struct {
	counting
	dirs, stats atomic.Int64
}

type askedEntry struct {
	fs.DirEntry
	a *asked
}

func (a *asked) ReadDir(name string) ([]fs.DirEntry, error) {
	a.dirs.Add(1)
	entries, err := a.FS.ReadDir(name)
	for i := range entries {
		entries[i] = askedEntry{entries[i], a}
	}
	return entries, err
}

func (e askedEntry) Info() (fs.FileInfo, error) {
	e.a.stats.Add(1)
	return e.DirEntry.Info()
}

// TestThousandSegments: what many segments cost.
func TestThousandSegments(t *testing.T) {
	b, next := manySegments(t, 1000)
	t.Run("open", func(t *testing.T) { openLooksAtLittle(t, &bench{t, b.o}, next) })
	t.Run("memory", func(t *testing.T) { memoryOfSegments(t, &bench{t, b.o}, next) })
}

// openLooksAtLittle: Open lists the directory once, looks at each file's size once, and reads of each closed segment the last
// index entry and the header of the batch there; no file stays open after a clean stop.
func openLooksAtLittle(t *testing.T, b *bench, next int64) {
	const n = 1000
	var read atomic.Int64
	a := &asked{counting: counting{FS: diskFS, read: &read}}
	b.o.FS = a
	c, r := b.open(next)
	if c.Segments() != n || c.NextOffset() != next || len(r.RebuiltIndexes) > 0 {
		t.Fatalf("%d segments, next %d of %d, %+v", c.Segments(), c.NextOffset(), next, r)
	}
	if a.dirs.Load() != 1 || a.stats.Load() != 3*n || a.opened.Load() != 2*(n-1)+3 || a.open.Load() != 0 || read.Load() > 100*n {
		t.Errorf("listed %d times, %d sizes, opened %d files and left %d open, read %d bytes",
			a.dirs.Load(), a.stats.Load(), a.opened.Load(), a.open.Load(), read.Load())
	}
}

// memoryOfSegments: what the chain keeps in memory of a segment, its times included.
func memoryOfSegments(t *testing.T, b *bench, next int64) {
	const n, most = 1000, 320
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c, _ := b.open(next)
	if _, _, err := c.OffsetForTime(1<<40, all); err != nil { // looks at all of them
		t.Fatal(err)
	}
	bytes := (heap() - before) / n
	t.Logf("%d bytes a segment", bytes)
	if bytes > most {
		t.Errorf("%d bytes a segment, not at most %d", bytes, most)
	}
	if s := c.Spans()[n/2]; s.MaxTime == NoTime {
		t.Errorf("%+v", s)
	}
	runtime.KeepAlive(c)
}

// TestOpenFilesStayFew: only what is being written or read is open, however many partitions there are.
func TestOpenFilesStayFew(t *testing.T) {
	const partitions, cached = 80, 4
	var read atomic.Int64
	count := &counting{FS: diskFS, read: &read}
	dir := t.TempDir()
	handles := NewHandles(cached)
	defer handles.Close()
	var chains []*Chain
	list := series(0, 40, 401)
	for i := range partitions {
		c, _, err := Open(Options{FS: count, Dir: filepath.Join(dir, fmt.Sprint("t-", i)), SegmentBytes: 8 << 10, Handles: handles}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		chains = append(chains, c)
	}
	few := func(when string, most int64) {
		t.Helper()
		if n := count.open.Load(); n > most {
			t.Errorf("%s %d files are open, not at most %d", when, n, most)
		}
	}
	few("after opening", 0)
	for round := range 2 {
		part := list[round*20 : round*20+20]
		for _, c := range chains {
			for _, x := range part {
				if err := c.Append(x); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range chains {
			if err := c.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		few("after a sync", 3*cached)
		for _, c := range chains {
			if _, err := c.Read(nil, part[0].BaseOffset(), 1, all); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.OffsetForTime(part[10].MaxTimestamp(), all); err != nil {
				t.Fatal(err)
			}
		}
		few("after reads", 3*cached)
	}
	for i, c := range chains {
		b := &bench{t, Options{FS: diskFS, Dir: filepath.Join(dir, fmt.Sprint("t-", i))}}
		b.wantContent(c, list)
		b.verify()
		if c.Bytes() != b.diskBytes() {
			t.Errorf("%d bytes, on disk %d", c.Bytes(), b.diskBytes())
		}
	}
}

// TestWakeFails: when a resting segment can't be opened again, nothing has changed, and the append can be tried again.
func TestWakeFails(t *testing.T) {
	b := newBench(t)
	var broken atomic.Bool
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpOpen && broken.Load() && strings.HasSuffix(name, logSuffix) {
			return 0, errIO
		}
		return 0, nil
	}}
	b.o.SegmentBytes = 1 << 20
	c, _ := b.open(0)
	list := series(0, 20, 402)
	b.append(c, list[:10])
	b.sync(c)
	broken.Store(true)
	if err := c.Append(list[10]); err == nil || c.Poisoned() != nil {
		t.Fatalf("%v, poisoned: %v", err, c.Poisoned())
	}
	if err := c.Seal(); err == nil || c.Poisoned() != nil {
		t.Fatalf("%v, poisoned: %v", err, c.Poisoned())
	}
	broken.Store(false)
	b.append(c, list[10:])
	b.sync(c)
	path := b.lastFile(logSuffix)
	if err := os.Rename(path, path+"x"); err != nil { // somebody took it: no new file may begin in the middle
		t.Fatal(err)
	}
	if err := c.Append(series(c.NextOffset(), 1, 1)[0]); err == nil {
		t.Error("appended to a file that isn't there")
	}
	if fileThere(path) {
		t.Error("made it anew")
	}
	if err := os.Rename(path+"x", path); err != nil {
		t.Fatal(err)
	}
	b.wantContent(c, list)
}

func fileThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestAppendDuringSync: what is appended while a Sync is under way is not taken for synced, then or later.
func TestAppendDuringSync(t *testing.T) {
	list := series(0, 20, 403)
	b := newBench(t)
	var during func()
	synced := 0
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpSync && strings.HasSuffix(name, logSuffix) {
			if synced++; during != nil {
				during()
			}
		}
		return 0, nil
	}}
	b.o.SegmentBytes, b.o.IndexIntervalBytes = 1<<20, 1<<20
	c, _ := b.open(0)
	b.append(c, list[:10])
	during = func() { b.append(c, list[10:]) }
	b.sync(c)
	during = nil
	if c.SyncedOffset() != list[10].BaseOffset() || synced != 1 {
		t.Errorf("synced up to %d in %d syncs", c.SyncedOffset(), synced)
	}
	b.sync(c)
	if c.SyncedOffset() != c.NextOffset() || synced != 2 {
		t.Errorf("synced up to %d of %d in %d syncs", c.SyncedOffset(), c.NextOffset(), synced)
	}
}
