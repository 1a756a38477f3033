package mqtt

import (
	"cmp"
	"slices"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// Reasons that messages are counted under when a subscriber doesn't get them.
const (
	dropSlow     = "subscriber too slow"
	dropTooLarge = "larger than the subscriber takes"
	dropExpired  = "expired before it could be delivered"
)

// incoming is a message on its way to subscribers. It aliases what it was read from and is not kept.
type incoming struct {
	topic     []byte
	payload   []byte
	props     []byte
	publisher string             // client id
	from      *segment.Partition // nil: it has no place in the log
	reader    int                // of the partition, if it is read from the log
	offset    int64              // in the partition; noOffset for what is handed on before it has one
	stamp     int64              // record timestamp, if it is read from the log
	expiry    uint32
	qos       byte
	retain    bool
	hasExpiry bool
}

// noOffset stands for the offset of a message that isn't read from the log.
const noOffset = -1

// outbound is a session's sending side. It is under session.mu.
//
// Packet ids here and those of what the client publishes are separate spaces (MQTT 5 §2.2.1).
type outbound struct {
	flights    []flight // unacknowledged, oldest first
	sent       int      // of them, from the first on, were sent in this connection, and may be limits.sendWindow
	lastID     uint16
	lastRead   int    // reader of the partition that was read last for the session
	held       []byte // PUBLISHes whose ids are not durable yet
	committing bool   // the commit is under way that held waits for
	late       late
	walks      []walk // retained messages that are still to be sent; live ones of QoS 1 and 2 wait behind them
}

// late is what a session has been given of what came while its client was away.
type late struct {
	ends     []int64 // offsets up to which that is, by reader; nil without limits
	messages int64
	bytes    int64
}

// flight is a message that was sent, or is about to be, and is not acknowledged in full.
type flight struct {
	offset int64
	reader int      // of the message's partition, -1: it has no place in the log
	topic  string   // of a retained message, which is looked up again
	share  *session // the shared subscription that it is leased from; nil: none
	id     uint16
	awaits wire.Type // PUBACK, PUBREC or PUBCOMP
	qos    byte
	tried  bool // was sent at least once
}

// unsent is the number of flights of an earlier connection that this one has still to send.
func (o *outbound) unsent() int { return len(o.flights) - o.sent }

// backlog is the offset behind what came while the client was away, where that is limited.
func (o *outbound) backlog(reader int) int64 {
	if o.late.ends == nil {
		return 0
	}
	return o.late.ends[reader]
}

func (o *outbound) find(id uint16) int {
	for i := range o.flights {
		if o.flights[i].id == id {
			return i
		}
	}
	return -1
}

// has says whether the message at an offset is in flight.
func (o *outbound) has(reader int, offset int64) bool {
	for i := range o.flights {
		if o.flights[i].offset == offset && o.flights[i].reader == reader {
			return true
		}
	}
	return false
}

// nextID returns a packet id that isn't in use.
func (o *outbound) nextID() uint16 {
	for {
		if o.lastID++; o.lastID != 0 && o.find(o.lastID) < 0 {
			return o.lastID
		}
	}
}

// skipIDs goes on behind every id that may have been in use when the process ended: an acknowledgement of an earlier message that still
// arrives must not free a new one.
func (o *outbound) skipIDs() { o.lastID += maxSendWindow }

// remove takes a flight out.
func (o *outbound) remove(i int) {
	o.flights = slices.Delete(o.flights, i, i+1)
	if i < o.sent {
		o.sent--
	}
}

// detach ends what belongs to a connection. It returns the bytes of what waited for a commit: they are sent again from the log.
func (o *outbound) detach() (held int) {
	held = len(o.held)
	o.held, o.sent = nil, 0
	for i := range o.walks {
		o.walks[i].suback, o.walks[i].begun = 0, true // they go on in the next connection
	}
	return held
}

// match finds the subscriptions to a message's topic, one session's behind the other, of the sessions that want says; nil: of all.
func (s *Server) match(d *delivery, in *incoming, want func(*session) bool) {
	d.hits = s.tree.MatchOf(in.topic, d.hits[:0], want)
	if len(d.hits) > 1 {
		slices.SortFunc(d.hits, func(a, b topics.Hit[*session]) int {
			return cmp.Compare(a.Subscriber.number, b.Subscriber.number)
		})
	}
}

// sameSession is the end of the hits that belong to the same session as the one at from.
func (d *delivery) sameSession(from int) (to int) {
	for to = from + 1; to < len(d.hits) && d.hits[to].Subscriber == d.hits[from].Subscriber; to++ {
	}
	return to
}

// deliver gives a message to every session that subscribed to its topic, once each, and never waits for any. The caller calls
// flushTouched after the last of a few.
func (s *Server) deliver(d *delivery, in *incoming) {
	s.match(d, in, nil)
	for from := 0; from < len(d.hits); {
		to := d.sameSession(from)
		if d.merge(in, d.hits[from:to]) {
			s.give(d.hits[from].Subscriber, d, in)
		}
		from = to
	}
	clear(d.hits)
}

// merge makes d.out the one copy that a session gets whose overlapping filters match: the highest QoS, all
// identifiers (MQTT 5 §3.3.4). ok is false when it gets none.
func (d *delivery) merge(in *incoming, hits []topics.Hit[*session]) (ok bool) {
	d.ids = d.ids[:0]
	qos, asPublished := byte(0), false
	for i := range hits {
		sub := &hits[i].Sub
		if sub.NoLocal && hits[i].Subscriber.id == in.publisher {
			continue
		}
		if sub.Starts != nil && in.offset != noOffset && in.offset < (*sub.Starts)[in.reader] {
			continue
		}
		ok = true
		qos = max(qos, min(sub.QoS, in.qos))
		asPublished = asPublished || sub.RetainAsPublished
		if sub.ID != 0 {
			d.ids = append(d.ids, sub.ID)
		}
	}
	d.out = in.outgoing()
	d.out.QoS, d.out.SubscriptionIDs = qos, d.ids
	d.out.Retain = in.retain && asPublished // MQTT 5 §3.3.1.3
	return ok
}

// outgoing is the message as a subscriber gets it who takes it as it is.
func (in *incoming) outgoing() wire.Outgoing {
	return wire.Outgoing{Topic: in.topic, Payload: in.payload, Raw: in.props, QoS: in.qos, HasExpiry: in.hasExpiry, Expiry: in.expiry}
}

// flushTouched writes what deliver left to be written.
func (s *Server) flushTouched(d *delivery) {
	for _, c := range d.touched {
		c.mu.Lock()
		c.flushLocked()
		c.mu.Unlock()
	}
	clear(d.touched)
	d.touched = d.touched[:0]
}

// give sends d.out to a session that is live, or lets it fall behind. What isn't stored, and all of QoS 0, is sent now or never: whose
// client is away misses it, and that is no drop.
func (s *Server) give(ss *session, d *delivery, in *incoming) {
	if ss.share != nil {
		s.giveShared(ss, d, in)
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if !ss.mayReceive(in.topic) {
		return
	}
	c := ss.conn
	if in.offset == noOffset || d.out.QoS == 0 {
		switch {
		case in.offset != noOffset && in.offset < ss.cursors[in.reader].next:
		case c != nil:
			if len(ss.out.walks) > 0 {
				c.aheadLocked(d, in.topic)
			}
			if !c.offerLocked(d, in, false) {
				s.countDrop(in.from, dropSlow)
			}
		}
		return
	}
	p := &ss.cursors[in.reader]
	switch {
	case p.behind || in.offset < p.next:
	case c == nil:
		*p = cursor{next: in.offset, behind: true}
	case c.offerLocked(d, in, true):
		p.next = in.offset + 1
		s.fanout.noteLocked(ss)
	default:
		*p = cursor{next: in.offset, behind: true}
		d.fell = append(d.fell, ss)
	}
}

// offerLocked sends d.out or has it wait for its id to be durable, or drops and counts it for its size. It returns false if there is no room
// for it, and then, if blocks is set, blocks the session until there is. session.mu is held.
func (c *conn) offerLocked(d *delivery, in *incoming, blocks bool) bool {
	m, ss := &d.out, c.session
	size := wire.PublishSize(c.limits.version, m)
	if size > c.limits.maxPacket {
		c.srv.countDrop(in.from, dropTooLarge)
		return true
	}
	why := int32(blockedNot)
	if o := &ss.out; m.QoS > 0 {
		switch {
		case o.unsent() > 0, len(o.walks) > 0 && in.offset != noOffset:
			return false // what is in flight goes first, and what is retained
		case o.committing && in.offset != noOffset: // what has no offset doesn't queue behind what waits for the commit, either
			why = blockedCommit
		case len(o.flights) >= c.limits.sendWindow:
			why = blockedWindow
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why == blockedNot && (c.out.closed || !c.roomLocked(size)) {
		why = blockedSocket
	}
	if why != blockedNot {
		if blocks {
			ss.blocked.set(why)
		}
		return false
	}
	place := flight{reader: -1}
	if in.offset != noOffset {
		place.reader, place.offset = in.reader, in.offset
	}
	c.transmitLocked(d, place)
	return true
}

// roomLocked says whether size more bytes may wait to be written. One message always may.
func (c *conn) roomLocked(size int) bool {
	waiting := c.out.queued() + len(c.session.out.held)
	return waiting == 0 || waiting+size <= c.srv.options.QueueBytes && c.srv.queued.Load()+int64(size) <= c.srv.options.QueueTotalBytes
}

// transmitLocked encodes d.out behind what waits to be written. At QoS 1 and 2 it becomes a flight from place. session.mu is held, too.
func (c *conn) transmitLocked(d *delivery, fl flight) {
	m, ss := &d.out, c.session
	if m.QoS > 0 {
		o := &ss.out
		m.PacketID = o.nextID()
		fl.id, fl.qos, fl.awaits, fl.tried = m.PacketID, m.QoS, wire.PUBACK, true
		if m.QoS == 2 {
			fl.awaits = wire.PUBREC
		}
		durable := m.QoS == 2 && ss.expiry > 0 && fl.reader >= 0
		if durable || len(o.held) > 0 && fl.reader >= 0 {
			fl.tried = false
			o.flights = append(o.flights, fl)
			o.sent++
			before := len(o.held)
			o.held = wire.AppendPublish(o.held, c.limits.version, m)
			c.srv.queued.Add(int64(len(o.held) - before))
			c.out.messages++
			c.out.payload += int64(len(m.Payload))
			c.srv.fanout.hold(ss)
			return
		}
		o.flights = append(o.flights, fl)
		o.sent++
	}
	c.appendPublishLocked(m)
	c.touchLocked(d)
}

func (c *conn) appendPublishLocked(m *wire.Outgoing) {
	if c.limits.aliases > 0 {
		c.aliasLocked(m)
	}
	before := len(c.out.buf)
	c.out.buf = wire.AppendPublish(c.out.buf, c.limits.version, m)
	c.srv.queued.Add(int64(len(c.out.buf) - before))
	c.out.messages++
	c.out.payload += int64(len(m.Payload))
}

// touchLocked sees to it that what waits is written.
func (c *conn) touchLocked(d *delivery) {
	if len(c.out.buf) >= flushBytes {
		c.flushLocked()
	} else if !c.out.listed && !c.out.writing {
		c.out.listed = true
		d.touched = append(d.touched, c)
	}
}

// sendSmall sends a packet without a payload, and says whether there was room. session.mu is held.
func (c *conn) sendSmall(p []byte, d *delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.closed || !c.roomLocked(len(p)) {
		return false
	}
	c.queueLocked(p)
	c.touchLocked(d)
	return true
}

// acknowledged works off a PUBACK, PUBREC or PUBCOMP (MQTT 5 §4.3). One for an id that isn't in use is none of our
// messages and is ignored, but for a PUBREC, whose sender waits for PUBREL.
func (c *conn) acknowledged(w *workspace, h wire.Header, body []byte) error {
	id, reason, err := wire.ParseAck(h, body, c.limits.version)
	if err != nil {
		return err
	}
	ss := c.session
	ss.mu.Lock()
	defer ss.mu.Unlock()
	o := &ss.out
	at := o.find(id)
	if at < 0 {
		if h.Type == wire.PUBREC && reason < 0x80 {
			w.direct = wire.AppendPubrel(w.direct, c.limits.version, id, wire.PacketIDNotFound)
		}
		return nil
	}
	f := &o.flights[at]
	switch {
	case h.Type == wire.PUBREC && f.awaits == wire.PUBCOMP && reason < 0x80: // it didn't see our PUBREL
		w.direct = wire.AppendPubrel(w.direct, c.limits.version, id, wire.Success)
		return nil
	case h.Type != f.awaits:
		return endWrongAck
	case h.Type == wire.PUBREC && reason < 0x80:
		f.awaits = wire.PUBCOMP
		if ss.expiry > 0 {
			w.releases = wire.AppendPubrel(w.releases, c.limits.version, id, wire.Success)
		} else {
			w.direct = wire.AppendPubrel(w.direct, c.limits.version, id, wire.Success)
		}
		return nil
	}
	o.remove(at)
	c.srv.fanout.noteLocked(ss)
	c.srv.fanout.roomLocked(ss, c.limits.sendWindow)
	return nil
}

// sendReleases sends the PUBRELs of a session that outlives its connection, once it is durable that they were due.
func (c *conn) sendReleases(w *workspace) error {
	if len(w.releases) == 0 {
		return nil
	}
	c.openWriter()
	if err := c.writer.BeginState(); err != nil {
		return endStorage
	}
	c.srv.fanout.putProgress(c.writer, c.session)
	b := batch{group: c.writer.End()}
	c.queueAcks(b, w.releases)
	w.releases = w.releases[:0]
	return nil
}
