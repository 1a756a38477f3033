package segment

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// stalled is a log whose operations of one kind hang once armed, until released.
type stalled struct {
	l       *Log
	p       *Partition
	armed   atomic.Bool
	release chan struct{}
}

func newStalled(t *testing.T, op vfs.Op, suffix string) *stalled {
	t.Helper()
	s := &stalled{release: make(chan struct{})}
	o := testOptions(t.TempDir())
	o.FS = &vfs.Faulty{FS: nosync{vfs.OS}, Before: func(is vfs.Op, name string) (int, error) {
		if is == op && strings.HasSuffix(name, suffix) && s.armed.Load() {
			<-s.release
		}
		return 0, nil
	}}
	s.l = openLog(t, o)
	s.p = createTopic(t, s.l, "t", 1, record.None).Partitions()[0]
	put(t, s.l, s.p, "before")
	return s
}

// fill adds records until the log takes no more, and returns why and how many it took.
func (s *stalled) fill() (n int, err error) {
	w := s.l.NewWriter(nil)
	for {
		if err := w.Begin(); err != nil {
			return n, err
		}
		w.Append(s.p, &record.Record{Value: make([]byte, 1000)})
		w.End()
		n++
	}
}

// A write or sync that takes seconds, or for ever, holds up writers only, and them only so long: then they are refused.
func TestDiskThatHangs(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     vfs.Op
		suffix string
	}{
		{"journal sync", vfs.OpSync, ".journal"},
		{"journal write", vfs.OpWrite, ".journal"},
		{"segment write", vfs.OpWrite, ".log"},
		{"segment sync", vfs.OpSync, ".log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStalled(t, c.op, c.suffix)
				s.armed.Store(true)
				begin := time.Now()
				n, err := s.fill()
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "hangs") || !strings.Contains(err.Error(), s.l.o.Dir) {
					t.Fatalf("refused with %v", err)
				}
				if waited := time.Since(begin); waited < stuckAfter || waited > stuckAfter+time.Second {
					t.Errorf("refused after %v", waited)
				}
				if err := s.l.NewWriter(nil).BeginState(); !errors.Is(err, ErrUnavailable) {
					t.Errorf("state changes: %v", err)
				}
				if status := s.l.Status(); status.Refusing == nil {
					t.Error("the status doesn't tell")
				}
				if got := values(t, s.p, 0, 1<<20); got[0] != "before" {
					t.Errorf("read %q", got[0])
				}
				if _, _, err := s.l.Get([]byte("x")); err != nil {
					t.Errorf("get: %v", err)
				}
				close(s.release)
				eventually(t, "all is durable", func() bool { return s.p.HighWatermark() == int64(n)+1 })
				if err := s.l.Status().Refusing; err != nil {
					t.Errorf("still refused: %v", err)
				}
				put(t, s.l, s.p, "after")
				if err := s.l.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Close doesn't wait for ever for a disk that hangs.
func TestCloseWhileTheDiskHangs(t *testing.T) {
	for _, suffix := range []string{".journal", ".log"} {
		t.Run(suffix, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStalled(t, vfs.OpSync, suffix)
				s.armed.Store(true)
				ticket, err := s.l.Append(s.p, &record.Record{Value: []byte("pending")})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if err := s.l.Close(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "hangs") {
					t.Errorf("close: %v", err)
				}
				if took := time.Since(begin); took != closeWait+hangWait {
					t.Errorf("close took %v", took)
				}
				close(s.release)
				if err := ticket.Wait(t.Context()); err != nil && suffix == ".log" {
					t.Errorf("what was durable: %v", err)
				}
				synctest.Wait() // what was left to itself ends before its directory goes
			})
		})
	}
}

// While a failed segment can't be rewritten, for minutes, its records come out of the journal.
func TestReadsWhileARewriteLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys, hook := hooked()
		o := testOptions(t.TempDir())
		o.JournalBytes = 4 << 20
		o.FS = fsys
		l, p := openOne(t, o)
		fill := newFiller(l, p)
		fill.addAll(t, 3000)
		eventually(t, "most are in segments", func() bool { return l.memory.used() < o.AppendBytes })
		var synced atomic.Bool
		fail := func(op vfs.Op, name string) error {
			switch {
			case !strings.HasSuffix(name, ".log"):
			case op == vfs.OpSync && synced.CompareAndSwap(false, true):
				return syscall.EIO
			case op == vfs.OpWrite && synced.Load():
				return syscall.ENOSPC
			}
			return nil
		}
		hook.Store(&fail)
		l.askForRoll()
		eventually(t, "writers are refused", func() bool { return l.Status().Refusing != nil })
		for range 5 {
			time.Sleep(time.Minute)
			equal(t, values(t, p, 0, 5000), numbered(0, fill.next))
			equal(t, values(t, p, 1234, 100)[:10], numbered(1234, 1244))
		}
		hook.Store(nil)
		eventually(t, "writers are welcome", func() bool { return l.Status().Refusing == nil })
		equal(t, values(t, p, 0, 1<<20), numbered(0, fill.next))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
