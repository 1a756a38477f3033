package segment

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How retention is paced.
const (
	evictBatch     = 4                     // segments in one commit group
	evictPause     = 60 * time.Millisecond // between two of them, unless writers wait
	retainTick     = time.Second           // how often the file system is looked at while anything changes
	retainIdle     = 10 * time.Second      // how often anything is looked at
	drainPatience  = 2 * time.Second       // how long writers wait for room before they are refused
	coverPatience  = 10 * time.Second      // how long to wait for a checkpoint
	maxCoverRounds = 4                     // checkpoints ordered for one eviction: two, and those that were under way
)

// retention is what evicting keeps in mind.
type retention struct {
	wake    chan struct{} // capacity 1
	done    chan struct{} // closed when the loop has ended; from the start if there is none
	evicted evictions
	gaps    atomic.Int64 // in the state

	// Immutable after Open.
	partitions int                          // of all topics in the state
	older      map[string]int64             // the ends that the older state file has
	ageOf      func(ms int64) time.Duration // tests have a clock of their own

	changing sync.Mutex // held by whoever changes gaps in the state

	// Under Log.mu.
	looping  bool
	draining bool        // records wait for an eviction
	timer    *time.Timer // ends draining
}

func (l *Log) kickRetention() {
	wake(l.retention.wake)
}

// startRetention begins to evict, once the log is open.
func (l *Log) startRetention() {
	l.countGaps()
	l.retention.done = make(chan struct{})
	l.mu.Lock()
	l.retention.looping = true
	l.mu.Unlock()
	l.checkSpace()
	l.checkRoom()
	go l.retainLoop()
	l.kickRetention()
}

// retainLoop evicts what is old or too much, and watches the file system, until the log closes.
func (l *Log) retainLoop() {
	defer close(l.retention.done)
	tick := time.NewTicker(retainTick)
	defer tick.Stop()
	var last time.Time
	var seen uint64
	for {
		select {
		case <-l.retention.wake:
		case <-tick.C:
			commits, full := l.activitySeen()
			if commits == seen && !full && time.Since(last) < retainIdle {
				continue
			}
			seen = commits
		case <-l.stop:
			return
		}
		last = time.Now()
		if !l.retain() {
			return
		}
	}
}

// activitySeen tells the number of commits, and whether records are refused for want of room.
func (l *Log) activitySeen() (commits uint64, full bool) {
	for _, t := range *l.topics.Load() {
		full = full || t.Refused() != nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active.seq, full || l.space.full.Load() != nil
}

// retain makes passes until there is nothing to evict for now. It returns false when the log closes.
func (l *Log) retain() bool {
	for failures := 0; ; {
		begin := time.Now()
		more, err := l.retainOnce()
		pause := max(evictPause, 2*time.Since(begin)) // a slow disk is left alone for longer
		switch {
		case errors.Is(err, ErrClosed):
			return false
		case err != nil:
			if failures++; failures == 1 {
				l.log.Warn("can't evict now, trying again", "error", err)
			}
			pause = retainTick
		case !more:
			return true
		case l.pressed():
			pause = 0
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-l.stop:
				return false
			}
		}
	}
}

// pressed says whether writers wait for room.
func (l *Log) pressed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retention.draining
}

// drain has records wait until room is made, unless nothing makes any: then they are refused.
func (l *Log) drain(used int64) {
	r, tell := &l.retention, nothing
	l.mu.Lock()
	switch {
	case l.causes[causeBudget] != nil || r.draining:
	case r.looping:
		r.draining = true
		r.timer = time.AfterFunc(drainPatience, l.giveUpDraining)
		l.kickRetention()
	default:
		tell = l.refuseLocked(causeBudget, l.fullRefusal(used, "nobody evicts"))
	}
	l.mu.Unlock()
	tell()
}

// giveUpDraining refuses records that have waited long enough.
func (l *Log) giveUpDraining() {
	used, tell := l.usedBytes(), nothing
	l.mu.Lock()
	if l.retention.draining {
		l.endDrainingLocked()
		tell = l.refuseLocked(causeBudget, l.fullRefusal(used, "segments can't be removed as fast"))
	}
	l.mu.Unlock()
	tell()
}

