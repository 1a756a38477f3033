package mirror

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// verdict is what an answer to a batch means for its lane.
type verdict int

const (
	refused  verdict = iota // not stored, and won't be before somebody does something: say so, try again later
	stored                  // the cursor moves
	again                   // stored or not: once more, unchanged
	moved                   // another broker leads: look at the metadata, then once more
	fenced                  // the producer is of no use any more: a new one, from the cursor
	tooLarge                // not stored: send less, down to a single record
)

var verdicts = map[int16]verdict{
	0:                                      stored,
	kerr.DuplicateSequenceNumber.Code:      stored,
	kerr.UnknownServerError.Code:           again,
	kerr.RequestTimedOut.Code:              again,
	kerr.NotEnoughReplicas.Code:            again,
	kerr.NotEnoughReplicasAfterAppend.Code: again,
	kerr.NetworkException.Code:             again,
	kerr.ThrottlingQuotaExceeded.Code:      again,
	kerr.CorruptMessage.Code:               again,
	kerr.NotLeaderForPartition.Code:        moved,
	kerr.LeaderNotAvailable.Code:           moved,
	kerr.FencedLeaderEpoch.Code:            moved,
	kerr.UnknownTopicOrPartition.Code:      moved,
	kerr.UnknownTopicID.Code:               moved,
	kerr.InconsistentTopicID.Code:          moved,
	kerr.KafkaStorageError.Code:            moved,
	kerr.ReplicaNotAvailable.Code:          moved,
	kerr.BrokerNotAvailable.Code:           moved,
	kerr.OutOfOrderSequenceNumber.Code:     fenced,
	kerr.UnknownProducerID.Code:            fenced,
	kerr.InvalidProducerEpoch.Code:         fenced,
	kerr.InvalidProducerIDMapping.Code:     fenced,
	kerr.ProducerFenced.Code:               fenced,
	kerr.MessageTooLarge.Code:              tooLarge,
	kerr.RecordListTooLarge.Code:           tooLarge,
}

// volume says whether a lane's problem is worth a line at once, or only when it lasts.
type volume bool

const (
	loud  volume = true
	quiet volume = false
)

// answered settles every batch of the request.
func (s *sender) answered(resp *kmsg.ProduceResponse) {
	m := s.m
	s.retry.reset()
	if s.down {
		s.down = false
		m.lg.Info("mirror: broker answers again", "broker", s.node)
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			if it := s.item(t, p.Partition); it != nil {
				s.settle(it, p)
				it.lane = nil
			}
		}
	}
	for i := range s.items {
		if l := s.items[i].lane; l != nil {
			m.fail(s, l, "the broker's answer leaves the partition out", loud)
		}
	}
}

// item finds what an answer is about: by id from version 13 on, else by name.
func (s *sender) item(t *kmsg.ProduceResponseTopic, partition int32) *item {
	for i := range s.items {
		it := &s.items[i]
		if it.lane == nil || it.lane.id != partition {
			continue
		}
		if t.Topic == it.lane.topic.remote || t.Topic == "" && t.TopicID == it.lane.producer.topic {
			return it
		}
	}
	return nil
}

func (s *sender) settle(it *item, p *kmsg.ProduceResponseTopicPartition) {
	m, l := s.m, it.lane
	err := kerr.ErrorForCode(p.ErrorCode)
	if err != nil && p.ErrorMessage != nil && *p.ErrorMessage != "" {
		err = &refusal{err, *p.ErrorMessage}
	}
	switch verdicts[p.ErrorCode] {
	case stored:
		m.stored(s, it)
	case again:
		m.fail(s, l, explain(err), quiet)
	case moved:
		m.fail(s, l, explain(err), quiet)
		m.lookAgain()
	case fenced:
		m.fenced(s, it, err)
	case tooLarge:
		if it.span.count() > 1 {
			m.mu.Lock()
			l.shrink(it.end - it.start)
			l.pending = span{} // refused before anything was stored: the records may be divided otherwise
			m.mu.Unlock()
			m.release(s, l)
			return
		}
		m.fail(s, l, fmt.Sprintf("offset %d: %s", it.span.from, explain(err)), loud)
	default:
		m.fail(s, l, explain(err), loud)
	}
}

