package mqtt

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// fanout reads what has become durable and hands QoS 1 and 2 messages to their subscribers. It keeps a position for
// each partition and no messages, so however far it lags behind its memory stays the same. While nobody
// subscribes to anything it isn't woken at all.
type fanout struct {
	srv  *Server
	wake chan struct{}
	stop chan struct{}

	mu      sync.Mutex
	users   int                          // sessions with a subscription
	since   map[*segment.Partition]int64 // high watermarks when the first of them came; taken over by run
	readers []*reader                    // changed by run's goroutine only, which needs mu for that alone

	// run's goroutine only
	buf      []byte
	decoder  *record.Decoder
	each     func(*record.Record) error
	reading  *reader
	delivery delivery
}

// reader is the fan-out's place in one partition.
type reader struct {
	partition *segment.Partition
	next      atomic.Int64 // offset; moved by the fan-out's goroutine

	// run's goroutine only. Times are on the server's clock in ns; again is 0 while all can be read.
	stuck  int64 // the offset that the disk didn't give last
	unread int64 // since when it doesn't
	again  int64 // when it is asked for next
}

const (
	// fanoutReadBytes is how much of a partition is read at a time.
	fanoutReadBytes = 64 << 10
	// fanoutPatience is how long a partition's messages wait for a disk that doesn't give them before the fan-out goes on
	// behind them, fanoutRetry the time between two tries.
	fanoutPatience = 2 * time.Minute
	fanoutRetry    = time.Second
)

func newFanout(s *Server) *fanout {
	f := &fanout{srv: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), decoder: record.NewDecoder(0)}
	f.each = f.record
	return f
}

// join tells that a session is about to subscribe for the first time. Messages committed before are not its business:
// it gets back the offsets at which its deliveries begin, for the partitions where the fan-out hasn't come as far yet.
func (f *fanout) join() (starts map[*segment.Partition]int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users++; f.users == 1 {
		f.srv.log.Watch(f.wake)
		f.since = make(map[*segment.Partition]int64)
		for _, t := range f.srv.log.Topics() {
			for _, p := range t.Partitions() {
				f.since[p] = p.HighWatermark()
			}
		}
	}
	starts = make(map[*segment.Partition]int64)
	for p, next := range f.since { // of those without a reader yet
		if end := p.HighWatermark(); next < end {
			starts[p] = end
		}
	}
	for _, r := range f.readers { // which get to since only after what they are reading now
		if end := r.partition.HighWatermark(); r.next.Load() < end {
			starts[r.partition] = end
		}
	}
	if len(starts) == 0 {
		return nil
	}
	return starts
}

// leave tells that a session has no subscription any more.
func (f *fanout) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 {
		f.srv.log.Unwatch(f.wake)
	}
}

// run is the fan-out's goroutine.
func (f *fanout) run() {
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
		case <-f.retry():
		}
		f.skip()
		for f.pass() {
			select {
			case <-f.stop:
				return
			default:
			}
		}
		if cap(f.buf) > 2*fanoutReadBytes {
			f.buf = nil
		}
	}
}

// retry tells when what couldn't be read is to be asked for again; nil if all could, or nobody wants it.
func (f *fanout) retry() <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users == 0 {
		return nil
	}
	for _, r := range f.readers {
		if r.again > 0 {
			return time.After(fanoutRetry)
		}
	}
	return nil
}

// skip moves on to where the log stood when somebody subscribed after nobody did.
func (f *fanout) skip() {
	f.mu.Lock()
	since := f.since
	f.since = nil
	f.mu.Unlock()
	for p, next := range since {
		f.readerOf(p).skipTo(next)
	}
}

func (r *reader) skipTo(offset int64) { r.next.Store(max(r.next.Load(), offset)) }

