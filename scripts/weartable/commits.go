//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

const payloadBytes = 100

// payload is what a sensor might send, or random bytes.
func payload(dst []byte, fill string, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	dst = dst[:0]
	if fill != "random" {
		dst = fmt.Appendf(dst, `{"id":"pump-%03d","seq":%d,"t":%.2f,"p":%.3f,"rpm":%d,"v":%.4f,"i":%.4f,"st":%d,"e":%d}`,
			n%100, n, 20+5*r.NormFloat64(), 4+r.NormFloat64()/10, 1450+r.IntN(20), 231+r.NormFloat64(), 3+r.Float64(), r.IntN(3), r.IntN(1000))
	}
	for len(dst) < payloadBytes {
		dst = append(dst, byte(r.Uint32()))
	}
	return dst[:payloadBytes]
}

// prepareLog makes a data directory that has all its journal files, with a topic as the broker makes it.
func (m *meter) prepareLog(ctx context.Context, dir, topic string, partitions int32) error {
	o := segment.DefaultOptions()
	o.Dir = dir
	l, err := segment.Open(o)
	if err != nil {
		return err
	}
	t, err := l.CreateTopic(segment.TopicOptions{Name: topic, Partitions: partitions, Compression: record.Zstd})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	value := make([]byte, 128<<10)
	complete := func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "journal", "*.journal"))
		return len(files) >= 4
	}
	for n := 0; !complete() && n < 5000; n++ {
		var ticket segment.Ticket
		if ticket, err = l.Append(t.Partitions()[n%int(partitions)], &record.Record{Timestamp: time.Now().UnixMilli(), Value: value}); err == nil {
			err = ticket.Wait(ctx)
		}
		if err != nil {
			break
		}
	}
	return errors.Join(err, l.Close())
}

// member waits for its group.
type member struct{ done chan error }

func (w member) Committed(_ uint64, err error) { w.done <- err }

// commitGroups makes n groups with one message for each partition, at perSecond if that isn't 0, each durable before the next.
func (m *meter) commitGroups(ctx context.Context, l *segment.Log, t *segment.Topic, n int, perSecond float64) error {
	told := member{make(chan error, 1)}
	w := l.NewWriter(told)
	begin := time.Now()
	var value []byte
	for i := range n {
		if perSecond > 0 {
			select {
			case <-time.After(time.Until(begin.Add(time.Duration(float64(i) / perSecond * float64(time.Second))))):
			case <-ctx.Done():
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Begin(); err != nil {
			return err
		}
		for j, p := range t.Partitions() {
			value = payload(value, m.fill, i*len(t.Partitions())+j)
			w.Append(p, &record.Record{Timestamp: time.Now().UnixMilli(), Key: fmt.Appendf(nil, "bench/%d", j), Value: value})
		}
		w.End()
		if err := <-told.done; err != nil {
			return err
		}
	}
	return nil
}

// withLog measures what body writes.
func (m *meter) withLog(ctx context.Context, dir string, partitions int32, body func(*segment.Log, *segment.Topic) error) (row, error) {
	if err := m.prepareLog(ctx, dir, "mqtt", partitions); err != nil {
		return row{}, err
	}
	o := segment.DefaultOptions()
	o.Dir = dir
	l, err := segment.Open(o)
	if err != nil {
		return row{}, err
	}
	start := l.Wear().JournalBytes
	before, err := m.settled()
	if err == nil {
		err = body(l, l.Topic("mqtt"))
	}
	if err != nil {
		return row{}, errors.Join(err, l.Close())
	}
	r := row{journal: l.Wear().JournalBytes - start}
	r.used = time.Since(before.at)
	if err := l.Close(); err != nil {
		return row{}, err
	}
	after, err := m.settled()
	r.counters = after.since(before)
	return r, err
}

// commitCase is a few hundred commits in a row, the journal alone: without the clean stop.
func (m *meter) commitCase(partitions int32, limit float64) func(context.Context, string) (row, error) {
	const n = 500
	return func(ctx context.Context, dir string) (row, error) {
		var measured counters
		r, err := m.withLog(ctx, dir, partitions, func(l *segment.Log, t *segment.Topic) error {
			before, err := m.settled()
			if err != nil {
				return err
			}
			if err := m.commitGroups(ctx, l, t, n, 0); err != nil {
				return err
			}
			after, err := m.counters()
			measured = after.since(before)
			return err
		})
		r.counters, r.messages, r.used = measured, n*int(partitions), 0
		r.limits = []bound{
			{"bytes a commit", float64(measured.bytes) / n, limit},
			{"flushes a commit", float64(measured.flushes) / n, 1.05},
		}
		r.note = fmt.Sprintf("%.0f bytes, %.2f flushes a commit", float64(measured.bytes)/n, float64(measured.flushes)/n)
		return r, err
	}
}

// longCase is groups over 16 partitions at a steady rate, all that follows from them included.
func (m *meter) longCase(ctx context.Context, dir string) (row, error) {
	n := int(m.duration.Seconds() * m.commits)
	r, err := m.withLog(ctx, dir, 16, func(l *segment.Log, t *segment.Topic) error {
		return m.commitGroups(ctx, l, t, n, m.commits)
	})
	if err != nil {
		return r, err
	}
	r.messages = 16 * n
	ratio := float64(r.bytes) / float64(r.journal)
	r.limits = []bound{{"times its journal", ratio, 2.5}}
	r.note = fmt.Sprintf("%.2f times its journal's %.1f MB", ratio, float64(r.journal)/1e6)
	return r, nil
}

// boltCase is what a broker does that keeps messages in bbolt: a transaction for each.
func (m *meter) boltCase(ctx context.Context, dir string) (row, error) {
	db, err := bolt.Open(filepath.Join(dir, "messages.db"), 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType})
	if err != nil {
		return row{}, err
	}
	defer db.Close()
	before, err := m.settled()
	if err != nil {
		return row{}, err
	}
	n := int(m.duration.Seconds() * m.rate)
	var slowest time.Duration
	for i := range n {
		due := before.at.Add(time.Duration(float64(i) / m.rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return row{}, ctx.Err()
		}
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("messages"))
			if err != nil {
				return err
			}
			return b.Put(fmt.Appendf(nil, "%020d", i), payload(nil, m.fill, i))
		})
		if err != nil {
			return row{}, err
		}
		slowest = max(slowest, time.Since(due))
	}
	used := time.Since(before.at)
	if err := db.Close(); err != nil {
		return row{}, err
	}
	after, err := m.settled()
	return row{counters: after.since(before), messages: n, used: used, ackMax: slowest}, err
}