// stored moves the cursor beyond a batch that the region has.
func (m *Mirror) stored(s *sender, it *item) {
	l := it.lane
	m.mu.Lock()
	l.next = it.span.to
	l.sequence = sequenceAfter(it.sequence, it.span.count())
	l.pending = span{}
	l.retry.reset()
	l.notBefore = time.Time{}
	if l.problem != "" {
		l.problem = ""
		m.wellLocked(l.topic)
	}
	m.totals.Records += it.span.count()
	if it.untrusted > 0 && m.totals.Untrusted == 0 {
		m.lg.Warn("mirror: records are sent with the timestamps of a clock that wasn't trusted; the region may drop them as too old, or keep them too long",
			"topic", l.topic.remote, "partition", l.id, "offset", it.span.from, "records", it.untrusted)
	}
	m.totals.Untrusted += it.untrusted
	m.totals.Bytes += int64(it.end - it.start)
	next, data := l.next, appendCursor(nil, l.producer, l.sequence)
	m.mu.Unlock()
	if it.span.count() == 1 {
		l.tooLarge = 0 // a record that was alone too large isn't any more
	}
	l.grow(m.opts.BatchBytes)
	l.part.SetCursor(m.opts.Region, next, data)
	m.release(s, l)
}

// fenced gives up the lane's producer: the region lost its memory of it, or gave it to somebody else. What was sent
// goes again under a new one, and a region that has it from an earlier try has it twice then.
func (m *Mirror) fenced(s *sender, it *item, err error) {
	l := it.lane
	m.mu.Lock()
	l.has = false
	l.pending = span{}
	m.totals.PossibleDuplicates += it.span.count()
	first := l.problem == ""
	m.mu.Unlock()
	level := slog.LevelWarn
	if !first {
		level = slog.LevelDebug // it goes on like that: once was enough
	}
	m.lg.Log(m.sending, level, "mirror: the region refuses the lane's producer; sending from the cursor with a new one, records may arrive twice",
		"topic", l.topic.remote, "partition", l.id, "offset", it.span.from, "records", it.span.count(), "reason", explain(err))
	m.fail(s, l, explain(err), quiet)
}

// fail makes a lane wait before its next try, and lets go of it. A loud problem is logged at once, a quiet one, that
// restarts and elections bring along, when it lasts.
func (m *Mirror) fail(s *sender, l *lane, text string, v volume) {
	m.mu.Lock()
	l.notBefore = time.Now().Add(l.retry.next())
	l.problem = text
	if (v == loud || l.retry.failures > quietFailures) && m.stopping.Err() == nil {
		m.logTroubleLocked(l.topic, text)
	}
	m.mu.Unlock()
	m.release(s, l)
}

// wait has a lane wait for new records: after a crash a log may end with a hole, up to what another region has seen.
// A delay besides, in case the log is about to say otherwise.
func (m *Mirror) wait(s *sender, l *lane) {
	m.mu.Lock()
	l.hole = l.part.HighWatermark()
	l.notBefore = time.Now().Add(l.retry.next())
	m.mu.Unlock()
	m.release(s, l)
}

// release lets go of lanes, and tells the broker that leads them now.
func (m *Mirror) release(s *sender, lanes ...*lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range lanes {
		l.busy = false
		if other := m.senders[l.leader]; other != nil && other != s {
			signal(other.wake)
		}
	}
}

// newProducer gets the lane, which the caller has busy, a producer for the topic as it is now.
func (m *Mirror) newProducer(l *lane, cluster string) error {
	m.mu.Lock()
	topicID := l.topic.id
	l.has = false
	m.mu.Unlock()
	id, epoch, err := m.region.producerID(m.stopping)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l.producer = producer{id: id, epoch: epoch, cluster: cluster, topic: topicID}
	l.has = true
	l.sequence = 0 // a partition that was never written takes no other first one (Kafka 4.5)
	m.totals.PossibleDuplicates += l.pending.count()
	l.pending = span{}
	return nil
}

// lost says whether the log has no longer what the lane wants next.
func (l *lane) lost() bool {
	start := l.part.StartOffset()
	return start > l.next || !l.pending.empty() && start > l.pending.from
}

// skipLost moves a lane beyond what the log doesn't have any more. The cursor goes with it: it is said and counted once.
func (m *Mirror) skipLost(l *lane) {
	if !l.lost() {
		return
	}
	m.mu.Lock()
	start := l.part.StartOffset()
	lost := start - l.next
	l.next, l.unread = start, time.Time{}
	if !l.pending.empty() { // what of it arrived can't be asked for any more
		l.sequence = sequenceAfter(l.sequence, l.pending.count())
		l.pending = span{}
	}
	m.totals.Lost += lost
	data := appendCursor(nil, l.producer, l.sequence)
	m.mu.Unlock()
	l.part.SetCursor(m.opts.Region, start, data)
	m.lg.Warn("mirror: records left the log before the region had them", "topic", l.topic.name, "partition", l.id, "records", lost, "next", start)
}

// share is how much each broker may have in flight.
func (m *Mirror) share() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.opts.RequestBytes/max(len(m.senders), 1), leastShare)
}

func isCode(err error, code *kerr.Error) bool {
	var e *kerr.Error
	return errors.As(err, &e) && e.Code == code.Code
}
