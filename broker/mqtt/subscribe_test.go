package mqtt

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestSubscribeCodes(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxSubscriptions = 4 })
	c := b.connect(connectOptions{id: "c"})
	c.send(c.subscribePacket(9, 0, filter{"a", 0}, filter{"a/+", 1}, filter{"#", 2}, filter{"a#", 0}, filter{"a/b+", 0}, filter{"$share/g", 1},
		filter{"a", 1}, filter{"$share/g/d", 1}, filter{"e", 1}))
	want := []byte{0, 1, 2, wire.TopicFilterInvalid, wire.TopicFilterInvalid, wire.TopicFilterInvalid, 1, 1, wire.QuotaExceeded}
	if got := c.codes(c.expect(wire.SUBACK)); !bytes.Equal(got, want) {
		t.Errorf("SUBACK % x, not % x", got, want)
	}
	c.send(frame(0xA2, append([]byte{0, 10, 0}, appendString(appendString(appendString(nil, "a"), "a"), "x/#y")...)))
	want = []byte{0, wire.NoSubscriptionExisted, wire.TopicFilterInvalid}
	if got := c.codes(c.expect(wire.UNSUBACK)); !bytes.Equal(got, want) {
		t.Errorf("UNSUBACK % x, not % x", got, want)
	}
	old := b.connect(connectOptions{version: wire.V311, id: "old"})
	old.send(old.subscribePacket(9, 0, filter{"$share/g", 1}, filter{"a#", 1}, filter{"a", 1}))
	if got := old.codes(old.expect(wire.SUBACK)); !bytes.Equal(got, []byte{0x80, 0x80, 1}) {
		t.Errorf("SUBACK % x", got)
	}
	old.send(frame(0xA2, append([]byte{0, 10}, appendString(nil, "a")...)))
	if p := old.expect(wire.UNSUBACK); !bytes.Equal(p.body, []byte{0, 10}) {
		t.Errorf("UNSUBACK % x", p.body)
	}
	if n := b.Stats().Filters; n != 3 {
		t.Errorf("%d filters", n)
	}
	c.send([]byte{0xE0, 0})
	eventually(t, func() bool { return b.Stats().Filters == 0 })
}

func TestDelivery(t *testing.T) {
	b := start(t)
	type delivery struct {
		topic string
		qos   byte
	}
	pub := b.connect(connectOptions{id: "pub"})
	for _, v := range bothVersions {
		for granted := range byte(3) {
			t.Run(fmt.Sprintf("%s at %d", versionName(v), granted), func(t *testing.T) {
				sub := b.connect(connectOptions{version: v, id: "sub"})
				sub.subscribe(filter{"a/+/c", granted}, filter{"keyed/#", granted})
				id := uint16(1)
				send := func(topic string, qos byte) {
					pub.publish(outMessage{topic: topic, payload: "p", qos: qos, id: id})
					switch qos {
					case 1:
						pub.expectAck(wire.PUBACK, id, 0)
					case 2:
						pub.expectAck(wire.PUBREC, id, 0)
						pub.ack(wire.PUBREL, id)
						pub.expectAck(wire.PUBCOMP, id, 0)
					}
					id++
				}
				for _, d := range []delivery{{"a/b/c", 0}, {"a/b/c", 1}, {"a/b/c", 2}, {"keyed/x", 1}} {
					send("a/b", d.qos) // not theirs
					send(d.topic, d.qos)
					m := sub.expectPublish(d.topic, "p", min(d.qos, granted))
					if m.dup {
						t.Error("DUP on the first attempt")
					}
					switch m.qos {
					case 1:
						sub.ack(wire.PUBACK, m.id)
					case 2:
						sub.ack(wire.PUBREC, m.id)
						sub.expectAck(wire.PUBREL, m.id, 0)
						sub.ack(wire.PUBCOMP, m.id)
					}
				}
				sub.ping()
			})
		}
	}
}

// What a controller acts on can't vanish in a power cut.
func TestDeliveryWaitsForTheCommit(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 2})
	pub := b.connect(connectOptions{id: "pub"})
	release := b.disk.hold(t)
	pub.publish(outMessage{topic: "t", payload: "durable", qos: 1, id: 1}, outMessage{topic: "t", payload: "at once"})
	sub.expectPublish("t", "at once", 0)
	sub.silent(50 * time.Millisecond)
	release()
	sub.expectPublish("t", "durable", 1)
}

