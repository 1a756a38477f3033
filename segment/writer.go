package segment

import (
	"fmt"
	"time"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
	"github.com/sluicemq/sluice/segment/state"
)

// Waiter is told the fate of the groups that its Writer joined.
type Waiter interface {
	// Committed is called once for each group that the writer joined, in order, after the group is durable
	// (err nil) or finally not stored (err says why). It runs on the committer's goroutine: it must not block and
	// must not call Begin.
	Committed(group uint64, err error)
}

// Writer adds records and state changes for one owner, such as a connection. Not safe for concurrent use.
type Writer struct {
	log    *Log
	waiter Waiter // nil: not told

	// under Log.mu
	group uint64 // the last group joined
	epoch uint64 // the last epoch counted in
	dirty bool   // something was added since Begin
}

// NewWriter makes a writer. w may be nil.
func (l *Log) NewWriter(w Waiter) *Writer { return &Writer{log: l, waiter: w} }

// Begin takes the log's lock until End, for all that the caller has at hand: what is added goes into one group.
// It waits while the group in hand is full, and for a moment while segments are evicted for what is to come; when the disk
// hangs it fails with ErrUnavailable. On an error (ErrFull, ErrUnavailable, ErrClosed) the lock is not held. ErrFull means that
// no topic takes records. One topic alone may be full as well: ask Topic.Refused before Append, between Begin and End, where
// the answer can't change. Nothing slow may happen before End.
func (w *Writer) Begin() error { return w.begin(ofRecords) }

// BeginState is Begin for state changes alone, which a used-up disk budget does not refuse, as long as the reserve lasts.
func (w *Writer) BeginState() error { return w.begin(ofState) }

// Look takes the log's lock until End whatever the log refuses, for a look at Next and for lazy changes. Nothing else may be added.
func (w *Writer) Look() { w.log.mu.Lock() }

// What a writer wants to add.
const (
	ofRecords = iota
	ofState
	ofRetention // changes of state that make room
)

func (w *Writer) begin(kind int) error {
	l := w.log
	l.mu.Lock()
	for {
		r := l.refused
		if r != nil && r.kind == ErrFull && (kind == ofRetention || kind == ofState && l.causes[causeState] == nil) {
			r = nil
		}
		if r != nil {
			l.mu.Unlock()
			return r
		}
		if l.active.bytes < l.o.MaxBytes && (kind != ofRecords || !l.retention.draining) {
			return nil
		}
		if r := l.stuck(); r != nil {
			l.mu.Unlock()
			return r
		}
		l.waitForRoomLocked()
	}
}

// Append adds a copy of r to the partition, whether or not its topic is refused: ask Topic.Refused. Between Begin and End
// only. r.Offset is not used.
func (w *Writer) Append(p *Partition, r *record.Record) {
	g := w.log.active
	b := &p.builders[g.seq&1]
	before := b.Len()
	if before == 0 {
		g.parts = append(g.parts, p)
	}
	b.Append(r)
	p.after++
	g.bytes += b.Len() - before
	g.records++
	w.dirty = true
}

// Next is the offset that the next record appended to the partition gets: all that were appended before, durable or not yet,
// lie below it. Between Begin and End only. (A group that is given up when the log closes takes the offsets of its records back.)
func (w *Writer) Next(p *Partition) int64 { return p.after }

// Group is the number of the group that takes what is added now. Between Begin and End only.
func (w *Writer) Group() uint64 { return w.log.active.seq }

// Enlist has another writer's Waiter told of the fate of the group that w adds to, as if it had added something itself; the group
// doesn't wait for it. Between Begin and End of w only.
func (w *Writer) Enlist(other *Writer) {
	if g := w.log.active; other.group != g.seq && other.waiter != nil {
		other.group = g.seq
		g.wake = append(g.wake, other)
	}
}

// MaxKeyBytes is the longest key of a state value.
const MaxKeyBytes = state.MaxKeyBytes

// checkKey keeps a key out that no checkpoint could store: one would make all of them fail, for ever.
func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("state key of %d bytes is not within 1 to %d", len(key), MaxKeyBytes)
	}
	return nil
}

func mustKey(key []byte) {
	if err := checkKey(key); err != nil {
		panic("segment: " + err.Error())
	}
}

