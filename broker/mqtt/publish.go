package mqtt

import (
	"bytes"
	"errors"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// Reasons that messages are counted under when they aren't stored.
const (
	dropFull        = "log full"
	dropUnavailable = "log unavailable"
	dropUnrouted    = "no route takes it"
)

// routeCache is where the connection's last topic went: most devices have one.
type routeCache struct {
	topic     []byte
	key       []byte // unless it is the topic
	partition *segment.Partition
	bareKey   bool
	known     bool
	unrouted  bool
	access    uint32 // Server.access when denied was found out
	denied    bool   // the client may not publish to it
}

// publish parses a PUBLISH into the next free message.
func (c *conn) publish(w *workspace, h wire.Header, body []byte) error {
	p := &w.publish
	if err := wire.ParsePublish(p, h, body, c.limits.version); err != nil {
		return err
	}
	aliased := false
	if p.Props.Alias != 0 {
		var err error
		if aliased, err = c.resolveAlias(p); err != nil {
			return err
		}
	}
	if p.QoS > 0 && c.limits.version == wire.V5 && !(p.QoS == 2 && c.session.hasReceived(p.PacketID)) {
		if w.credit--; w.credit < 0 {
			return endReceiveMax
		}
	}
	if len(w.messages) == cap(w.messages) {
		if err := c.flush(w); err != nil {
			return err
		}
	}
	w.messages = w.messages[:len(w.messages)+1]
	m := &w.messages[len(w.messages)-1]
	*m = message{
		topic:   place{uint32(w.at + 2), uint32(len(p.Topic))},
		payload: place{uint32(w.at + len(body) - len(p.Payload)), uint32(len(p.Payload))},
		expiry:  p.Props.Expiry, hasExpiry: p.Props.HasExpiry, id: p.PacketID, qos: p.QoS, retain: p.Retain && p.Topic[0] != '$',
	}
	if aliased {
		m.topic, m.aliased = w.keep(p.Topic), true
	}
	if len(p.Props.Raw) > 0 {
		m.props = w.keep(p.Props.Raw)
	}
	c.locate(w, m, p.Topic)
	if m.denied {
		if err := c.deny(w, m); err != nil {
			return err
		}
	}
	w.bytes += len(body)
	return nil
}

// locate finds the message's place in the log, and whether its client may publish to its topic.
func (c *conn) locate(w *workspace, m *message, topic []byte) {
	r := &c.route
	if generation := c.srv.access.Load(); !r.known || r.access != generation || !bytes.Equal(r.topic, topic) {
		r.access = generation // before the question: a change meanwhile makes it be asked again
		if r.denied = !c.mayPublish(topic); r.denied {
			c.srv.warn(warnDenied, "client may not publish to a topic", "client", c.name(), "topic", quoted(topic))
		}
		var key []byte
		var keyIsTopic, ok bool
		r.partition, key, keyIsTopic, ok = c.srv.router.Route(topic, r.key[:0])
		r.bareKey, r.unrouted = r.partition != nil && !keyIsTopic, !ok
		if r.bareKey {
			r.key = key
		}
		r.topic, r.known = append(r.topic[:0], topic...), true
	}
	m.partition, m.bareKey = r.partition, r.bareKey
	m.local = m.partition == nil && topic[0] != '$'
	m.unrouted = m.local && r.unrouted
	m.denied = r.denied
	if m.bareKey {
		m.key = w.keep(r.key)
	}
}

// release parses a PUBREL.
func (c *conn) release(w *workspace, h wire.Header, body []byte) error {
	id, _, err := wire.ParseAck(h, body, c.limits.version)
	if err != nil {
		return err
	}
	if len(w.messages) == cap(w.messages) {
		if err := c.flush(w); err != nil {
			return err
		}
	}
	w.messages = append(w.messages, message{id: id, release: true})
	return nil
}

// flush stores the messages under one lock of the log, queues their acknowledgements, and hands those of QoS 0 on.
func (c *conn) flush(w *workspace) error {
	if len(w.messages) == 0 {
		return nil
	}
	began, err := c.begin(w)
	if err != nil {
		w.forget()
		return err
	}
	b := c.store(w, began)
	w.replies = w.replies[:0]
	acks, messages, payload := int64(0), int64(0), int64(0)
	for i := range w.messages {
		m := &w.messages[i]
		if m.release || m.qos > 0 {
			w.replies = m.appendAck(w.replies, &c.limits)
			acks++
		}
		if !m.release {
			messages++
			payload += int64(m.payload.size)
		}
	}
	n := &c.srv.counters // before the client learns of it
	n.published.Add(int64(len(w.messages)))
	n.received.Add(messages)
	n.payloadReceived.Add(payload)
	n.packetsSent.Add(acks)
	if b.passing > 0 {
		n.passing.Add(b.passing)
	}
	if len(w.replies) > 0 || b.group != 0 {
		c.queueAcks(b, w.replies)
	}
	if c.srv.tree.Len() > 0 || len(w.changes) > 0 {
		c.handOn(w)
	}
	w.forget()
	return nil
}

// begin takes the log's lock if the messages need it. When the log takes none, or none for some topics, a version 5 client's
// are marked as refused, and so are all of QoS 0; an older client has no word for that, so it waits for a while and is
// closed: sooner when others can't be read from because of the workspace that it holds.
func (c *conn) begin(w *workspace) (began bool, err error) {
	if c.needOf(w.messages) != nothing {
		c.openWriter()
	}
	var since time.Time
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		again := true
		for again {
			if began, again, err = c.tryBegin(w); began || errors.Is(err, segment.ErrClosed) {
				return began, err
			}
		}
		if err == nil {
			return false, nil
		}
		if since.IsZero() {
			since = time.Now()
			c.prepareToWait()
		}
		if waited := time.Since(since); waited+wait > c.limits.stall || waited > leastStall && c.srv.workspaces.short() {
			return false, endStall
		}
		if err := c.pause(wait); err != nil {
			return false, err
		}
	}
}