// A topic without a place in the log is handed on at once whatever its QoS.
func TestDeliveryWithoutLog(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"local/#", 2})
	pub := b.connect(connectOptions{id: "pub"})
	for qos := range byte(3) {
		pub.publish(outMessage{topic: "local/x", payload: "p", qos: qos, id: uint16(qos)})
		sub.expectPublish("local/x", "p", qos)
	}
	pub.publish(outMessage{topic: "local/x", payload: "p", qos: 2, id: 2, dup: true})
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBREC, 2, 0)
	pub.expectAck(wire.PUBREC, 2, 0)
	sub.ping() // no repeat before it
	b.stored(0)
}

func TestOverlappingSubscriptions(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	c.send(c.subscribePacket(1, 5, filter{"a/#", 0}), c.subscribePacket(2, 6, filter{"a/+", 2}), c.subscribePacket(3, 7, filter{"+/b", 1 | 4}))
	for range 3 {
		c.expect(wire.SUBACK)
	}
	other := b.connect(connectOptions{id: "other"})
	other.publish(outMessage{topic: "a/b", qos: 2, id: 1})
	m := c.expectPublish("a/b", "", 2)
	for _, id := range []byte{5, 6, 7} {
		if !bytes.Contains(m.props, []byte{11, id}) {
			t.Errorf("no subscription id %d in % x", id, m.props)
		}
	}
	// No-local is judged for each subscription.
	c.publish(outMessage{topic: "a/b"})
	m = c.expectPublish("a/b", "", 0)
	if bytes.Contains(m.props, []byte{11, 7}) || !bytes.Contains(m.props, []byte{11, 5}) {
		t.Errorf("properties % x", m.props)
	}
	c.publish(outMessage{topic: "x/b", qos: 1, id: 1})
	c.expectAck(wire.PUBACK, 1, 0)
	other.publish(outMessage{topic: "x/b", qos: 1, id: 3})
	if m := c.expectPublish("x/b", "", 1); m.id != 2 {
		t.Errorf("packet id %d: one's own message came back", m.id)
	}
}

// What was committed before the first subscription is not delivered.
func TestSubscriptionStartsNow(t *testing.T) {
	b := start(t)
	pub := b.connect(connectOptions{id: "pub"})
	send := func(payload string) {
		pub.publish(outMessage{topic: "t", payload: payload, qos: 1, id: 1})
		pub.expectAck(wire.PUBACK, 1, 0)
	}
	for i := range 3 {
		send("before")
		sub := b.connect(connectOptions{id: "sub"})
		sub.subscribe(filter{"t", 1})
		payload := fmt.Sprint("after", i)
		send(payload)
		m := sub.expectPublish("t", payload, 1)
		sub.ack(wire.PUBACK, m.id)
		sub.send(frame(0xA2, append([]byte{0, 10, 0}, appendString(nil, "t")...)))
		sub.expect(wire.UNSUBACK)
	}
}

func TestPropertiesAndExpiryPassOn(t *testing.T) {
	b := start(t)
	raw := []byte{1, 1, 3, 0, 1, 'x', 38, 0, 1, 'k', 0, 1, 'v'}
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 1})
	old := b.connect(connectOptions{version: wire.V311, id: "old"})
	old.subscribe(filter{"t", 1})
	pub := b.connect(connectOptions{id: "pub"})
	for qos := range byte(2) {
		pub.publish(outMessage{topic: "t", payload: "p", qos: qos, id: uint16(qos), raw: raw, hasExpiry: true, expiry: 60})
		m := sub.expectPublish("t", "p", qos)
		if !bytes.Contains(m.props, raw) || !bytes.Contains(m.props, []byte{2, 0, 0, 0, 60}) {
			t.Errorf("properties % x", m.props)
		}
		old.expectPublish("t", "p", qos)
	}
}

// Acknowledgements give the client's receive maximum back, place by place and in order.
func TestSendWindow(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			b := start(t)
			sub := b.connect(connectOptions{id: "sub", props: []byte{33, 0, 5}})
			sub.subscribe(filter{"t", qos})
			pub := b.connect(connectOptions{id: "pub"})
			for id := uint16(1); id <= 50; id++ {
				pub.publish(outMessage{topic: "t", payload: fmt.Sprint(id), qos: 1, id: id})
				pub.expectAck(wire.PUBACK, id, 0)
			}
			if qos == 2 {
				qos = 1 // the PUBLISH was at 1
			}
			var open []uint16
			for n := 1; n <= 50; {
				for len(open) < min(5, 51-n) {
					open = append(open, sub.expectPublish("t", fmt.Sprint(n+len(open)), qos).id)
				}
				if len(open) == 5 && n == 1 {
					sub.silent(50 * time.Millisecond)
				}
				sub.ack(wire.PUBACK, open[0])
				open = open[1:]
				n++
			}
			sub.ping()
		})
	}
}

