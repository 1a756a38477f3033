package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// why is the reason string of a version 5 acknowledgement, "" for none. It may have no other property.
func (c *client) why(p packet) string {
	c.t.Helper()
	b := p.body[2:]
	if p.kind == wire.PUBACK || p.kind == wire.PUBREC {
		b = b[min(1, len(b)):]
	}
	if len(b) == 0 || b[0] == 0 {
		return ""
	}
	props := b[1 : 1+b[0]]
	if props[0] != 31 || int(binary.BigEndian.Uint16(props[1:])) != len(props)-3 {
		c.t.Fatalf("%v % x has other properties than a reason string", p.kind, p.body)
	}
	return string(props[3:])
}

// size is how many bytes the packet took.
func (p packet) size() int { return len(frame(0, p.body)) }

// largest is CONNECT's Maximum Packet Size.
func largest(n int) []byte { return binary.BigEndian.AppendUint32([]byte{39}, uint32(n)) }

func (c *client) unsubscribePacket(id uint16, filters ...string) []byte {
	body := binary.BigEndian.AppendUint16(nil, id)
	if c.version == wire.V5 {
		body = append(body, 0)
	}
	for _, f := range filters {
		body = appendString(body, f)
	}
	return frame(0xA2, body)
}

// TestReasonStrings: what is refused says why, to a client that wants to know and as far as it fits. What isn't says nothing.
func TestReasonStrings(t *testing.T) {
	b := start(t, newGuard(t, "user alice\ntopic readwrite a/#\n").options, func(s *setup) {
		s.options.MaxRetainedMessages, s.options.MaxSubscriptions = 1, 2
	})
	first := b.connect(as(wire.V5, "alice"))
	first.retain("a/kept", "1", 1)
	for name, ask := range map[string]struct {
		send func(c *client) []byte
		kind wire.Type
		why  string
	}{
		"PUBACK, denied": {func(c *client) []byte { return c.publishPacket(outMessage{topic: "b", qos: 1, id: 1}) },
			wire.PUBACK, "not allowed by the access rules"},
		"PUBREC, denied": {func(c *client) []byte { return c.publishPacket(outMessage{topic: "b", qos: 2, id: 1}) },
			wire.PUBREC, "not allowed by the access rules"},
		"PUBACK, retained": {func(c *client) []byte {
			return c.publishPacket(outMessage{topic: "a/2", payload: "x", qos: 1, id: 1, retain: true})
		},
			wire.PUBACK, "there is no room for more retained messages"},
		"SUBACK, no filter": {func(c *client) []byte { return c.subscribePacket(1, 0, filter{"a", 0}, filter{"a#", 0}) },
			wire.SUBACK, "not a valid topic filter"},
		"SUBACK, quota": {func(c *client) []byte {
			return c.subscribePacket(1, 0, filter{"a/1", 0}, filter{"a/2", 0}, filter{"a/3", 0}, filter{"a#", 0})
		}, wire.SUBACK, "there is no room for more subscriptions"},
		"UNSUBACK, no filter": {func(c *client) []byte { return c.unsubscribePacket(1, "a", "a#") },
			wire.UNSUBACK, "not a valid topic filter"},
		"PUBACK":   {func(c *client) []byte { return c.publishPacket(outMessage{topic: "a/1", qos: 1, id: 1}) }, wire.PUBACK, ""},
		"PUBREC":   {func(c *client) []byte { return c.publishPacket(outMessage{topic: "a/1", qos: 2, id: 1}) }, wire.PUBREC, ""},
		"SUBACK":   {func(c *client) []byte { return c.subscribePacket(1, 0, filter{"a", 2}) }, wire.SUBACK, ""},
		"UNSUBACK": {func(c *client) []byte { return c.unsubscribePacket(1, "a") }, wire.UNSUBACK, ""},
	} {
		answer := func(props []byte) (p packet, why string) {
			o := as(wire.V5, "alice")
			o.props = props
			c := b.connect(o)
			c.send(ask.send(c))
			p = c.expect(ask.kind)
			return p, c.why(p)
		}
		told, why := answer(nil)
		if why != ask.why {
			t.Errorf("%s: reason string %q, not %q", name, why, ask.why)
		}
		if ask.why == "" {
			if told.size() > wire.SubackSize(1) {
				t.Errorf("%s: % x is longer than it has to be", name, told.body)
			}
			continue
		}
		for i, props := range [][]byte{{23, 1}, largest(told.size())} {
			if p, _ := answer(props); !bytes.Equal(p.body, told.body) {
				t.Errorf("%s, %d: % x, not % x", name, i, p.body, told.body)
			}
		}
		for i, props := range [][]byte{{23, 0}, largest(told.size() - 1)} {
			p, why := answer(props)
			if why != "" {
				t.Errorf("%s, %d: reason string %q", name, i, why)
			}
			if !refusing(p.body[2:]) || p.size() >= told.size() {
				t.Errorf("%s, %d: % x", name, i, p.body)
			}
		}
	}
}

