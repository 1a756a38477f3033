package mqtt

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// take reads n messages, acknowledges them and adds their payloads to got.
func (c *client) take(n int, got map[string]int) {
	c.t.Helper()
	for range n {
		p := c.readPublish()
		m := c.parse(p)
		got[m.payload]++
		switch m.qos {
		case 1:
			c.ack(wire.PUBACK, m.id)
		case 2:
			c.ack(wire.PUBREC, m.id)
		}
	}
}

func once(t *testing.T, got map[string]int, n int) {
	t.Helper()
	for i := range n {
		if got[fmt.Sprint(i)] != 1 {
			t.Errorf("message %d came %d times", i, got[fmt.Sprint(i)])
		}
	}
}

// Each message goes to one member, to each in turn, and to all that have subscriptions of their own.
func TestSharedSubscription(t *testing.T) {
	for _, v := range bothVersions {
		for qos := range byte(3) {
			t.Run(fmt.Sprint(versionName(v), " QoS ", qos), func(t *testing.T) {
				b := start(t)
				var members [2]*client
				for i := range members {
					members[i] = b.connect(connectOptions{version: v, id: fmt.Sprint("m", i)})
					members[i].subscribe(filter{"$share/g/t/+", qos})
				}
				other := b.connect(connectOptions{id: "other"})
				other.subscribe(filter{"t/#", qos})
				third := b.connect(connectOptions{id: "third"})
				third.subscribe(filter{"$share/h/t/+", 2})
				b.publishSlowly("t/x", qos, 20, other)
				got := map[string]int{}
				for _, m := range members {
					m.take(10, got)
				}
				once(t, got, 20)
				got = map[string]int{}
				third.take(20, got)
				once(t, got, 20)
			})
		}
	}
}

// publishSlowly publishes payloads 0 to n-1 one after the other, and has watch take each.
func (b *broker) publishSlowly(topic string, qos byte, n int, watch *client) {
	b.t.Helper()
	pub := b.connect(connectOptions{id: "pub"})
	for i := range n {
		pub.publish(outMessage{topic: topic, payload: fmt.Sprint(i), qos: qos, id: uint16(i + 1)})
		watch.take(1, map[string]int{})
	}
	pub.conn.Close()
}

// What a member has in flight at QoS 1 goes to another one when its session ends, and stays with it while that lives.
func TestSharedLeases(t *testing.T) {
	b := start(t)
	frail := b.connect(connectOptions{id: "frail"})
	frail.subscribe(filter{"$share/g/t", 1})
	b.publishAll("t", 1, 0, 10)
	for i := range 10 {
		frail.expectPublish("t", fmt.Sprint(i), 1)
	}
	lasting5 := lasting(wire.V5, "lasting")
	solid := b.connect(lasting5)
	solid.subscribe(filter{"$share/g/t", 1})
	frail.conn.Close()
	got := map[string]int{}
	solid.take(5, got)
	for range 5 {
		solid.readPublish() // not acknowledged
	}
	solid.ping()
	b.leave(solid)
	third := b.connect(connectOptions{id: "third"})
	third.subscribe(filter{"$share/g/t", 1})
	third.silent(50 * time.Millisecond)
	solid = b.comeBack(lasting5)
	solid.take(5, got)
	once(t, got, 10)
}

// While all members are away the cursor stands; restarts change nothing.
func TestSharedOffline(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			var members [2]*client
			join := func() {
				for i := range members {
					o := lasting(wire.V5, fmt.Sprint("m", i))
					if members[i] == nil {
						members[i] = b.connect(o)
						members[i].subscribe(filter{"$share/g/t", qos})
					} else {
						members[i] = b.comeBack(o)
					}
				}
			}
			join()
			got := map[string]int{}
			drain := func(n int) {
				for deadline := time.Now().Add(patience); len(got) < n; {
					if time.Now().After(deadline) {
						t.Fatalf("%d of %d came", len(got), n)
					}
					for _, m := range members {
						p, err := m.next(50 * time.Millisecond)
						if err != nil {
							continue
						}
						switch p.kind {
						case wire.PUBREL:
							m.ack(wire.PUBCOMP, p.id())
						case wire.PUBLISH:
							in := m.parse(p)
							got[in.payload]++
							if qos == 1 {
								m.ack(wire.PUBACK, in.id)
							} else {
								m.ack(wire.PUBREC, in.id)
							}
						}
					}
				}
			}
			b.publishAll("t", qos, 0, 10)
			drain(10)
			for _, m := range members {
				b.leave(m)
			}
			b.publishAll("t", qos, 10, 200)
			b = b.restart(dir)
			b.publishAll("t", qos, 200, 210)
			join()
			drain(210)
			once(t, got, 210)
		})
	}
}

// A member that takes nothing holds nobody up.
func TestSharedSlowMember(t *testing.T) {
	b := start(t, func(s *setup) { s.options.SendWindow = 5 })
	slow := b.connect(connectOptions{id: "slow"})
	slow.subscribe(filter{"$share/g/t", 1})
	quick := b.connect(connectOptions{id: "quick"})
	quick.subscribe(filter{"$share/g/t", 1})
	b.publishAll("t", 1, 0, 200)
	got := map[string]int{}
	quick.take(195, got)
	slow.take(5, got)
	once(t, got, 200)
	b.publishAll("t", 1, 200, 202)
	quick.take(1, got)
	slow.take(1, got)
}

func TestSharedRefusals(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	for _, name := range []string{"$share//a", "$share/g", "$share/g/", "$share/a+/b"} {
		c.send(c.subscribePacket(1, 0, filter{name, 1}))
		if codes := c.codes(c.expect(wire.SUBACK)); codes[0] != wire.TopicFilterInvalid {
			t.Errorf("%s: % x", name, codes)
		}
	}
	c.send(c.subscribePacket(1, 0, filter{"$share/g/a", 1 | 4}))
	c.expectEnd(wire.ProtocolError)
}
