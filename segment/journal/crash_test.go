package journal

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

// A roll ahead of any frame began another use with the same first LSN. Of the two a replay took the one whose name comes
// last for the later one, and what the other one held for void.
func TestRollOfAFreshFile(t *testing.T) {
	for frames := range 3 {
		dir := t.TempDir()
		j, _, _ := start(t, vfs.OS, dir, 0)
		for range frames {
			appendText(t, j, "before")
		}
		for range 4 {
			cut, err := j.Roll()
			if err != nil || cut != uint64(frames) {
				t.Fatalf("cut %d, %v", cut, err)
			}
			j.Release(cut)
		}
		appendText(t, j, "after")
		j.Close()
		got, r := replayed(t, open(t, vfs.OS, dir), uint64(frames))
		if len(got) != 1 || len(r.Damages) > 0 {
			t.Fatalf("after %d frames: replay gave %q, %+v", frames, got, r)
		}
	}
}

// What a kill left in the page cache only is replayed, so it must survive a power cut from then on.
func TestFoundFramesAreSynced(t *testing.T) {
	for seed := range uint64(50) {
		mem := vfs.NewMem(vfs.MemOptions{})
		if err := mem.MkdirAll("/j", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := mem.SyncDir("/"); err != nil {
			t.Fatal(err)
		}
		j, _, _ := start(t, mem, "/j", 0)
		appendText(t, j, "synced")
		j.current.f = nosyncFile{j.current.f}
		appendText(t, j, "in the page cache")
		j.Close()

		j = open(t, mem, "/j")
		if err := j.SyncFound(); err != nil {
			t.Fatal(err)
		}
		before, _ := replayed(t, j, 0)
		mem.PowerCut(rand.New(rand.NewPCG(seed, 0)), os.Getpagesize())
		after, _ := replayed(t, open(t, mem, "/j"), 0)
		want(t, after, before...)
		if len(after) != 2 {
			t.Fatalf("seed %d: %q", seed, after)
		}
	}
}

// unsyncedFS leaves everything in the page cache.
type unsyncedFS struct{ nosyncFS }

func (unsyncedFS) SyncDir(string) error { return nil }

// A kill may leave files that were made and never synced. They are used as free ones, so a power cut must not take their
// names or their ends from then on.
func TestFoundFreeFilesAreSynced(t *testing.T) {
	for seed := range uint64(100) {
		mem := vfs.NewMem(vfs.MemOptions{})
		if err := mem.MkdirAll("/j", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := mem.SyncDir("/"); err != nil {
			t.Fatal(err)
		}
		j := open(t, &unsyncedFS{nosyncFS{mem}}, "/j")
		if err := j.Grow(3); err != nil {
			t.Fatal(err)
		}
		j.Close()

		j = open(t, mem, "/j")
		if err := j.SyncFound(); err != nil {
			t.Fatal(err)
		}
		if err := j.Start(0, 0); err != nil {
			t.Fatal(err)
		}
		appendText(t, j, "kept")
		mem.PowerCut(rand.New(rand.NewPCG(seed, 0)), os.Getpagesize())
		got, r := replayed(t, open(t, mem, "/j"), 0)
		if len(got) != 1 || len(r.Damages) > 0 {
			t.Fatalf("seed %d: %q, %+v", seed, got, r)
		}
	}
}
