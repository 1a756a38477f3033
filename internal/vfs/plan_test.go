package vfs

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestPlan: which of ten writes to two files fail.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults []Fault
		want   []int // of the writes 1 to 10, the odd ones to /a
	}{
		{"none", nil, nil},
		{"first", []Fault{{Op: OpWrite, Err: syscall.EIO}}, []int{1}},
		{"third", []Fault{{Op: OpWrite, Nth: 3, Err: syscall.EIO}}, []int{3}},
		{"third to a file", []Fault{{Op: OpWrite, Match: "b", Nth: 3, Err: syscall.EIO}}, []int{6}},
		{"of any kind", []Fault{{Nth: 3, Err: syscall.EIO}}, []int{1}}, // two are opened before
		{"another kind", []Fault{{Op: OpSync, Err: syscall.EIO}}, nil},
		{"lasting", []Fault{{Op: OpWrite, Nth: 8, Lasting: true, Err: syscall.EIO}}, []int{8, 9, 10}},
		{"two", []Fault{{Op: OpWrite, Nth: 2, Err: syscall.EIO}, {Op: OpWrite, Match: "a", Nth: 2, Err: syscall.EIO}}, []int{2, 3}},
		{"two at once", []Fault{{Op: OpWrite, Nth: 2, Err: syscall.EIO}, {Op: OpWrite, Nth: 2, Err: syscall.EROFS}}, []int{2}},
		{"none reached", []Fault{{Op: OpWrite, Nth: 11, Err: syscall.EIO}}, nil},
	} {
		p := NewPlan(c.faults...)
		f := &Faulty{FS: NewMem(MemOptions{}), Before: p.Before}
		files := []File{open(t, f, "/a", os.O_RDWR|os.O_CREATE), open(t, f, "/b", os.O_RDWR|os.O_CREATE)}
		var failed []int
		for i := range 10 {
			if _, err := files[i%2].WriteAt([]byte("x"), 0); err != nil {
				checkType(t, c.name, err)
				if !errors.Is(err, syscall.EIO) {
					t.Errorf("%s: %v", c.name, err)
				}
				failed = append(failed, i+1)
			}
		}
		if !slices.Equal(failed, c.want) || p.Hits() != len(c.want) {
			t.Errorf("%s: %v failed, %d hits; want %v", c.name, failed, p.Hits(), c.want)
		}
		if p.Count(OpWrite, "") != 10 || p.Count(OpWrite, "a") != 5 || p.Count("", "") != 12 || p.Count(OpSync, "") != 0 {
			t.Errorf("%s: counts are wrong", c.name)
		}
	}
}

// TestFaults: each kind of operation fails undone, with the error that it was given.
func TestFaults(t *testing.T) {
	for op, try := range map[Op]func(f FS, file File) error{
		OpOpen:     func(f FS, _ File) error { _, err := f.OpenFile("/d/new", os.O_RDWR|os.O_CREATE, 0o640); return err },
		OpRead:     func(_ FS, file File) error { _, err := file.ReadAt(make([]byte, 1), 0); return err },
		OpWrite:    func(_ FS, file File) error { _, err := file.WriteAt([]byte("bbb"), 0); return err },
		OpTruncate: func(_ FS, file File) error { return file.Truncate(0) },
		OpAllocate: func(_ FS, file File) error { return file.Allocate(10000) },
		OpSync:     func(_ FS, file File) error { return file.Sync() },
		OpSyncDir:  func(f FS, _ File) error { return f.SyncDir("/d") },
		OpRemove:   func(f FS, _ File) error { return f.Remove("/d/f") },
		OpRename:   func(f FS, _ File) error { return f.Rename("/d/f", "/d/g") },
		OpMkdir:    func(f FS, _ File) error { return f.MkdirAll("/d/e", 0o750) },
		OpSpace:    func(f FS, _ File) error { _, _, err := f.Space("/d"); return err },
	} {
		m := mem(t, "f=aaa")
		other := &fs.PathError{Op: "own", Path: "own", Err: syscall.EIO}
		p := NewPlan(Fault{Op: op, Nth: 2, Err: syscall.EIO}, Fault{Op: op, Nth: 3, Err: other})
		f := &Faulty{FS: m, Before: p.Before}
		p.Before(op, "/d/f")
		file := open(t, m, "/d/f", os.O_RDWR)
		before := show(t, m, "/")
		err := try(f, faultyFile{file, f})
		var e *fs.PathError
		if !errors.As(err, &e) || e.Err != syscall.EIO || e.Op != string(op) || show(t, m, "/") != before {
			t.Errorf("%s: %v, leaves %s", op, err, show(t, m, "/"))
		}
		if err := try(f, faultyFile{file, f}); err != error(other) {
			t.Errorf("%s: %v instead of an error of its own", op, err)
		}
		if err := try(f, faultyFile{file, f}); err != nil {
			t.Errorf("%s: %v with no fault left", op, err)
		}
	}
}

// TestTornWrite: some of it is written.
func TestTornWrite(t *testing.T) {
	for _, c := range []struct {
		bytes int
		want  string
	}{{0, "aaa"}, {2, "bba"}, {100, "bbb"}} {
		m := mem(t, "f=aaa")
		p := NewPlan(Fault{Op: OpWrite, Bytes: c.bytes, Err: syscall.ENOSPC})
		file := open(t, &Faulty{FS: m, Before: p.Before}, "/d/f", os.O_RDWR)
		n, err := file.WriteAt([]byte("bbb"), 0)
		if n != min(c.bytes, 3) || !errors.Is(err, syscall.ENOSPC) || text(t, m, "/d/f") != c.want {
			t.Errorf("%d bytes: %d written, %v, file has %q", c.bytes, n, err, text(t, m, "/d/f"))
		}
	}
}

// TestStall: one operation waits, others go on, and what was held up is done in the end.
func TestStall(t *testing.T) {
	m := mem(t, "f=a", "g=a")
	release := make(chan struct{})
	p := NewPlan(Fault{Op: OpWrite, Match: "/d/f", Stall: release})
	f := &Faulty{FS: m, Before: p.Before}
	slow, fast := open(t, f, "/d/f", os.O_RDWR), open(t, f, "/d/g", os.O_RDWR)
	done := make(chan error)
	go func() {
		_, err := slow.WriteAt([]byte("b"), 0)
		done <- err
	}()
	write(t, fast, "b", 0)
	select {
	case <-done:
		t.Fatal("not stalled")
	default:
	}
	readsAs(t, slow, "a")
	close(release)
	must(t, <-done)
	readsAs(t, slow, "b")
	if p.Hits() != 1 {
		t.Errorf("%d hits", p.Hits())
	}
}

// TestPlanConcurrently: the nth is one, whoever does it.
func TestPlanConcurrently(t *testing.T) {
	p := NewPlan(Fault{Op: OpWrite, Nth: 100, Err: syscall.EIO})
	f := &Faulty{FS: NewMem(MemOptions{}), Before: p.Before}
	file := open(t, f, "/f", os.O_RDWR|os.O_CREATE)
	var failed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if _, err := file.WriteAt([]byte("x"), 0); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if failed.Load() != 1 || p.Hits() != 1 || p.Count(OpWrite, "/f") != 400 {
		t.Errorf("%d failed, %d hits, %d writes", failed.Load(), p.Hits(), p.Count(OpWrite, "/f"))
	}
}
