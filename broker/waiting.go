package broker

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// How long to wait between two attempts to start on a disk that refuses.
const (
	firstStartWait = 100 * time.Millisecond
	lastStartWait  = 5 * time.Second
)

// waitable says that the disk is what keeps the broker from starting, and that this may end without anybody doing anything
// about the broker: space is made, the file system is remounted, the device answers again.
func waitable(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, segment.ErrUnavailable} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// startPatiently starts the broker, again and again while the disk is what is in the way. started is false when it ended for
// another reason (err), or because ctx is done.
func (b *Broker) startPatiently(ctx context.Context) (started bool, err error) {
	said := ""
	for wait := firstStartWait; ; wait = min(2*wait, lastStartWait) {
		err := b.start()
		if err == nil {
			return true, nil
		}
		undone := b.undo()
		if !waitable(err) {
			return false, errors.Join(err, undone)
		}
		if why := err.Error(); why != said {
			b.lg.Error("waiting for the disk, starting as soon as it can be written to", "why", why)
			said = why
		}
		// The service manager would give up on a start that takes so long.
		b.notify.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=waiting for the disk: %s", (wait + time.Minute).Microseconds(), said))
		select {
		case <-ctx.Done():
			b.lg.Info("stopping, without having started")
			b.notify.send("STOPPING=1\nSTATUS=stopping")
			return false, nil
		case <-time.After(wait):
		}
	}
}
