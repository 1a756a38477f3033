package vfs

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Locked says whether another process holds the lock that Lock takes on the file. It creates and changes nothing, and a
// file that isn't there is not locked. While it looks, for microseconds, a Lock elsewhere may find the file locked.
func Locked(name string) (bool, error) {
	f, err := os.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // ends the lock
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "flock", Path: name, Err: err}
	}
	return false, nil
}
