package segment

import (
	"fmt"
	"sync"
	"time"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/state"
)

// cut is a place in the journal and what was true there.
type cut struct {
	lsn   uint64
	ends  map[*Partition]int64 // end offset of each partition
	clean bool                 // the last one of a clean stop
	// followed says that a journal file is begun right behind lsn.
	followed bool
}

// checkpoints is the mailbox between the committer, which makes cuts, and the checkpointer.
type checkpoints struct {
	mu   sync.Mutex
	next *cut          // not taken up yet
	busy bool          // one is being made, or will be tried again
	err  error         // of the last one
	wake chan struct{} // capacity 1
	done chan struct{} // closed and replaced after each attempt
}

func newCheckpoints() *checkpoints {
	return &checkpoints{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// completed is closed when the next checkpoint ends, well or not.
func (c *checkpoints) completed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// take is the newest cut that was not taken yet, or nil. The state changes up to it are then overlay.taken.
func (c *checkpoints) take(o *overlay) *cut {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.next
	if next != nil {
		c.next, c.busy = nil, true
		o.take()
	}
	return next
}

// put replaces the cut that waits, if one does: the new one covers it.
func (c *checkpoints) put(next *cut, o *overlay) {
	c.mu.Lock()
	c.next = next
	o.cut()
	c.mu.Unlock()
	wake(c.wake)
}

// finish tells those who wait how an attempt ended.
func (c *checkpoints) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.busy = err, err != nil
	close(c.done)
	c.done = make(chan struct{})
}

// idle says whether no checkpoint is ordered or being made.
func (c *checkpoints) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next == nil && !c.busy
}

// lastError is why the last attempt failed, or nil.
func (c *checkpoints) lastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// orderCheckpoint hands the checkpointer a cut at lsn, the last LSN before a roll. By the committer, or when it has
// ended.
func (l *Log) orderCheckpoint(lsn uint64, clean bool) {
	c := &cut{lsn: lsn, ends: map[*Partition]int64{}, clean: clean, followed: !clean && l.journal.Follows(lsn)}
	for _, p := range l.allPartitions() {
		c.ends[p] = p.next
	}
	l.checkpoints.put(c, l.overlay)
}

// storeLazy lets the changes that cause no sync of their own ride along with the checkpoint that is ordered next. Not while
// a group is sealed or holds changes: its older values would come after them.
func (l *Log) storeLazy() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active.count > 0 {
		return // they go with it
	}
	for key, value := range l.lazy {
		e := journal.Entry{Kind: journal.KindPut, Key: []byte(key), Value: value}
		if value == nil {
			e.Kind = journal.KindDelete
		}
		l.overlay.applyEntry(&e)
	}
	clear(l.lazy)
}

// checkpointLoop makes checkpoints: as ordered, and when the last one is too old, until the log closes.
func (l *Log) checkpointLoop() {
	defer close(l.checkpointDone)
	timer := time.NewTimer(l.o.CheckpointInterval)
	defer timer.Stop()
	retry := minRetry
	for {
		select {
		case <-l.checkpoints.wake:
		case <-timer.C:
			if l.stale() {
				l.askForRoll()
			}
			timer.Reset(l.o.CheckpointInterval)
			continue
		case <-l.stop:
			return
		}
		for c := l.checkpoints.take(l.overlay); c != nil; {
			err := l.checkpoint(c)
			l.checkpoints.finish(err)
			l.checkRoom()
			if err == nil {
				retry = minRetry
				break
			}
			l.log.Error("checkpoint failed, trying again", "error", err, "in", retry)
			select {
			case <-time.After(retry):
				retry = min(2*retry, maxRetry)
			case <-l.stop:
				return
			}
			if newer := l.checkpoints.take(l.overlay); newer != nil {
				c = newer
			}
		}
		timer.Reset(l.o.CheckpointInterval)
	}
}

// checkpointNow makes a checkpoint while neither committer nor checkpointer runs.
func (l *Log) checkpointNow(lsn uint64) error {
	l.storeLazy()
	l.orderCheckpoint(lsn, true)
	err := l.checkpoint(l.checkpoints.take(l.overlay))
	l.checkpoints.finish(err)
	return err
}

// stale says whether there is anything that a checkpoint would store.
func (l *Log) stale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lazy) > 0 || l.journal.LastLSN() > l.store.Point().LSN
}

// checkpoint is checkpointOnce, and once more when it wants the room that is kept for it.
func (l *Log) checkpoint(c *cut) error {
	l.makeRoomForState()
	err := l.checkpointOnce(c)
	if files.NoSpace(err) && l.useReserve(err) {
		err = l.checkpointOnce(c)
	}
	l.space.state.Store(l.store.UsedBytes())
	return err
}

// checkpointOnce makes segments and state hold everything up to the cut, then lets the journal recycle what both state
// files cover. After an error nothing is recycled; it may be called again with the same or a later cut.
func (l *Log) checkpointOnce(c *cut) error {
	begin := time.Now()
	ends := map[string]int64{}
	for _, p := range l.allPartitions() { // in one order always, so that a test can repeat what happened
		end, ok := c.ends[p]
		if !ok {
			continue // made since
		}
		if err := l.settle(p, end); err != nil {
			return err
		}
		ends[p.String()] = p.chain.SyncedOffset()
	}
	point := state.Point{LSN: c.lsn, Ends: ends, Clean: c.clean, Followed: c.followed}
	err := l.store.Checkpoint(l.overlay.taken(), point)
	l.countState()
	if err != nil {
		return fmt.Errorf("store state: %w", err)
	}
	l.overlay.stored()
	l.counters.checkpoints.Add(1)
	for p := range c.ends {
		p.covered.add(ends[p.String()])
	}
	if !c.clean {
		l.journal.Release(l.store.OldestLSN())
		err := l.journal.Grow(2)
		if files.NoSpace(err) && l.useReserve(err) {
			err = l.journal.Grow(2)
		}
		if err != nil {
			l.log.Warn("journal can't grow, going on with fewer files", "error", err)
		}
	}
	l.log.Debug("checkpoint", "lsn", c.lsn, "took", time.Since(begin))
	return nil
}

// settle makes the partition's records below end durable in its segments.
func (l *Log) settle(p *Partition, end int64) error {
	if p.chain.SyncedOffset() >= end {
		return nil
	}
	for attempt := 0; ; attempt++ {
		if err := l.appendPartition(p); err != nil { // which also mends what a failed sync spoilt
			return fmt.Errorf("append to %s: %w", p, err)
		}
		err := p.chain.Sync()
		p.chainMu.Lock()
		l.countLocked(p)
		p.chainMu.Unlock()
		synced := p.chain.SyncedOffset()
		if err == nil && synced >= end {
			return nil
		}
		if err == nil { // the appender is just rewriting the segment
			err = fmt.Errorf("it ends at offset %d, %d is needed", synced, end)
		}
		if attempt > 0 {
			return fmt.Errorf("sync %s: %w", p, err)
		}
	}
}
