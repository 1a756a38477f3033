package mqtt

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second // for what must happen

// disk is a file system whose syncs and writes tests hold up or make fail.
type disk struct {
	mu    sync.Mutex
	gate  chan struct{} // closed: syncs go through
	fault error         // of writes and syncs
	syncs int

	waiting atomic.Int32 // syncs that are held
}

// holding says whether a commit waits for hold's release.
func (d *disk) holding() bool { return d.waiting.Load() > 0 }

func newDisk() *disk {
	d := &disk{gate: make(chan struct{})}
	close(d.gate)
	return d
}

func (d *disk) before(op vfs.Op, name string) (int, error) {
	if op != vfs.OpSync && op != vfs.OpWrite || !strings.Contains(name, "journal") {
		return 0, nil
	}
	d.mu.Lock()
	gate := d.gate
	if op == vfs.OpSync {
		d.syncs++
	}
	d.mu.Unlock()
	if op == vfs.OpSync {
		d.waiting.Add(1)
		<-gate
		d.waiting.Add(-1)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return 0, d.fault
}

// hold stops every commit before it is durable, until the returned function is called.
func (d *disk) hold(t *testing.T) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	d.mu.Lock()
	d.gate = gate
	d.mu.Unlock()
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	d.fault = err
	d.mu.Unlock()
}

// router stores everything in one partition but $…, local/…, which a route keeps out of the log, and lost/…, which no route takes;
// keyed/… gets a key of its own, and other/… goes to other.
type router struct{ partition, other *segment.Partition }

func (r *router) Route(topic, dst []byte) (*segment.Partition, []byte, bool, bool) {
	switch {
	case topic[0] == '$' || bytes.HasPrefix(topic, []byte("lost/")):
		return nil, dst, false, false
	case bytes.HasPrefix(topic, []byte("local/")):
		return nil, dst, false, true
	case bytes.HasPrefix(topic, []byte("keyed/")):
		return r.partition, append(dst, "key:"+string(topic[6:])...), false, true
	case bytes.HasPrefix(topic, []byte("other/")):
		return r.other, topic, true, true
	}
	return r.partition, topic, true, true
}

// broker is a server over a log of its own.
type broker struct {
	*Server
	t     testing.TB
	log   *segment.Log
	topic *segment.Topic
	disk  *disk
	drops *admission.Drops
}

type setup struct {
	options Options
	log     segment.Options
	topic   segment.TopicOptions
	dir     string
}

func start(t testing.TB, change ...func(*setup)) *broker {
	t.Helper()
	s := setup{options: Options{Listeners: []Listener{{Address: "127.0.0.1:0"}}, Incarnation: 77}, log: segment.DefaultOptions(), dir: t.TempDir(),
		topic: segment.TopicOptions{Name: "mqtt", Partitions: 1}}
	d := newDisk()
	s.log.JournalBytes = 8 << 20
	s.log.MaxBytes = 256 << 10
	s.log.FS = &vfs.Faulty{FS: vfs.OS, Before: d.before}
	for _, f := range change {
		f(&s)
	}
	s.log.Dir = s.dir
	l, err := segment.Open(s.log)
	if err != nil {
		t.Fatal(err)
	}
	topic, err := l.CreateTopic(s.topic)
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{t: t, log: l, topic: topic, disk: d, drops: new(admission.Drops)}
	lg := slog.New(slog.DiscardHandler)
	if os.Getenv("MQTT_TEST_LOG") != "" {
		lg = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	b.Server, err = New(s.options, l, &router{partition: topic.Partitions()[0]}, b.drops, lg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Listen(); err != nil {
		t.Fatal(err)
	}
	b.Serve()
	t.Cleanup(b.end)
	return b
}

func (b *broker) end() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.disk.fail(nil)
	if err := b.Server.Close(ctx); err != nil && !b.closed() {
		b.t.Error(err)
	}
	if err := b.log.Close(); err != nil && !errors.Is(err, segment.ErrClosed) {
		b.t.Error(err)
	}
	if n := b.queued.Load(); n != 0 {
		b.t.Errorf("%d bytes are still accounted as queued", n)
	}
	b.mu.Lock()
	idle := len(b.sessions) == 0
	b.mu.Unlock()
	if f, w := b.filters.Load(), b.wills.Load(); idle && (f != 0 || w != 0) {
		b.t.Errorf("%d bytes of filters and %d of wills are still accounted", f, w)
	}
	if n := b.partials.Load(); n != 0 {
		b.t.Errorf("%d bytes are still accounted as partial", n)
	}
}

func (b *broker) closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing && len(b.conns) == 0
}

// stored are the records of the log, once there are at least n.
func (b *broker) stored(n int) []record.Record {
	b.t.Helper()
	p := b.topic.Partitions()[0]
	eventually(b.t, func() bool { return p.HighWatermark() >= int64(n) })
	var records []record.Record
	d := record.NewDecoder(0)
	for next := int64(0); next < p.HighWatermark(); {
		buf, err := p.Read(nil, next, 1<<20)
		if err != nil {
			b.t.Fatal(err)
		}
		for len(buf) > 0 {
			var batch record.Batch
			if batch, buf, err = record.Next(buf); err != nil {
				b.t.Fatal(err)
			}
			err = d.Records(batch, func(r *record.Record) error {
				c := *r
				c.Key, c.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
				c.Headers = nil
				for _, h := range r.Headers {
					c.Headers = append(c.Headers, record.Header{Key: strings.Clone(h.Key), Value: bytes.Clone(h.Value)})
				}
				records = append(records, c)
				return nil
			})
			if err != nil {
				b.t.Fatal(err)
			}
			next = batch.LastOffset() + 1
		}
	}
	return records
}

func (b *broker) dropped(reason string) int64 {
	var n int64
	for _, d := range b.drops.Snapshot() {
		if d.Reason == reason {
			n += d.Messages
		}
	}
	return n
}

// eventually polls until ok.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen in time")
		}
		//lint:sleep polls what another goroutine brings about
		time.Sleep(time.Millisecond)
	}
}
