package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// systems are the file systems that promise the same, each with a directory to work in. What needs privileges or a file system
// of one's own is not asked here: permissions (root may do anything, and Mem doesn't enforce them), and a full disk, which
// TestCapacity has for Mem alone. What Linux leaves to the file system is said where it matters.
func systems(t *testing.T, test func(t *testing.T, f FS, dir string)) {
	t.Run("OS", func(t *testing.T) { test(t, OS, t.TempDir()) })
	t.Run("Mem", func(t *testing.T) {
		m := NewMem(MemOptions{})
		must(t, m.MkdirAll("/tmp/x", 0o750))
		test(t, m, "/tmp/x")
	})
	t.Run("Faulty", func(t *testing.T) {
		m := NewMem(MemOptions{})
		must(t, m.MkdirAll("/tmp/x", 0o750))
		test(t, &Faulty{FS: m, Before: NewPlan().Before}, "/tmp/x")
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, f FS, name string, flag int) File {
	t.Helper()
	file, err := f.OpenFile(name, flag, 0o640)
	must(t, err)
	t.Cleanup(func() { file.Close() })
	return file
}

func create(t *testing.T, f FS, name, data string) File {
	t.Helper()
	file := open(t, f, name, os.O_RDWR|os.O_CREATE)
	write(t, file, data, 0)
	return file
}

func write(t *testing.T, file File, data string, at int64) {
	t.Helper()
	if n, err := file.WriteAt([]byte(data), at); n != len(data) || err != nil {
		t.Fatalf("%s: %d bytes of %d written, %v", file.Name(), n, len(data), err)
	}
}

func text(t *testing.T, f FS, name string) string {
	t.Helper()
	b, err := ReadFile(f, name, 1<<20)
	must(t, err)
	return string(b)
}

func exists(f FS, name string) bool {
	_, err := f.Stat(name)
	return err == nil
}

// TestErrors is what each method answers to what it can't do.
func TestErrors(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		must(t, f.MkdirAll(at("full"), 0o750))
		must(t, f.MkdirAll(at("empty"), 0o750))
		create(t, f, at("full/file"), "x")
		create(t, f, at("file"), "x")
		opening := func(name string, flag int) func() error {
			return func() error {
				file, err := f.OpenFile(at(name), flag, 0o640)
				if err == nil {
					file.Close()
				}
				return err
			}
		}
		for _, c := range []struct {
			name string
			do   func() error
			want error // nil: none
		}{
			{"open missing", opening("none", os.O_RDWR), fs.ErrNotExist},
			{"open missing to truncate", opening("none", os.O_RDWR|os.O_TRUNC), fs.ErrNotExist},
			{"open in missing directory", opening("none/file", os.O_RDWR|os.O_CREATE), fs.ErrNotExist},
			{"open below a file", opening("file/x", os.O_RDWR|os.O_CREATE), syscall.ENOTDIR},
			{"create existing", opening("file", os.O_RDWR|os.O_CREATE), nil},
			{"create exclusively", opening("new", os.O_RDWR|os.O_CREATE|os.O_EXCL), nil},
			{"create existing exclusively", opening("file", os.O_RDWR|os.O_CREATE|os.O_EXCL), fs.ErrExist},
			{"create directory exclusively", opening("full", os.O_RDWR|os.O_CREATE|os.O_EXCL), fs.ErrExist},
			{"write a directory", opening("full", os.O_RDWR), syscall.EISDIR},
			{"create over a directory", opening("full", os.O_RDONLY|os.O_CREATE), syscall.EISDIR},
			{"read a directory", opening("full", os.O_RDONLY), nil},
			{"remove missing", func() error { return f.Remove(at("none")) }, fs.ErrNotExist},
			{"remove below a file", func() error { return f.Remove(at("file/x")) }, syscall.ENOTDIR},
			{"remove full directory", func() error { return f.Remove(at("full")) }, syscall.ENOTEMPTY},
			{"rename missing", func() error { return f.Rename(at("none"), at("a")) }, fs.ErrNotExist},
			{"rename into missing", func() error { return f.Rename(at("file"), at("none/a")) }, fs.ErrNotExist},
			{"rename to itself", func() error { return f.Rename(at("file"), at("file")) }, nil},
			{"rename over full directory", func() error { return f.Rename(at("file"), at("full")) }, fs.ErrExist},
			{"rename over empty directory", func() error { return f.Rename(at("file"), at("empty")) }, fs.ErrExist},
			{"rename directory over file", func() error { return f.Rename(at("full"), at("file")) }, syscall.ENOTDIR},
			{"rename directory over directory", func() error { return f.Rename(at("full"), at("empty")) }, fs.ErrExist},
			{"rename directory into itself", func() error { return f.Rename(at("full"), at("full/a")) }, syscall.EINVAL},
			{"mkdir over file", func() error { return f.MkdirAll(at("file"), 0o750) }, syscall.ENOTDIR},
			{"mkdir below file", func() error { return f.MkdirAll(at("file/a/b"), 0o750) }, syscall.ENOTDIR},
			{"mkdir existing", func() error { return f.MkdirAll(at("full"), 0o750) }, nil},
			{"list missing", func() error { _, err := f.ReadDir(at("none")); return err }, fs.ErrNotExist},
			{"list a file", func() error { _, err := f.ReadDir(at("file")); return err }, syscall.ENOTDIR},
			{"stat missing", func() error { _, err := f.Stat(at("none")); return err }, fs.ErrNotExist},
			{"stat below a file", func() error { _, err := f.Stat(at("file/x")); return err }, syscall.ENOTDIR},
			{"sync missing directory", func() error { return f.SyncDir(at("none")) }, fs.ErrNotExist},
			{"space of missing", func() error { _, _, err := f.Space(at("none")); return err }, fs.ErrNotExist},
			{"lock in missing directory", func() error { _, err := f.Lock(at("none/lock")); return err }, fs.ErrNotExist},
			{"lock a directory", func() error { _, err := f.Lock(at("full")); return err }, syscall.EISDIR},
			{"no name", func() error { _, err := f.Stat(""); return err }, fs.ErrNotExist},
		} {
			err := c.do()
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			checkType(t, c.name, err)
		}
	})
}

