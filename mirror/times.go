package mirror

import (
	"errors"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

// A region keeps records by their timestamps, so what a gateway stamped at 1970 would be gone there at once. Once the log knows
// by how much its clock was wrong, timestamps are put right on their way: in the header of a batch, if all of it is moved alike,
// else record by record. Until then lanes wait, but not for ever.

// errUnclear says that the next record's timestamp may be wrong, and may soon be known better.
var errUnclear = errors.New("the clock wasn't trusted when the record was stamped")

// clockLook is the time between two looks at a lane that waits for the clock.
const clockLook = time.Second

// waitsForClock tells whether records of a clock that wasn't trusted wait: not when nothing more can be learned.
func (m *Mirror) waitsForClock() bool {
	return time.Now().Before(m.clockUntil) && !m.log.ClockTrusted()
}

// waitClock has a lane wait for the clock, and lets go of it.
func (m *Mirror) waitClock(s *sender, l *lane) {
	now := time.Now()
	m.mu.Lock()
	l.notBefore = now.Add(max(0, min(clockLook, m.clockUntil.Sub(now))))
	l.problem = "stamped by a clock that isn't trusted yet: waits for a time daemon, at most clock_wait"
	m.logTroubleLocked(l.topic, l.problem)
	m.mu.Unlock()
	m.release(s, l)
}

// moved says what is added to the timestamps of b's records; alike is false when that isn't the same for all of them.
func (c *cutter) moved(b record.Batch) (ms int64, known, alike bool) {
	if c.correction == nil {
		return 0, true, true
	}
	first, firstKnown := c.correction(b.BaseTimestamp())
	last, lastKnown := c.correction(b.MaxTimestamp())
	return first, firstKnown, first == last && firstKnown == lastKnown
}

func (c *cutter) alike(b record.Batch) bool {
	_, _, alike := c.moved(b)
	return alike
}

// put is r with its timestamp put right. The error is errUnclear.
func (c *cutter) put(r *record.Record) (*record.Record, error) {
	if c.correction == nil {
		return r, nil
	}
	ms, known := c.correction(r.Timestamp)
	switch {
	case !known && c.waits:
		return nil, errUnclear
	case !known:
		c.untrusted++
	case ms != 0:
		c.record = *r
		c.record.Timestamp += ms
		return &c.record, nil
	}
	return r, nil
}
