package broker

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
)

// A disk that refuses keeps the broker from starting only as long as it refuses.
func TestStartWaitsForTheDisk(t *testing.T) {
	for _, cause := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EIO, syscall.EDQUOT} {
		for _, op := range []vfs.Op{vfs.OpMkdir, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir} {
			t.Run(fmt.Sprintf("%v at %s", cause, op), func(t *testing.T) {
				conn, name := manager(t)
				t.Setenv("NOTIFY_SOCKET", name)
				var bad atomic.Bool
				bad.Store(true)
				o := testOptions(t.TempDir())
				o.Log.FS = &vfs.Faulty{FS: vfs.OS, Before: func(is vfs.Op, _ string) (int, error) {
					if is == op && bad.Load() {
						return 0, cause
					}
					return 0, nil
				}}
				b, said := newTestBroker(t, o)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- b.Run(ctx) }()
				for range 2 {
					if got := receive(t, conn); !strings.HasPrefix(got, "EXTEND_TIMEOUT_USEC=") || !strings.Contains(got, "STATUS=waiting for the disk: data directory "+o.Log.Dir) {
						t.Fatalf("said %q", got)
					}
				}
				bad.Store(false)
				for got := ""; !strings.HasPrefix(got, "READY=1"); {
					got = receive(t, conn)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(said.String(), "waiting for the disk"); n != 1 {
					t.Errorf("said %d times that it waits:\n%s", n, said)
				}
			})
		}
	}
}

// Whoever stops a broker that waits doesn't wait.
func TestStopWhileWaiting(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Log.FS = &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpMkdir {
			return 0, syscall.EROFS
		}
		return 0, nil
	}}
	b, _ := newTestBroker(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := b.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// What waiting can't mend ends the broker.
func TestStartDoesNotWaitForEverything(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Log.FS = &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpMkdir {
			return 0, syscall.EACCES
		}
		return 0, nil
	}}
	b, _ := newTestBroker(t, o)
	if err := b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "not writable") {
		t.Fatalf("run: %v", err)
	}
}
