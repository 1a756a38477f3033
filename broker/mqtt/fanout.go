package mqtt

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// fanout reads what has become durable and hands QoS 1 and 2 messages to their subscribers. It keeps a position for
// each partition and no messages, so however far it lags behind its memory stays the same. While nobody who
// subscribes to anything is connected it isn't woken at all.
//
// A session that has no room for a message, or has just come back, is behind: its place stays at that message, and the same goroutine reads the
// log for it from there (catchup.go) until it is live again.
type fanout struct {
	srv     *Server
	readers []*reader // one for each partition; immutable
	wake    chan struct{}
	stop    chan struct{}

	walkWaits atomic.Bool // a walk waits for a commit

	mu        sync.Mutex
	users     int        // connected sessions with a subscription
	since     []int64    // high watermarks when the first of them came; taken over by run
	leaving   []*session // whose clients have left
	coming    []*session // whose clients have come back
	unkept    []*session // with progress that the state doesn't know
	committed uint64     // the last group of the writer that is durable
	roomSince int64      // since when a session that is behind has room for a little, on the server's clock in ns; 0: none has

	// run's goroutine only
	buf      []byte
	decoder  *record.Decoder
	reading  *reader
	each     func(*record.Record) error
	delivery delivery

	catching []*session          // those that are behind
	turn     int                 // whose turn it is in catching
	chunk    uint64              // number of the batch that sessions are caught up with
	parts    int                 // sessions that take part in it, still
	least    int64               // offset of the first record that one of them needs
	taking   func(*session) bool // whether a session takes part

	writer  *segment.Writer // for what must be durable before it is sent
	holding []*session      // that have such messages now
	pending []heldGroup
	scratch []byte
	kept    int64 // when progress was last put into the state, on the server's clock in ns
}

// reader is the fan-out's place in one partition.
type reader struct {
	partition *segment.Partition
	index     int          // in fanout.readers
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
	f.taking = func(ss *session) bool { return ss.chunk == f.chunk && ss.catching }
	f.writer = s.log.NewWriter(f)
	for _, t := range s.log.Topics() {
		for _, p := range t.Partitions() {
			f.readers = append(f.readers, &reader{partition: p, index: len(f.readers)})
		}
	}
	return f
}

// nudge has the fan-out look at what there is to do.
func (f *fanout) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// join tells that a connected session has a subscription now. What was committed before is not its business, or its place is behind.
func (f *fanout) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users++; f.users == 1 {
		f.srv.log.Watch(f.wake)
		f.since = make([]int64, len(f.readers))
		for i, r := range f.readers {
			f.since[i] = r.partition.HighWatermark()
		}
	}
}

// comeBack tells that the client of a session is here again.
func (f *fanout) comeBack(ss *session) {
	f.mu.Lock()
	f.coming = append(f.coming, ss)
	f.mu.Unlock()
	f.nudge()
}

// leave tells that a session has no subscription any more, or no connection.
func (f *fanout) leave(ss *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ss.expiry > 0 {
		f.leaving = append(f.leaving, ss)
	}
	f.leaving = append(f.leaving, ss.sharing()...)
	if f.users--; f.users == 0 {
		f.srv.log.Unwatch(f.wake)
		f.nudge()
	}
}

// run is the fan-out's goroutine.
func (f *fanout) run() {
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
		case <-f.later():
		}
		for more := true; more; {
			f.turnover()
			more = f.pass()
			if f.catchUp() {
				more = true
			}
			f.srv.flushTouched(&f.delivery)
			f.commitHeld()
			f.keepProgress()
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

// later tells when something is to be done that nobody wakes the fan-out for; nil if nothing is.
func (f *fanout) later() <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.roomSince > 0:
		return time.After(roomDelay)
	case len(f.unkept) > 0 || len(f.holding) > 0:
		return time.After(keepEvery)
	}
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

