package mqtt

import (
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

const retainedACL = `user alice
topic write a/#
user bob
topic read a/#
topic read b/revoked
user carol
topic #
topic read $SYS/#
`

// TestRetainedDeliveriesAreChecked: a subscription gets what of the retained messages its client may have.
func TestRetainedDeliveriesAreChecked(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			g := newGuard(t, retainedACL)
			b := start(t, g.options)
			carol := b.connect(as(v, "carol"))
			for i, topic := range []string{"a/1", "b/2", "b/revoked", "a/3"} {
				carol.publish(outMessage{topic: topic, payload: topic, qos: 1, id: uint16(i + 1), retain: true})
				carol.expectAck(wire.PUBACK, uint16(i+1), 0)
			}
			o := lastingAs(v, "bob")
			bob := b.connect(o)
			bob.subscribe(filter{"b/revoked", 1})
			bob.expectPublish("b/revoked", "b/revoked", 1) // not acknowledged
			bob.send(bob.subscribePacket(2, 0, filter{"#", 1}, filter{"$SYS/#", 1}))
			bob.expect(wire.SUBACK)
			got := map[string]bool{}
			for range 3 {
				m := bob.parse(bob.read())
				got[m.topic] = true
				bob.ack(wire.PUBACK, m.id)
			}
			if !got["a/1"] || !got["a/3"] || !got["b/revoked"] {
				t.Errorf("%v", got)
			}
			bob.ping()
			// What is in flight when the right is taken away is not sent again.
			b.leave(bob)
			g.write(g.acl, "user bob\ntopic read a/#\nuser carol\ntopic #\n")
			g.reload(b)
			bob = b.comeBack(o)
			carol.publish(outMessage{topic: "a/live", payload: "x", qos: 1, id: 9})
			bob.expectPublish("a/live", "x", 1)
		})
	}
}

// TestSysIsChecked: $SYS is for those whose rules name it.
func TestSysIsChecked(t *testing.T) {
	b := start(t, newGuard(t, retainedACL).options, func(s *setup) { s.options.SysInterval = 50 * time.Millisecond })
	bob, carol := b.connect(as(wire.V5, "bob")), b.connect(as(wire.V5, "carol"))
	bob.subscribe(filter{"$SYS/#", 0})
	carol.subscribe(filter{"$SYS/broker/uptime", 0})
	for range 3 {
		carol.parse(carol.read())
	}
	bob.ping()
}

// TestDeniedRetainedIsNotKept: nor does it delete what is retained.
func TestDeniedRetainedIsNotKept(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t, newGuard(t, retainedACL).options)
			alice, carol := b.connect(as(v, "alice")), b.connect(as(v, "carol"))
			carol.publish(outMessage{topic: "b/kept", payload: "kept", qos: 1, id: 1, retain: true})
			carol.expectAck(wire.PUBACK, 1, 0)
			reason := byte(wire.NotAuthorized)
			if v == wire.V311 {
				reason = 0
			}
			for i, m := range []outMessage{
				{topic: "b/kept", payload: ""}, {topic: "b/kept", payload: "other"}, {topic: "b/new", payload: "x"},
			} {
				m.qos, m.id, m.retain = 1, uint16(i+1), true
				alice.publish(m)
				alice.expectAck(wire.PUBACK, m.id, reason)
			}
			o := as(v, "alice")
			o.id, o.will = "dies", &willOptions{topic: "b/will", payload: "x", retain: true}
			b.connect(o).conn.Close()
			eventually(t, func() bool { return b.dropped(dropDenied) == 4 })
			carol.subscribe(filter{"b/#", 0})
			carol.expectPublish("b/kept", "kept", 0)
			carol.ping()
		})
	}
}

// TestAliasedPublishIsChecked: a topic alias is asked about by what it stands for.
func TestAliasedPublishIsChecked(t *testing.T) {
	b := start(t, newGuard(t, retainedACL).options)
	alice := b.connect(as(wire.V5, "alice"))
	alias := func(n byte) []byte { return []byte{35, 0, n} }
	for i, m := range []struct {
		topic  string
		alias  byte
		reason byte
	}{
		{"a/x", 1, 0}, {"", 1, 0}, {"b/x", 2, wire.NotAuthorized}, {"", 2, wire.NotAuthorized}, {"", 1, 0}, {"b/x", 1, wire.NotAuthorized},
		{"", 1, wire.NotAuthorized}, {"a/x", 2, 0}, {"", 2, 0},
	} {
		id := uint16(i + 1)
		alice.publish(outMessage{topic: m.topic, payload: "x", qos: 1, id: id, raw: alias(m.alias)})
		alice.expectAck(wire.PUBACK, id, m.reason)
	}
	if records := b.stored(5); len(records) != 5 {
		t.Errorf("%d records", len(records))
	}
}
