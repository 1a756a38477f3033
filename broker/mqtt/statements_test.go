package mqtt

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// Behaviour that statements of the standards ask for and no other file has a test for. docs/mqtt-conformance.md lists all statements.

func TestSessionPresent(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			clean := connectOptions{version: v, id: "c"}
			steps := []struct {
				options connectOptions
				present byte
			}{{clean, 0}, {clean, 0}, {lasting(v, "c"), 0}, {lasting(v, "c"), 1}, {clean, 0}, {lasting(v, "c"), 0}}
			for i, s := range steps {
				c := b.dial()
				if p := c.connect(s.options); p.kind != wire.CONNACK || p.body[0] != s.present || p.body[1] != 0 {
					t.Errorf("step %d: CONNACK % x", i, p.body)
				}
				c.send([]byte{0xE0, 0})
				c.expectEnd(0)
			}
		})
	}
}

// CONNACK has the properties that the broker has something to say with, each once, and none of enhanced authentication.
func TestConnackProperties(t *testing.T) {
	b := start(t)
	p := b.dial().connect(connectOptions{props: cat(17, uint32(60), 25, 0)})
	sizes := map[byte]int{17: 4, 33: 2, 34: 2, 37: 1, 39: 4, 41: 1, 42: 1}
	seen := map[byte]bool{}
	for left := p.body[3:]; len(left) > 0; {
		id, size := left[0], sizes[left[0]]
		if id == 18 { // assigned client id
			size = 2 + int(left[2])
		}
		if size == 0 || seen[id] {
			t.Fatalf("property %d in % x", id, p.body)
		}
		seen[id] = true
		left = left[1+size:]
	}
	if int(p.body[2]) != len(p.body)-3 || !seen[18] || !seen[33] || !seen[39] {
		t.Errorf("CONNACK % x", p.body)
	}
}

func TestNoWillWithoutItsFlag(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	for _, v := range bothVersions {
		b.connect(connectOptions{version: v, id: "c", will: &willOptions{topic: "will", payload: "gone"}}).send([]byte{0xE0, 0})
		eventually(t, func() bool { return b.Stats().Sessions == 1 })
		b.connect(connectOptions{version: v, id: "c"}).conn.Close()
		eventually(t, func() bool { return b.Stats().Sessions == 1 })
		b.publishAll("after", 1, 0, 1)
		sub.ack(wire.PUBACK, sub.expectPublish("after", "0", 1).id)
		eventually(t, func() bool { return b.Stats().Sessions == 1 })
	}
}

func TestClientIDs(t *testing.T) {
	b := start(t)
	const characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for _, v := range bothVersions {
		for _, id := range []string{"0", characters[:23], characters[23:46], characters[39:], "ä/€ \ufeff\x01"} {
			b.connect(connectOptions{version: v, id: id}).ping()
		}
		first, second := b.connect(connectOptions{version: v}), b.connect(connectOptions{version: v})
		first.ping()
		second.ping()
	}
	// An id that was assigned is one like any other: with it the session is taken up again.
	c := b.dial()
	o := lasting(wire.V5, "")
	p := c.connect(o)
	at := bytes.Index(p.body, []byte{18, 0, 23})
	if at < 0 {
		t.Fatalf("CONNACK % x", p.body)
	}
	o.id = string(p.body[at+3 : at+26])
	b.leave(c)
	b.comeBack(o)
}

