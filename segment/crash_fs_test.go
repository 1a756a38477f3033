package segment

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
)

// machineStopped is what a file operation panics with when the machine, or just the process, stops there.
type machineStopped struct{}

// crashFS is the file system as one life of a log sees it: the life may end at any operation that changes something.
// Once it has ended nothing gets through any more.
type crashFS struct {
	vfs.FS
	rng     *rand.Rand
	plant   plant
	stopAt  int                              // the operation, from 1 on, at which the machine stops; 0: at none
	between func(op vfs.Op, name string)     // runs ahead of each operation: what other goroutines do meanwhile
	note    func(format string, args ...any) // of the trace
	tracing bool
	ops     int
	dead    bool
	locks   []io.Closer
}

// begin counts an operation. last says that it is the one at which the machine stops.
func (c *crashFS) begin(op vfs.Op, name string) (last bool, err error) {
	if c.dead {
		return false, fs.ErrClosed
	}
	if c.between != nil {
		c.between(op, name)
	}
	c.ops++
	if c.tracing {
		c.note("    %d %s %s", c.ops, op, name)
	}
	return c.ops == c.stopAt, nil
}

// stop ends the life.
func (c *crashFS) stop() {
	c.note("    stopped")
	c.dead = true
	panic(machineStopped{})
}

// step is begin for an operation that is done wholly or, when the machine stops, not at all.
func (c *crashFS) step(op vfs.Op, name string) error {
	last, err := c.begin(op, name)
	if last {
		c.stop()
	}
	return err
}

// release is what the end of a process does.
func (c *crashFS) release() {
	c.dead = true
	for _, l := range c.locks {
		l.Close()
	}
}

func (c *crashFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	var err error
	if c.dead {
		err = fs.ErrClosed
	} else if flag&os.O_CREATE != 0 {
		err = c.step(vfs.OpOpen, name)
	}
	if err != nil {
		return nil, err
	}
	f, err := c.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &crashFile{f, c}, nil
}

func (c *crashFS) Remove(name string) error {
	if err := c.step(vfs.OpRemove, name); err != nil {
		return err
	}
	return c.FS.Remove(name)
}

func (c *crashFS) Rename(oldName, newName string) error {
	if err := c.step(vfs.OpRename, newName); err != nil {
		return err
	}
	return c.FS.Rename(oldName, newName)
}

func (c *crashFS) MkdirAll(name string, perm fs.FileMode) error {
	if err := c.step(vfs.OpMkdir, name); err != nil {
		return err
	}
	return c.FS.MkdirAll(name, perm)
}

func (c *crashFS) SyncDir(name string) error {
	if err := c.step(vfs.OpSyncDir, name); err != nil {
		return err
	}
	if c.plant.leavesOut(name) {
		return nil
	}
	return c.FS.SyncDir(name)
}

func (c *crashFS) Lock(name string) (io.Closer, error) {
	l, err := c.FS.Lock(name)
	if err == nil {
		c.locks = append(c.locks, l)
	}
	return l, err
}

type crashFile struct {
	vfs.File
	fs *crashFS
}

func (f *crashFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.dead {
		return 0, fs.ErrClosed
	}
	n, err := f.File.ReadAt(p, off)
	if f.fs.plant == staleFrameAccepted && isJournal(f.Name()) {
		makeFrameFit(f.File, p[:n], off)
	}
	return n, err
}

// WriteAt may stop after any part of it.
func (f *crashFile) WriteAt(p []byte, off int64) (int, error) {
	last, err := f.fs.begin(vfs.OpWrite, f.Name())
	if err != nil {
		return 0, err
	}
	if last {
		if n := f.fs.rng.IntN(len(p) + 1); n > 0 {
			f.File.WriteAt(p[:n], off)
		}
		f.fs.stop()
	}
	return f.File.WriteAt(p, off)
}

func (f *crashFile) Truncate(size int64) error {
	if err := f.fs.step(vfs.OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *crashFile) Sync() error {
	if err := f.fs.step(vfs.OpSync, f.Name()); err != nil {
		return err
	}
	if f.fs.plant == journalNotSynced && isJournal(f.Name()) || f.fs.plant == segmentNotSynced && strings.HasSuffix(f.Name(), ".log") {
		return nil
	}
	return f.File.Sync()
}

func (f *crashFile) Close() error {
	if f.fs.dead {
		return fs.ErrClosed
	}
	return f.File.Close()
}

func isJournal(name string) bool { return strings.HasSuffix(name, ".journal") }

func (f *crashFile) Allocate(size int64) error {
	if err := f.fs.step(vfs.OpAllocate, f.Name()); err != nil {
		return err
	}
	return f.File.Allocate(size)
}
