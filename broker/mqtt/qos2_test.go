package mqtt

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestReceivedIDs(t *testing.T) {
	b := start(t)
	w := b.log.NewWriter(nil)
	var r receivedIDs
	model := map[uint16]bool{}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 20000 {
		id := uint16(rng.IntN(1000)) * 65
		if rng.IntN(2) == 0 {
			if r.add(id) == model[id] {
				t.Fatalf("add %d", id)
			}
			model[id] = true
		} else {
			if r.remove(id) != model[id] {
				t.Fatalf("remove %d", id)
			}
			delete(model, id)
		}
		if r.has(id) != model[id] || i%100 == 0 && r.len() != len(model) {
			t.Fatalf("has %d", id)
		}
		if i%500 == 0 {
			if err := w.Begin(); err != nil {
				t.Fatal(err)
			}
			r.save(w, "c", nil)
			w.End()
		}
	}
}

func (b *broker) received(t *testing.T) map[string]int {
	t.Helper()
	keys := map[string]int{}
	err := b.log.Range([]byte(receivedPrefix), func(key, value []byte) bool {
		bits := 0
		for _, v := range value {
			for ; v != 0; v &= v - 1 {
				bits++
			}
		}
		keys[string(key)] = bits
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestQoS2IsStoredOnce(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			c := b.connect(lasting(v, "c/1"))
			release := b.disk.hold(t)
			m := outMessage{topic: "t", payload: "once", qos: 2, id: 0x0105}
			c.publish(m)
			c.ping()
			m.dup = true
			c.publish(m, m) // before the first is durable
			c.ping()
			c.silent(20 * time.Millisecond)
			release()
			for range 3 {
				c.expectAck(wire.PUBREC, m.id, 0)
			}
			c.publish(m)
			c.expectAck(wire.PUBREC, m.id, 0)
			if keys := b.received(t); len(keys) != 1 || keys["q2/c/1/\x01"] != 1 {
				t.Errorf("state %v", keys)
			}
			c.ack(wire.PUBREL, m.id)
			c.expectAck(wire.PUBCOMP, m.id, 0)
			if keys := b.received(t); len(keys) != 0 {
				t.Errorf("state %v", keys)
			}
			c.ack(wire.PUBREL, m.id)
			want := byte(wire.PacketIDNotFound)
			if v == wire.V311 {
				want = 0
			}
			c.expectAck(wire.PUBCOMP, m.id, want)
			m.dup, m.payload = false, "twice"
			c.publish(m) // a new message
			c.expectAck(wire.PUBREC, m.id, 0)
			if r := b.stored(2); len(r) != 2 || string(r[0].Value) != "once" || string(r[1].Value) != "twice" {
				t.Errorf("%d records", len(r))
			}
			// The session's end takes its ids along.
			c.conn.Close()
			b.connect(connectOptions{version: v, id: "c/1"})
			eventually(t, func() bool { return len(b.received(t)) == 0 })
		})
	}
}

func TestRestartForgetsReceivedIDs(t *testing.T) {
	dir := t.TempDir()
	b := start(t, func(s *setup) { s.dir = dir })
	for _, key := range []string{"q2/c/\x00", "q2/d/\x01"} {
		if _, err := b.log.Put([]byte(key), make([]byte, 32)); err != nil {
			t.Fatal(err)
		}
	}
	b.end()
	b = start(t, func(s *setup) { s.dir = dir })
	eventually(t, func() bool { return len(b.received(t)) == 0 })
}

// Ids over many chunks in flight at once, as mosquitto's load tools use them.
func TestQoS2Flood(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ReceiveMaximum = 2000 })
	c := b.connect(connectOptions{id: "c"})
	const n = 1000
	var p []byte
	for i := range uint16(n) {
		p = append(p, c.publishPacket(outMessage{topic: "t", qos: 2, id: 1 + i*61})...)
	}
	c.send(p)
	p = p[:0]
	for i := range uint16(n) {
		c.expectAck(wire.PUBREC, 1+i*61, 0)
		p = wire.AppendPubrel(p, c.version, 1+i*61, 0)
	}
	c.send(p)
	for i := range uint16(n) {
		c.expectAck(wire.PUBCOMP, 1+i*61, 0)
	}
	if r := b.stored(n); len(r) != n {
		t.Errorf("%d records", len(r))
	}
	if keys := b.received(t); len(keys) != 0 {
		t.Errorf("state %v", keys)
	}
}
