package segment

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// slowReader takes a log's lines, and sees whether others can go on meanwhile.
type slowReader struct {
	slog.Handler
	t *testing.T
	l atomic.Pointer[Log]

	mu   sync.Mutex
	said []string
}

func (r *slowReader) Enabled(context.Context, slog.Level) bool { return true }

func (r *slowReader) Handle(_ context.Context, line slog.Record) error {
	r.mu.Lock()
	r.said = append(r.said, line.Message)
	r.mu.Unlock()
	l := r.l.Load()
	if l == nil {
		return nil // during Open
	}
	done := make(chan struct{})
	go func() {
		l.Status() // takes Log.mu and the clock's
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		r.t.Errorf("%q is logged with a lock held", line.Message)
	}
	return nil
}

func (r *slowReader) heard(what string) bool { return r.count(what) > 0 }

func (r *slowReader) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(strings.Join(r.said, "\n"), what)
}

// Nobody waits for whoever reads the log.
func TestNothingIsLoggedUnderALock(t *testing.T) {
	fsys, hook := hooked()
	s := &shared{w: newWorld(noon)}
	s.w.sync()
	r := &slowReader{Handler: slog.DiscardHandler, t: t}
	o := testOptions(t.TempDir())
	o.FS, o.now, o.Logger = fsys, s.read, slog.New(r)
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := createTopic(t, l, "t", 1, record.None).Partitions()[0]
	r.l.Store(l)

	s.do(func(w *world) { w.set(noon + year) })
	s.write(t, l, p, 1)
	eventually(t, "the step is told", func() bool { return r.heard("the wall clock was stepped") })

	broken := func(op vfs.Op, name string) error {
		if op == vfs.OpSync && strings.HasSuffix(name, ".journal") {
			return syscall.EIO
		}
		return nil
	}
	hook.Store(&broken)
	ticket, err := l.Append(p, &record.Record{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the refusal is told", func() bool { return r.heard("refusing writes") })
	hook.Store(nil)
	wait(t, ticket, nil)
	eventually(t, "its end is told", func() bool { return r.heard("accepting writes again") })

	l.mu.Lock()
	l.retention.looping = false
	l.mu.Unlock()
	l.drain(l.plan.LimitBytes) // refuses
	l.judge(true, nil)
	if err := l.Status().Refusing; err != nil {
		t.Error(err)
	}
}
