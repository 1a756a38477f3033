package segment

import (
	"math"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

// openClock goes on with the log's time where it stopped. By Open, after recovery.
func (l *Log) openClock() {
	c := &Clock{read: l.o.now, log: l.log, stepLine: -1}
	if c.read == nil {
		c.system = newSystemClock()
		c.read = c.system.read
	}
	l.clock = c
	r := c.read()
	s, err := l.storedClock()
	switch {
	case err != nil:
		l.log.Error("damage found", "what", err)
		l.damaged("in the state: %v", err)
		c.begin(r, l.newestStamp())
	case s == nil:
		c.begin(r, l.newestStamp())
	default:
		c.resume(r, s)
	}
	c.tell()
	c.saved, c.unsaved = math.MinInt64/2, false // it goes with the first record; until then the next start finds out the same
	if !c.trusted {
		l.log.Warn("the wall clock is not trusted until a time daemon vouches for it", "now", utc(r.wall), "records_are_stamped_from", utc(c.leastLocked(r.mono)))
	}
}

// storedClock is what the state has of the clock, nil for nothing.
func (l *Log) storedClock() (*clockState, error) {
	value, ok, err := l.Get([]byte(clockKey))
	if err != nil || !ok {
		return nil, err
	}
	return parseClockState(value)
}

// newestStamp is the greatest timestamp in the last batch of any partition, 0 for none.
func (l *Log) newestStamp() (newest int64) {
	for _, p := range l.allPartitions() {
		high := p.HighWatermark()
		if high == p.StartOffset() {
			continue
		}
		buf, err := p.Read(nil, high-1, 1)
		if err != nil {
			continue // whoever needs the records says so
		}
		if b, _, err := record.Next(buf); err == nil {
			newest = max(newest, b.MaxTimestamp())
		}
	}
	return newest
}

// begin is the first start of a log, or of one whose clock is lost. newest is the greatest timestamp found in it.
func (c *Clock) begin(r reading, newest int64) {
	if r.wall >= earliestMs && newest > r.wall+yearMs {
		newest = 0 // one jump to a far future must not last for ever
	}
	start := r.wall
	if newest > 0 {
		start, c.hold = newest, newest
	}
	c.elapsed, c.floor = start-r.mono, start-r.mono
	c.boot(r)
}

// resume goes on where s was kept.
func (c *Clock) resume(r reading, s *clockState) {
	last := len(s.epochs) - 1
	c.epochs, c.now = s.epochs[:last:last], s.epochs[last]
	if !c.now.empty() {
		c.now.to += s.slack
	}
	c.hold, c.ever, c.gap = s.hold, s.ever, s.gap
	c.elapsed, c.floor = s.elapsed-r.mono, s.floor-r.mono
	if s.bootID != r.bootID || r.bootID == [16]byte{} || r.boot < s.boot {
		if !c.now.empty() {
			c.epochs = append(c.epochs, c.now)
		}
		for i := range c.epochs {
			c.epochs[i].flags &^= open
		}
		c.epochs = compact(c.epochs, maxEpochs-1)
		c.hold = max(c.hold, s.floor+s.slack) + 1 // a stamp of before must not be one of now, too
		c.boot(r)
		return
	}
	passed := r.boot - s.boot
	c.elapsed += passed
	c.floor += passed
	c.wall = s.wall + passed - r.mono
	c.trusted, c.synced = s.trusted, s.synced
	c.anchor, c.base = c.wall, c.elapsed-c.now.shift
	c.line = c.base
	c.lookLocked(r)
}

// boot is what follows a stop of the machine, whose length nobody knows yet.
func (c *Clock) boot(r reading) {
	c.wall = r.wall - r.mono
	c.anchor = c.wall
	c.gap = true
	c.now = emptyEpoch() // its flags are those of no epoch, so one begins
	if r.synced || !c.ever && c.plausible(r.mono) {
		c.trust(r, r.synced)
		c.follow(r.mono)
	}
	c.turn()
}

// leastLocked is what nothing is stamped below.
func (c *Clock) leastLocked(mono int64) int64 { return max(mono+c.floor, c.hold) }

// keep is what goes into the state: slack is how far stamps may go on before the next one does, in ms.
func (c *Clock) keep(slack int64) []byte {
	r := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved, c.unsaved = r.mono, false
	hold := c.hold
	if c.last <= r.mono+c.floor+slewMs+jitterMs { // a little ahead of the floor: the next start goes on from there; from further ahead, stamps may go back
		hold = max(hold, c.last)
	}
	now := c.now
	if !now.empty() {
		now.to = max(now.to, r.mono+c.line, hold) // slack counts from here, not from the last stamp
	}
	s := clockState{
		bootID: r.bootID, boot: r.boot,
		elapsed: r.mono + c.elapsed, floor: r.mono + c.floor, wall: r.mono + c.wall, hold: hold, slack: slack,
		trusted: c.trusted, synced: c.synced, ever: c.ever, gap: c.gap,
		epochs: append(c.epochs[:len(c.epochs):len(c.epochs)], now),
	}
	return s.append(nil)
}

// Stamp is the timestamp of a record that is taken now, in ms: the wall clock's, but not below the floor. Between Begin and
// End only, so that whatever is new about the clock is committed together with the record. now is at most a little old.
func (w *Writer) Stamp(now time.Time) int64 {
	l, c := w.log, w.log.clock
	var wall, mono int64
	if c.system != nil {
		wall, mono = now.UnixMilli(), now.Sub(c.system.base).Milliseconds()
	} else {
		r := c.read()
		wall, mono = r.wall, r.mono
	}
	stamp, save := c.stamp(wall, mono)
	if save {
		l.lazy[clockKey] = c.keep(slackMs)
	}
	return stamp
}

// clockLoop looks at the clock while nobody stamps records, until the log closes.
func (l *Log) clockLoop() {
	defer close(l.clockDone)
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	var stored time.Time
	for {
		select {
		case <-l.clockStop:
			return
		case <-tick.C:
		}
		if l.clock.look() && (stored.IsZero() || time.Since(stored) >= stepEvery) { // a clock that goes mad must not wear the flash out
			l.storeClock()
			stored = time.Now()
		}
	}
}

// storeClock makes a change of the clock durable, and doesn't wait for it. Stamps of before and after it may be durable
// already: they went together with the change.
func (l *Log) storeClock() {
	w := l.NewWriter(nil)
	if w.BeginState() != nil { // then it goes with the first group that the disk takes
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lazy[clockKey] = l.clock.keep(slackMs)
		return
	}
	w.Put([]byte(clockKey), l.clock.keep(slackMs))
	l.active.urgent = true
	w.epoch = l.activity.epoch // not one of those whom a group waits for
	w.End()
}

// stopClock ends clockLoop. By Close, once writers are refused.
func (l *Log) stopClock() {
	close(l.clockStop)
	<-l.clockDone
	l.clock.tell()
}