func writeFile(dir, name, content string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(content), 0o644)
}

// timedFS notes how long each sync takes.
type timedFS struct {
	vfs.FS
	slowest *atomic.Int64 // ns, since it was last set to 0
}

type timedFile struct {
	vfs.File
	slowest *atomic.Int64
}

func (t timedFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := t.FS.OpenFile(name, flag, perm)
	return timedFile{f, t.slowest}, err
}

func (f timedFile) Sync() error {
	begin := time.Now()
	err := f.File.Sync()
	f.slowest.Store(max(f.slowest.Load(), int64(time.Since(begin))))
	return err
}

// loneCase is a message each second from one writer, under a budget: each must find a token. What one takes beyond its sync is
// measured from within, as nobody else can tell how long the sync took.
func (m *meter) loneCase(ctx context.Context, dir string) (r row, err error) {
	if err := m.prepareLog(ctx, dir, "mqtt", 4); err != nil {
		return r, err
	}
	o := segment.DefaultOptions()
	var sync atomic.Int64
	o.Dir, o.WearBudget, o.FS = dir, governedBytes, timedFS{vfs.OS, &sync}
	l, err := segment.Open(o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	told := member{make(chan error, 1)}
	w, p := l.NewWriter(told), l.Topic("mqtt").Partitions()[0]
	var beyond []time.Duration
	for i := range max(10, int(min(m.duration, time.Minute).Seconds())) {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return r, ctx.Err()
		}
		sync.Store(0)
		begin := time.Now()
		if err := w.Begin(); err != nil {
			return r, err
		}
		w.Append(p, &record.Record{Timestamp: begin.UnixMilli(), Value: payload(nil, m.fill, i)})
		w.End()
		if err := <-told.done; err != nil {
			return r, err
		}
		beyond = append(beyond, time.Since(begin)-time.Duration(sync.Load()))
	}
	slices.Sort(beyond)
	median, most := beyond[len(beyond)/2], beyond[len(beyond)-1]
	r.limits = []bound{{"slowest ack beyond its sync, ms", float64(most) / float64(time.Millisecond), 10}}
	r.note = fmt.Sprintf("acknowledged %s ms after its sync in the median, %s at most", ms(median), ms(most))
	return r, nil
}
