package mqtt

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// Cases that other brokers get wrong, as far as no other file has a test for them. docs/mqtt-conformance.md lists all.

// A client that publishes under the packet id of a message it has not acknowledged gets that message again when it comes back.
func TestOwnPacketIDKeepsTheDelivery(t *testing.T) {
	for _, v := range bothVersions {
		for own := byte(1); own <= 2; own++ {
			for delivered := byte(1); delivered <= 2; delivered++ {
				t.Run(fmt.Sprint(versionName(v), " own QoS ", own, " delivered QoS ", delivered), func(t *testing.T) {
					b := start(t)
					c := b.connect(lasting(v, "c"))
					c.subscribe(filter{"in", 2})
					b.publishAll("in", delivered, 0, 1)
					m := c.expectPublish("in", "0", delivered)
					c.publish(outMessage{topic: "out", qos: own, id: m.id})
					if own == 1 {
						c.expectAck(wire.PUBACK, m.id, 0)
					} else {
						c.expectAck(wire.PUBREC, m.id, 0)
						c.ack(wire.PUBREL, m.id)
						c.expectAck(wire.PUBCOMP, m.id, 0)
					}
					b.leave(c)
					c = b.comeBack(lasting(v, "c"))
					if again := c.expectPublish("in", "0", delivered); again.id != m.id || !again.dup {
						t.Errorf("id %d, not %d, DUP %v", again.id, m.id, again.dup)
					}
				})
			}
		}
	}
}

// The broker stops while clients connect, publish and take each other over.
func TestCloseWhileClientsConnect(t *testing.T) {
	for range 5 {
		b := start(t)
		address := b.Addrs()[0].String()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						return // it listens no more
					}
					c := &client{t: t, conn: conn, version: bothVersions[n%2]}
					will := &willOptions{topic: "will", payload: "gone", qos: 1}
					conn.Write(cat(lasting(c.version, fmt.Sprint("c", (i+n)%6)).encode(), c.subscribePacket(1, 0, filter{"#", 1}),
						c.publishPacket(outMessage{topic: "t", qos: 1, id: 1})))
					if n%3 == 0 {
						conn.Write(connectOptions{version: c.version, id: "second", will: will}.encode())
					}
					var p [64]byte
					conn.SetReadDeadline(time.Now().Add(patience))
					conn.Read(p[:])
					conn.Close()
				}
			})
		}
		eventually(t, func() bool { return b.Stats().Accepted > 40 })
		b.end()
		wg.Wait()
		if s := b.Stats(); s.Connections != 0 || s.QueuedBytes != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// Connections that take a session over while messages come in and acknowledgements go out get all of them, in order.
func TestTakeOverLosesNothing(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			b := start(t)
			const n = 250
			o := lasting(wire.V5, "sub")
			sub := b.connect(o)
			sub.subscribe(filter{"t", qos})
			var wg sync.WaitGroup
			wg.Go(func() { b.publishAll("t", qos, 0, n) })
			defer wg.Wait()
			rng := rand.New(rand.NewPCG(uint64(qos), 1))
			for next := 0; next < n; {
				old := sub
				sub = b.comeBack(o)
				old.conn.Close()
				for range 1 + rng.IntN(10) { // fewer than may be unacknowledged
					if next < n {
						next = sub.takeInOrder(next, rng.IntN(4) > 0)
					}
				}
			}
		})
	}
}

// takeInOrder takes the next message or PUBREL. A message is the one after those that came, or one of them once more. It may be left
// without an acknowledgement.
func (c *client) takeInOrder(next int, acknowledge bool) int {
	c.t.Helper()
	p := c.read()
	if p.kind == wire.PUBREL {
		c.ack(wire.PUBCOMP, p.id())
		return next
	}
	m := c.parse(p)
	var i int
	fmt.Sscan(m.payload, &i)
	switch {
	case i == next:
		next++
	case i > next || !m.dup:
		c.t.Fatalf("message %d, DUP %v, where %d is next", i, m.dup, next)
	}
	if acknowledge && m.qos == 1 {
		c.ack(wire.PUBACK, m.id)
	} else if acknowledge {
		c.ack(wire.PUBREC, m.id)
	}
	return next
}