// Nothing comes for a filter once its UNSUBACK has been sent, and what was in flight is finished.
func TestUnsubscribe(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			o := lasting(v, "sub")
			sub := b.connect(o)
			sub.subscribe(filter{"t", 2}, filter{"end", 1})
			b.publishAll("t", 1, 0, 1)
			b.publishAll("t", 2, 1, 2)
			one := sub.expectPublish("t", "0", 1)
			two := sub.expectPublish("t", "1", 2)
			properties := none
			if v == wire.V311 {
				properties = nil
			}
			sub.send(raw(0xA2, uint16(5), properties, str("t"), str("T"), str("t/")))
			if p := sub.expect(wire.UNSUBACK); p.id() != 5 {
				t.Errorf("UNSUBACK % x", p.body)
			}
			b.publishAll("t", 1, 2, 5)
			b.publishAll("end", 1, 0, 1)
			end := sub.expectPublish("end", "0", 1)
			sub.ack(wire.PUBACK, end.id)
			sub.ping()
			b.leave(sub)
			sub = b.comeBack(o)
			for i, m := range []publishIn{one, two} {
				if again := sub.expectPublish("t", fmt.Sprint(i), m.qos); again.id != m.id || !again.dup {
					t.Errorf("id %d, not %d, DUP %v", again.id, m.id, again.dup)
				}
			}
			sub.ack(wire.PUBACK, one.id)
			sub.ack(wire.PUBREC, two.id)
			sub.expectAck(wire.PUBREL, two.id, 0)
			sub.ack(wire.PUBCOMP, two.id)
			sub.ping()
		})
	}
}

// A filter that is subscribed to again replaces the subscription, and no message is missing or doubled meanwhile.
func TestSubscriptionIsReplaced(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 1})
	const n = 200
	var wg sync.WaitGroup
	wg.Go(func() { b.publishAll("t", 1, 0, n) })
	for next := 0; next < n; {
		if next%7 == 0 {
			sub.send(sub.subscribePacket(uint16(next+1), 0, filter{"t", 1}))
		}
		for before := next; next == before; {
			p := sub.read()
			if p.kind == wire.SUBACK {
				continue
			}
			m := sub.parse(p)
			if m.payload != fmt.Sprint(next) {
				t.Fatalf("%q, not %d", m.payload, next)
			}
			sub.ack(wire.PUBACK, m.id)
			next++
		}
	}
	wg.Wait()
	sub = b.connect(connectOptions{id: "sub"}) // nothing is on its way to it
	sub.subscribe(filter{"t", 2})
	sub.send(sub.subscribePacket(1, 9, filter{"t", 0}))
	sub.expect(wire.SUBACK)
	if f := b.Stats().Filters; f != 1 {
		t.Errorf("%d filters", f)
	}
	b.publishAll("t", 1, 0, 1)
	if m := sub.expectPublish("t", "0", 0); !bytes.Equal(m.props, []byte{11, 9}) {
		t.Errorf("properties % x", m.props)
	}
}

// An acknowledged id is free, also for a message with DUP, which is not passed on.
func TestAcknowledgedIDIsFree(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			sub := b.connect(connectOptions{version: v, id: "sub"})
			sub.subscribe(filter{"t", 2})
			pub := b.connect(connectOptions{version: v, id: "pub"})
			for i := range 3 {
				for qos := byte(1); qos <= 2; qos++ {
					payload := fmt.Sprint(i, qos)
					pub.publish(outMessage{topic: "t", payload: payload, qos: qos, id: 7, dup: true})
					if qos == 1 {
						pub.expectAck(wire.PUBACK, 7, 0)
					} else {
						pub.expectAck(wire.PUBREC, 7, 0)
						pub.ack(wire.PUBREL, 7)
						pub.expectAck(wire.PUBCOMP, 7, 0)
					}
					if m := sub.expectPublish("t", payload, qos); m.dup {
						t.Error("DUP of the incoming message is passed on")
					}
				}
			}
		})
	}
}

// A client that may be sent no more messages of QoS 1 and 2 is still answered and sent those of QoS 0.
func TestQuotaHoldsMessagesOnly(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c", props: []byte{33, 0, 1}})
	c.subscribe(filter{"t", 1}, filter{"zero", 0})
	b.publishAll("t", 1, 0, 3)
	first := c.expectPublish("t", "0", 1)
	c.ping()
	c.send(c.subscribePacket(9, 0, filter{"other", 1}))
	c.expect(wire.SUBACK)
	c.publish(outMessage{topic: "x", qos: 1, id: 1}, outMessage{topic: "x", qos: 2, id: 2})
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectAck(wire.PUBREC, 2, 0)
	c.ack(wire.PUBREL, 2)
	c.expectAck(wire.PUBCOMP, 2, 0)
	b.publishAll("zero", 1, 0, 1)
	c.expectPublish("zero", "0", 0)
	c.ack(wire.PUBACK, first.id)
	c.expectPublish("t", "1", 1)
}

