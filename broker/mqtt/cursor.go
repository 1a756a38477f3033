package mqtt

import (
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// cursor is how far a session has come in one partition. A session keeps no messages: what it wasn't sent yet is in the log.
type cursor struct {
	// next is the offset of the first record that the session may still need.
	next int64
	// behind says that records are read for it from next on. Otherwise it is live: it gets what the fan-out reads, from
	// next on.
	behind bool
}

// blocking is why a session that is behind can't be sent anything now. Set by the fan-out's goroutine, cleared by whoever makes
// room, who then wakes the fan-out.
type blocking struct{ why atomic.Int32 }

const (
	blockedNot     = iota
	blockedWindow  // too many messages are unacknowledged
	blockedSocket  // too many bytes wait to be written
	blockedCommit  // QoS 2 messages wait for their ids to be durable
	blockedMembers // no member of a shared subscription has room
)

func (b *blocking) is() bool      { return b.why.Load() != blockedNot }
func (b *blocking) set(why int32) { b.why.Store(why) }
func (b *blocking) clear()        { b.why.Store(blockedNot) }

// end ends the blocking if it is for the reason why.
func (b *blocking) end(why int32) bool { return b.why.CompareAndSwap(why, blockedNot) }

// roomDelay is how long a session that is behind may have less than half of its window free before records are read for it: for
// each single acknowledgement that would be too dear.
const roomDelay = 5 * time.Millisecond

// roomLocked notes that a message was acknowledged. ss.mu is held.
func (f *fanout) roomLocked(ss *session, window int) {
	f.madeRoom(ss)
	if ss.blocked.why.Load() != blockedWindow {
		return
	}
	if ss.out.sent <= window/2 {
		ss.blocked.end(blockedWindow)
	} else {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.roomSince > 0 {
			return
		}
		f.roomSince = f.srv.clock()
	}
	f.nudge()
}

// find is the number of the reader of a partition, -1 if there is none.
func (f *fanout) find(topic, partition uint64) int {
	for i, r := range f.readers {
		if uint64(r.partition.Topic().ID()) == topic && uint64(r.partition.ID()) == partition {
			return i
		}
	}
	return -1
}

// progress is the offset up to which the session needs nothing any more of the partition of reader at. ss.mu is held.
func (f *fanout) progress(ss *session, at int) int64 {
	p := &ss.cursors[at]
	if p.behind {
		return p.next
	}
	return max(p.next, f.readers[at].next.Load())
}

// begin gives a session that has no subscription yet its places: it gets what is appended from now on. Between Begin and End of w.
func (f *fanout) begin(ss *session, w *segment.Writer) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.cursors == nil {
		ss.cursors = make([]cursor, len(f.readers))
	}
	for i, r := range f.readers {
		ss.cursors[i] = cursor{next: w.Next(r.partition)}
	}
}

// behindAll gives a session of an earlier run its cursors: at the end of each partition, unless its state says otherwise.
func (f *fanout) behindAll(ss *session) {
	ss.cursors = make([]cursor, len(f.readers))
	for i, r := range f.readers {
		ss.cursors[i] = cursor{next: r.partition.HighWatermark(), behind: true}
	}
}

// starts are where one more subscription of the session begins, nil if the session has come as far everywhere. Between Begin and End
// of w.
func (f *fanout) starts(ss *session, w *segment.Writer) *topics.Starts {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var starts topics.Starts
	for i, r := range f.readers {
		if next := w.Next(r.partition); f.progress(ss, i) < next {
			if starts == nil {
				starts = make(topics.Starts, len(f.readers))
			}
			starts[i] = next
		}
	}
	if starts == nil {
		return nil
	}
	return &starts
}