func (l *Log) endDrainingLocked() {
	if l.retention.draining {
		l.retention.draining = false
		l.retention.timer.Stop()
		l.room.Broadcast()
	}
}

func (l *Log) endRetention() {
	<-l.retention.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endDrainingLocked()
}

// judge ends the waiting for room, or the refusal, when there is some, and begins the refusal when no more will be evicted
// now.
func (l *Log) judge(more bool, err error) {
	why := "nothing is left that may be evicted"
	if err != nil {
		why = "nothing can be evicted: " + err.Error()
	}
	used, tell := l.usedBytes(), nothing
	l.mu.Lock()
	switch {
	case used <= l.plan.SoftBytes:
		tell = l.refuseLocked(causeBudget, nil)
		l.endDrainingLocked()
	case used < l.plan.LimitBytes:
		l.endDrainingLocked()
	case !more || err != nil:
		tell = l.refuseLocked(causeBudget, l.fullRefusal(used, why))
		l.endDrainingLocked()
	}
	l.mu.Unlock()
	tell()
}

// retainOnce makes one pass: it evicts a batch of segments, or brings about that the next pass can. more says that the
// next pass should follow. Errors are those of a log that can't be written now. For one goroutine.
func (l *Log) retainOnce() (more bool, err error) {
	l.checkSpace()
	return l.makePass(l.newPass())
}

// makePass is retainOnce with what there is to see.
func (l *Log) makePass(s *pass) (more bool, err error) {
	err = s.plan()
	switch {
	case err != nil:
	case len(s.victims) > 0:
		more, err = true, l.evict(s.victims)
	case len(s.seal) > 0:
		more, err = true, l.seal(s.seal)
	case len(s.uncovered) > 0:
		more, err = l.cover(s.uncovered)
	}
	more = more || s.sides
	l.judge(more, err)
	for _, t := range *l.topics.Load() {
		l.checkTopic(t)
	}
	return more, err
}

// seal closes active segments and makes them durable, so that they can be evicted.
func (l *Log) seal(list []*Partition) error {
	for _, p := range list {
		if err := p.chain.Seal(); err != nil {
			return fmt.Errorf("close a segment of %s: %w", p, err)
		}
		if err := p.chain.Sync(); err != nil { // what is poisoned, the next append mends
			return fmt.Errorf("sync a segment of %s: %w", p, err)
		}
	}
	return nil
}

// cover makes checkpoints until both state files know of segments that are to be evicted. If the newer file were lost, the
// older one's end of the partition would else lie below all that is left of it. It says whether that was achieved.
func (l *Log) cover(list []victim) (bool, error) {
	missing := func() bool {
		return slices.ContainsFunc(list, func(v victim) bool { return v.p.covered.both.Load() < v.span.End })
	}
	for range maxCoverRounds {
		if !missing() {
			break
		}
		done := l.checkpoints.completed()
		l.askForRoll()
		l.o.wait()
		timer := time.NewTimer(coverPatience)
		select {
		case <-done:
			timer.Stop()
		case <-timer.C:
			return false, fmt.Errorf("%w: a checkpoint takes longer than %v", ErrUnavailable, coverPatience)
		case <-l.stop:
			timer.Stop()
			return false, ErrClosed
		}
		if err := l.checkpoints.lastError(); err != nil {
			return false, fmt.Errorf("checkpoint before evicting: %w", err)
		}
	}
	return !missing(), nil
}

// evict makes the new starts and the gaps of the victims durable in one commit group, and then removes their segments. A
// crash before leaves all as it was, one after is finished by the next Open.
func (l *Log) evict(victims []victim) error {
	starts := map[*Partition]int64{}
	var list []*Partition // in order
	for _, v := range victims {
		if _, known := starts[v.p]; !known {
			list = append(list, v.p)
		}
		starts[v.p] = v.span.End
	}
	unmirrored, err := l.commitEviction(victims, list, starts)
	if err != nil {
		return fmt.Errorf("evict: %w", err)
	}
	for _, p := range list {
		l.dropBelow(p, starts[p])
	}
	for i, v := range victims {
		l.countEviction(v, unmirrored[i])
	}
	return nil
}

