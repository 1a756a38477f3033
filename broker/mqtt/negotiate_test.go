package mqtt

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// connackProps are the properties of a CONNACK, by identifier.
func connackProps(t *testing.T, p packet) map[byte]string {
	t.Helper()
	if p.kind != wire.CONNACK || p.body[1] != 0 {
		t.Fatalf("%v % x", p.kind, p.body)
	}
	b := p.body[3:]
	props := map[byte]string{}
	for len(b) > 0 {
		id, n := b[0], 0
		switch b = b[1:]; id {
		case 33, 34, 19:
			n = 2
		case 17, 39:
			n = 4
		case 36, 37, 40, 41, 42:
			n = 1
		default:
			n = int(binary.BigEndian.Uint16(b))
			b = b[2:]
		}
		props[id], b = string(b[:n]), b[n:]
	}
	return props
}

func TestServerKeepAlive(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxKeepAlive = 90 * time.Second })
	for _, c := range []struct {
		asked     uint16
		told      string
		allowance time.Duration
	}{
		{60, "", 90 * time.Second}, {90, "", 135 * time.Second}, {91, "\x00\x5a", 135 * time.Second}, {0, "\x00\x5a", 135 * time.Second},
	} {
		cl := b.dial()
		if got := connackProps(t, cl.connect(connectOptions{id: "c", keepAlive: c.asked}))[19]; got != c.told {
			t.Errorf("keepalive %d: told % x", c.asked, got)
		}
		if got := b.allowance("c"); got != c.allowance {
			t.Errorf("keepalive %d: silent for %v at most", c.asked, got)
		}
	}
	// An older client keeps to what it asked for.
	b.connect(connectOptions{id: "old", version: wire.V311, keepAlive: 120})
	if got := b.allowance("old"); got != 180*time.Second {
		t.Errorf("3.1.1: silent for %v at most", got)
	}
	b = start(t)
	cl := b.dial()
	if got, ok := connackProps(t, cl.connect(connectOptions{id: "c"}))[19]; ok {
		t.Errorf("told % x where nothing is configured", got)
	}
}

func (b *broker) allowance(id string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Duration(b.sessions[id].owner.allowance.Load())
}

func TestResponseInformation(t *testing.T) {
	asks := []byte{25, 1}
	for _, c := range []struct {
		prefix, id string
		props      []byte
		want       string
	}{
		{"", "c", asks, ""}, {"response/", "c", nil, ""}, {"response/", "c", []byte{25, 0}, ""}, {"response/", "c", asks, "response/c"},
		{"response/", "a+b", asks, ""}, {"response/", "a/b", asks, ""}, {"response/", "#", asks, ""},
	} {
		b := start(t, func(s *setup) { s.options.ResponsePrefix = c.prefix })
		if got := connackProps(t, b.dial().connect(connectOptions{id: c.id, props: c.props}))[26]; got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	b := start(t, func(s *setup) { s.options.ResponsePrefix = "r/" })
	props := connackProps(t, b.dial().connect(connectOptions{props: asks}))
	if props[18] == "" || props[26] != "r/"+props[18] {
		t.Errorf("%q", props)
	}
	if p := b.dial().connect(connectOptions{version: wire.V311, id: "old"}); len(p.body) != 2 {
		t.Errorf("3.1.1 CONNACK % x", p.body)
	}
}

// Nothing larger than the client takes is sent: messages are left out and counted, reason strings first, and a client that takes no CONNACK
// is closed.
func TestMaximumPacketSize(t *testing.T) {
	b := start(t)
	limit := func(n byte) []byte { return []byte{39, 0, 0, 0, n} }
	c := b.dial()
	c.send(connectOptions{version: wire.V5, id: "c", props: limit(10)}.encode())
	c.expectEnd(0)
	c = b.connect(connectOptions{id: "c", props: limit(30)})
	c.subscribe(filter{"t", 0})
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t", payload: strings.Repeat("x", 25)}, outMessage{topic: "t", payload: strings.Repeat("y", 24)})
	c.expectPublish("t", strings.Repeat("y", 24), 0)
	if n := b.dropped(dropTooLarge); n != 1 {
		t.Errorf("%d counted", n)
	}
	pub.retain("t", strings.Repeat("x", 25), 1)
	c.subscribe(filter{"t", 0})
	c.ping()
	eventually(t, func() bool { return b.dropped(dropTooLarge) == 3 })
	c.send([]byte{0x10, 0}) // whatever is wrong, the reason string doesn't fit
	for {
		p, err := c.next(patience)
		if err != nil {
			break
		}
		if len(p.body) > 28 {
			t.Errorf("%v of %d bytes", p.kind, len(p.body)+2)
		}
		if p.kind != wire.DISCONNECT || p.reason() != wire.MalformedPacket && p.reason() != wire.ProtocolError {
			t.Errorf("%v % x", p.kind, p.body)
		}
	}
}

// Without request problem information no reason string comes.
func TestRequestProblemInformation(t *testing.T) {
	b := start(t)
	for value, want := range map[byte]bool{0: false, 1: true} {
		c := b.connect(connectOptions{id: "c", props: []byte{23, value}})
		c.publish(outMessage{topic: "a", alias: 1000})
		p := c.read()
		if p.kind != wire.DISCONNECT || (len(p.body) > 1) != want {
			t.Errorf("request problem information %d: %v % x", value, p.kind, p.body)
		}
	}
}

// Properties go on unaltered and in order; the expiry is what is left of it.
func TestPropertiesArePassedOn(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	old := b.connect(connectOptions{id: "old", version: wire.V311})
	old.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	// The payload is no UTF-8 although it claims to be: that is for the receiver to judge (MQTT 5 §3.3.2.3.2).
	before := []byte{38, 0, 1, 'k', 0, 1, '1', 1, 1}
	behind := []byte{3, 0, 1, 'c', 38, 0, 1, 'a', 0, 0, 8, 0, 1, 'r', 9, 0, 2, 0, 255, 38, 0, 1, 'k', 0, 1, '2'}
	all := append(bytes.Clone(before), behind...)
	for qos := range byte(2) {
		pub.publish(outMessage{topic: "t", payload: "\xff", qos: qos, id: 1, raw: all, hasExpiry: true, expiry: 1000})
		m := sub.expectPublish("t", "\xff", qos)
		sub.complete(m)
		n := len(all)
		if !bytes.Equal(m.props[:n], all) || m.props[n] != 2 || len(m.props) != n+5 {
			t.Fatalf("properties % x", m.props)
		}
		if left := binary.BigEndian.Uint32(m.props[n+1:]); left > 1000 || left < 980 {
			t.Errorf("%d s left", left)
		}
		old.complete(old.expectPublish("t", "\xff", qos))
	}
}

// What a message waited for its commit is taken off its expiry, and one that has expired by then isn't delivered.
func TestExpiryOfLiveMessages(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	release := b.disk.hold(t)
	for i, expiry := range []uint32{1, 100, 0} {
		pub.publish(outMessage{topic: "t", qos: 1, id: uint16(i + 1), hasExpiry: true, expiry: expiry})
	}
	sub.silent(1100 * time.Millisecond)
	release()
	m := sub.expectPublish("t", "", 1)
	if left := binary.BigEndian.Uint32(m.props[1:]); left > 99 || left < 80 {
		t.Errorf("%d s left", left)
	}
	sub.noMore()
	eventually(t, func() bool { return b.dropped(dropExpired) == 2 })
}