func TestSendWindowQoS2(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub", props: []byte{33, 0, 1}})
	sub.subscribe(filter{"t", 2})
	pub := b.connect(connectOptions{id: "pub"})
	for id := uint16(1); id <= 3; id++ {
		pub.publish(outMessage{topic: "t", payload: fmt.Sprint(id), qos: 2, id: id})
		pub.expectAck(wire.PUBREC, id, 0)
	}
	first := sub.expectPublish("t", "1", 2)
	sub.ack(wire.PUBREC, first.id)
	sub.expectAck(wire.PUBREL, first.id, 0)
	sub.ack(wire.PUBREC, first.id) // it saw no PUBREL
	sub.expectAck(wire.PUBREL, first.id, 0)
	sub.silent(20 * time.Millisecond)
	sub.ack(wire.PUBCOMP, first.id)
	second := sub.expectPublish("t", "2", 2)
	// A failing PUBREC ends the exchange.
	sub.send(wire.AppendPubrec(nil, wire.V5, second.id, wire.QuotaExceeded))
	third := sub.expectPublish("t", "3", 2)
	// Of an id that isn't in use.
	sub.ack(wire.PUBREC, 4711)
	sub.expectAck(wire.PUBREL, 4711, wire.PacketIDNotFound)
	sub.ack(wire.PUBACK, 4711)
	sub.ping()
	// Of the wrong type.
	sub.ack(wire.PUBACK, third.id)
	sub.expectEnd(wire.ProtocolError)
}

// A client's packet ids and the broker's are separate spaces.
func TestPacketIDSpaces(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	c.subscribe(filter{"in", 1})
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "in", qos: 1, id: 1})
	m := c.expectPublish("in", "", 1)
	c.send(c.subscribePacket(m.id, 0, filter{"more", 1}))
	if code := c.codes(c.expect(wire.SUBACK)); code[0] != 1 {
		t.Errorf("SUBACK % x", code)
	}
	c.publish(outMessage{topic: "out", qos: 2, id: m.id})
	c.expectAck(wire.PUBREC, m.id, 0)
	c.ack(wire.PUBACK, m.id)
	c.ack(wire.PUBREL, m.id)
	c.expectAck(wire.PUBCOMP, m.id, 0)
}

// A message that the client doesn't take is left out, and the rest comes.
func TestClientsMaximumPacketSize(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub", props: []byte{39, 0, 0, 0, 100}})
	sub.subscribe(filter{"t", 1})
	pub := b.connect(connectOptions{id: "pub"})
	for id, size := range []int{1, 500, 3} {
		for _, qos := range []byte{0, 1} {
			pub.publish(outMessage{topic: "t", payload: strings.Repeat("x", size), qos: qos, id: uint16(id + 1)})
			if qos == 1 {
				pub.expectAck(wire.PUBACK, uint16(id+1), 0)
			}
			if size < 100 {
				sub.expectPublish("t", strings.Repeat("x", size), qos)
			}
		}
	}
	if n := b.dropped(dropTooLarge); n != 2 {
		t.Errorf("%d counted", n)
	}
}

// A subscriber that takes its time gets everything that its queue holds, in order.
func TestSlowSubscriber(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 1})
	pub := b.connect(connectOptions{id: "pub"})
	const n = 900
	for id := uint16(1); id <= n; id++ {
		pub.publish(outMessage{topic: "t", payload: fmt.Sprint(id), qos: 1, id: id})
		pub.expectAck(wire.PUBACK, id, 0)
	}
	for i := 1; i <= n; i++ {
		m := sub.expectPublish("t", fmt.Sprint(i), 1)
		sub.ack(wire.PUBACK, m.id)
	}
	if d := b.dropped(dropSlow); d != 0 {
		t.Errorf("%d dropped", d)
	}
}

func TestNextIDSkipsThoseInUse(t *testing.T) {
	o := outbound{lastID: 65533, flights: []flight{{id: 65534, awaits: wire.PUBACK}, {id: 1, awaits: wire.PUBCOMP}}}
	for _, want := range []uint16{65535, 2, 3} {
		if got := o.nextID(); got != want {
			t.Errorf("%d, not %d", got, want)
		}
	}
}
