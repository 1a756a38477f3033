package segment

import (
	"errors"
	"fmt"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/state"
)

// Errors that callers branch on.
var (
	// ErrClosed says that the log is closed or closing.
	ErrClosed = errors.New("log is closed")
	// ErrFull says that the disk budget is used up. Nothing was stored.
	ErrFull = errors.New("disk budget is used up")
	// ErrBudget says that the disk budget has no room for what is configured: another configuration is needed.
	ErrBudget = errors.New("disk budget is too small")
	// ErrUnavailable says that the disk refuses writes for now. Nothing was stored; it is tried again in the background.
	ErrUnavailable = errors.New("log can't be written")
	// ErrOffsetOutOfRange says that no record has that offset: it is below the start or beyond the high watermark.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrNewerFormat says that a newer release wrote the data directory. It is left untouched.
	ErrNewerFormat = errors.New("written by a newer release")
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
	return fmt.Sprintf("%v: %v%s", r.kind, r.cause, remedy(r.cause))
}

func (r *refusal) Unwrap() []error { return []error{r.kind, r.cause} }

// markFormat makes both kinds of format error one that callers can tell.
func markFormat(err error) error {
	var ofJournal *journal.FormatError
	var ofState *state.FormatError
	if errors.As(err, &ofJournal) || errors.As(err, &ofState) {
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	}
	return err
}