// changes is the group that takes a state change. An older lazy change of the key must not come after it.
func (w *Writer) changes(key []byte) *group {
	mustKey(key)
	if l := w.log; len(l.lazy) > 0 {
		delete(l.lazy, string(key))
	}
	w.dirty = true
	return w.log.active
}

// Put stores a value under a key of 1 to MaxKeyBytes bytes. Between Begin and End only. The last value of a key in a
// group wins.
func (w *Writer) Put(key, value []byte) {
	g := w.changes(key)
	before := len(g.changes)
	g.changes = journal.AppendPut(g.changes, key, value)
	g.bytes += len(g.changes) - before
	g.count++
}

// PutLazy is Log.PutLazy between Begin and End: in one step with what is looked at there, so that no older value follows.
func (w *Writer) PutLazy(key, value []byte) { w.log.putLazyLocked(key, value) }

// DeleteLazy removes a key with the next group or checkpoint, as PutLazy stores a value. Between Begin and End only.
func (w *Writer) DeleteLazy(key []byte) {
	mustKey(key)
	w.log.lazy[string(key)] = nil
}

// Delete removes a key of 1 to MaxKeyBytes bytes. Between Begin and End only.
func (w *Writer) Delete(key []byte) {
	g := w.changes(key)
	before := len(g.changes)
	g.changes = journal.AppendDelete(g.changes, key)
	g.bytes += len(g.changes) - before
	g.count++
}

// End gives the lock back. It returns the number of the group that holds what was added since Begin, 0 for nothing.
// Group numbers rise by one. Group g+1 fills while g is synced, and is not sealed before each Committed call of g
// has returned.
func (w *Writer) End() (group uint64) {
	l := w.log
	if !w.dirty {
		l.mu.Unlock()
		return 0
	}
	w.dirty = false
	g := l.active
	if g.first.IsZero() {
		g.first = time.Now()
	}
	if w.group != g.seq {
		w.group = g.seq
		g.members++
		if w.waiter != nil {
			g.wake = append(g.wake, w)
		}
	}
	if w.epoch != l.activity.epoch {
		w.epoch = l.activity.epoch
		l.activity.present++
	}
	group = g.seq
	l.nudgeLocked()
	l.mu.Unlock()
	return group
}

// nudgeLocked wakes the committer if it waits for what is now there.
func (l *Log) nudgeLocked() {
	switch l.committer {
	case awaitingFirst:
	case awaitingMore:
		if !l.readyLocked() {
			return
		}
	case awaitingToken:
		if !l.pressingLocked() {
			return
		}
	default:
		return
	}
	l.committer = busy
	wake(l.wake)
}

// readyLocked says whether the group in hand is worth a sync at once.
func (l *Log) readyLocked() bool {
	g := l.active
	return g.urgent || g.bytes >= l.o.MaxBytes || g.members >= l.activity.enough()
}

// Append stores one record and seals its group at once. For the few, not for a stream.
func (l *Log) Append(p *Partition, r *record.Record) (Ticket, error) {
	w := l.NewWriter(nil)
	if err := w.Begin(); err != nil {
		return Ticket{}, err
	}
	if err := p.topic.Refused(); err != nil {
		w.End()
		return Ticket{}, err
	}
	index := int64(p.builders[l.active.seq&1].Count())
	w.Append(p, r)
	return l.endWithTicket(w, p, index), nil
}

// Put stores a state value and seals its group at once.
func (l *Log) Put(key, value []byte) (Ticket, error) {
	if err := checkKey(key); err != nil {
		return Ticket{}, err
	}
	w := l.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		return Ticket{}, err
	}
	w.Put(key, value)
	return l.endWithTicket(w, nil, 0), nil
}

// Delete removes a state value and seals its group at once.
func (l *Log) Delete(key []byte) (Ticket, error) {
	if err := checkKey(key); err != nil {
		return Ticket{}, err
	}
	w := l.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		return Ticket{}, err
	}
	w.Delete(key)
	return l.endWithTicket(w, nil, 0), nil
}

func (l *Log) endWithTicket(w *Writer, p *Partition, index int64) Ticket {
	g := l.active
	g.urgent = true
	if g.outcome == nil {
		g.outcome = &outcome{done: make(chan struct{}), bases: map[*Partition]int64{}}
	}
	t := Ticket{g.outcome, p, index}
	w.epoch = l.activity.epoch // not one of those whom a group waits for
	w.End()
	return t
}
