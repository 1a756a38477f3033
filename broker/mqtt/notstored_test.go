package mqtt

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// What routes with log: none mean for publishers, subscribers, sessions, wills and what is counted. What they mean for retained messages
// is in retained_test.go, whose topics under local/ have such a route.

// publishWhole publishes a message and works off its acknowledgements.
func (c *client) publishWhole(m outMessage) {
	c.t.Helper()
	c.publish(m)
	switch m.qos {
	case 1:
		c.expectAck(wire.PUBACK, m.id, 0)
	case 2:
		c.expectAck(wire.PUBREC, m.id, 0)
		c.ack(wire.PUBREL, m.id)
		c.expectAck(wire.PUBCOMP, m.id, 0)
	}
}

// gets wants a message, which it acknowledges and has released.
func (c *client) gets(topic, payload string, qos byte) {
	c.t.Helper()
	switch m := c.expectPublish(topic, payload, qos); qos {
	case 1:
		c.ack(wire.PUBACK, m.id)
	case 2:
		c.ack(wire.PUBREC, m.id)
		c.expectAck(wire.PUBREL, m.id, 0)
		c.ack(wire.PUBCOMP, m.id)
	}
}

// Acknowledged and delivered while no commit goes through, to whom is connected, and nowhere else. Of what is stored nothing is missing.
func TestNotStored(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			here := b.connect(lasting(v, "here"))
			here.subscribe(filter{"+/x", 2})
			clean := b.connect(connectOptions{version: v, id: "clean"})
			clean.subscribe(filter{"+/x", 1})
			away := b.connect(lasting(v, "away"))
			away.subscribe(filter{"+/x", 2})
			b.leave(away)
			pub := b.connect(lasting(v, "pub"))
			b.stored(0)
			commits := b.log.Status().Commits
			release := b.disk.hold(t)
			for qos := range byte(3) {
				pub.publishWhole(outMessage{topic: "local/x", payload: "none", qos: qos, id: 7})
				m := here.expectPublish("local/x", "none", qos)
				if qos == 1 { // an answer to PUBREC waits for a commit
					here.ack(wire.PUBACK, m.id)
				}
				clean.gets("local/x", "none", min(qos, 1))
			}
			if n := b.log.Status().Commits - commits; n != 0 {
				t.Errorf("%d commits", n)
			}
			release()
			for qos := range byte(3) {
				pub.publishWhole(outMessage{topic: "t/x", payload: fmt.Sprint("stored ", qos), qos: qos, id: 7})
			}
			away = b.comeBack(lasting(v, "away"))
			for qos := byte(1); qos < 3; qos++ {
				away.gets("t/x", fmt.Sprint("stored ", qos), qos)
			}
			away.ping()
			away.silent(20 * time.Millisecond)
			if r := b.stored(3); len(r) != 3 {
				t.Errorf("%d records", len(r))
			}
			if s := b.Stats(); s.NotStored != 3 || b.drops.Total() != 0 {
				t.Errorf("%d not stored, dropped %v", s.NotStored, b.drops.Snapshot())
			}
		})
	}
}

// A QoS 2 id is known while the broker runs, through other connections too, and is never in the state: what it would keep from being
// stored after a crash is another message.
func TestNotStoredQoS2(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			sub := b.connect(connectOptions{version: v, id: "sub"})
			sub.subscribe(filter{"local/#", 1})
			pub := b.connect(lasting(v, "pub"))
			none := outMessage{topic: "local/x", payload: "none", qos: 2, id: 5}
			pub.publish(none, outMessage{topic: "t", payload: "stored", qos: 2, id: 6}) // their ids share a value
			pub.expectAck(wire.PUBREC, 5, 0)
			pub.expectAck(wire.PUBREC, 6, 0)
			sub.gets("local/x", "none", 1)
			if keys := b.received(t); len(keys) != 1 || keys["q2/pub/\x00"] != 1 {
				t.Errorf("state %v", keys)
			}
			pub.conn.Close()
			pub = b.comeBack(lasting(v, "pub"))
			none.dup = true
			pub.publish(none)
			pub.expectAck(wire.PUBREC, 5, 0)
			sub.ping() // no repeat before it
			for _, id := range []uint16{5, 6} {
				pub.ack(wire.PUBREL, id)
				pub.expectAck(wire.PUBCOMP, id, 0)
			}
			if keys := b.received(t); len(keys) != 0 {
				t.Errorf("state %v", keys)
			}
			none.dup = false
			pub.publish(none) // a new one, and not released
			pub.expectAck(wire.PUBREC, 5, 0)
			sub.gets("local/x", "none", 1)
			pub.conn.Close()
			b = b.restart(dir)
			pub = b.comeBack(lasting(v, "pub"))
			pub.publish(outMessage{topic: "t", payload: "behind", qos: 2, id: 5})
			pub.expectAck(wire.PUBREC, 5, 0)
			if r := b.stored(2); len(r) != 2 || string(r[1].Value) != "behind" {
				t.Errorf("%d records", len(r))
			}
			if s := b.Stats(); s.NotStored != 0 {
				t.Errorf("%d not stored", s.NotStored)
			}
		})
	}
}

