package segment

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// readJournal is Partition.Read out of the journal, for what a failed segment lost or has not got again. It looks through the
// journal from its oldest frame on, one reader at a time: dear, but bounded by the journal's size.
func (l *Log) readJournal(dst []byte, p *Partition, offset int64, maxBytes int, high int64) (out []byte, ok bool) {
	l.rescue.Lock()
	defer l.rescue.Unlock()
	out, next := dst, int64(-1)
	_, err := l.journal.Replay(l.store.OldestLSN(), func(_ uint64, e *journal.Entry) error {
		b := record.Batch(e.Batch)
		if e.Kind != journal.KindBatch || e.TopicID != p.topic.id || e.Partition != p.id || b.LastOffset() < offset || b.BaseOffset() < next {
			return nil
		}
		if full := len(out) > len(dst) && len(out)-len(dst)+len(b) > maxBytes; full || b.BaseOffset() >= high || next >= 0 && b.BaseOffset() > next {
			return errEnough
		}
		out, next = append(out, b...), b.NextOffset()
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) || len(out) == len(dst) {
		return dst, false
	}
	return out, true
}

// stuckAfter is how long one write may take before callers are refused instead of waiting for it.
const stuckAfter = 5 * time.Second

// stuckWrite is since when the committer waits for the disk.
type stuckWrite struct {
	start time.Time    // immutable: what since counts from, on the monotonic clock
	since atomic.Int64 // ns; 0: it doesn't wait
}

func (s *stuckWrite) begin() { s.since.Store(int64(time.Since(s.start)) + 1) }
func (s *stuckWrite) end()   { s.since.Store(0) }

// left is how long callers may still wait.
func (s *stuckWrite) left() time.Duration {
	since := s.since.Load()
	if since == 0 {
		return stuckAfter
	}
	return stuckAfter - time.Since(s.start) + time.Duration(since)
}

// stuck is why writers are refused whom the group in hand has no room for, or nil: the disk may be slow, but not for ever.
func (l *Log) stuck() *refusal {
	left := l.disk.left()
	if left > 0 {
		return nil
	}
	return &refusal{ErrUnavailable, fmt.Errorf("a write to %s has not ended for %v: the disk hangs; check it",
		l.o.Dir, (stuckAfter - left).Round(time.Second))}
}

// waitForRoomLocked returns when the group in hand may have room, or the disk has been stuck for too long.
func (l *Log) waitForRoomLocked() {
	t := time.AfterFunc(max(l.disk.left(), 0)+time.Millisecond, l.room.Broadcast)
	l.room.Wait()
	t.Stop()
}

// remedy is what helps against an error of the file system, or "".
func remedy(err error) string {
	for _, r := range []struct {
		cause error
		text  string
	}{
		{syscall.ENOSPC, "; make room on the file system"},
		{syscall.EDQUOT, "; make room, or raise the quota"},
		{syscall.EROFS, "; remount the file system read-write"},
		{syscall.EIO, "; check the device, the kernel's log says more"},
		{syscall.EMFILE, "; raise the limit of open files"},
		{syscall.ENFILE, "; raise the limit of open files"},
	} {
		if errors.Is(err, r.cause) {
			return r.text
		}
	}
	return ""
}
