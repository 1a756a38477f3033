package mirror

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicemq/sluice/segment/record"
)

const (
	firstLimit   = 128 << 10 // a request's size before the link's rate is known
	leastLimit   = 16 << 10
	leastShare   = 64 << 10        // each broker may have this much in flight, however many they are
	passAlways   = 64 << 10        // a stored batch up to this size isn't cut up to suit a slow link
	steadyTime   = time.Second     // a request that takes no longer, beyond the round trip, may grow
	slowTime     = 3 * time.Second // one that takes longer shrinks
	trimAfter    = time.Second     // idle time after which buffers are freed
	producersMax = 8               // producer ids asked for at a time
)

// sender sends to one broker: one request in flight, at most one batch of each lane in it.
type sender struct {
	m    *Mirror
	node int32
	wake chan struct{} // capacity 1: a commit, or something changed for a lane
	// Capacity 1: the region came back, so a delay that grew while it was away ends. The manager's own delay was random.
	again chan struct{}

	// Of its goroutine only.
	buf     []byte // batches of the request in hand, one after the other
	items   []item
	ready   []*lane
	last    int // order of the lane served last: the next request begins behind it, so that none starves
	limit   int // bytes of a request, following the link's rate
	trip    time.Duration
	begun   time.Time // last request
	drained bool      // the last request took all there was
	down    bool      // unreachable, and logged as such
	retry   backoff
}

// item is one lane's batch in a request: buf[start:end].
type item struct {
	lane       *lane
	span       span
	sequence   int32
	untrusted  int64 // records whose true time isn't known
	start, end int
}

func newSender(m *Mirror, node int32) *sender {
	return &sender{m: m, node: node, wake: make(chan struct{}, 1), again: make(chan struct{}, 1), limit: firstLimit, retry: m.newBackoff()}
}

// run sends until the mirror closes or no lane is left for this broker.
func (s *sender) run() {
	defer s.m.wg.Done()
	s.m.log.Watch(s.wake)
	defer s.m.log.Unwatch(s.wake)
	for s.linger() {
		wait, ok := s.pick()
		if !ok {
			return
		}
		s.items = s.items[:0]
		if len(s.ready) == 0 {
			if !s.idle(wait) {
				return
			}
			continue
		}
		s.producers()
		if len(s.ready) > 0 {
			s.fill()
		}
		if len(s.items) > 0 {
			s.send()
		}
	}
}

// linger gives small commits time to gather, unless there is a backlog anyway. False when the mirror closes.
func (s *sender) linger() bool {
	if rest := s.m.opts.Linger - time.Since(s.begun); s.drained && rest > 0 {
		return s.m.pause(rest, nil)
	}
	select {
	case <-s.m.stop:
		return false
	default:
		return true
	}
}

// idle waits for something to do, at most for wait when that isn't negative.
func (s *sender) idle(wait time.Duration) bool {
	if cap(s.buf) <= keepBytes {
		return s.m.pause(wait, s.wake)
	}
	if wait < 0 || wait > trimAfter {
		begun := time.Now()
		if !s.m.pause(trimAfter, s.wake) {
			return false
		}
		if time.Since(begun) >= trimAfter {
			s.buf = nil
			s.m.cutting.Lock()
			s.m.cutter.release()
			s.m.cutting.Unlock()
		}
		return true
	}
	return s.m.pause(wait, s.wake)
}

// pick collects the lanes that have something to send, beginning behind the one that was served last, and takes them.
// wait is the time until the next one's delay is over, negative when none has one. ok is false when this sender isn't
// needed any more, and then the mirror has forgotten it.
func (s *sender) pick() (wait time.Duration, ok bool) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	s.ready = s.ready[:0]
	wait = -1
	mine := 0
	for _, t := range m.topics {
		for _, l := range t.lanes {
			if l.leader != s.node {
				continue
			}
			mine++
			if l.busy || l.pending.empty() && l.part.HighWatermark() <= l.next {
				continue
			}
			if d := l.notBefore.Sub(now); d > 0 && (l.hole == 0 || l.hole == l.part.HighWatermark()) {
				if wait < 0 || d < wait {
					wait = d
				}
				continue
			}
			s.ready = append(s.ready, l)
		}
	}
	if mine == 0 {
		delete(m.senders, s.node)
		return 0, false
	}
	if len(s.ready) > 0 {
		s.rotate()
		for _, l := range s.ready {
			l.busy = true
		}
		if now.Sub(m.asked) > metadataAge {
			m.lookAgain()
		}
	}
	return wait, true
}

// rotate puts the lanes behind the one served last first.
func (s *sender) rotate() {
	n := 0
	for n < len(s.ready) && s.ready[n].order <= s.last {
		n++
	}
	slices.Reverse(s.ready[:n])
	slices.Reverse(s.ready[n:])
	slices.Reverse(s.ready)
}

// producers gets a producer id for each ready lane that has none for this cluster and topic. A lane that gets none is
// dropped from ready.
func (s *sender) producers() {
	m := s.m
	m.mu.Lock()
	cluster := m.cluster
	var without []*lane
	for _, l := range s.ready {
		if !l.good(cluster, l.topic.id) {
			without = append(without, l)
		}
	}
	m.mu.Unlock()
	if len(without) == 0 {
		return
	}
	errs := make([]error, len(without))
	var wg sync.WaitGroup
	tokens := make(chan struct{}, producersMax)
	for i, l := range without {
		tokens <- struct{}{}
		wg.Go(func() {
			errs[i] = m.newProducer(l, cluster)
			<-tokens
		})
	}
	wg.Wait()
	kept := s.ready[:0]
	for _, l := range s.ready {
		if l.has {
			kept = append(kept, l)
		}
	}
	s.ready = kept
	for i, l := range without {
		if errs[i] != nil {
			m.fail(s, l, "no producer id: "+explain(errs[i]), quiet)
		}
	}
}