// A session that begins anew knows no ids.
func TestNotStoredIDsEndWithTheSession(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"local/#", 1})
	for range 2 {
		pub := b.connect(connectOptions{id: "pub", props: lasting(wire.V5, "").props}) // Clean Start
		pub.publish(outMessage{topic: "local/x", payload: "p", qos: 2, id: 5})
		pub.expectAck(wire.PUBREC, 5, 0)
		sub.gets("local/x", "p", 1)
	}
}

// A disk that fails keeps nobody from what isn't stored.
func TestNotStoredWhileTheDiskRefuses(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			sub := b.connect(connectOptions{version: v, id: "sub"})
			sub.subscribe(filter{"local/#", 2})
			pub := b.connect(lasting(v, "pub"))
			refuse(t, b)
			for qos := range byte(3) {
				pub.publishWhole(outMessage{topic: "local/x", payload: "p", qos: qos, id: 7})
				sub.gets("local/x", "p", qos)
			}
			b.disk.fail(nil)
		})
	}
}

// Acknowledgements keep their order: those of what is stored before hold up those of what isn't.
func TestNotStoredAcksKeepTheirOrder(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	release := b.disk.hold(t)
	pub.publish(outMessage{topic: "t", qos: 1, id: 1}, outMessage{topic: "local/x", qos: 1, id: 2})
	sub.expectPublish("local/x", "", 1)
	pub.silent(20 * time.Millisecond)
	release()
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBACK, 2, 0)
	sub.expectPublish("t", "", 1)
}

// unsent is how many messages a session had in flight that its connection has still to deal with.
func (b *broker) unsent(id string) int {
	b.mu.Lock()
	ss := b.sessions[id]
	b.mu.Unlock()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.out.unsent()
}

// What a subscriber has no room for is dropped and counted, and so is what it leaves unacknowledged.
func TestNotStoredOverflow(t *testing.T) {
	b := start(t)
	o := lasting(wire.V5, "sub")
	o.props = append(o.props, 33, 0, 2)
	sub := b.connect(o)
	sub.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	for i := range 5 {
		pub.publishWhole(outMessage{topic: "local/x", payload: fmt.Sprint(i), qos: 1, id: 1})
	}
	pub.ping() // acknowledged comes before handed on
	first := sub.expectPublish("local/x", "0", 1)
	sub.expectPublish("local/x", "1", 1)
	sub.ack(wire.PUBACK, first.id)
	sub.ping()
	pub.publishWhole(outMessage{topic: "local/x", payload: "5", qos: 1, id: 1})
	sub.expectPublish("local/x", "5", 1)
	b.leave(sub)
	sub = b.comeBack(o)
	eventually(t, func() bool { return b.dropped(dropUnstored) == 2 && b.unsent("sub") == 0 })
	pub.publishWhole(outMessage{topic: "local/x", payload: "6", qos: 1, id: 1})
	sub.expectPublish("local/x", "6", 1)
	for _, d := range b.drops.Snapshot() {
		if d.Topic != unstored || d.Reason == dropSlow && d.Messages != 3 {
			t.Errorf("dropped %+v", d)
		}
	}
	if n := b.drops.Total(); n != 5 {
		t.Errorf("%d dropped", n)
	}
}