// A PUBACK or PUBREC that says the message failed ends its delivery: it is sent to nobody again.
func TestFailingAckEndsTheDelivery(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		for _, name := range []string{"t", "$share/g/t"} {
			t.Run(fmt.Sprint("QoS ", qos, " ", name), func(t *testing.T) {
				b := start(t)
				o := lasting(wire.V5, "sub")
				sub := b.connect(o)
				sub.subscribe(filter{name, qos})
				b.publishAll("t", qos, 0, 1)
				m := sub.expectPublish("t", "0", qos)
				if name != "t" {
					other := b.connect(connectOptions{id: "other"})
					other.subscribe(filter{name, qos})
					defer other.silent(50 * time.Millisecond)
				}
				if qos == 1 {
					sub.send(wire.AppendPuback(nil, wire.V5, m.id, wire.UnspecifiedError))
				} else {
					sub.send(wire.AppendPubrec(nil, wire.V5, m.id, wire.UnspecifiedError))
				}
				sub.ping() // no PUBREL before it
				b.leave(sub)
				sub = b.comeBack(o)
				sub.ping()
				sub.silent(50 * time.Millisecond)
			})
		}
	}
}

// A member of a shared subscription finishes what it was sent at QoS 2; when its session ends first, nobody else gets it.
func TestSharedQoS2StaysWithItsMember(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint("session ends ", ends), func(t *testing.T) {
			b := start(t)
			o := lasting(wire.V5, "first")
			if ends {
				o = connectOptions{id: "first"}
			}
			first := b.connect(o)
			first.subscribe(filter{"$share/g/t", 2})
			b.publishAll("t", 2, 0, 1)
			m := first.expectPublish("t", "0", 2)
			second := b.connect(connectOptions{id: "second"})
			second.subscribe(filter{"$share/g/t", 2})
			if ends {
				first.conn.Close()
				eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.sessions["first"] == nil })
			} else {
				b.leave(first)
			}
			second.silent(50 * time.Millisecond)
			if ends {
				return
			}
			first = b.comeBack(o)
			if again := first.expectPublish("t", "0", 2); again.id != m.id || !again.dup {
				t.Errorf("id %d, not %d, DUP %v", again.id, m.id, again.dup)
			}
		})
	}
}

// Each member of a shared subscription gets messages at the QoS that it was granted.
func TestSharedGrantedQoS(t *testing.T) {
	b := start(t)
	members := make([]*client, 3)
	for qos := range members {
		members[qos] = b.connect(connectOptions{id: fmt.Sprint("m", qos)})
		members[qos].subscribe(filter{"$share/g/t", byte(qos)})
	}
	b.publishAll("t", 2, 0, 9)
	got := map[string]int{}
	for qos, m := range members {
		for range 3 {
			p := m.parse(m.readPublish())
			if p.qos != byte(qos) {
				t.Errorf("QoS %d for a member at %d", p.qos, qos)
			}
			got[p.payload]++
			switch qos {
			case 1:
				m.ack(wire.PUBACK, p.id)
			case 2:
				m.ack(wire.PUBREC, p.id)
			}
		}
	}
	once(t, got, 9)
}

// Topics and strings are kept byte for byte, and matched so.
func TestNothingIsNormalized(t *testing.T) {
	b := start(t)
	for _, v := range bothVersions {
		sub := b.connect(connectOptions{version: v, id: "sub"})
		sub.subscribe(filter{"\ufeffa", 0}, filter{"é", 0}, filter{"A", 0}, filter{"a//b", 0}, filter{"\x01\ufffe", 0}, filter{"end", 0})
		pub := b.connect(connectOptions{version: v, id: "pub"})
		own := []string{"\ufeffa", "é", "A", "a//b", "\x01\ufffe"}
		for _, topic := range []string{"a", "e\u0301", "a/b", "/a", "a/", " A", "\ufffe"} {
			pub.publish(outMessage{topic: topic})
		}
		for _, topic := range own {
			pub.publish(outMessage{topic: topic, payload: "\ufeffp"})
			sub.expectPublish(topic, "\ufeffp", 0)
		}
		pub.publish(outMessage{topic: "end"})
		sub.expectPublish("end", "", 0)
	}
}