// refusing says whether one of some codes refuses something.
func refusing(codes []byte) bool {
	return slices.ContainsFunc(codes, func(code byte) bool { return code >= 0x80 })
}

// TestReasonStringsOfTheLog: the words for what the log refuses. They come with the codes of TestFullLog and TestLogRefusesVersion5.
func TestReasonStringsOfTheLog(t *testing.T) {
	if got := refusalOfLog(fmt.Errorf("topic: %w", segment.ErrFull)); got != refusedFull {
		t.Errorf("full: %d", got)
	}
	if got := refusalOfLog(segment.ErrUnavailable); got != refusedUnavailable {
		t.Errorf("unavailable: %d", got)
	}
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	lasting := b.connect(lasting(wire.V5, "lasting"))
	refuse(t, b)
	c.publish(outMessage{topic: "t", qos: 1, id: 1})
	if p := c.expect(wire.PUBACK); p.reason() != wire.QuotaExceeded || c.why(p) != "the log can't be written for now" {
		t.Errorf("PUBACK %q", p.body)
	}
	c.publish(outMessage{topic: "local/x", payload: "x", qos: 2, id: 2, retain: true})
	if p := c.expect(wire.PUBREC); p.reason() != wire.QuotaExceeded || c.why(p) != "the log can't be written for now" {
		t.Errorf("PUBREC %q", p.body)
	}
	lasting.send(lasting.subscribePacket(1, 0, filter{"t", 0}), lasting.unsubscribePacket(2, "t"))
	for _, kind := range []wire.Type{wire.SUBACK, wire.UNSUBACK} {
		p := lasting.expect(kind)
		if codes := lasting.codes(p); codes[0] != wire.ImplementationSpecificError || lasting.why(p) != "the session can't be stored" {
			t.Errorf("%v %q", kind, p.body)
		}
	}
	old := b.connect(connectOptions{version: wire.V311, id: "old"})
	old.send(old.subscribePacket(1, 0, filter{"a#", 0}))
	if p := old.expect(wire.SUBACK); !bytes.Equal(p.body, []byte{0, 1, 0x80}) {
		t.Errorf("SUBACK %q", p.body)
	}
}

// TestAcksAllocateNothing: neither those of what is stored nor those that say why it isn't.
func TestAcksAllocateNothing(t *testing.T) {
	l := limits{version: wire.V5, problemInfo: true, maxPacket: wire.MaxRemaining}
	small := limits{version: wire.V5, problemInfo: true, maxPacket: 20}
	buf := make([]byte, 0, 200)
	for _, m := range []message{{qos: 1, id: 7}, {qos: 2, id: 7}, {qos: 1, id: 7, refused: refusedFull}, {qos: 2, id: 7, refused: refusedDenied}} {
		for _, l := range []*limits{&l, &small} {
			if n := testing.AllocsPerRun(100, func() { buf = m.appendAck(buf[:0], l) }); n != 0 {
				t.Errorf("%+v: %v allocations", m, n)
			}
		}
		if buf = m.appendAck(buf[:0], &small); m.refused == accepted && len(buf) != 4 || m.refused != accepted && len(buf) != 5 {
			t.Errorf("%+v: % x", m, buf)
		}
	}
}

