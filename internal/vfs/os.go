package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds a lock file.
var ErrLocked = errors.New("locked by another process")

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

type osFile struct{ *os.File }

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) Rename(oldName, newName string) error         { return os.Rename(oldName, newName) }
func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }

func (osFS) SyncDir(name string) error {
	d, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
	}
	return f, nil
}

func (osFS) Space(name string) (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	unit := int64(st.Bsize)
	return int64(st.Blocks) * unit, int64(st.Bavail) * unit, nil
}

// Sync uses fdatasync: fsync would also write the modification time, one more journal commit of the file system
// for each tick of its clock.
func (f osFile) Sync() error {
	return f.control("fdatasync", unix.Fdatasync)
}

func (f osFile) Allocate(size int64) error {
	if size == 0 {
		return nil // fallocate refuses
	}
	err := f.control("fallocate", func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fillHoles(f, size)
	}
	return err
}

// control makes a system call on the descriptor, which can't be closed and reused meanwhile.
func (f osFile) control(op string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err == nil {
		closed := conn.Control(func(fd uintptr) {
			for err = unix.EINTR; err == unix.EINTR; {
				err = call(int(fd))
			}
		})
		if closed != nil { // package os gives this error another name here than elsewhere
			err = fs.ErrClosed
		}
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	return nil
}

// fillHoles writes zeros into the first size bytes of a file: beyond its end, and again where it reads as zeros, since that may
// be a hole. To ask for the holes (SEEK_HOLE) is no help: a file system without fallocate may call everything data.
func fillHoles(f File, size int64) error {
	var old, zero [4096]byte
	const sector = 512 // no block of a file system is smaller
	for at := int64(0); at < size; at += int64(len(old)) {
		end := int(min(int64(len(old)), size-at))
		n, err := f.ReadAt(old[:end], at)
		if err != nil && err != io.EOF {
			return err
		}
		for from := 0; from < n; from += sector {
			to := min(from+sector, n)
			if bytes.Equal(old[from:to], zero[from:to]) {
				if _, err := f.WriteAt(zero[from:to], at+int64(from)); err != nil {
					return err
				}
			}
		}
		if _, err := f.WriteAt(zero[n:end], at+int64(n)); err != nil {
			return err
		}
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