// checkType sees that an error names what it was about as the operating system's do.
func checkType(t *testing.T, name string, err error) {
	t.Helper()
	var path *fs.PathError
	var link *os.LinkError
	if err != nil && !errors.As(err, &path) && !errors.As(err, &link) {
		t.Errorf("%s: error %v of type %T names no path", name, err, err)
	}
}

// TestHandleErrors is what an open file answers to what it can't do.
func TestHandleErrors(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "file")
		create(t, f, name, "hello")
		ro, wo, closed := open(t, f, name, os.O_RDONLY), open(t, f, name, os.O_WRONLY), open(t, f, name, os.O_RDWR)
		d := open(t, f, dir, os.O_RDONLY)
		must(t, closed.Close())
		b := make([]byte, 3)
		for _, c := range []struct {
			name string
			do   func() error
			want error
		}{
			{"write read-only", func() error { _, err := ro.WriteAt(b, 0); return err }, syscall.EBADF},
			{"truncate read-only", func() error { return ro.Truncate(1) }, syscall.EINVAL},
			{"allocate read-only", func() error { return ro.Allocate(1) }, syscall.EBADF},
			{"sync read-only", func() error { return ro.Sync() }, nil},
			{"read write-only", func() error { _, err := wo.ReadAt(b, 0); return err }, syscall.EBADF},
			{"read directory", func() error { _, err := d.ReadAt(b, 0); return err }, syscall.EISDIR},
			{"write directory", func() error { _, err := d.WriteAt(b, 0); return err }, syscall.EBADF},
			{"sync directory", func() error { return d.Sync() }, nil},
			{"truncate to less than nothing", func() error { return wo.Truncate(-1) }, syscall.EINVAL},
			{"allocate less than nothing", func() error { return wo.Allocate(-1) }, syscall.EINVAL},
			{"allocate nothing", func() error { return wo.Allocate(0) }, nil},
			{"read closed", func() error { _, err := closed.ReadAt(b, 0); return err }, fs.ErrClosed},
			{"write closed", func() error { _, err := closed.WriteAt(b, 0); return err }, fs.ErrClosed},
			{"truncate closed", func() error { return closed.Truncate(0) }, fs.ErrClosed},
			{"allocate closed", func() error { return closed.Allocate(1) }, fs.ErrClosed},
			{"sync closed", func() error { return closed.Sync() }, fs.ErrClosed},
			{"size of closed", func() error { _, err := closed.Size(); return err }, fs.ErrClosed},
			{"close closed", func() error { return closed.Close() }, fs.ErrClosed},
		} {
			err := c.do()
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			checkType(t, c.name, err)
		}
		if _, err := ro.ReadAt(b, -1); err == nil || err == io.EOF {
			t.Errorf("read at -1: %v", err)
		}
		if _, err := wo.WriteAt(b, -1); err == nil {
			t.Error("write at -1 went well")
		}
		if got := text(t, f, name); got != "hello" {
			t.Errorf("file has %q", got)
		}
		if ro.Name() != name {
			t.Errorf("Name is %q", ro.Name())
		}
	})
}