// fill makes the request's batches, until it is full or every ready lane has its batch, and lets go of the other lanes.
func (s *sender) fill() {
	s.buf = s.buf[:0]
	limit := min(s.limit, s.m.share())
	most := max(limit/len(s.ready), limit/4)
	s.drained = true
	served := 0
	for _, l := range s.ready {
		if len(s.items) > 0 && limit-len(s.buf) < min(most, s.m.opts.BatchBytes) {
			break
		}
		served++
		s.last = l.order
		it, err := s.cut(l, most)
		if errors.Is(err, errNothing) {
			s.m.wait(s, l)
			continue
		}
		if errors.Is(err, errUnclear) {
			s.m.waitClock(s, l)
			continue
		}
		if err != nil {
			s.m.fail(s, l, "the local log can't be read: "+err.Error(), loud)
			continue
		}
		if it.span.to < l.part.HighWatermark() {
			s.drained = false
		}
		s.items = append(s.items, it)
	}
	if served < len(s.ready) {
		s.drained = false
		s.m.release(s, s.ready[served:]...)
	}
}

// cut appends l's next batch, of at most about that many bytes, to the request: what is pending again, or else new.
func (s *sender) cut(l *lane, most int) (it item, err error) {
	s.m.cutting.Lock()
	defer s.m.cutting.Unlock()
	for {
		s.m.skipLost(l)
		it, err = s.cutOnce(l, most)
		if err == nil {
			l.unread = time.Time{}
			return it, nil
		}
		if !l.lost() && !s.m.skipDamaged(l, err) { // it may leave the log at any moment
			return it, err
		}
	}
}

func (s *sender) cutOnce(l *lane, most int) (it item, err error) {
	m := s.m
	it = item{lane: l, span: l.pending, sequence: l.sequence, start: len(s.buf)}
	if !it.span.empty() {
		m.cutter.waits = false // it was sent before
		s.buf, err = m.cutter.exactly(s.buf, l.part, it.span)
	} else {
		sz := l.size
		sz.pass, sz.limit = min(sz.limit, max(most, passAlways)), min(sz.limit, most)
		m.cutter.waits = m.waitsForClock()
		s.buf, it.span, err = m.cutter.next(s.buf, l.part, l.next, &sz)
		l.size.raw, l.hole = sz.raw, 0
		if err == nil && it.span.empty() {
			err = errNothing
		}
	}
	if err != nil {
		s.buf = s.buf[:it.start]
		return it, err
	}
	it.end, it.untrusted = len(s.buf), m.cutter.untrusted
	record.Restamp(record.Batch(s.buf[it.start:it.end]), 0, -1, l.producer.id, l.producer.epoch, it.sequence)
	return it, nil
}

// send sends the request and settles each of its batches.
func (s *sender) send() {
	m := s.m
	req := kmsg.NewPtrProduceRequest()
	m.mu.Lock()
	for i := range s.items {
		it := &s.items[i]
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = it.lane.id, s.buf[it.start:it.end:it.end]
		t := it.lane.topic
		at := slices.IndexFunc(req.Topics, func(rt kmsg.ProduceRequestTopic) bool { return rt.Topic == t.remote })
		if at >= 0 {
			req.Topics[at].Partitions = append(req.Topics[at].Partitions, p)
			continue
		}
		// By name up to version 12, by id from 13 on: the connection's version isn't known yet, so both are filled.
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID = t.remote, it.lane.producer.topic
		rt.Partitions = append(rt.Partitions, p)
		req.Topics = append(req.Topics, rt)
	}
	m.totals.Requests++
	for i := range s.items {
		if !s.items[i].lane.pending.empty() {
			m.totals.Retries++
		}
		s.items[i].lane.pending = s.items[i].span
	}
	m.mu.Unlock()

	s.begun = time.Now()
	resp, err := m.region.produce(m.sending, s.node, req)
	if err != nil {
		s.unanswered(err)
		return
	}
	s.pace(time.Since(s.begun))
	s.answered(resp)
}

// pace follows the link: a request should carry about what it takes a second to send.
func (s *sender) pace(took time.Duration) {
	if s.trip == 0 || took < s.trip {
		s.trip = took
	}
	switch beyond := took - s.trip; {
	case beyond < steadyTime && len(s.buf) > s.limit/2:
		s.limit = min(2*s.limit, s.m.opts.RequestBytes)
	case beyond > slowTime:
		s.limit = max(s.limit/2, leastLimit)
	}
}

// unanswered keeps what was sent pending: whether it arrived isn't known, so it goes again with the same sequences, to
// whichever broker leads by then, and a region that has it answers with success.
func (s *sender) unanswered(err error) {
	m := s.m
	s.limit = max(s.limit/2, leastLimit)
	s.trip = 0
	delay := s.retry.next()
	m.mu.Lock()
	if s.retry.failures > 1 && !s.down && m.sending.Err() == nil && m.state == Up {
		s.down = true
		m.lg.Warn("mirror: broker doesn't answer, its records are kept; if others do, check the address that it advertises",
			"broker", s.node, "address", m.brokers[s.node], "reason", unreachable(err, true))
	}
	for i := range s.items {
		s.items[i].lane.problem = unreachable(err, true)
	}
	m.mu.Unlock()
	m.lookAgain()
	for i := range s.items {
		m.release(s, s.items[i].lane)
	}
	m.pause(delay, s.again)
}
