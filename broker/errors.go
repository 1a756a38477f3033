package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/sluicemq/sluice/segment"
)

// ConfigError is what only another configuration, or another release, can mend: starting again won't help.
type ConfigError struct{ Message string }

func (e *ConfigError) Error() string { return e.Message }

// diskError is one line about the data directory, in place of its cause's own words.
type diskError struct {
	text  string
	cause error
}

func (e *diskError) Error() string { return e.text }
func (e *diskError) Unwrap() error { return e.cause }

// explain makes of an error of the data directory one line that names the directory and the remedy.
func explain(dir string, err error) error {
	switch {
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("data directory %s is locked by another broker; stop that one, or give this one a data.dir of its own", dir)
	case errors.Is(err, segment.ErrNewerFormat):
		return &ConfigError{fmt.Sprintf("data directory %s was written by a newer release and is left untouched: %v; use that release, or another data.dir", dir, err)}
	case errors.Is(err, segment.ErrBudget):
		return &ConfigError{fmt.Sprintf("data directory %s: %v", dir, err)}
	case errors.Is(err, syscall.EROFS):
		return &diskError{fmt.Sprintf("data directory %s is on a read-only file system; remount it read-write, or use another data.dir (%s)", dir, place(err)), err}
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("data directory %s is not writable for user id %d; change its owner or mode, or use another data.dir (%s)", dir, os.Getuid(), place(err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &diskError{fmt.Sprintf("data directory %s: no space left on its file system; make room, lower commit.journal_bytes, or use another data.dir (%s)", dir, place(err)), err}
	case errors.Is(err, syscall.EIO):
		return &diskError{fmt.Sprintf("data directory %s: its device reports errors; check it (dmesg), or use another data.dir (%s)", dir, place(err)), err}
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("data directory %s can't be made: a file is in its way; remove it, or use another data.dir (%s)", dir, place(err))
	}
	return fmt.Errorf("data directory %s: %w", dir, err)
}

// place is the operation and the path that failed.
func place(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Error()
	}
	return err.Error()
}