// TestReads is about ends and holes.
func TestReads(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		file := create(t, f, filepath.Join(dir, "file"), "hello")
		write(t, file, "world", 10000) // a hole of more than a page before it
		for _, c := range []struct {
			at   int64
			len  int
			want string
			err  error
		}{
			{0, 5, "hello", nil},
			{3, 4, "lo\x00\x00", nil},
			{9998, 4, "\x00\x00wo", nil},
			{10000, 5, "world", nil},
			{10000, 6, "world", io.EOF},
			{10004, 10, "d", io.EOF},
			{10005, 1, "", io.EOF},
			{10005, 0, "", nil},
			{1 << 40, 1, "", io.EOF},
			{5000, 10, strings.Repeat("\x00", 10), nil},
		} {
			p := bytes.Repeat([]byte{'?'}, c.len)
			n, err := file.ReadAt(p, c.at)
			if string(p[:n]) != c.want || err != c.err {
				t.Errorf("%d bytes at %d: %q, %v; want %q, %v", c.len, c.at, p[:n], err, c.want, c.err)
			}
		}
		if n, err := file.Size(); n != 10005 || err != nil {
			t.Errorf("size is %d, %v", n, err)
		}
	})
}

// TestTruncate cuts and grows; what was cut off is zeros when it comes back.
func TestTruncate(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "file")
		file := create(t, f, name, strings.Repeat("a", 9000))
		must(t, file.Truncate(4100))
		must(t, file.Truncate(100))
		must(t, file.Truncate(9000))
		if got := text(t, f, name); got != strings.Repeat("a", 100)+strings.Repeat("\x00", 8900) {
			t.Errorf("%d bytes %.120q", len(got), got)
		}
		write(t, file, "b", 200)
		must(t, file.Truncate(0))
		write(t, file, "c", 1)
		if got := text(t, f, name); got != "\x00c" {
			t.Errorf("%q", got)
		}
		open(t, f, name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
		if n, err := file.Size(); n != 0 || err != nil {
			t.Errorf("size after O_TRUNC is %d, %v", n, err)
		}
	})
}

// TestNames is about files that are removed, replaced and moved while open.
func TestNames(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		removed := create(t, f, at("removed"), "old")
		must(t, f.Remove(at("removed")))
		if exists(f, at("removed")) {
			t.Error("a removed file is there")
		}
		create(t, f, at("removed"), "another")
		write(t, removed, "er", 3)
		readsAs(t, removed, "older")

		replaced, mover := create(t, f, at("b"), "replaced"), create(t, f, at("a"), "mover")
		must(t, f.Rename(at("a"), at("b")))
		readsAs(t, replaced, "replaced")
		write(t, mover, "d", 5)
		if got := text(t, f, at("b")); got != "moverd" || exists(f, at("a")) {
			t.Errorf("after the rename b has %q, a is there: %v", got, exists(f, at("a")))
		}

		must(t, f.MkdirAll(at("x/y"), 0o750))
		create(t, f, at("x/y/file"), "deep")
		must(t, f.Rename(at("x/y"), at("z")))
		must(t, f.Rename(at("z/file"), at("x/file")))
		if got := text(t, f, at("x/file")); got != "deep" {
			t.Errorf("%q", got)
		}
		must(t, f.Remove(at("z")))
		for _, d := range []string{"x", "."} {
			must(t, f.SyncDir(at(d)))
		}
		if exists(f, at("z")) || !exists(f, at("x/../b")) {
			t.Error("names are wrong after a removed directory")
		}
	})
}

func readsAs(t *testing.T, file File, want string) {
	t.Helper()
	p := make([]byte, len(want)+1)
	if n, err := file.ReadAt(p, 0); string(p[:n]) != want || err != io.EOF {
		t.Errorf("%s has %q, %v; want %q", file.Name(), p[:n], err, want)
	}
}

