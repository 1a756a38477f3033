package segment

import (
	"errors"
	"fmt"

	"github.com/sluicemq/sluice/segment/files"
)

// Errors that callers branch on.
var (
	// ErrClosed says that the log is closed or closing.
	ErrClosed = errors.New("log is closed")
	// ErrFull says that the disk budget is used up. Nothing was stored.
	ErrFull = errors.New("disk budget is used up")
	// ErrUnavailable says that the disk refuses writes for now. Nothing was stored; it is tried again in the background.
	ErrUnavailable = errors.New("log can't be written")
	// ErrOffsetOutOfRange says that no record has that offset: it is below the start or beyond the high watermark.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrLocked says that another process has the data directory open.
	ErrLocked = errors.New("data directory is in use by another process")
)

// refusal is why writers are turned away, with its cause in words.
type refusal struct {
	kind  error // ErrFull, ErrUnavailable or ErrClosed
	cause error
}

func (r *refusal) Error() string {
	if r.cause == nil {
		return r.kind.Error()
	}
	return fmt.Sprintf("%v: %v", r.kind, r.cause)
}

func (r *refusal) Unwrap() []error { return []error{r.kind, r.cause} }

// asDamage finds the report of a damaged batch in err.
func asDamage(err error) (*files.DamageError, bool) {
	var d *files.DamageError
	ok := errors.As(err, &d)
	return d, ok
}
