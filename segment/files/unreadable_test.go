package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// sick is a disk that fails for good wherever bad says so. at is the first byte of a read, or -1.
// A file that is removed or moved takes that with it.
type sick struct {
	vfs.FS
	bad    func(op string, name string, at, n int64) bool
	healed map[string]bool
}

func newSick(bad func(op string, name string, at, n int64) bool) *sick {
	s := &sick{FS: diskFS, healed: map[string]bool{}}
	s.bad = func(op, name string, at, n int64) bool { return !s.healed[name] && bad(op, name, at, n) }
	return s
}

type sickFile struct {
	vfs.File
	s *sick
}

type sickEntry struct {
	fs.DirEntry
	s   *sick
	dir string
}

func (s *sick) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	if s.bad("open", name, -1, 0) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errIO}
	}
	f, err := s.FS.OpenFile(name, flag, perm)
	return sickFile{f, s}, err
}

func (s *sick) ReadDir(name string) ([]fs.DirEntry, error) {
	if s.bad("readdir", name, -1, 0) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errIO}
	}
	entries, err := s.FS.ReadDir(name)
	for i := range entries {
		entries[i] = sickEntry{entries[i], s, name}
	}
	return entries, err
}

func (s *sick) Rename(from, to string) error {
	if s.bad("rename", from, -1, 0) {
		return &fs.PathError{Op: "rename", Path: from, Err: errIO}
	}
	err := s.FS.Rename(from, to)
	s.healed[from], s.healed[to] = err == nil, err == nil
	return err
}

func (s *sick) Remove(name string) error {
	err := s.FS.Remove(name)
	s.healed[name] = err == nil
	return err
}

func (e sickEntry) Info() (fs.FileInfo, error) {
	if e.s.bad("stat", filepath.Join(e.dir, e.Name()), -1, 0) {
		return nil, &fs.PathError{Op: "lstat", Path: e.Name(), Err: errIO}
	}
	return e.DirEntry.Info()
}

func (f sickFile) ReadAt(p []byte, at int64) (int, error) {
	if f.s.bad("read", f.Name(), at, int64(len(p))) {
		return 0, &fs.PathError{Op: "read", Path: f.Name(), Err: errIO}
	}
	return f.File.ReadAt(p, at)
}

