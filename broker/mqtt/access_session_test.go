package mqtt

import (
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// lastingAs is a CONNECT of a session that outlives its connection, by a user whose password is its name.
func lastingAs(version byte, user string) connectOptions {
	o := lasting(version, user+"-id")
	o.user, o.password = &user, &user
	return o
}

// TestOfflineDeliveriesAreChecked: what counts is what the client may have when it is delivered, not when it was published.
func TestOfflineDeliveriesAreChecked(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			g := newGuard(t, "user bob\ntopic read a/#\ntopic read b/#\nuser carol\ntopic #\n")
			b := start(t, g.options)
			o := lastingAs(v, "bob")
			bob := b.connect(o)
			bob.subscribe(filter{"#", 1})
			carol := b.connect(as(v, "carol"))
			send := func(id uint16, topic string) {
				t.Helper()
				carol.publish(outMessage{topic: topic, payload: topic, qos: 1, id: id})
				carol.expectAck(wire.PUBACK, id, 0)
			}
			send(1, "b/in flight")
			bob.expectPublish("b/in flight", "b/in flight", 1) // not acknowledged
			b.leave(bob)
			send(2, "a/1")
			send(3, "c/never")
			send(4, "b/revoked")
			send(5, "a/2")
			g.write(g.acl, "user bob\ntopic read a/#\nuser carol\ntopic #\n")
			g.reload(b)
			bob = b.comeBack(o)
			for _, topic := range []string{"a/1", "a/2"} {
				m := bob.expectPublish(topic, topic, 1)
				bob.ack(wire.PUBACK, m.id)
			}
			send(6, "b/live")
			send(7, "a/live")
			bob.expectPublish("a/live", "a/live", 1)
		})
	}
}

// TestSharedDeliveriesAreChecked: a message goes to a member that may have it, and what nobody who is there may have holds nothing up.
func TestSharedDeliveriesAreChecked(t *testing.T) {
	for _, v := range bothVersions {
		for qos := range byte(3) {
			t.Run(versionName(v)+" QoS "+string('0'+qos), func(t *testing.T) {
				g := newGuard(t, "user alice\ntopic read a/#\nuser bob\ntopic read b/#\nuser carol\ntopic #\n")
				b := start(t, g.options)
				alice, bob, carol := b.connect(as(v, "alice")), b.connect(as(v, "bob")), b.connect(as(v, "carol"))
				alice.subscribe(filter{"$share/g/#", qos})
				bob.subscribe(filter{"$share/g/#", qos})
				o := as(v, "carol")
				o.id = "watch"
				watch := b.connect(o)
				watch.subscribe(filter{"#", 0})
				for i, topic := range []string{"b/1", "b/2", "c/nobody", "b/3", "a/1", "b/4"} {
					m := outMessage{topic: topic, payload: topic, qos: qos, id: uint16(i + 1)}
					carol.publish(m)
					switch qos {
					case 1:
						carol.expectAck(wire.PUBACK, m.id, 0)
					case 2:
						carol.expectAck(wire.PUBREC, m.id, 0)
						carol.ack(wire.PUBREL, m.id)
						carol.expectAck(wire.PUBCOMP, m.id, 0)
					}
					watch.expectPublish(topic, topic, 0)
				}
				for _, topic := range []string{"b/1", "b/2", "b/3", "b/4"} {
					bob.expectPublish(topic, topic, qos)
				}
				alice.expectPublish("a/1", "a/1", qos)
				alice.ping()
			})
		}
	}
}

// TestDelayedWillIsCheckedAfterARestart: the user is kept with the will, and with it the user's rights.
func TestDelayedWillIsCheckedAfterARestart(t *testing.T) {
	g := newGuard(t, "user alice\ntopic write a/#\nuser bob\ntopic write b/#\nuser carol\ntopic #\n")
	dir := t.TempDir()
	b := start(t, g.options, func(s *setup) { s.dir = dir })
	delayed := func(user, topic string) *client {
		o := lastingAs(wire.V5, user)
		o.will = &willOptions{topic: topic, payload: "gone", qos: 1, props: []byte{24, 0, 0, 0, 2}}
		return b.connect(o)
	}
	b.leave(delayed("alice", "a/alice"))
	b.leave(delayed("bob", "b/bob"))
	g.write(g.acl, "user alice\ntopic write a/#\nuser bob\ntopic write c/#\nuser carol\ntopic #\n") // while the broker is away
	b.end()
	if _, err := g.access.Load(); err != nil {
		t.Fatal(err)
	}
	b = start(t, g.options, func(s *setup) { s.dir = dir })
	carol := b.connect(as(wire.V5, "carol"))
	carol.subscribe(filter{"#", 1})
	carol.expectPublish("a/alice", "gone", 1)
	eventually(t, func() bool { return b.dropped(dropDenied) == 1 })
}
