package segment

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
)

// What the committer is doing, under Log.mu.
const (
	busy          = iota // looks at the group in hand by itself when it is done
	awaitingFirst        // to be woken by the first message
	awaitingMore         // to be woken when the group is ready
	awaitingToken        // to be woken when the group presses
)

// How long to wait before the next attempt while the disk refuses.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 5 * time.Second
)

// commitLoop seals groups and makes them durable, one after the other, until the log closes.
func (l *Log) commitLoop() {
	defer close(l.commitDone)
	for {
		g, more := l.nextGroup()
		if g != nil {
			l.commit(g)
		}
		if !more {
			return
		}
		l.rollIfAsked()
	}
}

// nextGroup waits until the group in hand is worth a sync, and seals it. It returns nil when a roll was asked for,
// and more false when the log closes.
func (l *Log) nextGroup() (g *group, more bool) {
	l.mu.Lock()
	for l.active.empty() && !l.closing && !l.rollWanted {
		l.committer = awaitingFirst
		l.mu.Unlock()
		<-l.wake
		l.mu.Lock()
	}
	l.activity.turn(time.Now(), time.Duration(l.syncNanos.Load()))
	if l.active.empty() {
		defer l.mu.Unlock()
		l.committer = busy
		return nil, !l.closing
	}
	if !l.readyLocked() && !l.closing && l.o.MaxDelay > 0 {
		l.awaitLocked(awaitingMore, l.o.MaxDelay)
	}
	l.committer = busy
	l.mu.Unlock()
	l.awaitToken()
	l.disk.begin() // until the group is durable
	l.memory.wait(l.stop)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sealLocked(), !l.closing
}

// awaitLocked gives the lock away until the committer is woken for what it waits for, or the time is over.
func (l *Log) awaitLocked(what int, atMost time.Duration) {
	l.committer = what
	l.mu.Unlock()
	l.timer.Reset(atMost)
	select {
	case <-l.wake:
	case <-l.timer.C:
	}
	l.timer.Stop()
	l.mu.Lock()
	l.committer = busy
}

// sealLocked closes the group in hand and lets the other one fill.
func (l *Log) sealLocked() *group {
	g := l.active
	l.addLazyLocked(g)
	l.active = l.groups[(g.seq+1)&1]
	l.room.Broadcast()
	return g
}

// addLazyLocked lets the changes that cause no sync of their own ride along.
func (l *Log) addLazyLocked(g *group) {
	for key, value := range l.lazy {
		if value == nil {
			g.changes = journal.AppendDelete(g.changes, []byte(key))
		} else {
			g.changes = journal.AppendPut(g.changes, []byte(key), value)
		}
		g.count++
	}
	clear(l.lazy)
}

// commit makes a sealed group durable, then visible, and tells its members.
func (l *Log) commit(g *group) {
	l.encode(g)
	err := l.persist()
	l.disk.end()
	if err == nil {
		l.delayNanos.Add((int64(time.Since(g.first)) - l.delayNanos.Load()) / 8)
		l.publish(g)
	}
	if o := g.outcome; o != nil {
		o.err = err
		close(o.done)
	}
	for _, w := range g.wake {
		w.waiter.Committed(g.seq, err)
	}
	if err == nil && g.records > 0 {
		l.watchers.signal()
	}
	l.checkRoom()
	for _, p := range g.parts {
		if t := p.topic; t.checked != g.seq {
			t.checked = g.seq
			l.checkTopic(t)
		}
	}
	l.frame.Reset(2 * l.o.MaxBytes)
	l.mu.Lock()
	for _, p := range g.parts {
		b := &p.builders[g.seq&1]
		if err != nil {
			p.after -= int64(b.Count())
		}
		b.Reset(l.keepBytes())
	}
	g.clear(g.seq+2, 64<<10)
	l.mu.Unlock()
}

// encode puts the group into the frame. The batches get their offsets here: before, the group before might still fail.
func (l *Log) encode(g *group) {
	for _, p := range g.parts {
		b := p.builders[g.seq&1].Seal(p.next)
		g.batches = append(g.batches, b)
		if g.outcome != nil {
			g.outcome.bases[p] = p.next
		}
	}
	l.fillFrame(g)
	l.packFrame(g)
}

