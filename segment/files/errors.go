package files

import (
	"errors"
	"fmt"
	"math"
	"syscall"
)

// ErrOffsetOutOfRange says that the chain has no such offset: it is below the start or beyond the end.
var ErrOffsetOutOfRange = errors.New("offset out of range")

var errClosed = errors.New("segment chain is closed")

// DamageError says that a stretch of a log file is not what was written there, or that the disk doesn't give it: see
// Unreadable.
type DamageError struct {
	// Path is the log file, Position the first bad byte's place in it.
	Path     string
	Position int64
	// Offset is the first offset that can't be read, Resume the first that can be read again:
	// math.MaxInt64 if none is known.
	Offset, Resume int64
	// Err is what is wrong with the bytes.
	Err error
}

func (e *DamageError) Error() string {
	if e.Resume == math.MaxInt64 {
		return fmt.Sprintf("%s is damaged at position %d (from offset %d on): %v", e.Path, e.Position, e.Offset, e.Err)
	}
	return fmt.Sprintf("%s is damaged at position %d (offsets %d to %d): %v", e.Path, e.Position, e.Offset, e.Resume-1, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Unreadable says that it is the disk that failed, for now or for good. Whoever may wait should ask again before taking
// the records for lost.
func (e *DamageError) Unreadable() bool { return unreadable(e.Err) }

// NoSpace says that err is for want of disk space: the operation left everything as it was and can be tried again.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