// turnover takes note of who came and went, in the order in which that was.
func (f *fanout) turnover() {
	f.mu.Lock()
	leaving, coming, since, committed := f.leaving, f.coming, f.since, f.committed
	f.leaving, f.coming, f.since = nil, nil, nil
	room := f.roomSince > 0 && f.srv.clock()-f.roomSince >= int64(roomDelay)
	if room {
		f.roomSince = 0
	}
	f.mu.Unlock()
	for _, ss := range leaving {
		f.fallBehind(ss)
	}
	for i, next := range since {
		f.readers[i].skipTo(next)
	}
	for _, ss := range coming {
		f.follow(ss)
	}
	f.sendCommitted(committed)
	if room {
		for _, ss := range f.catching {
			ss.blocked.end(blockedWindow)
		}
	}
}

// fallBehind makes the session's places those of one that isn't read for: from where the fan-out is.
func (f *fanout) fallBehind(ss *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for at := range ss.cursors {
		if p := &ss.cursors[at]; !p.behind {
			*p = cursor{next: f.progress(ss, at), behind: true}
		}
	}
	if ss.here() { // it is back already, or has other members
		f.followLocked(ss)
	}
}

// follow makes the session one of those that are caught up with.
func (f *fanout) follow(ss *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	f.followLocked(ss)
}

func (f *fanout) followLocked(ss *session) {
	if !ss.catching {
		ss.catching = true
		f.catching = append(f.catching, ss)
	}
}

func (r *reader) skipTo(offset int64) { r.next.Store(max(r.next.Load(), offset)) }

// pass reads once from each partition that has something new, and says whether any had.
func (f *fanout) pass() (more bool) {
	f.mu.Lock()
	idle := f.users == 0
	f.mu.Unlock()
	return !idle && f.readLive()
}

func (f *fanout) readLive() (more bool) {
	for _, r := range f.readers {
		switch end := r.partition.HighWatermark(); {
		case r.next.Load() >= end:
			r.again = 0
		case r.again <= f.srv.clock():
			f.read(r, end)
			more = true
		}
	}
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

// lost goes on at next, behind what can't be read from an offset on. It stays in the log; only those who are live now miss it.
func (f *fanout) lost(r *reader, from, next int64, err error) {
	f.srv.drops.Count(r.partition.Topic().Name(), dropUnreadable, next-from)
	f.srv.warn(warnFanout, "stored messages can't be handed to subscribers", "topic", r.partition.Topic().Name(),
		"partition", r.partition.ID(), "from", from, "to", next, "cause", err)
	r.skipTo(next)
}

const dropUnreadable = "not readable for fan-out"

// record hands one record to those that are live.
func (f *fanout) record(rec *record.Record) error {
	r := f.reading
	if rec.Offset < r.next.Load() {
		return nil
	}
	in, ok := f.message(rec, r)
	if ok && in.hasExpiry {
		if in.expiry, ok = f.srv.timeLeft(in.expiry, in.stamp); !ok {
			f.srv.countDrop(r.partition, dropExpired)
		}
	}
	if ok {
		f.srv.deliver(&f.delivery, &in)
		for _, ss := range f.delivery.fell {
			f.follow(ss)
		}
		f.delivery.fell = f.delivery.fell[:0]
	}
	r.next.Store(rec.Offset + 1)
	return nil
}

// message is the MQTT message that a record holds, unless there is none or it was handed on when it came (QoS 0). It aliases the record.
func (f *fanout) message(rec *record.Record, r *reader) (in incoming, ok bool) {
	value, ok := rec.Header(record.EnvelopeKey)
	if !ok {
		return in, false
	}
	e, err := record.ParseEnvelope(value)
	if err != nil || e.QoS == 0 {
		return in, false
	}
	topic, ok := rec.Header(record.TopicKey)
	if !ok {
		topic = rec.Key
	}
	return incoming{
		topic: topic, payload: rec.Value, props: e.Properties, publisher: unsafe.String(unsafe.SliceData(e.ClientID), len(e.ClientID)),
		reader: r.index, from: r.partition, offset: rec.Offset, stamp: rec.Timestamp, qos: e.QoS, retain: e.Retain, hasExpiry: e.HasExpiry, expiry: e.ExpirySeconds,
	}, true
}

// unfollow takes a session out of those that are caught up with.
func (f *fanout) unfollow(ss *session) {
	ss.catching = false
	if i := slices.Index(f.catching, ss); i >= 0 {
		f.catching = slices.Delete(f.catching, i, i+1)
		if f.turn > i {
			f.turn--
		}
	}
}
