package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

// TestRemovalFails: what can't be removed is out of the chain all the same, is counted, and is removed later.
func TestRemovalFails(t *testing.T) {
	list := series(0, 90, 4)
	for _, cause := range []error{syscall.EIO, syscall.EROFS} {
		for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix, ""} {
			for _, by := range []string{"drop", "sync", "open"} {
				t.Run(fmt.Sprint(cause, " of ", suffix, " then ", by), func(t *testing.T) {
					b := newBench(t)
					var broken atomic.Bool
					b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
						if op == vfs.OpRemove && broken.Load() && strings.HasSuffix(name, suffix) {
							return 0, cause
						}
						return 0, nil
					}}
					c, _ := b.open(0)
					b.append(c, list)
					b.sync(c)
					before, to := c.Bytes(), c.Spans()[3].Base
					dropped := before
					for _, s := range c.Spans()[3:] {
						dropped -= s.Bytes
					}
					broken.Store(true)
					if err := c.Drop(to); err != nil {
						t.Fatal(err)
					}
					n, doomed, failures, err := c.Stuck()
					if n != 3 || doomed <= 0 || doomed > dropped || failures < 3 || !errors.Is(err, cause) || c.Bytes() != b.diskBytes() {
						t.Errorf("%d segments, %d bytes of %d, %d failures, %v; Bytes %d, on disk %d", n, doomed, dropped, failures, err, c.Bytes(), b.diskBytes())
					}
					b.wantContent(c, stillThere(list, to))
					if err := c.Drop(0); err != nil { // tries again, in vain
						t.Fatal(err)
					}
					if again, _, more, _ := c.Stuck(); again != 3 || more <= failures {
						t.Errorf("%d segments, %d failures after %d", again, more, failures)
					}
					broken.Store(false)
					err = nil
					switch by {
					case "drop":
						err = c.Drop(0)
					case "sync":
						err = c.Sync()
					case "open":
						b.o.Start = to
						end := c.NextOffset()
						c.Close()
						c, _ = b.open(end)
					}
					if n, doomed, _, _ := c.Stuck(); err != nil || n != 0 || doomed != 0 || c.Bytes() != before-dropped || b.diskBytes() != before-dropped {
						t.Errorf("%v: %d segments, %d bytes; Bytes %d, on disk %d, want %d", err, n, doomed, c.Bytes(), b.diskBytes(), before-dropped)
					}
					b.wantContent(c, stillThere(list, to))
				})
			}
		}
	}
}

// TestRemovalFailsAtOpen: Open goes on without, and a later Drop removes it.
func TestRemovalFailsAtOpen(t *testing.T) {
	b := newBench(t)
	list := series(0, 90, 5)
	b.filled(list)
	segs, _ := List(vfs.OS, b.o.Dir)
	b.o.Start = segs[2].Base
	broken := true
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRemove && broken {
			return 0, errIO
		}
		return 0, nil
	}}
	c, r := b.open(list[89].NextOffset())
	if n, _, _, _ := c.Stuck(); n != 2 || len(r.Damaged)+len(r.Missing) > 0 {
		t.Errorf("%d segments, %+v", n, r)
	}
	b.wantContent(c, stillThere(list, b.o.Start))
	broken = false
	if err := c.Drop(0); err != nil {
		t.Fatal(err)
	}
	if n, _, _, _ := c.Stuck(); n != 0 || c.Bytes() != b.diskBytes() {
		t.Errorf("%d segments; %d bytes, on disk %d", n, c.Bytes(), b.diskBytes())
	}
}

// TestDropAllFails: the last segment goes only when the next one is there for good.
func TestDropAllFails(t *testing.T) {
	list := series(0, 30, 6)
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpTruncate, vfs.OpSyncDir} {
		b := newBench(t)
		b.o.SegmentBytes = 1 << 20
		var broken atomic.Bool
		b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(o vfs.Op, name string) (int, error) {
			if o == op && broken.Load() {
				return 0, errIO
			}
			return 0, nil
		}}
		c, _ := b.open(0)
		b.append(c, list)
		if err := c.Seal(); err != nil {
			t.Fatal(err)
		}
		b.sync(c)
		broken.Store(true)
		err := c.Drop(c.NextOffset())
		if (err != nil) != (op == vfs.OpSyncDir) || (c.Poisoned() != nil) != (op == vfs.OpSyncDir) {
			t.Fatalf("%s: %v, poisoned: %v", op, err, c.Poisoned())
		}
		if _, err := os.Stat(stem(b.o.Dir, 0) + logSuffix); err != nil {
			t.Fatalf("%s: the last segment is gone: %v", op, err)
		}
		if start := c.StartOffset(); start != list[29].NextOffset() {
			t.Errorf("%s: start %d", op, start)
		}
		broken.Store(false)
		o := &owner{t: t, c: c}
		o.mustRestart()
		if err := c.Drop(0); err != nil {
			t.Fatal(err)
		}
		if c.Segments() != 1 || c.Bytes() != 0 || b.diskBytes() != 0 {
			t.Errorf("%s: %d segments, %d bytes, on disk %d", op, c.Segments(), c.Bytes(), b.diskBytes())
		}
		more := series(c.NextOffset(), 10, 7)
		b.append(c, more)
		b.sync(c)
		b.wantContent(c, more)
	}
}

