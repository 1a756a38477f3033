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
	dropExpired  = "expired while the subscriber was slow"
)

// incoming is a message on its way to subscribers. It aliases what it was read from and is not kept.
type incoming struct {
	topic     []byte
	payload   []byte
	props     []byte
	publisher string             // client id
	partition *segment.Partition // nil: it has no place in the log
	offset    int64              // in the partition; noOffset for what is handed on before it has one
	expiry    uint32
	qos       byte
	hasExpiry bool
}

// noOffset stands for the offset of a message that isn't read from the log.
const noOffset = -1

// outbound is a session's sending side. It is under conn.mu.
//
// Packet ids here and those of what the client publishes are separate spaces (MQTT 5 §2.2.1).
type outbound struct {
	flights []flight // unacknowledged, oldest first; at most limits.sendWindow
	lastID  uint16
	queue   messageQueue                 // waits for a place in flights
	starts  map[*segment.Partition]int64 // offsets that deliveries begin at; nil: the fan-out is beyond all of them
}

// wants says whether a message that the fan-out read was stored after the session subscribed.
func (o *outbound) wants(p *segment.Partition, offset int64) bool {
	start, ok := o.starts[p]
	if ok && offset >= start {
		if delete(o.starts, p); len(o.starts) == 0 {
			o.starts = nil
		}
	}
	return !ok || offset >= start
}

// flight is a message that was sent and is not acknowledged in full.
type flight struct {
	id     uint16
	awaits wire.Type // PUBACK, PUBREC or PUBCOMP
}

func (o *outbound) find(id uint16) int {
	for i := range o.flights {
		if o.flights[i].id == id {
			return i
		}
	}
	return -1
}

// nextID returns a packet id that isn't in use.
func (o *outbound) nextID() uint16 {
	for {
		if o.lastID++; o.lastID != 0 && o.find(o.lastID) < 0 {
			return o.lastID
		}
	}
}

// deliver gives a message to every session that subscribed to its topic, once each, and never waits for any. The caller calls
// flushTouched after the last of a few.
func (s *Server) deliver(d *delivery, in *incoming) {
	d.hits = s.tree.Match(in.topic, d.hits[:0])
	if len(d.hits) > 1 {
		slices.SortFunc(d.hits, func(a, b topics.Hit[*session]) int {
			return cmp.Compare(a.Subscriber.number, b.Subscriber.number)
		})
	}
	for from := 0; from < len(d.hits); {
		to := from + 1
		for to < len(d.hits) && d.hits[to].Subscriber == d.hits[from].Subscriber {
			to++
		}
		if d.merge(in, d.hits[from:to]) {
			d.hits[from].Subscriber.conn.give(d, in)
		}
		from = to
	}
	clear(d.hits)
}