// readAround reads from an offset to the end, goes on behind damage, and says which offsets it missed by it.
func readAround(t *testing.T, c *Chain, from int64) (got []byte, missed int64, unreadable bool) {
	t.Helper()
	for n := 0; from < c.NextOffset(); n++ {
		if n > 10_000 {
			t.Fatalf("no end of it at offset %d", from)
		}
		p, err := c.Read(nil, from, 1, all)
		var bad *DamageError
		if errors.As(err, &bad) {
			if bad.Resume <= from || bad.Resume > c.NextOffset() || bad.Offset < from {
				t.Fatalf("read at %d: %+v", from, bad)
			}
			missed, from, unreadable = missed+bad.Resume-from, bad.Resume, unreadable || bad.Unreadable()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(p) == 0 {
			break // a hole up to the end
		}
		got, from = append(got, p...), record.Batch(p).NextOffset()
	}
	return got, missed, unreadable
}

// viewAround is readAround with a viewer.
func viewAround(t *testing.T, b *bench) (got []byte) {
	t.Helper()
	v, err := OpenReadOnly(b.o.FS, b.o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for from := int64(0); ; {
		err := v.Batches(from, func(x record.Batch, _ Place) error {
			got = append(got, x...)
			from = x.NextOffset()
			return nil
		})
		var bad *DamageError
		if !errors.As(err, &bad) {
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if !bad.Unreadable() || bad.Resume <= from {
			t.Fatal(bad)
		}
		from = bad.Resume
		if from == all {
			return got
		}
	}
}

// TestUnreadableSegment: one segment that the disk doesn't give costs its own records, and nothing else.
func TestUnreadableSegment(t *testing.T) {
	list := series(0, 90, 201)
	next := list[89].NextOffset()
	proto := newBench(t)
	proto.filled(list)
	segs, _ := List(vfs.OS, proto.o.Dir)
	last := len(segs) - 1
	for _, i := range []int{0, 1, last - 1, last} {
		base, limit := segs[i].Base, next
		if i < last {
			limit = segs[i+1].Base
		}
		for _, how := range []string{"open", "stat", "read"} {
			for _, end := range []int64{next, (base + limit) / 2, base, NoRecoveryPoint} {
				v := victim{how, base, limit, end, i == last}
				t.Run(fmt.Sprintf("%s segment %d of %d from %d", how, i, last+1, end), func(t *testing.T) {
					b := newBench(t)
					if err := os.CopyFS(b.o.Dir, os.DirFS(proto.o.Dir)); err != nil {
						t.Fatal(err)
					}
					v.run(t, b, list)
				})
			}
		}
	}
}

// victim is a segment from base to limit that fails in some way when its chain is opened with end.
type victim struct {
	how              string
	base, limit, end int64
	last             bool
}

func (v victim) run(t *testing.T, b *bench, list []record.Batch) {
	next := list[len(list)-1].NextOffset()
	path := stem(b.o.Dir, v.base) + logSuffix
	ill := true
	b.o.FS = newSick(func(op, name string, _, _ int64) bool { return ill && op == v.how && name == path })
	c, r := b.open(v.end)
	if c.Poisoned() != nil {
		t.Fatal(c.Poisoned())
	}
	// Beyond the v.end the journal brings everything.
	var below, want []record.Batch
	for _, x := range list {
		in := x.BaseOffset() >= v.base && x.LastOffset() < v.limit
		if x.LastOffset() < v.end || v.end < 0 || c.NextOffset() > x.LastOffset() {
			below = append(below, x)
			if !in {
				want = append(want, x)
			}
		}
	}
	if v.end >= 0 && c.NextOffset() < v.end && v.how != "read" { // of which only what it holds is known
		t.Errorf("next offset %d below the v.end %d", c.NextOffset(), v.end)
	}
	if v.end < 0 && c.NextOffset() < next-30 {
		t.Errorf("next offset %d of %d", c.NextOffset(), next)
	}
	got, _, unreadable := readAround(t, c, 0)
	if !bytes.Equal(got, joined(want)) {
		t.Errorf("%d bytes up to %d, want %d", len(got), c.NextOffset(), len(joined(want)))
	}
	lost := v.end != v.base && (v.end < 0 || v.end > v.base)
	if v.how == "open" && lost && !unreadable {
		t.Error("the reader was not told that it may pass")
	}
	scanned := v.end < v.limit || v.last || v.how == "stat"
	if scanned && lost && len(r.Damaged) == 0 {
		t.Errorf("nothing reported: %+v", r)
	}
	ill = false // it was a loose cable
	got, _, _ = readAround(t, c, 0)
	if v.end >= 0 && !bytes.HasPrefix(joined(below), got) && !bytes.Equal(got, joined(want)) {
		t.Errorf("%d bytes in offsets up to %d once it is readable again", len(got), c.NextOffset())
	}
	if at := c.NextOffset(); at < v.end { // as the journal's next batch makes it
		if err := c.SkipTo(v.end); err != nil {
			t.Fatal(err)
		}
	}
	more := series(c.NextOffset(), 20, 202)
	b.append(c, more)
	b.sync(c)
	if again, _, _ := readAround(t, c, 0); !bytes.Equal(again, append(got[:len(got):len(got)], joined(more)...)) {
		t.Errorf("%d bytes after appending", len(again))
	}
	upTo := c.NextOffset()
	c.Close()
	c, _ = b.open(upTo)
	got, _, _ = readAround(t, c, 0)
	if !bytes.HasSuffix(got, joined(more)) || len(got) < len(joined(want))+len(joined(more)) {
		t.Errorf("%d bytes once it is readable again", len(got))
	}
	if v.end == next && v.how != "read" && !bytes.Equal(got, joined(append(below, more...))) {
		t.Errorf("%d bytes once it is readable again, want all %d", len(got), len(joined(below))+len(joined(more)))
	}
}

// TestTimesOfUnreadable: a lookup by time passes a segment over that can't be read, and asks for its times again later.
func TestTimesOfUnreadable(t *testing.T) {
	list := series(0, 90, 208)
	next := list[89].NextOffset()
	for _, how := range []string{"open", "read"} {
		b := newBench(t)
		b.filled(list)
		segs, _ := List(vfs.OS, b.o.Dir)
		ill := true
		b.o.FS = newSick(func(op, name string, _, _ int64) bool { return ill && op == how && name == segs[0].Path })
		c, _ := b.open(next)
		if base, ok, err := c.OffsetForTime(0, all); base != segs[1].Base || !ok || err != nil {
			t.Errorf("%s: %d %v %v", how, base, ok, err)
		}
		if s, ok, err := c.SpanAt(0); !ok || err != nil || s.MinTime != NoTime || s.MaxTime != NoTime || s.Base != 0 || s.End != segs[1].Base {
			t.Errorf("%s: %+v %v %v", how, s, ok, err)
		}
		ill = false
		b.wantTimes(c, list)
		b.wantOldest(c, list)
	}
}

// TestUnreadableIndexes cost nothing but time.
func TestUnreadableIndexes(t *testing.T) {
	list := series(0, 90, 203)
	next := list[89].NextOffset()
	for _, how := range []string{"open", "stat", "read"} {
		for _, end := range []int64{next, list[50].BaseOffset(), 0, NoRecoveryPoint} {
			b := newBench(t)
			b.filled(list)
			ill, there := true, map[string]bool{}
			entries, _ := os.ReadDir(b.o.Dir)
			for _, e := range entries {
				there[filepath.Join(b.o.Dir, e.Name())] = !strings.HasSuffix(e.Name(), logSuffix)
			}
			b.o.FS = newSick(func(op, name string, _, _ int64) bool {
				return ill && op == how && there[name]
			})
			c, r := b.open(end)
			if len(r.Damaged)+len(r.SetAside) > 0 || c.NextOffset() != next {
				t.Fatalf("%s from %d: next %d of %d, %+v", how, end, c.NextOffset(), next, r)
			}
			b.wantContent(c, list)
			b.wantTimes(c, list)
			more := series(next, 20, 204)
			b.append(c, more)
			b.sync(c)
			b.wantContent(c, append(list[:90:90], more...))
			ill = false
			b.wantTimes(c, append(list[:90:90], more...))
			c.Close()
		}
	}
}

// TestUnreadableBlock: of a segment with a bad block only the batches in that block are lost, wherever it is and whoever reads.
func TestUnreadableBlock(t *testing.T) {
	list := series(0, 200, 205)
	next := list[199].NextOffset()
	size := int64(len(joined(list)))
	for _, sealed := range []bool{false, true} {
		for at := int64(0); at < size; at += blockBytes {
			b := newBench(t)
			b.o.SegmentBytes = 1 << 20
			c, _ := b.open(0)
			b.append(c, list)
			if sealed {
				if err := c.Seal(); err != nil {
					t.Fatal(err)
				}
			}
			b.sync(c)
			c.Close()
			b.o.FS = newSick(func(op, name string, from, n int64) bool {
				return op == "read" && strings.HasSuffix(name, logSuffix) && from < at+blockBytes && from+n > at
			})
			var want []byte
			lost, position := int64(0), int64(0)
			for _, x := range list {
				if end := position + int64(len(x)); position < at+blockBytes && end > at {
					lost += int64(x.Count())
				} else {
					want = append(want, x...)
				}
				position += int64(len(x))
			}
			if got := viewAround(t, b); !bytes.Equal(got, want) {
				t.Errorf("block at %d: %d bytes in the view, want %d", at, len(got), len(want))
			}
			for _, end := range []int64{next, list[100].BaseOffset(), NoRecoveryPoint} {
				dir := filepath.Join(t.TempDir(), "topic-0")
				if err := os.CopyFS(dir, os.DirFS(b.o.Dir)); err != nil {
					t.Fatal(err)
				}
				b := &bench{t, b.o}
				b.o.Dir = dir
				c, _ := b.open(end)
				if c.NextOffset() == next {
					got, missed, unreadable := readAround(t, c, 0)
					if !bytes.Equal(got, want) || missed != lost || lost > 0 && !unreadable {
						t.Errorf("block at %d, from %d: %d bytes, want %d; missed %d offsets, want %d", at, end, len(got), len(want), missed, lost)
					}
				} else if end != list[100].BaseOffset() && at+blockBytes < size { // else it is the end that is lost
					t.Errorf("block at %d, from %d: next %d", at, end, c.NextOffset())
				}
				c.Close()
			}
		}
	}
}

// TestUnreadableDirectory is the one error that Open has for it.
func TestUnreadableDirectory(t *testing.T) {
	b := newBench(t)
	b.filled(series(0, 10, 206))
	b.o.FS = newSick(func(op, _ string, _, _ int64) bool { return op == "readdir" })
	if _, _, err := Open(b.o, 0); !errors.Is(err, errIO) {
		t.Error(err)
	}
}

// TestSegmentInTheWay: an unreadable segment that begins where the next batch has to go is moved, or Open says that it
// can't be.
func TestSegmentInTheWay(t *testing.T) {
	list := series(0, 60, 207)
	for _, movable := range []bool{true, false} {
		b := newBench(t)
		b.filled(list)
		segs, _ := List(vfs.OS, b.o.Dir)
		base := segs[len(segs)-1].Base
		path := stem(b.o.Dir, base) + logSuffix
		b.o.FS = newSick(func(op, name string, _, _ int64) bool {
			return name == path && (op == "open" || op == "rename" && !movable)
		})
		c, r, err := Open(b.o, base)
		if !movable {
			if err == nil {
				t.Error("no error")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.NextOffset() != base || len(r.SetAside) != 1 || c.SideBytes() != segs[len(segs)-1].Bytes {
			t.Fatalf("next %d, want %d, %+v, %d bytes aside", c.NextOffset(), base, r, c.SideBytes())
		}
		b.append(c, list[len(list)-len(stillThere(list, base)):])
		b.sync(c)
		b.wantContent(c, list)
	}
}
