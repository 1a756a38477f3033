// Package vfs is the seam between the log and the file system, so that tests can make any operation fail,
// tear or stall and can crash the whole into the states that a power cut may leave.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// File is an open file. ReadAt may be called concurrently with anything; the other methods by one goroutine at a time.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Truncate changes the file's length to size bytes.
	Truncate(size int64) error
	// Allocate makes the file at least size bytes long with every block of these allocated, so that writing there can't fail
	// for want of space. What is in the file stays. Where the file system can't, zeros are written. After an error, part of
	// it may be done. It is durable after Sync.
	Allocate(size int64) error
	// Sync makes the file's data, and the length that reading it back needs, durable (fdatasync(2)).
	// After it failed, what was written since the last success may be gone although the page cache
	// still shows it, and another Sync may succeed without having written it: a failed Sync is final for the file.
	Sync() error
	// Size is the file's length in bytes.
	Size() (int64, error)
	// Name is the path that the file was opened with.
	Name() string
}

// FS is a file system. All methods are safe for concurrent use. Paths are those of package path/filepath.
type FS interface {
	// OpenFile opens a file with the flags of package os.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// Rename moves a file within its file system, replacing the target.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory and its parents. The new entries are durable only after SyncDir of each parent.
	MkdirAll(name string, perm fs.FileMode) error
	// ReadDir lists a directory sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	// Stat describes a file.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the entries of a directory durable: files created, renamed or removed in it.
	SyncDir(name string) error
	// Lock takes an exclusive lock on the file (made if missing) that ends with the process.
	// It fails with ErrLocked at once when another process has it.
	Lock(name string) (io.Closer, error)
	// Space is the capacity of the file system that holds name, and what an unprivileged process may still use, in bytes.
	Space(name string) (total, free int64, err error)
}

// ReadFile reads a whole small file of at most limit bytes; a longer one is cut there.
func ReadFile(f FS, name string, limit int64) ([]byte, error) {
	file, err := f.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, min(size, limit))
	n, err := file.ReadAt(buf, 0)
	if err == io.EOF {
		err = nil
	}
	return buf[:n], err
}

// Unused is name, or if that exists name.1, name.2 and so on: the first that doesn't. The error is of looking.
func Unused(f FS, name string) (string, error) {
	try := name
	for i := 1; ; i++ {
		_, err := f.Stat(try)
		if errors.Is(err, fs.ErrNotExist) {
			return try, nil
		}
		if err != nil {
			return "", err
		}
		try = fmt.Sprintf("%s.%d", name, i)
	}
}