// commitEviction is evict's commit group. It returns how many records of each victim some follower had not passed.
func (l *Log) commitEviction(victims []victim, list []*Partition, starts map[*Partition]int64) (unmirrored []int64, err error) {
	l.retention.changing.Lock()
	defer l.retention.changing.Unlock()
	gaps := map[*Partition]gapChange{}
	unmirrored = make([]int64, len(victims))
	for i := range victims {
		v := &victims[i]
		g, ok := l.gapOf(v)
		if !ok {
			continue
		}
		unmirrored[i] = g.Records
		if err := l.addGapTo(gaps, v.p, g); err != nil {
			return nil, err
		}
	}
	err = l.commitState(func(w *Writer) {
		for _, p := range list {
			w.Put(startKey(p), binary.BigEndian.AppendUint64(nil, uint64(starts[p])))
			c := gaps[p]
			for _, first := range c.delete {
				w.Delete(gapKey(p, first))
			}
			for _, g := range c.put {
				w.Put(gapKey(p, g.First), g.encode())
			}
			// What is no gap because a follower has passed it must not be one after a crash either: its cursor may be in one state
			// file only, or in none yet.
			for _, owner := range p.topic.followers {
				if value := p.passed.cursor(owner); value != nil {
					w.Put(cursorKey(p, owner), value)
				}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		l.retention.gaps.Add(gaps[p].more)
	}
	return unmirrored, nil
}

// addGapTo adds a gap to those that the partition has in the state and in changes.
func (l *Log) addGapTo(changes map[*Partition]gapChange, p *Partition, g Gap) error {
	c, again := changes[p]
	var have []Gap
	if again { // the last one put is the newest
		if last := c.put[0]; last.Last+1 == g.First && last.Reason == g.Reason {
			c.put[0] = last.join(g)
			return nil
		}
	}
	stored, err := l.Gaps(p)
	if err != nil {
		return fmt.Errorf("gaps of %s: %w", p, err)
	}
	for _, s := range stored {
		if !slices.Contains(c.delete, s.First) && !slices.ContainsFunc(c.put, func(n Gap) bool { return n.First == s.First }) {
			have = append(have, s)
		}
	}
	have = append(have, c.put...)
	slices.SortFunc(have, func(a, b Gap) int { return cmp.Compare(a.First, b.First) })
	next := addGap(have, g)
	for _, n := range c.put {
		if !slices.Contains(next.delete, n.First) && !slices.ContainsFunc(next.put, func(m Gap) bool { return m.First == n.First }) {
			next.put = append(next.put, n)
		}
	}
	next.delete = append(next.delete, c.delete...)
	next.more += c.more
	changes[p] = next
	return nil
}

// dropBelow removes segments once their end is the durable start. What can't be removed now stays counted as used, and the
// chain tries again.
func (l *Log) dropBelow(p *Partition, start int64) {
	p.start.Store(start)
	err := p.chain.Drop(start)
	p.chainMu.Lock()
	l.countLocked(p)
	p.chainMu.Unlock()
	stuck, bytes, _, why := p.chain.Stuck()
	switch {
	case err != nil:
		l.log.Warn("can't remove evicted segments yet", "partition", p.String(), "below", start, "error", err)
	case stuck > 0 && !p.stuck:
		l.log.Warn("can't remove evicted segments, trying again; until then they count as used", "partition", p.String(), "segments", stuck, "bytes", bytes, "error", why)
	case stuck == 0 && p.stuck:
		l.log.Info("evicted segments are removed at last", "partition", p.String())
	}
	p.stuck = stuck > 0
}

func (l *Log) countEviction(v victim, unmirrored int64) {
	reason := v.reason.String()
	records := v.span.End - v.from
	first := l.retention.evicted.add(v.p.topic.name, reason, records, v.span.Bytes, unmirrored)
	log := l.log.Debug
	if first {
		log = l.log.Info
	}
	log("evicting the oldest records", "partition", v.p.String(), "reason", reason, "from", v.from, "to", v.span.End-1,
		"bytes", v.span.Bytes, "unmirrored", unmirrored)
}