// tryBegin is one attempt. again says that messages were marked as refused, and that another one is worth it without a
// pause. Without an error nothing is left that needs the log.
func (c *conn) tryBegin(w *workspace) (began, again bool, err error) {
	switch c.needOf(w.messages) {
	case nothing:
		return false, false, nil
	case states:
		if err = c.writer.BeginState(); err == nil || errors.Is(err, segment.ErrClosed) {
			return err == nil, false, err
		}
		return false, c.refuseRetained(w, err), err
	}
	if err = c.writer.Begin(); err == nil {
		if !refusesAny(w.messages) {
			return true, false, nil
		}
		c.writer.End()
		return false, c.refuse(w, (*segment.Topic).Refused), segment.ErrFull
	}
	if errors.Is(err, segment.ErrClosed) {
		return false, false, err
	}
	return false, c.refuse(w, func(*segment.Topic) error { return err }), err
}

// refusesAny says whether the topic of a message to be stored takes none. Between Begin and End of a writer this doesn't change.
func refusesAny(messages []message) bool {
	for i := range messages {
		m := &messages[i]
		if m.partition != nil && !m.release && m.refused == accepted && m.partition.Topic().Refused() != nil {
			return true
		}
	}
	return false
}

// The time between two attempts at a log that takes nothing, and how long they go on at least.
const (
	firstRetry   = 20 * time.Millisecond
	longestRetry = 500 * time.Millisecond
	leastStall   = time.Second // of a connection whose workspace others wait for
)

// need is what messages want of the log.
type need int

const (
	nothing need = iota
	states       // changes of state only
	records
)

func (c *conn) needOf(messages []message) need {
	n := nothing
	for i := range messages {
		m := &messages[i]
		switch {
		case m.refused != accepted:
		case m.partition != nil && !m.release:
			return records
		case m.retain || m.release && c.session.expiry > 0 && !c.session.passing.has(m.id):
			n = states
		}
	}
	return n
}

// refuse marks the messages of topics that take none, and says whether that leaves only messages that need not wait for them.
func (c *conn) refuse(w *workspace, why func(*segment.Topic) error) bool {
	all := true
	var cause error
	for i := range w.messages {
		m := &w.messages[i]
		if m.partition == nil || m.release || m.refused != accepted {
			continue
		}
		err := why(m.partition.Topic())
		if err == nil {
			continue
		}
		cause = err
		switch {
		case m.qos == 2 && c.repeats(w, i):
			m.partition = nil // a repeat: the log has it
		case m.qos == 0 || c.limits.version == wire.V5:
			m.refused = refusalOfLog(err)
			c.srv.drops.Count(m.partition.Topic().Name(), refusalName(err), 1)
		default:
			all = false
		}
	}
	if cause != nil {
		c.srv.warn(warnRefused, "messages are not stored", "cause", cause)
	}
	return all
}

// refuseRetained marks the retained messages without a record that the state doesn't take, and says whether that leaves nothing
// that needs it. Called when nothing is to be recorded.
func (c *conn) refuseRetained(w *workspace, cause error) bool {
	for i := range w.messages {
		m := &w.messages[i]
		if m.retain && m.refused == accepted && (m.qos == 0 || c.limits.version == wire.V5) && !(m.qos == 2 && c.repeats(w, i)) {
			m.refused = refusalOfLog(cause)
			c.srv.countDrop(nil, refusalName(cause))
		}
	}
	return c.needOf(w.messages) == nothing
}

