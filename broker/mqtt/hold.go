package mqtt

import (
	"slices"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// What a session has in flight at QoS 2 is durable before it is sent: the ids of a stretch of messages go into one commit group, and the
// messages wait in session.out.held for it. QoS 1 progress is put into the state about once a second, without a sync of its own: a crash
// repeats at most what that leaves.

const (
	keepEvery     = time.Second
	keepLazyBytes = 64 << 10 // of progress that may wait for a group at once; more makes one
)

// heldGroup is what waits for a commit group.
type heldGroup struct {
	group    uint64
	sessions []*session
}

// hold notes that the session has messages that wait.
func (f *fanout) hold(ss *session) {
	if !slices.Contains(f.holding, ss) {
		f.holding = append(f.holding, ss)
	}
}

// commitHeld has the ids of the messages that wait made durable.
func (f *fanout) commitHeld() {
	if len(f.holding) == 0 {
		return
	}
	if err := f.writer.BeginState(); err != nil {
		f.srv.warn(warnState, "QoS 2 messages wait: their packet ids can't be stored now", "cause", err)
		return // later brings us here again
	}
	for _, ss := range f.holding {
		f.putAll(f.writer, ss) // what is leased must not be leased again
		ss.mu.Lock()
		ss.out.committing = true
		ss.mu.Unlock()
	}
	f.pending = append(f.pending, heldGroup{f.writer.End(), f.holding})
	f.holding = nil
}

// putProgress puts how far the session has come into the state. The log's lock is held.
func (f *fanout) putProgress(w *segment.Writer, ss *session) {
	key, value := f.progressOf(ss, nil)
	w.Put(key, value)
}

// putAll is putProgress for the session and for what it is a member of.
func (f *fanout) putAll(w *segment.Writer, ss *session) {
	f.putProgress(w, ss)
	for _, g := range ss.sharing() {
		f.putProgress(w, g)
	}
}

// progressOf is the state that says how far the session has come, which is taken to be stored with that. The value is appended to b.
func (f *fanout) progressOf(ss *session, b []byte) (key, value []byte) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.unkept = false
	if ss.share != nil {
		ss.stored = true
		return stateKey(sharePrefix, ss.id), ss.encodeShare(b, f)
	}
	return stateKey(progressPrefix, ss.id), ss.encodeProgress(b, f)
}

// Committed implements segment.Waiter.
func (f *fanout) Committed(group uint64, err error) {
	if err != nil {
		return // the log closes, and so does every connection
	}
	f.mu.Lock()
	f.committed = group
	f.mu.Unlock()
	f.nudge()
}

// sendCommitted sends what has waited for groups up to committed.
func (f *fanout) sendCommitted(committed uint64) {
	for len(f.pending) > 0 && f.pending[0].group <= committed {
		for _, ss := range f.pending[0].sessions {
			ss.mu.Lock()
			ss.sendHeldLocked(&f.delivery)
			ss.mu.Unlock()
			ss.blocked.end(blockedCommit)
		}
		f.pending = slices.Delete(f.pending, 0, 1)
	}
}

// sendHeldLocked sends what has waited for a commit.
func (ss *session) sendHeldLocked(d *delivery) {
	held := ss.out.held
	ss.out.held, ss.out.committing = nil, false
	c := ss.conn
	if c == nil || len(held) == 0 {
		return
	}
	c.srv.queued.Add(-int64(len(held)))
	for i := range ss.out.flights {
		ss.out.flights[i].tried = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.closed {
		return
	}
	c.queueLocked(held)
	c.touchLocked(d)
}

// noteLocked notes that the session has come further than the state knows. ss.mu is held.
func (f *fanout) noteLocked(ss *session) {
	if ss.unkept || ss.share == nil && !ss.lasting {
		return
	}
	ss.unkept = true
	f.mu.Lock()
	f.unkept = append(f.unkept, ss)
	first := len(f.unkept) == 1
	f.mu.Unlock()
	if first {
		f.nudge()
	}
}

// keepProgress puts into the state what has been noted, about once a second.
func (f *fanout) keepProgress() {
	now := f.srv.clock()
	if now-f.kept < int64(keepEvery) {
		return
	}
	f.mu.Lock()
	list := f.unkept
	f.unkept = nil
	f.mu.Unlock()
	if len(list) == 0 {
		return
	}
	f.kept = now
	if err := f.writer.BeginState(); err != nil {
		f.mu.Lock()
		f.unkept = append(f.unkept, list...)
		f.mu.Unlock()
		return
	}
	size := 0
	for _, ss := range list {
		ss.mu.Lock()
		wanted := ss.unkept && (ss.conn != nil || ss.share != nil && ss.memberLasts()) // else it was stored when the client left
		ss.mu.Unlock()
		if !wanted {
			continue
		}
		key, value := f.progressOf(ss, f.scratch[:0])
		f.scratch = value
		if size += len(key) + len(value); size <= keepLazyBytes {
			f.writer.PutLazy(key, value)
		} else {
			f.writer.Put(key, value)
		}
	}
	f.writer.End()
}