func (f *fanout) readerOf(p *segment.Partition) *reader {
	for _, r := range f.readers {
		if r.partition == p {
			return r
		}
	}
	r := &reader{partition: p}
	f.mu.Lock()
	f.readers = append(f.readers, r)
	f.mu.Unlock()
	return r
}

// pass reads once from each partition that has something new, and says whether any had.
func (f *fanout) pass() (more bool) {
	for _, r := range f.readers {
		switch end := r.partition.HighWatermark(); {
		case r.next.Load() >= end:
			r.again = 0
		case r.again <= f.srv.clock():
			f.read(r, end)
			more = true
		}
	}
	f.srv.flushTouched(&f.delivery)
	return more
}

// read hands on some of what lies between r's place and end.
func (f *fanout) read(r *reader, end int64) {
	buf, err := r.partition.Read(f.buf[:0], r.next.Load(), fanoutReadBytes)
	f.buf = buf
	if err != nil || len(buf) == 0 {
		f.unreadable(r, end, err)
		return
	}
	r.unread, r.again = 0, 0
	f.reading = r
	for rest := buf; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			f.lost(r, r.next.Load(), end, err)
			return
		}
		if err = f.decoder.Records(b, f.each); err != nil {
			f.lost(r, r.next.Load(), b.NextOffset(), err)
		}
		r.skipTo(b.LastOffset() + 1)
	}
}

// unreadable waits if what is next may be readable later, and goes on behind it if not.
func (f *fanout) unreadable(r *reader, end int64, err error) {
	from, next, final := r.next.Load(), end, err == nil
	var bad *segment.DamageError
	switch start := r.partition.StartOffset(); {
	case errors.Is(err, segment.ErrOffsetOutOfRange) && start > from:
		next, final = min(start, end), true
	case errors.As(err, &bad):
		from, next, final = max(from, bad.Offset), min(bad.Resume, end), !bad.Unreadable()
	}
	now := f.srv.clock()
	if r.unread == 0 || r.stuck != r.next.Load() {
		r.stuck, r.unread = r.next.Load(), now
	}
	if !final && (errors.Is(err, segment.ErrUnavailable) || now-r.unread < int64(fanoutPatience)) {
		r.again = now + int64(fanoutRetry)
		f.srv.warn(warnFanout, "stored messages can't be read for subscribers now; tried again", "topic", r.partition.Topic().Name(),
			"partition", r.partition.ID(), "offset", from, "cause", err)
		return
	}
	r.unread, r.again = 0, 0
	f.lost(r, from, next, err)
}

// lost goes on at next, behind what can't be read from an offset on. It stays in the log; only those who are connected now
// miss it.
func (f *fanout) lost(r *reader, from, next int64, err error) {
	f.srv.drops.Count(r.partition.Topic().Name(), dropUnreadable, next-from)
	f.srv.warn(warnFanout, "stored messages can't be handed to subscribers", "topic", r.partition.Topic().Name(),
		"partition", r.partition.ID(), "from", from, "to", next, "cause", err)
	r.skipTo(next)
}

const dropUnreadable = "not readable for fan-out"

// record hands on one record, if it is an MQTT message that waited for its commit.
func (f *fanout) record(rec *record.Record) error {
	if rec.Offset < f.reading.next.Load() {
		return nil
	}
	value, ok := rec.Header(record.EnvelopeKey)
	if !ok {
		return nil
	}
	e, err := record.ParseEnvelope(value)
	if err != nil || e.QoS == 0 {
		return nil
	}
	topic, ok := rec.Header(record.TopicKey)
	if !ok {
		topic = rec.Key
	}
	f.srv.deliver(&f.delivery, &incoming{
		topic: topic, payload: rec.Value, props: e.Properties, publisher: unsafe.String(unsafe.SliceData(e.ClientID), len(e.ClientID)),
		partition: f.reading.partition, offset: rec.Offset, qos: e.QoS, hasExpiry: e.HasExpiry, expiry: e.ExpirySeconds,
	})
	return nil
}