// merge makes d.out the one copy that a session gets whose overlapping filters match: the highest QoS, all
// identifiers (MQTT 5 §3.3.4). ok is false when it gets none.
func (d *delivery) merge(in *incoming, hits []topics.Hit[*session]) (ok bool) {
	d.ids = d.ids[:0]
	qos := byte(0)
	for i := range hits {
		sub := &hits[i].Sub
		if sub.NoLocal && hits[i].Subscriber.id == in.publisher {
			continue
		}
		ok = true
		qos = max(qos, min(sub.QoS, in.qos))
		if sub.ID != 0 {
			d.ids = append(d.ids, sub.ID)
		}
	}
	d.out = wire.Outgoing{
		Topic: in.topic, Payload: in.payload, Raw: in.props, SubscriptionIDs: d.ids, QoS: qos,
		HasExpiry: in.hasExpiry, Expiry: in.expiry,
	}
	return ok
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

// give sends or queues d.out, or drops and counts it.
func (c *conn) give(d *delivery, in *incoming) {
	m, from := &d.out, in.partition
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.outbound
	if o == nil || c.out.closed {
		return // the session has ended since the tree was asked
	}
	if o.starts != nil && in.offset != noOffset && !o.wants(from, in.offset) {
		return
	}
	size := wire.PublishSize(c.limits.version, m)
	switch {
	case size > c.limits.maxPacket:
		c.srv.countDrop(from, dropTooLarge)
	case m.QoS > 0 && (o.queue.count > 0 || len(o.flights) >= c.limits.sendWindow || !c.roomLocked(size)):
		if !c.enqueueLocked(m, from) {
			c.srv.countDrop(from, dropSlow)
		}
	case m.QoS == 0 && !c.roomLocked(size):
		c.srv.countDrop(from, dropSlow)
	default:
		c.transmitLocked(m)
		if len(c.out.buf) >= flushBytes {
			c.flushLocked()
		} else if !c.out.listed && !c.out.writing {
			c.out.listed = true
			d.touched = append(d.touched, c)
		}
	}
}

// roomLocked says whether size more bytes may wait to be written. One message always may.
func (c *conn) roomLocked(size int) bool {
	waiting := c.out.queued()
	return waiting == 0 || waiting+size <= c.srv.options.QueueBytes && c.srv.queued.Load()+int64(size) <= c.srv.options.QueueTotalBytes
}

// enqueueLocked lets m wait for a place in flight and says whether there was room.
func (c *conn) enqueueLocked(m *wire.Outgoing, from *segment.Partition) bool {
	q := &c.outbound.queue
	size := frameSize(m)
	o := &c.srv.options
	if q.count >= o.QueueMessages || q.count > 0 && q.bytes()+size > o.QueueBytes ||
		c.srv.queued.Load()+int64(size) > o.QueueTotalBytes {
		return false
	}
	q.push(m, topicID(from), c.srv.clock())
	c.srv.queued.Add(int64(size))
	return true
}

// transmitLocked encodes m behind what waits to be written. At QoS 1 and 2 it takes a place in flight.
func (c *conn) transmitLocked(m *wire.Outgoing) {
	if m.QoS > 0 {
		o := c.outbound
		m.PacketID = o.nextID()
		awaits := wire.PUBACK
		if m.QoS == 2 {
			awaits = wire.PUBREC
		}
		o.flights = append(o.flights, flight{m.PacketID, awaits})
	}
	before := len(c.out.buf)
	c.out.buf = wire.AppendPublish(c.out.buf, c.limits.version, m)
	c.srv.queued.Add(int64(len(c.out.buf) - before))
	c.srv.counters.delivered.Add(1)
}

// refillLocked sends what has waited for a place in flight, as far as there are places now.
func (c *conn) refillLocked() {
	o := c.outbound
	var m wire.Outgoing
	for o.queue.count > 0 && len(o.flights) < c.limits.sendWindow {
		topic, since, size := o.queue.peek(&m)
		if !c.roomLocked(wire.PublishSize(c.limits.version, &m)) {
			return // the writer comes back when it has written
		}
		if waited := uint32((c.srv.clock() - since) / 1e9); m.HasExpiry && waited >= m.Expiry && waited > 0 {
			c.srv.countDropID(topic, dropExpired)
		} else {
			m.Expiry -= min(waited, m.Expiry)
			c.transmitLocked(&m)
		}
		o.queue.pop()
		c.srv.queued.Add(-int64(size))
	}
}

// answeredLocked sends answers and whatever the client's acknowledgements made room for, in one write.
func (c *conn) answeredLocked(answers []byte) {
	if c.out.closed {
		return
	}
	c.replies.Add(int32(len(answers)))
	c.queueLocked(answers)
	if c.outbound != nil {
		c.refillLocked()
	}
	c.flushLocked()
}

// acknowledged works off a PUBACK, PUBREC or PUBCOMP (MQTT 5 §4.3). One for an id that isn't in use is none of our
// messages and is ignored, but for a PUBREC, whose sender waits for PUBREL.
func (c *conn) acknowledged(w *workspace, h wire.Header, body []byte) error {
	id, reason, err := wire.ParseAck(h, body, c.limits.version)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o, at := c.outbound, -1
	if o != nil {
		at = o.find(id)
	}
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
		w.direct = wire.AppendPubrel(w.direct, c.limits.version, id, wire.Success)
		return nil
	}
	o.flights = slices.Delete(o.flights, at, at+1)
	w.answered = true
	return nil
}