// refusalName is what messages are counted under that the log refused with cause.
func refusalName(cause error) string {
	if errors.Is(cause, segment.ErrFull) {
		return dropFull
	}
	return dropUnavailable
}

// refusalOfLog is why messages are refused that the log refused with cause.
func refusalOfLog(cause error) refusal {
	if errors.Is(cause, segment.ErrFull) {
		return refusedFull
	}
	return refusedUnavailable
}

// repeats says whether message i has an id that is in use, and stays so until its turn.
func (c *conn) repeats(w *workspace, i int) bool {
	id := w.messages[i].id
	if !c.session.hasReceived(id) {
		return false
	}
	for j := range w.messages[:i] {
		if m := &w.messages[j]; m.release && m.id == id {
			return false
		}
	}
	return true
}

// openWriter makes the connection's writer if it has none.
func (c *conn) openWriter() {
	if c.writer == nil {
		c.writer = c.srv.log.NewWriter(c)
	}
}

// store takes note of the packet ids, and adds what is to be stored to the log, between Begin, if began, and End.
func (c *conn) store(w *workspace, began bool) batch {
	var b batch
	s := c.session
	if began {
		w.record.Timestamp = c.writer.Stamp(w.now)
	}
	for i := range w.messages {
		m := &w.messages[i]
		switch {
		case m.refused != accepted:
			continue
		case m.release:
			if m.known = s.passing.remove(m.id) || s.received.remove(m.id); m.known {
				b.frees++
			}
			continue
		case m.qos == 2 && s.hasReceived(m.id):
			m.known = true
			continue
		case m.retain && !c.srv.keeper.stage(w, c.writer, m, s.id, w.record.Timestamp) && m.qos > 0 && c.limits.version == wire.V5:
			m.refused = refusedRetained
			continue
		case m.qos == 2:
			s.receive(m.id, m.partition != nil || m.retain)
			b.slots++
		case m.qos == 1:
			b.slots++
			b.frees++
		}
		switch {
		case m.partition != nil:
			c.fill(w, m)
			c.writer.Append(m.partition, &w.record)
		case m.unrouted:
			c.srv.countDrop(nil, dropUnrouted)
		case m.local:
			b.passing++
		}
	}
	if s.received != nil && s.received.changed {
		if s.expiry > 0 {
			w.envelope = s.received.save(c.writer, s.id, w.envelope)
		} else {
			s.received.settle()
		}
	}
	s.passing.settle()
	b.size = int64(w.bytes)
	if began {
		b.group = c.writer.End()
	}
	return b
}

// fill makes the workspace's record that of m.
func (c *conn) fill(w *workspace, m *message) {
	topic := w.topic(m)
	w.record.Key, w.record.Value = topic, m.payload.in(w.source)
	w.headers[0].Value = c.envelope(w, m)
	w.record.Headers = w.headers[:1]
	if m.bareKey {
		if w.record.Key = m.key.in(w.arena); w.record.Key == nil {
			w.record.Key = []byte{} // a route's key may be empty, but isn't null
		}
		w.headers[1].Value = topic
		w.record.Headers = w.headers[:2]
	}
}

// envelope is the message's envelope. Most have one of three, by QoS.
func (c *conn) envelope(w *workspace, m *message) []byte {
	plain := !m.hasExpiry && m.props.size == 0 && !m.retain
	if plain && c.fixed[m.qos] != nil {
		return c.fixed[m.qos]
	}
	e := record.Envelope{
		QoS: m.qos, Retain: m.retain, Incarnation: c.srv.options.Incarnation, ClientID: c.session.idBytes,
		HasExpiry: m.hasExpiry, ExpirySeconds: m.expiry, Properties: m.props.in(w.arena),
	}
	if plain {
		c.fixed[m.qos] = e.Append(nil)
		return c.fixed[m.qos]
	}
	w.envelope = e.Append(w.envelope[:0])
	return w.envelope
}

// handOn gives the messages that the log's readers won't see to their subscribers.
func (c *conn) handOn(w *workspace) {
	for i := range w.messages {
		m := &w.messages[i]
		if m.release || m.refused != accepted || m.known || m.qos > 0 && !m.local {
			continue
		}
		topic := w.topic(m)
		if topic[0] == '$' {
			continue
		}
		in := incoming{
			topic: topic, payload: m.payload.in(w.source), props: m.props.in(w.arena), publisher: c.session.id,
			from: m.partition, offset: noOffset,
			qos: m.qos, retain: m.retain, hasExpiry: m.hasExpiry, expiry: m.expiry,
		}
		if m.change > 0 {
			c.srv.keeper.hand(&w.delivery, w.changes[m.change-1], &in)
		} else {
			c.srv.deliver(&w.delivery, &in)
		}
	}
	c.srv.flushTouched(&w.delivery)
}