// TestListing is about ReadDir and Stat.
func TestListing(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		for i, name := range []string{"b", "a", "c.log", "B"} {
			create(t, f, filepath.Join(dir, name), strings.Repeat("x", 5000*i))
		}
		must(t, f.MkdirAll(filepath.Join(dir, "d"), 0o750))
		list, err := f.ReadDir(dir)
		must(t, err)
		var got []string
		for _, e := range list {
			info, err := e.Info()
			must(t, err)
			stat, err := f.Stat(filepath.Join(dir, e.Name()))
			must(t, err)
			if info.Name() != e.Name() || stat.Name() != e.Name() || stat.Size() != info.Size() || stat.Mode() != info.Mode() ||
				e.IsDir() != stat.IsDir() || e.Type() != stat.Mode().Type() || stat.ModTime().IsZero() {
				t.Errorf("entry %v, info %v and stat %v differ", e, info, stat)
			}
			if e.IsDir() {
				got = append(got, e.Name()+"/")
			} else {
				got = append(got, fmt.Sprint(e.Name(), " ", info.Size(), " ", info.Mode()))
			}
		}
		want := []string{"B 15000 -rw-r-----", "a 5000 -rw-r-----", "b 0 -rw-r-----", "c.log 10000 -rw-r-----", "d/"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if list, err := f.ReadDir(filepath.Join(dir, "d")); len(list) > 0 || err != nil {
			t.Errorf("an empty directory lists %v, %v", list, err)
		}
	})
}

// TestLock: one lock a file, by name, free once closed.
func TestLock(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "lock")
		lock, err := f.Lock(name)
		must(t, err)
		if _, err := f.Lock(name); err != ErrLocked {
			t.Errorf("second lock: %v", err)
		}
		other, err := f.Lock(name + "2")
		must(t, err)
		must(t, lock.Close())
		if !errors.Is(lock.Close(), fs.ErrClosed) {
			t.Error("a lock closes twice")
		}
		again, err := f.Lock(name)
		must(t, err)
		must(t, f.Remove(name)) // the lock is the file's, not the name's
		anew, err := f.Lock(name)
		must(t, err)
		for _, l := range []io.Closer{other, again, anew} {
			must(t, l.Close())
		}
	})
}

// TestAllocate: the length grows, what is there stays.
func TestAllocate(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		for name, allocate := range map[string]func(File, int64) error{
			"fallocate": File.Allocate,
			"zeros":     fillHoles, // what OS does where the file system has no fallocate
		} {
			path := filepath.Join(dir, name)
			file := create(t, f, path, "hello")
			write(t, file, "world", 20000)
			must(t, file.Truncate(30000))
			must(t, allocate(file, 10000))
			if n, _ := file.Size(); n != 30000 {
				t.Errorf("%s: size %d after less was allocated", name, n)
			}
			must(t, allocate(file, 50001))
			must(t, file.Sync())
			zero := func(n int) string { return strings.Repeat("\x00", n) }
			if got, want := text(t, f, path), "hello"+zero(19995)+"world"+zero(50001-20005); got != want {
				t.Errorf("%s: %d bytes, want %d; or others", name, len(got), len(want))
			}
			if info, _ := f.Stat(path); f == OS {
				// Depends on the file system: one that compresses may take less. None that the tests run on does.
				if st := info.Sys().(*syscall.Stat_t); st.Blocks*512 < 50001 {
					t.Errorf("%s: %d bytes allocated", name, st.Blocks*512)
				}
			}
		}
	})
}

// TestConcurrent is for the race detector: readers see one of the writes, whole pages of it.
func TestConcurrent(t *testing.T) {
	systems(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "file")
		create(t, f, name, strings.Repeat("a", 8192))
		var all sync.WaitGroup
		for w := range 2 {
			file := open(t, f, name, os.O_RDWR)
			all.Go(func() {
				for i := range 200 {
					file.WriteAt(bytes.Repeat([]byte{byte('a' + i%20)}, 4096), int64(w)*4096)
					if i%20 == 0 {
						file.Sync()
						f.SyncDir(dir)
					}
				}
			})
			all.Go(func() {
				own := filepath.Join(dir, fmt.Sprint("own", w))
				for range 50 {
					if file, err := f.OpenFile(own, os.O_RDWR|os.O_CREATE, 0o640); err == nil {
						file.WriteAt([]byte("x"), 5000)
						file.Close()
					}
					f.Rename(own, own+".new")
					f.Remove(own + ".new")
				}
			})
			all.Go(func() {
				p := make([]byte, 8192)
				for range 200 {
					if n, err := file.ReadAt(p, 0); n != len(p) || err != nil || p[0] < 'a' || p[8191] < 'a' {
						t.Errorf("%d bytes, %v", n, err)
						return
					}
					f.ReadDir(dir)
					f.Stat(name)
					file.Size()
					f.Space(dir)
				}
			})
		}
		all.Wait()
	})
}
