package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// lazyFS is the real file system but for syncs, which do nothing: nobody pulls the plug here.
type lazyFS struct{ vfs.FS }

type lazyFile struct{ vfs.File }

func (lazyFile) Sync() error        { return nil }
func (lazyFS) SyncDir(string) error { return nil }
func (u lazyFS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := u.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return lazyFile{f}, nil
}

// Whatever operation of a repair fails, and so wherever it is interrupted, all that was readable is readable, and the next
// repair gets everything right.
func TestRepairInterrupted(t *testing.T) {
	step := 6
	if raceEnabled || testing.Short() {
		step = 30
	}
	from := healthy{intact(t), crashed(t)}
	rows := map[string]bool{
		"two stretches in a segment, one at its beginning": true, "damage that the journal makes good": true, "index missing": true,
		"flipped bits in what no checksum covers": true, "no state, and a batch damaged": true,
	}
	for _, c := range damageTable() {
		if !rows[c.name] {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			h := from.make(t, c)
			before := h.values()
			_, lost := c.harm(h)
			readable := h.values()
			// Package files tries each operation of its own; here the seams between the parts count.
			for n := 1; ; n += step {
				g := h.copy()
				_, err := Repair(RepairOptions{Dir: g.dir, FS: failing(n)}, func(RepairAction) {})
				if err == nil {
					if n == 1 {
						t.Error("nothing was made to fail")
					}
					break
				}
				if !errors.Is(err, syscall.EIO) {
					t.Fatalf("operation %d: %v", n, err)
				}
				now := g.values()
				for offset, value := range readable {
					if now[offset] != value {
						t.Fatalf("operation %d: offset %d is %.20q, was %.20q", n, offset, now[offset], value)
					}
				}
				if n/step%2 == 0 {
					g.repairedAgain(before, lost)
				}
				os.RemoveAll(g.dir)
			}
		})
	}
}

// failing makes the nth operation that changes something fail, and all that follow.
func failing(n int) vfs.FS {
	var count atomic.Int64
	return &vfs.Faulty{FS: lazyFS{vfs.OS}, Before: func(op vfs.Op, _ string) (int, error) {
		switch op {
		case vfs.OpWrite, vfs.OpTruncate, vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove, vfs.OpRename:
			if count.Add(1) >= int64(n) {
				return 100, syscall.EIO
			}
		}
		return 0, nil
	}}
}

// repairedAgain repairs after a repair that was interrupted.
func (h harmed) repairedAgain(before map[int64]string, lost files.Ranges) {
	h.Helper()
	if _, err := Repair(RepairOptions{Dir: h.dir, FS: lazyFS{vfs.OS}}, func(RepairAction) {}); err != nil {
		h.Fatal(err)
	}
	if list, sum := findings(h, h.dir); !sum.Clean() {
		h.Fatalf("after repair: %+v", list)
	}
	after := h.values()
	for offset, value := range before {
		gone := false
		lost.Split(offset, offset+1, func(_ files.Range, in bool) { gone = in })
		if !gone && after[offset] != value {
			h.Fatalf("offset %d is lost", offset)
		}
	}
}