// TestSealFails: for want of space the log is closed without the end of its indexes, which a Sync makes up for. Any other
// failure poisons the chain, and nothing is lost.
func TestSealFails(t *testing.T) {
	list := series(0, 60, 8)
	for _, cause := range []error{syscall.ENOSPC, errIO} {
		b := newBench(t)
		b.o.SegmentBytes = 1 << 20
		var broken atomic.Bool
		b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
			if op == vfs.OpWrite && broken.Load() && strings.HasSuffix(name, indexSuffix[1:]) {
				return 3, cause
			}
			return 0, nil
		}}
		c, _ := b.open(0)
		b.append(c, list[:40])
		b.sync(c)
		b.append(c, list[40:])
		broken.Store(true)
		if err := c.Seal(); (err == nil) != NoSpace(cause) || (c.Poisoned() == nil) != NoSpace(cause) {
			t.Fatalf("%v: %v, poisoned: %v", cause, err, c.Poisoned())
		}
		b.wantTimes(c, list)
		if cause == errIO {
			broken.Store(false)
			o := &owner{t: t, c: c, held: list}
			o.mustRestart()
			o.catchUp(59)
			if err := c.Seal(); err != nil {
				t.Fatal(err)
			}
		}
		b.sync(c) // the log, if not the indexes
		b.wantTimes(c, list)
		broken.Store(false)
		for range 3 {
			b.sync(c)
		}
		b.verify()
		b.wantContent(c, list)
		b.wantTimes(c, list)
		if c.Bytes() != b.diskBytes() {
			t.Errorf("%v: %d bytes, on disk %d", cause, c.Bytes(), b.diskBytes())
		}
	}
}

// TestDropCrashes copies the directory before each removal of a Drop, and opens it as after a power cut: with the start that
// the state knows, and with an older one.
func TestDropCrashes(t *testing.T) {
	list := series(0, 90, 9)
	for _, sealed := range []bool{false, true} {
		b := newBench(t)
		var copies []string
		b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
			if op == vfs.OpRemove {
				to := filepath.Join(t.TempDir(), "topic-0")
				if err := os.CopyFS(to, os.DirFS(b.o.Dir)); err != nil {
					t.Error(err)
				}
				copies = append(copies, to)
			}
			return 0, nil
		}}
		c, _ := b.open(0)
		b.append(c, list)
		if sealed {
			if err := c.Seal(); err != nil {
				t.Fatal(err)
			}
		}
		b.sync(c)
		end := c.NextOffset()
		to := c.Spans()[4].Base
		if sealed {
			to = end
		}
		if err := c.Drop(to); err != nil {
			t.Fatal(err)
		}
		if len(copies) < 12 {
			t.Fatalf("%d removals", len(copies))
		}
		for i, dir := range copies {
			for _, start := range []int64{to, 0} {
				b := &bench{t, Options{FS: diskFS, Dir: dir, SegmentBytes: b.o.SegmentBytes, IndexIntervalBytes: 512, Start: start}}
				if start == to {
					dir := filepath.Join(t.TempDir(), "topic-0")
					if err := os.CopyFS(dir, os.DirFS(b.o.Dir)); err != nil {
						t.Fatal(err)
					}
					b.o.Dir = dir
				}
				c, r := b.open(end)
				if len(r.Damaged)+len(r.Missing)+len(r.SetAside) > 0 || c.NextOffset() != end {
					t.Fatalf("before removal %d, from %d: next %d, %+v", i, start, c.NextOffset(), r)
				}
				b.wantContent(c, stillThere(list, c.StartOffset()))
				if start == to && (c.StartOffset() != to || c.Bytes() != b.diskBytes()) {
					t.Errorf("before removal %d: start %d, want %d; %d bytes, on disk %d", i, c.StartOffset(), to, c.Bytes(), b.diskBytes())
				}
				if err := c.Drop(to); err != nil {
					t.Fatal(err)
				}
				b.wantContent(c, stillThere(list, to))
				more := series(end, 20, 10)
				b.append(c, more)
				b.sync(c)
				b.wantContent(c, append(stillThere(list, to)[:len(stillThere(list, to)):len(stillThere(list, to))], more...))
				b.verify()
				c.Close()
			}
		}
	}
}
