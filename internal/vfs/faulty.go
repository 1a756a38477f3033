package vfs

import (
	"io"
	"io/fs"
)

// Op names a kind of operation for Faulty.
type Op string

// The kinds of operation that Faulty asks about.
const (
	OpOpen     Op = "open"
	OpRead     Op = "read"
	OpWrite    Op = "write"
	OpTruncate Op = "truncate"
	OpAllocate Op = "allocate"
	OpSync     Op = "sync"
	OpSyncDir  Op = "syncdir"
	OpRemove   Op = "remove"
	OpRename   Op = "rename"
	OpMkdir    Op = "mkdir"
	OpSpace    Op = "space"
)

// Faulty is a file system that asks Before ahead of each operation of another one.
type Faulty struct {
	FS
	// Before is called with the kind of operation and the path. A non-nil error is what the operation returns,
	// undone. For a write, n of the bytes are written first. It may block, to stall the operation.
	Before func(op Op, name string) (n int, err error)
}

type faultyFile struct {
	File
	fs *Faulty
}

func (f *Faulty) ask(op Op, name string) error {
	_, err := f.Before(op, name)
	return err
}

// OpenFile opens a file whose operations are asked about, too.
func (f *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if err := f.ask(OpOpen, name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return faultyFile{file, f}, nil
}

// Remove deletes a file unless told to fail.
func (f *Faulty) Remove(name string) error {
	if err := f.ask(OpRemove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// Rename moves a file unless told to fail.
func (f *Faulty) Rename(oldName, newName string) error {
	if err := f.ask(OpRename, newName); err != nil {
		return err
	}
	return f.FS.Rename(oldName, newName)
}

// MkdirAll makes directories unless told to fail.
func (f *Faulty) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.ask(OpMkdir, name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

// SyncDir syncs a directory unless told to fail.
func (f *Faulty) SyncDir(name string) error {
	if err := f.ask(OpSyncDir, name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

// Lock takes a lock; it is never made to fail.
func (f *Faulty) Lock(name string) (io.Closer, error) { return f.FS.Lock(name) }

// Space measures the file system unless told to fail.
func (f *Faulty) Space(name string) (total, free int64, err error) {
	if err := f.ask(OpSpace, name); err != nil {
		return 0, 0, err
	}
	return f.FS.Space(name)
}

func (f faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.ask(OpRead, f.Name()); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f faultyFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.fs.Before(OpWrite, f.Name())
	if err != nil {
		n = min(n, len(p))
		if n > 0 {
			n, _ = f.File.WriteAt(p[:n], off)
		}
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f faultyFile) Truncate(size int64) error {
	if err := f.fs.ask(OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f faultyFile) Allocate(size int64) error {
	if err := f.fs.ask(OpAllocate, f.Name()); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

// Sync tells a file of a Mem that it failed: see PowerCut for what becomes of the pages.
func (f faultyFile) Sync() error {
	if err := f.fs.ask(OpSync, f.Name()); err != nil {
		if m, ok := f.File.(*memFile); ok {
			m.syncFailed()
		}
		return err
	}
	return f.File.Sync()
}