// What waits for its packet ids to be durable doesn't hold up what isn't stored.
func TestNotStoredPassesWhatWaitsForACommit(t *testing.T) {
	b := start(t)
	sub := b.connect(lasting(wire.V5, "sub"))
	sub.subscribe(filter{"#", 2})
	pub := b.connect(connectOptions{id: "pub"})
	b.mu.Lock()
	ss := b.sessions["sub"]
	b.mu.Unlock()
	for qos := byte(1); qos < 3; qos++ {
		ss.mu.Lock()
		ss.out.committing = true // as while a commit is under way
		ss.mu.Unlock()
		pub.publishWhole(outMessage{topic: "local/x", payload: "p", qos: qos, id: 1})
		m := sub.expectPublish("local/x", "p", qos)
		ss.mu.Lock()
		ss.out.committing = false
		ss.mu.Unlock()
		sub.complete(m)
	}
	sub.expect(wire.PUBREL)
	if b.drops.Total() != 0 {
		t.Errorf("dropped %v", b.drops.Snapshot())
	}
}

func TestNotStoredShared(t *testing.T) {
	b := start(t)
	var members [2]*client
	for i := range members {
		members[i] = b.connect(lasting(wire.V5, fmt.Sprint("m", i)))
		members[i].subscribe(filter{"$share/g/local/+", 1})
	}
	pub := b.connect(connectOptions{id: "pub"})
	for i := range 4 {
		pub.publishWhole(outMessage{topic: "local/x", payload: fmt.Sprint(i), qos: 1, id: 1})
	}
	got := map[string]int{}
	for _, m := range members {
		m.take(2, got)
		m.ping()
	}
	once(t, got, 4)
	b.leave(members[0])
	pub.publishWhole(outMessage{topic: "local/x", payload: "to the other", qos: 1, id: 1})
	members[1].gets("local/x", "to the other", 1)
	members[1].ping()
	b.leave(members[1])
	for qos := range byte(3) {
		pub.publishWhole(outMessage{topic: "local/x", payload: "to nobody", qos: qos, id: 1})
	}
	pub.ping()
	members[1] = b.comeBack(lasting(wire.V5, "m1"))
	members[1].silent(20 * time.Millisecond)
	if b.drops.Total() != 0 {
		t.Errorf("dropped %v", b.drops.Snapshot())
	}
}

func TestNotStoredWill(t *testing.T) {
	for qos := range byte(3) {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			b := start(t)
			away := b.connect(lasting(wire.V5, "away"))
			away.subscribe(filter{"local/#", 2})
			b.leave(away)
			sub := b.connect(connectOptions{id: "sub"})
			sub.subscribe(filter{"local/#", 2})
			o := lasting(wire.V5, "dying")
			o.will = &willOptions{topic: "local/x", payload: "gone", qos: qos}
			c := b.connect(o)
			c.conn.Close()
			sub.gets("local/x", "gone", qos)
			eventually(t, func() bool { return len(b.stateKeys(willPrefix)) == 0 })
			away = b.comeBack(lasting(wire.V5, "away"))
			away.silent(20 * time.Millisecond)
			if r := b.stored(0); len(r) != 0 || b.drops.Total() != 0 {
				t.Errorf("%d records, dropped %v", len(r), b.drops.Snapshot())
			}
		})
	}
}

// What no route takes isn't stored either, but nobody meant that: it is counted as dropped, once each.
func TestNoRoute(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"lost/#", 2})
	pub := b.connect(lasting(wire.V5, "pub"))
	for qos := range byte(3) {
		pub.publish(outMessage{topic: "lost/x", payload: "p", qos: qos, id: uint16(qos)})
		sub.gets("lost/x", "p", qos)
	}
	pub.publish(outMessage{topic: "lost/x", payload: "p", qos: 2, id: 2, dup: true})
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBREC, 2, 0)
	pub.expectAck(wire.PUBREC, 2, 0)
	b.connect(connectOptions{id: "dying", will: &willOptions{topic: "lost/x", payload: "will"}}).conn.Close()
	sub.expectPublish("lost/x", "will", 0)
	if d := b.drops.Snapshot(); len(d) != 1 || d[0].Topic != unstored || d[0].Reason != dropUnrouted || d[0].Messages != 4 {
		t.Errorf("dropped %v", d)
	}
	if n := b.Stats().NotStored; n != 0 {
		t.Errorf("%d not stored", n)
	}
}
