package mqtt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// storedLog fills s.dir with a log of 300 records in several segments of one partition, and gives the path of the second one.
func storedLog(t *testing.T, s *setup) (second string) {
	t.Helper()
	s.topic.SegmentBytes = 64 << 10
	o := s.log
	o.Dir, o.FS = s.dir, vfs.OS
	l, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	topic, err := l.CreateTopic(s.topic)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		ticket, err := l.Append(topic.Partitions()[0], &record.Record{Timestamp: time.Now().UnixMilli(), Value: fmt.Appendf(nil, "%d %01000d", i, 0)})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "topics", "mqtt-0", "*.log"))
	if err != nil || len(logs) < 3 {
		t.Fatalf("segments %q, %v", logs, err)
	}
	return logs[1]
}

// reads has the fan-out read the partition from its beginning on, as if it lagged that far behind, until nothing more is to
// be had.
func (b *broker) reads() (r *reader, dropped int64) {
	r = b.fanout.readers[0]
	for b.fanout.readLive() {
	}
	for _, d := range b.drops.Snapshot() {
		if d.Reason == dropUnreadable {
			dropped += d.Messages
		}
	}
	return r, dropped
}

// One flipped bit costs the batch that it is in, not all that follows.
func TestFanoutPassesDamageOver(t *testing.T) {
	b := start(t, func(s *setup) {
		path := storedLog(t, s)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)/2] ^= 1
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	r, dropped := b.reads()
	if r.next.Load() != 300 || dropped == 0 || dropped > 70 {
		t.Errorf("at %d, %d of 300 dropped", r.next.Load(), dropped)
	}
}

// What the disk doesn't give is asked for again, and only after a long time passed over.
func TestFanoutWaitsForTheDisk(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	b := start(t, func(s *setup) {
		path := storedLog(t, s)
		s.log.FS = &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
			if op == vfs.OpRead && failing.Load() && strings.HasSuffix(path, filepath.Base(name)) {
				return 0, syscall.EIO
			}
			return 0, nil
		}}
	})
	r, dropped := b.reads()
	stuck := r.next.Load()
	if stuck == 0 || stuck == 300 || dropped != 0 || r.again == 0 {
		t.Fatalf("at %d, %d dropped, again at %d", stuck, dropped, r.again)
	}
	failing.Store(false)
	r.again = b.clock() // its time has come
	if r, dropped = b.reads(); r.next.Load() != 300 || dropped != 0 || r.unread != 0 {
		t.Errorf("at %d, %d dropped", r.next.Load(), dropped)
	}
	failing.Store(true)
	r.next.Store(stuck)
	b.reads()
	r.again, r.unread = b.clock(), b.clock()-int64(fanoutPatience)
	if r, dropped = b.reads(); r.next.Load() != 300 || dropped == 0 || dropped > 70 {
		t.Errorf("after a long time: at %d, %d of 300 dropped", r.next.Load(), dropped)
	}
}

// What the log is at work on is waited for, however long; other trouble isn't.
func TestFanoutWaitsForTheLog(t *testing.T) {
	b := start(t)
	for _, c := range []struct {
		err   error
		waits bool
	}{
		{fmt.Errorf("read: %w", segment.ErrUnavailable), true},
		{errors.New("too many open files"), false},
		{&segment.DamageError{Offset: 3, Resume: 5, Err: errors.New("wrong CRC")}, false},
	} {
		r := &reader{partition: b.topic.Partitions()[0], unread: b.clock() - int64(24*time.Hour)}
		b.fanout.unreadable(r, 10, c.err)
		if waits := r.next.Load() == 0; waits != c.waits || waits != (r.again > 0) {
			t.Errorf("%v: at %d, again at %d", c.err, r.next.Load(), r.again)
		}
	}
}