// persist writes the frame to the journal. While the disk refuses, it refuses writers, keeps the group and tries
// again; it gives up only when the log closes.
func (l *Log) persist() error {
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		begin := time.Now()
		err := l.tryPersist()
		if err == nil {
			l.syncNanos.Add((int64(time.Since(begin)) - l.syncNanos.Load()) / 8)
			l.refuse(causeJournal, nil)
			return nil
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, journal.ErrTooLarge) {
			return err // the latter would never fit, and must not keep all others waiting
		}
		l.refuse(causeJournal, &refusal{ErrUnavailable, err})
		if files.NoSpace(err) && l.useReserve(err) {
			continue
		}
		select {
		case <-time.After(retry):
		case <-l.stop:
			return &refusal{ErrClosed, err}
		}
	}
}

func (l *Log) tryPersist() error {
	if !l.journal.Fits(&l.frame) {
		if err := l.roll(); err != nil {
			return err
		}
	}
	_, err := l.journal.Append(&l.frame)
	if err == nil || errors.Is(err, journal.ErrTooLarge) {
		return err
	}
	l.log.Error("journal write failed, going on in the spare file", "error", err)
	l.counters.journalFailures.Add(1)
	if err := l.journal.Failover(); err != nil {
		if !errors.Is(err, journal.ErrNoFreeFile) {
			return err
		}
		if err := l.journal.Grow(1); err != nil {
			return err
		}
		if err := l.journal.Failover(); err != nil {
			return err
		}
	}
	_, err = l.journal.Append(&l.frame)
	return err
}

// roll goes on in the next journal file and orders a checkpoint of everything before it. It waits until a file is
// free.
func (l *Log) roll() error {
	retry := minRetry
	for ordered := 0; ; {
		done := l.checkpoints.completed()
		cut, err := l.journal.Roll()
		if err == nil {
			l.orderCheckpoint(cut, false)
			return nil
		}
		if !errors.Is(err, journal.ErrNoFreeFile) {
			return err
		}
		if err := l.checkpoints.lastError(); err != nil {
			l.refuse(causeJournal, &refusal{ErrUnavailable, fmt.Errorf("the journal is full: %w", err)})
		}
		if l.checkpoints.idle() { // one more lets the older state file catch up, which frees a file
			if ordered++; ordered > 2 {
				// Nothing is left to be freed, and no file can be made: checkpoints in a row would only wear the flash out.
				l.refuse(causeJournal, &refusal{ErrUnavailable, fmt.Errorf("the journal has too few files and can't grow: %w", err)})
				select {
				case <-time.After(retry):
					retry = min(2*retry, maxRetry)
				case <-l.stop:
					return &refusal{ErrClosed, err}
				}
			}
			l.orderCheckpoint(l.journal.LastLSN(), false)
		}
		l.o.wait()
		select {
		case <-done:
		case <-l.stop:
			return &refusal{ErrClosed, err}
		}
	}
}

// rollIfAsked begins a new journal file for a checkpoint by time or by pending state. If none is free, and no checkpoint
// is under way to change that, the checkpoint is made without: it lets the journal grow again.
func (l *Log) rollIfAsked() {
	l.mu.Lock()
	asked := l.rollWanted
	l.rollWanted = false
	l.mu.Unlock()
	if !asked {
		return
	}
	cut, err := l.journal.Roll()
	switch {
	case err == nil || errors.Is(err, journal.ErrNoFreeFile) && l.checkpoints.idle():
		l.storeLazy()
		l.orderCheckpoint(cut, false)
	case !errors.Is(err, journal.ErrNoFreeFile):
		l.log.Warn("journal can't begin a new file for a checkpoint, trying again later", "error", err)
	}
}

// publish makes a durable group visible: state, batches, high watermarks. Whoever sees a record sees the state that
// belongs to it.
func (l *Log) publish(g *group) {
	if g.count > 0 {
		if err := l.overlay.apply(g.changes, g.count); err != nil {
			panic("segment: state changes of a group don't decode: " + err.Error())
		}
		if l.overlay.pendingBytes() > l.maxPendingState() {
			l.askForRoll()
		}
	}
	for i, p := range g.parts {
		p.publish(g.batches[i], &l.free)
		l.memory.add(len(g.batches[i]))
	}
	l.kickAppender()
}

// askForRoll makes the committer begin a new journal file, and with it a checkpoint.
func (l *Log) askForRoll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rollWanted = true
	if l.committer == awaitingFirst {
		l.committer = busy
		wake(l.wake)
	}
}