// TestLargeAnswers: SUBACK and UNSUBACK have a code for each filter. When that is more than the client takes, nothing of the packet is done
// and the connection ends with 0x95.
func TestLargeAnswers(t *testing.T) {
	const most = 30
	fits := most - wire.SubackSize(0)
	var filters []filter
	var names []string
	for i := range fits + 1 {
		filters, names = append(filters, filter{fmt.Sprint("a/", i), 0}), append(names, fmt.Sprint("a/", i))
	}
	b := start(t)
	o := lasting(wire.V5, "c")
	o.props = append(o.props, largest(most)...)
	sessionOf := func() []byte {
		value, _, err := b.log.Get(stateKey(sessionPrefix, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	expect := func(c *client, kind wire.Type, filters int) {
		t.Helper()
		if p := c.expect(kind); p.size() != most || len(c.codes(p)) != fits {
			t.Errorf("%v % x", kind, p.body)
		}
		if n := b.Stats().Filters; n != filters {
			t.Errorf("%d filters", n)
		}
	}
	refused := func(c *client, packet []byte, filters int) *client {
		t.Helper()
		before := sessionOf()
		// What came before it in the same bytes is stored, what comes behind it isn't.
		c.send(c.publishPacket(outMessage{topic: "t", qos: 1, id: 1}), packet, c.publishPacket(outMessage{topic: "t", qos: 1, id: 2}))
		reason := byte(0)
		for p, err := c.next(patience); err == nil; p, err = c.next(patience) {
			switch {
			case p.kind == wire.DISCONNECT && p.size() <= most:
				reason = p.reason()
			case p.kind != wire.PUBACK || p.id() != 1:
				t.Errorf("%v % x", p.kind, p.body)
			}
		}
		if reason != wire.PacketTooLarge {
			t.Errorf("DISCONNECT %#x", reason)
		}
		eventually(t, func() bool { return b.Stats().Connections == 0 })
		if n := b.Stats().Filters; n != filters {
			t.Errorf("%d filters", n)
		}
		// The time since which the client is away is the only difference.
		if after := sessionOf(); len(after) != len(before) {
			t.Errorf("the session is % x, was % x", after, before)
		}
		return b.comeBack(o)
	}
	c := b.connect(o)
	c = refused(c, c.subscribePacket(1, 0, filters...), 0)
	c.send(c.subscribePacket(1, 0, filters[:fits]...))
	expect(c, wire.SUBACK, fits)
	c = refused(c, c.unsubscribePacket(1, names...), fits)
	c.send(c.unsubscribePacket(1, names[:fits]...))
	expect(c, wire.UNSUBACK, 0)
	if n := len(b.stored(2)); n != 2 {
		t.Errorf("%d records", n)
	}
}

// TestConnackOfTheClientsMaximum: a CONNACK that refuses is held to it, too.
func TestConnackOfTheClientsMaximum(t *testing.T) {
	b := start(t, newGuard(t, "topic #").options)
	wrong := as(wire.V5, "alice")
	wrong.password = text("wrong")
	for name, props := range map[string][]byte{"password": nil, "method": {21, 0, 1, 'm'}} {
		for most := 1; most < 20; most++ {
			o := wrong
			o.props = append(largest(most), props...)
			c := b.dial()
			c.send(o.encode())
			p, err := c.next(patience)
			if told := err == nil; told != (most >= 5) || told && (p.kind != wire.CONNACK || p.size() > most) {
				t.Errorf("%s, %d bytes at most: %v % x, %v", name, most, p.kind, p.body, err)
			}
			if err == nil {
				_, err = c.next(patience)
			}
			var timeout interface{ Timeout() bool }
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s, %d bytes at most: still open", name, most)
			}
		}
	}
}
