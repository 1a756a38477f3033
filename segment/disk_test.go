package segment

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

// disk is the real file system with what real disks do: one operation at a time fails when asked to, a failed sync loses
// what it should have written, and so does a power cut.
type disk struct {
	vfs.FS
	mu    sync.Mutex
	rng   *rand.Rand
	fault *plan
	hits  int            // faults that struck
	count map[vfs.Op]int // operations so far, if not nil
	files map[string]*unsynced
}

type plan struct {
	op     vfs.Op
	suffix string
	err    error
	skip   int  // operations of the kind that still succeed
	lasts  bool // all that follow fail, too, until disarm
}

// unsynced is what a file would lose.
type unsynced struct {
	size   int64      // that is durable
	ranges [][2]int64 // written since the last sync
	entry  bool       // the directory's entry is not durable
}

const diskBlock = 4096

// arm plans a fault unless one waits to happen.
func (d *disk) arm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault != nil {
		return
	}
	plans := []plan{
		{op: vfs.OpWrite, suffix: ".journal", err: syscall.EIO},
		{op: vfs.OpWrite, suffix: ".journal", err: syscall.ENOSPC},
		{op: vfs.OpSync, suffix: ".journal", err: syscall.EIO},
		{op: vfs.OpOpen, suffix: ".journal", err: syscall.ENOSPC},
		{op: vfs.OpWrite, suffix: ".log", err: syscall.EIO},
		{op: vfs.OpWrite, suffix: ".log", err: syscall.ENOSPC},
		{op: vfs.OpSync, suffix: ".log", err: syscall.EIO},
		{op: vfs.OpOpen, suffix: ".log", err: syscall.EMFILE},
		{op: vfs.OpTruncate, suffix: ".log", err: syscall.EIO},
		{op: vfs.OpWrite, suffix: "index", err: syscall.EIO},
		{op: vfs.OpWrite, suffix: "index", err: syscall.ENOSPC},
		{op: vfs.OpSync, suffix: "index", err: syscall.EIO},
		{op: vfs.OpSyncDir, suffix: "", err: syscall.EIO},
		{op: vfs.OpRemove, suffix: "", err: syscall.EIO},
	}
	f := plans[d.rng.IntN(len(plans))]
	f.skip = d.rng.IntN(3)
	d.fault = &f
}

func (d *disk) disarm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = nil
}

// failLocked is the error that the operation meets.
func (d *disk) failLocked(op vfs.Op, name string) error {
	if d.count != nil {
		d.count[op]++
	}
	f := d.fault
	if f == nil || f.op != op || !strings.HasSuffix(name, f.suffix) {
		return nil
	}
	if f.skip--; f.skip >= 0 {
		return nil
	}
	d.hits++
	if !f.lasts {
		d.fault = nil
	}
	return &fs.PathError{Op: string(op), Path: name, Err: f.err}
}

func (d *disk) fileLocked(name string) *unsynced {
	u := d.files[name]
	if u == nil {
		u = new(unsynced)
		if info, err := os.Stat(name); err == nil {
			u.size = info.Size()
		}
		d.files[name] = u
	}
	return u
}

func (d *disk) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failLocked(vfs.OpOpen, name); err != nil {
		return nil, err
	}
	_, missing := os.Stat(name)
	f, err := d.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	if u := d.fileLocked(name); missing != nil {
		*u = unsynced{entry: true}
	}
	return diskFile{f, d}, nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failLocked(vfs.OpRemove, name); err != nil {
		return err
	}
	delete(d.files, name)
	return d.FS.Remove(name)
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failLocked(vfs.OpRename, to); err != nil {
		return err
	}
	d.files[to] = d.fileLocked(from)
	delete(d.files, from)
	return d.FS.Rename(from, to)
}

func (d *disk) MkdirAll(name string, perm fs.FileMode) error {
	d.mu.Lock()
	err := d.failLocked(vfs.OpMkdir, name)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.FS.MkdirAll(name, perm)
}

func (d *disk) SyncDir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failLocked(vfs.OpSyncDir, name); err != nil {
		return err
	}
	for path, u := range d.files {
		if filepath.Dir(path) == name {
			u.entry = false
		}
	}
	return nil
}

type diskFile struct {
	vfs.File
	d *disk
}

func (f diskFile) ReadAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	err := f.d.failLocked(vfs.OpRead, f.Name())
	f.d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f diskFile) WriteAt(p []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	err := f.d.failLocked(vfs.OpWrite, f.Name())
	if err != nil {
		p = p[:f.d.rng.IntN(len(p)+1)]
	}
	u := f.d.fileLocked(f.Name())
	u.ranges = append(u.ranges, [2]int64{off, off + int64(len(p))})
	n, werr := f.File.WriteAt(p, off)
	if err == nil {
		err = werr
	}
	return n, err
}

func (f diskFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.failLocked(vfs.OpTruncate, f.Name()); err != nil {
		return err
	}
	u := f.d.fileLocked(f.Name())
	u.size = min(u.size, size)
	return f.File.Truncate(size)
}

func (f diskFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	u := f.d.fileLocked(f.Name())
	err := f.d.failLocked(vfs.OpSync, f.Name())
	if err != nil {
		f.d.loseLocked(f.File, u)
	}
	u.ranges = nil
	u.size, _ = f.Size()
	return err
}

// loseLocked takes away some of what was written since the last sync. It reads as zeros; nothing is lost twice.
func (d *disk) loseLocked(f vfs.File, u *unsynced) {
	size, _ := f.Size()
	for _, r := range u.ranges {
		for at := r[0] / diskBlock * diskBlock; at < r[1]; at += diskBlock {
			from, to := max(at, r[0]), min(at+diskBlock, r[1], size)
			if from < to && d.rng.IntN(2) == 0 {
				f.WriteAt(make([]byte, to-from), from)
			}
		}
	}
}

// move says that the files were copied to another directory, as they are in the page cache.
func (d *disk) move(from, to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string]*unsynced{}
	for path, u := range d.files {
		if rest, ok := strings.CutPrefix(path, from); ok {
			files[to+rest] = &unsynced{u.size, slices.Clone(u.ranges), u.entry}
		}
	}
	d.files = files
}

// cutPower loses some of what was not synced, and of the files whose names were not.
func (d *disk) cutPower(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		u := d.files[path]
		if u.entry && d.rng.IntN(2) == 0 {
			os.Remove(path)
			continue
		}
		f, err := d.FS.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // was gone before the copy was made
		}
		if err != nil {
			t.Fatal(err)
		}
		d.loseLocked(f, u)
		if size, _ := f.Size(); size > u.size && d.rng.IntN(2) == 0 {
			f.Truncate(u.size + d.rng.Int64N(size-u.size))
		}
		f.Close()
	}
	clear(d.files)
}