// Without a journal nothing tells how large its files were: no offset is given twice, and the disk isn't filled with new ones.
func TestRepairWithoutAJournal(t *testing.T) {
	o := testOptions(t.TempDir())
	l, p := openOne(t, o)
	put(t, l, p, "a")
	l.Close()
	l = openLog(t, o)
	put(t, l, l.Topic("t").Partitions()[0], "lost")
	o.Dir = filepath.Join(t.TempDir(), "crashed")
	copyRunning(t, o.Dir, l.o.Dir)
	if err := os.RemoveAll(journal.Dir(o.Dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(RepairOptions{Dir: o.Dir}, func(RepairAction) {}); err != nil {
		t.Fatal(err)
	}
	if bytes := dirBytes(t, journal.Dir(o.Dir)); bytes > 4<<20 {
		t.Errorf("%d bytes of journal", bytes)
	}
	l = openLog(t, o)
	p = l.Topic("t").Partitions()[0]
	offset := put(t, l, p, "b")
	if offset < maxJournalBytes/leastRecordBytes {
		t.Errorf("offset %d", offset)
	}
	equal(t, values(t, p, offset, 1<<20), []string{"b"})
}

func TestRepairRefuses(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	put(t, l, createTopic(t, l, "t", 1, record.None).Partitions()[0], "a")
	for _, dry := range []bool{false, true} {
		if _, err := Repair(RepairOptions{Dir: o.Dir, DryRun: dry}, func(RepairAction) {}); !errors.Is(err, ErrLocked) {
			t.Errorf("dry run %v: %v", dry, err)
		}
	}
	empty := t.TempDir()
	for _, dry := range []bool{false, true} {
		for _, dir := range []string{empty, filepath.Join(empty, "none")} {
			if _, err := Repair(RepairOptions{Dir: dir, DryRun: dry}, func(RepairAction) {}); err == nil {
				t.Errorf("dry run %v: no error for %s", dry, dir)
			}
		}
	}
	if names, _ := os.ReadDir(empty); len(names) > 0 {
		t.Errorf("made %v", names)
	}
}

// Copies of damaged parts are kept until they are not wanted any more.
func TestRemoveSetAside(t *testing.T) {
	h := intact(t)
	b := h.batches(1)[1]
	h.flip(h.logs()[1].Path, b.at+100)
	if err := os.CopyFS(h.path("topics/t-5"), os.DirFS(h.path("topics/t-1"))); err != nil {
		t.Fatal(err)
	}
	repair := func(o RepairOptions) (actions []string) {
		o.Dir = h.dir
		if _, err := Repair(o, func(a RepairAction) { actions = append(actions, filepath.Base(a.Path)+": "+a.What) }); err != nil {
			t.Fatal(err)
		}
		return actions
	}
	repair(RepairOptions{})
	kept := func() (names []string) {
		for _, pattern := range []string{"topics/*.damaged*", "topics/t-0/*.damaged*"} {
			found, _ := filepath.Glob(h.path(pattern))
			names = append(names, found...)
		}
		return names
	}
	if names := kept(); len(names) != 2 {
		t.Fatalf("kept %q", names)
	}
	if data, _ := os.ReadFile(kept()[1]); len(data) != b.size {
		t.Errorf("%d bytes kept, not %d", len(data), b.size)
	}
	repair(RepairOptions{RemoveSetAside: true, DryRun: true})
	if names := kept(); len(names) != 2 {
		t.Fatalf("a dry run removed some: %q", names)
	}
	actions := repair(RepairOptions{RemoveSetAside: true})
	if names := kept(); len(names) != 0 || len(actions) != 2 || !strings.Contains(actions[0], "delete it") {
		t.Fatalf("kept %q, %q", names, actions)
	}
}

// Beside a running broker nothing is called wrong that isn't.
func TestVerifyBesideBroker(t *testing.T) {
	o := testOptions(t.TempDir())
	o.AppendBytes = 1 << 10
	o.CheckpointInterval = 20 * time.Millisecond
	l := openLog(t, o)
	var parts []*Partition
	for i := range 3 {
		parts = append(parts, createTopic(t, l, fmt.Sprintf("t%d", i), 2, record.Snappy).Partitions()...)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var fillers []*filler
		for _, p := range parts {
			fillers = append(fillers, newFiller(l, p))
		}
		for {
			for _, f := range fillers {
				select {
				case <-stop:
					return
				default:
				}
				if f.add(20) != nil {
					return
				}
				l.SetCursor(f.p, "eu", f.p.HighWatermark(), nil)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	runs := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); runs++ {
		list, sum := findings(t, o.Dir)
		if !sum.InUse {
			t.Error("not in use")
		}
		for _, f := range list {
			if f.Severity != SeverityNote {
				t.Fatalf("run %d: %+v", runs, f)
			}
		}
	}
	s := l.Status()
	t.Logf("%d runs beside %d commits and %d checkpoints", runs, s.Commits, s.Checkpoints)
	if s.Checkpoints < 5 {
		t.Error("hardly any checkpoint")
	}
}
