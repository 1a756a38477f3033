package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

// TestSideFiles: what was set aside counts, by whoever, and can be removed, oldest first.
func TestSideFiles(t *testing.T) {
	list := series(0, 60, 301)
	b := newBench(t)
	b.filled(list)
	segs, _ := List(vfs.OS, b.o.Dir)
	tail := segs[len(segs)-1]
	flip(b, list[50], 65) // not the last batch of its segment
	for name, size := range map[string]int{
		"00000000000000000007.log.aside": 10, "00000000000000000007.log.aside.1": 20, "00000000000000000003.log.damaged-4096": 30,
		"00000000000000000003.log.other": 1, "7.log.aside": 1, "00000000000000000003.index.aside": 1, // not ours
	} {
		if err := os.WriteFile(filepath.Join(b.o.Dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, r := b.open(list[50].BaseOffset())
	made := int64(0) // by this recovery
	for _, d := range r.Damaged {
		if d.SideFile != "" {
			made += d.Bytes
		}
	}
	for _, path := range r.SetAside {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		made += info.Size()
	}
	if made == 0 || c.SideBytes() != 60+made || c.Bytes() != b.diskBytes()-3 {
		t.Fatalf("%d bytes aside, %d of them new; Bytes %d, on disk %d", c.SideBytes(), made, c.Bytes(), b.diskBytes()-3)
	}
	var order []string
	for {
		before := c.Bytes()
		freed, path, err := c.RemoveOldestSide()
		if err != nil {
			t.Fatal(err)
		}
		if path == "" {
			break
		}
		order = append(order, filepath.Base(path))
		if c.Bytes() != before-freed || freed == 0 {
			t.Errorf("%d bytes of %d after freeing %d", c.Bytes(), before, freed)
		}
	}
	if len(order) != 3+len(r.SetAside)+1 || !strings.HasPrefix(strings.Join(order, " "),
		"00000000000000000003.log.damaged-4096 00000000000000000007.log.aside 00000000000000000007.log.aside.1 ") {
		t.Errorf("%q of %d", order, tail.Base)
	}
	if c.SideBytes() != 0 || c.Bytes() != b.diskBytes()-3 {
		t.Errorf("%d bytes aside; Bytes %d, on disk %d", c.SideBytes(), c.Bytes(), b.diskBytes()-3)
	}
}

// TestSideFileStays: one that can't be removed doesn't keep the next one from going, and one that is gone frees nothing.
func TestSideFileStays(t *testing.T) {
	b := newBench(t)
	b.filled(series(0, 5, 302))
	paths := []string{}
	for _, name := range []string{"00000000000000000001.log.aside", "00000000000000000002.log.aside", "00000000000000000003.log.aside"} {
		paths = append(paths, filepath.Join(b.o.Dir, name))
		if err := os.WriteFile(paths[len(paths)-1], make([]byte, 10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRemove && name == paths[0] {
			return 0, errIO
		}
		return 0, nil
	}}
	c, _ := b.open(5)
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}
	if freed, path, err := c.RemoveOldestSide(); freed != 10 || path != paths[2] || err != nil {
		t.Errorf("%d %s %v", freed, path, err)
	}
	if freed, path, err := c.RemoveOldestSide(); freed != 0 || path != "" || !errors.Is(err, errIO) {
		t.Errorf("%d %s %v", freed, path, err)
	}
	if c.SideBytes() != 10 {
		t.Errorf("%d bytes aside", c.SideBytes())
	}
	if freed, err := c.RemoveSide(paths[2]); freed != 0 || err != nil {
		t.Errorf("%d %v", freed, err)
	}
}

// TestMissingLog: an index without a log tells of a segment that was lost, unless that lies below the start.
func TestMissingLog(t *testing.T) {
	list := series(0, 60, 303)
	next := list[59].NextOffset()
	for victim := range 4 {
		for _, start := range []int64{0, -1} {
			for _, end := range []int64{next, NoRecoveryPoint, 0} {
				b := newBench(t)
				b.filled(list)
				segs, _ := List(vfs.OS, b.o.Dir)
				gone := segs[victim]
				b.o.Start = start
				if start < 0 {
					b.o.Start = segs[victim+1].Base
				}
				if err := os.Remove(gone.Path); err != nil {
					t.Fatal(err)
				}
				c, r := b.open(end)
				want := 1
				if start < 0 || end == 0 { // dropped, or in the journal
					want = 0
				}
				if len(r.Missing) != want || want == 1 && (r.Missing[0].From != gone.Base || r.Missing[0].To != segs[victim+1].Base ||
					!errors.Is(r.Missing[0].Cause, fs.ErrNotExist)) {
					t.Errorf("segment %d, start %d, end %d: %+v", victim, b.o.Start, end, r.Missing)
				}
				if start < 0 && c.StartOffset() != b.o.Start {
					t.Errorf("start %d", c.StartOffset())
				}
				if left, _ := filepath.Glob(strings.TrimSuffix(gone.Path, logSuffix) + "*"); len(left) > 0 && end != 0 {
					t.Errorf("left: %v", left)
				}
				c.Close()
			}
		}
	}
}
