package mqtt

import (
	"slices"
	"unsafe"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// walk is what a subscription has yet to get of the retained messages (MQTT 5 §3.3.1.3). Nothing is buffered for it: the fan-out's
// goroutine looks the messages up as the client takes them. All of it is under session.mu.
type walk struct {
	store  *retained.Store
	filter string
	sub    topics.Subscription
	mark   uint64            // what changed after it arrives live
	at     retained.Position // of what was looked at last
	group  uint64            // in which the newest of the messages may be: it must be durable
	suback uint64            // the group whose commit the SUBACK waits for, 0: it was sent
	begun  bool              // the SUBACK is queued
	ahead  []string          // topics behind at that were sent already, at most maxAhead
}

const (
	maxAhead      = 64         // messages that a walk sends out of turn
	maxWalkOutput = flushBytes // bytes that wait to be written at most when a walk goes on
	walkMessages  = 256        // in one turn
)

// startWalk lets a subscription that begins get what is retained: under the log's lock and keeper.handing, in one step with the
// place at which its live messages begin. repeated says that the session had the subscription already.
func (c *conn) startWalk(filter string, sub topics.Subscription, repeated bool) {
	ss := c.session
	ss.mu.Lock()
	defer ss.mu.Unlock()
	o := &ss.out
	at := slices.IndexFunc(o.walks, func(w walk) bool { return w.filter == filter })
	if repeated && at >= 0 {
		if sub.RetainHandling == 1 {
			o.walks[at].sub = sub // what is left of the first one's
			return
		}
		o.walks = slices.Delete(o.walks, at, at+1)
	}
	if topics.IsShared(filter) || sub.RetainHandling == 2 || sub.RetainHandling == 1 && repeated {
		return
	}
	w := walk{store: c.srv.retainedBy(filter), filter: filter, sub: sub}
	if n, _ := w.store.Len(); n == 0 && !w.store.Unsettled() {
		return
	}
	w.mark, w.group = w.store.Mark()
	o.walks = append(o.walks, w)
}

// retainedBy is the store of the topics that filter matches: no wildcard matches into $SYS (MQTT 5 §4.7.2).
func (s *Server) retainedBy(filter string) *retained.Store {
	if isSys(filter) {
		return s.sys.store
	}
	return s.keeper.store
}

// beginWalks is called once the SUBACK is queued, behind which retained messages go.
func (c *conn) beginWalks() {
	ss := c.session
	c.mu.Lock()
	suback := uint64(0)
	if c.acks.open() {
		suback = c.acks.newest
	}
	c.mu.Unlock()
	ss.mu.Lock()
	any := false
	for i := range ss.out.walks {
		if w := &ss.out.walks[i]; !w.begun {
			w.begun, w.suback, any = true, suback, true
		}
	}
	ss.mu.Unlock()
	if any {
		c.srv.fanout.comeBack(ss)
	}
}

// endWalk drops what a subscription that ends hasn't got.
func (c *conn) endWalk(filter string) {
	ss := c.session
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.out.walks = slices.DeleteFunc(ss.out.walks, func(w walk) bool { return w.filter == filter })
}

// waitsLocked says whether the walk can't go on before a commit, which wakes the fan-out. session.mu is held.
func (c *conn) waitsLocked(w *walk) bool {
	c.srv.fanout.walkWaits.Store(true) // before looking: whoever commits comes before or sees it
	c.mu.Lock()
	defer c.mu.Unlock()
	return !w.begun || w.suback > c.acks.committed || w.group > w.store.Settled()
}

// committed wakes the fan-out if a walk waits for a commit.
func (f *fanout) walksGoOn() {
	if f.walkWaits.Load() && f.walkWaits.Swap(false) {
		f.nudge()
	}
}

// walk makes one turn: it sends retained messages to a session as far as there is room.
func (f *fanout) walk(ss *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	c, o := ss.conn, &ss.out
	for n := 0; c != nil && len(o.walks) > 0 && n < walkMessages; n++ {
		w := &o.walks[0]
		if c.waitsLocked(w) {
			return
		}
		m, at, more := w.store.Next(w.filter, w.at, w.mark)
		switch {
		case m != nil:
			if !slices.Contains(w.ahead, m.Topic) && !c.retainedLocked(&f.delivery, w, m, true) {
				return
			}
		case more: // much to search: others get a turn
			w.at = at
			return
		default:
			o.walks = slices.Delete(o.walks, 0, 1)
			continue
		}
		w.at = at
	}
	if len(o.walks) == 0 {
		o.walks = nil
	}
}

// retainedLocked sends one retained message, or leaves it out if the subscription doesn't get it. It returns false if there is
// no room now, and then, if blocks is set, blocks the session until there is. session.mu is held.
func (c *conn) retainedLocked(d *delivery, w *walk, m *retained.Message, blocks bool) bool {
	if w.sub.NoLocal && m.Publisher == c.session.id {
		return true // MQTT 5 §3.8.3.1
	}
	if !c.session.mayReceive(topicBytes(m)) {
		return true
	}
	d.ids = d.ids[:0]
	if w.sub.ID != 0 {
		d.ids = append(d.ids, w.sub.ID)
	}
	if !c.retainedOut(d, m) {
		return true
	}
	d.out.QoS = min(w.sub.QoS, m.QoS)
	size := wire.PublishSize(c.limits.version, &d.out)
	if size > c.limits.maxPacket {
		c.srv.countDrop(nil, dropTooLarge)
		return true
	}
	ss, why := c.session, int32(blockedNot)
	switch {
	case d.out.QoS == 0:
	case ss.out.committing:
		why = blockedCommit
	case len(ss.out.flights) >= c.limits.sendWindow:
		why = blockedWindow
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why == blockedNot && (c.out.closed || blocks && c.out.queued() >= maxWalkOutput || !c.roomLocked(size)) {
		why = blockedSocket
	}
	if why != blockedNot {
		if blocks {
			ss.blocked.set(why)
		}
		return false
	}
	c.transmitLocked(d, flight{reader: -1, topic: m.Topic})
	return true
}

// retainedOut makes d.out a retained message, unless that has expired.
func (c *conn) retainedOut(d *delivery, m *retained.Message) bool {
	left, ok := m.Left(c.srv.keeper.age)
	d.out = wire.Outgoing{
		Topic: topicBytes(m), Payload: m.Payload, Raw: m.Properties,
		QoS: m.QoS, Retain: true, HasExpiry: m.HasExpiry, Expiry: left, SubscriptionIDs: d.ids,
	}
	return ok
}

// topicBytes is the message's topic, not to be changed.
func topicBytes(m *retained.Message) []byte {
	return unsafe.Slice(unsafe.StringData(m.Topic), len(m.Topic))
}

// resendRetained sends a retained message again that was in flight when the client left, as it is now, and says whether it is done with:
// sent, or given up. session.mu is held.
func (c *conn) resendRetained(d *delivery, i int) bool {
	ss := c.session
	fl := &ss.out.flights[i]
	var m *retained.Message
	if fl.topic != "" {
		store := c.srv.keeper.store
		mark, _ := store.Mark()
		m = store.Get([]byte(fl.topic), mark)
	}
	d.ids = d.ids[:0]
	denied := m != nil && !ss.mayReceive(topicBytes(m))
	if m == nil || denied || !c.retainedOut(d, m) {
		if !denied {
			c.srv.countDrop(nil, dropUnstored)
		}
		ss.abandonLocked(i)
		return true
	}
	d.out.QoS, d.out.PacketID, d.out.Dup = fl.qos, fl.id, fl.tried
	size := wire.PublishSize(c.limits.version, &d.out)
	if size > c.limits.maxPacket {
		c.srv.countDrop(nil, dropTooLarge)
		ss.abandonLocked(i)
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.closed || !c.roomLocked(size) {
		ss.blocked.set(blockedSocket)
		return false
	}
	fl.tried = true
	ss.out.sent++
	c.appendPublishLocked(&d.out)
	c.touchLocked(d)
	return true
}

// aheadLocked sends what walks have yet to send of a topic before a live message of QoS 0 to it leaves, so that the older one doesn't
// come behind the newer (MQTT 5 §4.6). Live messages of QoS 1 and 2 wait for the walks. Where a walk must wait itself,
// or has sent much out of turn, the live message overtakes it: better than losing it. session.mu is held; d.out is kept.
func (c *conn) aheadLocked(d *delivery, topic []byte) {
	o, out, ids := &c.session.out, d.out, d.ids
	var own delivery
	for i := range o.walks {
		w := &o.walks[i]
		if len(w.ahead) >= maxAhead || c.waitsLocked(w) {
			continue
		}
		m := w.store.Get(topic, w.mark)
		if m == nil || !topics.Match(w.filter, m.Topic) || !w.at.Before(m.Topic) || slices.Contains(w.ahead, m.Topic) {
			continue
		}
		own.touched = d.touched
		if c.retainedLocked(&own, w, m, false) {
			w.ahead = append(w.ahead, m.Topic)
		}
		d.touched = own.touched
	}
	d.out, d.ids = out, ids
}
