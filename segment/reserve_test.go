package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
)

// smallDisk is the real file system with a bound, which others take a part of. bbolt writes beside it, but is counted.
type smallDisk struct {
	vfs.FS
	t        testing.TB
	dir      string
	capacity int64
	foreign  atomic.Int64
	mu       sync.Mutex
}

func (d *smallDisk) free() int64 { return d.capacity - d.foreign.Load() - dirBytes(d.t, d.dir) }

func (d *smallDisk) Space(string) (total, free int64, err error) {
	return d.capacity, max(d.free(), 0), nil
}

func (d *smallDisk) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return smallFile{f, d}, nil
}

type smallFile struct {
	vfs.File
	d *smallDisk
}

func (f smallFile) grow(to int64, change func() error) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	size, err := f.Size()
	if err == nil && to > size && to-size > f.d.free() {
		err = &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	if err != nil {
		return err
	}
	return change()
}

func (f smallFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.grow(at+int64(len(p)), func() (err error) {
		n, err = f.File.WriteAt(p, at)
		return err
	})
	return n, err
}

func (f smallFile) Allocate(size int64) error {
	return f.grow(size, func() error { return f.File.Allocate(size) })
}

func smallDiskOptions(t testing.TB) (Options, *smallDisk) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	d := &smallDisk{FS: vfs.OS, t: t, dir: filepath.Dir(o.Dir), capacity: 16 << 20}
	o.FS = d
	o.BudgetBytes = 8 << 20
	o.ReserveBytes = 1 << 20
	return o, d
}

// Others fill the disk: records are refused, and all that was acknowledged before still gets where it belongs. Room makes
// the log go on by itself.
func TestOthersFillTheDisk(t *testing.T) {
	o, d := smallDiskOptions(t)
	l, p := openOne(t, o)
	f := newFiller(l, p)
	for round := range 3 {
		for range 20 {
			if err := f.add(20); err != nil {
				t.Fatal(err)
			}
		}
		d.foreign.Add(d.free()) // not a byte is left
		var err error
		for range 100000 {
			if err = f.add(20); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrFull) && !errors.Is(err, ErrUnavailable) {
			t.Fatalf("round %d: writing to a full disk: %v", round, err)
		}
		f.wait(t)
		eventually(t, "refused for want of room", func() bool { return errors.Is(l.Status().Refusing, ErrFull) })
		ticket, err := l.Put([]byte("k"), []byte("v"))
		wait(t, ticket, err)
		before := l.Status().Checkpoints
		l.askForRoll()
		eventually(t, "a checkpoint", func() bool { return l.Status().Checkpoints > before && l.checkpoints.idle() })
		equal(t, values(t, p, 0, 1<<20), numbered(0, f.next))
		if s := l.Status(); s.ReserveBytes != 0 {
			t.Errorf("the reserve of %d bytes is still held", s.ReserveBytes)
		}
		d.foreign.Store(0)
		eventually(t, "records are welcome", func() bool { return l.Status().Refusing == nil })
		if s := l.Status(); s.ReserveBytes != o.ReserveBytes || s.FreeBytes < o.ReserveBytes {
			t.Errorf("round %d: %d bytes in reserve, %d free", round, s.ReserveBytes, s.FreeBytes)
		}
	}
	l.Close()
	equal(t, values(t, openLog(t, o).Topic("t").Partitions()[0], 0, 1<<20), numbered(0, f.next))
}

// A log opens on a full disk: the reserve is for that, too.
func TestOpenOnAFullDisk(t *testing.T) {
	o, d := smallDiskOptions(t)
	l, p := openOne(t, o)
	f := newFiller(l, p)
	f.addAll(t, 3000)
	f.wait(t)
	crashed := o
	crashed.Dir = filepath.Join(d.dir, "other")
	copyRunning(t, crashed.Dir, o.Dir) // with a journal to be replayed
	l.Close()
	d.foreign.Store(d.free())
	again := openLog(t, crashed)
	if err := again.Status().Refusing; !errors.Is(err, ErrFull) {
		t.Fatalf("on a full disk: %v", err)
	}
	equal(t, values(t, again.Topic("t").Partitions()[0], 0, 1<<20), numbered(0, f.next))
	d.foreign.Store(0)
	eventually(t, "records are welcome", func() bool { return again.Status().Refusing == nil })
	g := newFiller(again, again.Topic("t").Partitions()[0])
	g.next = f.next
	if err := g.add(100); err != nil {
		t.Fatal(err)
	}
	eventually(t, "acknowledged", func() bool { return g.acked.Load() == 100 })
	equal(t, values(t, g.p, 0, 1<<20), numbered(0, g.next))
}

// State that outgrows what records left of the budget takes the reserve's place.
func TestStateTakesTheReserve(t *testing.T) {
	o := testOptions(t.TempDir())
	o.BudgetBytes = 4 << 20
	o.ReserveBytes = 1 << 20
	l := openLog(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t", OnFull: Reject})
	f := newFiller(l, p)
	for f.add(20) == nil {
	}
	f.wait(t)
	var err error
	for i := 0; err == nil && i < 4000; i++ {
		var ticket Ticket
		if ticket, err = l.Put(fmt.Appendf(nil, "%050d", i), make([]byte, 1500)); err == nil {
			wait(t, ticket, err)
		}
		if bytes := dirBytes(t, o.Dir); bytes > o.BudgetBytes {
			t.Fatalf("%d bytes on disk after %d keys, the budget is %d", bytes, i, o.BudgetBytes)
		}
	}
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "state") {
		t.Errorf("the state grows on: %v", err)
	}
	before := l.Status().Checkpoints
	l.askForRoll()
	eventually(t, "a checkpoint", func() bool { return l.Status().Checkpoints > before })
	if bytes := dirBytes(t, o.Dir); bytes > o.BudgetBytes {
		t.Fatalf("%d bytes on disk, the budget is %d", bytes, o.BudgetBytes)
	}
	if l.Status().ReserveBytes != 0 {
		t.Error("the reserve was not used; the test needs more state")
	}
	equal(t, values(t, p, 0, 1<<20), numbered(0, f.next))
}

// Taking the reserve may last, on a file system that can't allocate. Whoever is short of space meanwhile doesn't wait for that.
func TestReserveIsBeingTaken(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	o := testOptions(t.TempDir())
	o.FS = &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpAllocate && armed.CompareAndSwap(true, false) {
			close(begun)
			<-release
		}
		return 0, nil
	}}
	l := openQuiet(t, o)
	if !l.useReserve(syscall.ENOSPC) {
		t.Fatal("the reserve was not there")
	}
	armed.Store(true)
	done := make(chan struct{})
	go func() {
		l.holdReserve()
		close(done)
	}()
	<-begun
	answered := make(chan bool, 1)
	go func() { answered <- l.useReserve(syscall.ENOSPC) }()
	select {
	case helped := <-answered:
		if helped {
			t.Error("a reserve that isn't there made room")
		}
	case <-time.After(5 * time.Second):
		t.Error("it was waited for")
	}
	close(release)
	<-done
}