// Properties of messages and wills reach subscribers unaltered and in order.
func TestPropertiesKeepTheirOrder(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	all := cat(38, str("k"), str("2"), 1, 1, 38, str("k"), str("1"), 3, str("\ufefftext"), 8, str("answer/to"), 9, str("\x00\xff"), 38, str("a"), str(""))
	pub := b.connect(connectOptions{id: "pub", will: &willOptions{topic: "will", payload: "gone", qos: 1, props: all}})
	for qos := range byte(2) {
		pub.publish(outMessage{topic: "t", payload: "p", qos: qos, id: 1, raw: all})
		if m := sub.expectPublish("t", "p", qos); !bytes.Equal(m.props, all) {
			t.Errorf("properties % x", m.props)
		}
	}
	pub.conn.Close()
	if m := sub.expectPublish("will", "gone", 1); !bytes.Equal(m.props, all) {
		t.Errorf("the will's properties % x", m.props)
	}
}

// A QoS 2 message that has been sent doesn't expire any more, neither does one that was received.
func TestSentMessagesDontExpire(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restarted), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			o := lasting(wire.V5, "sub")
			sub := b.connect(o)
			sub.subscribe(filter{"t", 2})
			pub := b.connect(lasting(wire.V5, "pub"))
			pub.publish(outMessage{topic: "t", payload: "p", qos: 2, id: 3, hasExpiry: true, expiry: 1})
			pub.expectAck(wire.PUBREC, 3, 0)
			m := sub.expectPublish("t", "p", 2)
			b.leave(sub)
			//lint:sleep the log's clock is the machine's
			time.Sleep(1100 * time.Millisecond)
			if restarted {
				b = b.restart(dir)
				pub = b.comeBack(lasting(wire.V5, "pub"))
			}
			sub = b.comeBack(o)
			if again := sub.expectPublish("t", "p", 2); again.id != m.id || !again.dup {
				t.Errorf("id %d, not %d, DUP %v", again.id, m.id, again.dup)
			}
			pub.ack(wire.PUBREL, 3)
			pub.expectAck(wire.PUBCOMP, 3, 0)
		})
	}
}

// A packet as large as the client takes is sent.
func TestPacketOfTheClientsMaximum(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub", props: []byte{39, 0, 0, 0, 100}})
	sub.subscribe(filter{"t", 0})
	for over := range 2 {
		m := outMessage{topic: "t", payload: strings.Repeat("x", 94+over)}
		if size := len(sub.publishPacket(m)); size != 100+over {
			t.Fatalf("%d bytes", size)
		}
		sub.publish(m)
	}
	sub.expectPublish("t", strings.Repeat("x", 94), 0)
	sub.ping()
}

// Messages go again in the order in which they were first sent, also when their ids have wrapped round.
func TestResendOrder(t *testing.T) {
	b := start(t)
	o := lasting(wire.V311, "sub")
	sub := b.connect(o)
	sub.subscribe(filter{"t", 1})
	b.mu.Lock()
	ss := b.sessions["sub"]
	b.mu.Unlock()
	ss.mu.Lock()
	ss.out.lastID = 65533
	ss.mu.Unlock()
	b.publishAll("t", 1, 0, 5)
	var ids []uint16
	for i := range 5 {
		ids = append(ids, sub.expectPublish("t", fmt.Sprint(i), 1).id)
	}
	if !slices.Equal(ids, []uint16{65534, 65535, 1, 2, 3}) {
		t.Errorf("ids %d", ids)
	}
	b.leave(sub)
	sub = b.comeBack(o)
	for i := range 5 {
		if m := sub.expectPublish("t", fmt.Sprint(i), 1); m.id != ids[i] || !m.dup {
			t.Errorf("id %d, not %d, DUP %v", m.id, ids[i], m.dup)
		}
	}
}
