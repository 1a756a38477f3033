package mirror

import (
	"errors"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// diskPatience is how long a lane waits for a disk that doesn't give it its next records before it goes on behind them: what
// a driver or a bus reset brings back is back by then.
const diskPatience = 5 * time.Minute

// skipDamaged moves a lane beyond records that are damaged in the log, if that is what err says. The cursor goes with it: it
// is said and counted once. False where there are none, or where the disk may still give them.
func (m *Mirror) skipDamaged(l *lane, err error) bool {
	var bad *segment.DamageError
	if !errors.As(err, &bad) {
		return false
	}
	now := time.Now()
	if l.unread.IsZero() {
		l.unread = now
	}
	if bad.Unreadable() && now.Sub(l.unread) < m.diskPatience {
		return false
	}
	if !l.pending.empty() {
		m.forgetPending(l)
		return true // what is whole of it goes again
	}
	from, to := max(bad.Offset, l.next), min(bad.Resume, l.part.HighWatermark())
	if to <= from {
		return false
	}
	m.mu.Lock()
	l.next = to
	l.damaged += to - from
	m.totals.Lost += to - from
	m.totals.Damaged += to - from
	l.unread = time.Time{}
	l.retry.reset()
	if l.problem != "" {
		l.problem = ""
		m.wellLocked(l.topic)
	}
	data := appendCursor(nil, l.producer, l.sequence)
	m.mu.Unlock()
	l.part.SetCursor(m.opts.Region, to, data)
	m.lg.Error("mirror: records are damaged in the log and are passed over", "topic", l.topic.name, "partition", l.id,
		"from", from, "to", to, "records", to-from, "cause", err)
	return true
}

// forgetPending gives up sending a batch again as it was: the log doesn't have all of it any more, and what of it arrived can't
// be asked for.
func (m *Mirror) forgetPending(l *lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.sequence = sequenceAfter(l.sequence, l.pending.count())
	m.totals.PossibleDuplicates += l.pending.count()
	l.pending = span{}
}
