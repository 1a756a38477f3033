package mqtt

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// guard is a broker's password and ACL file.
type guard struct {
	t         testing.TB
	passwords string
	acl       string
	access    *auth.Authenticator
}

// hashed is a line of a password file.
func hashed(user, password string) string {
	salt := make([]byte, 12)
	rand.Read(salt)
	sum := sha512.Sum512(append([]byte(password), salt...))
	return fmt.Sprintf("%s:$6$%s$%s\n", user, base64.StdEncoding.EncodeToString(salt), base64.StdEncoding.EncodeToString(sum[:]))
}

// newGuard lets in alice, bob and carol, whose passwords are their names.
func newGuard(t testing.TB, acl string) *guard {
	t.Helper()
	dir := t.TempDir()
	g := &guard{t: t, passwords: filepath.Join(dir, "passwd"), acl: filepath.Join(dir, "acl")}
	g.write(g.passwords, hashed("alice", "alice")+hashed("bob", "bob")+hashed("carol", "carol"))
	g.write(g.acl, acl)
	var err error
	if g.access, _, err = auth.New(auth.Options{PasswordFile: g.passwords, ACLFile: g.acl}); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *guard) write(file, text string) {
	g.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// options make a broker ask the guard. Only clients with a name are let in.
func (g *guard) options(s *setup) {
	s.options.Access = g.access
	s.options.Listeners = []Listener{{Address: "127.0.0.1:0"}}
}

func (g *guard) reload(b *broker) {
	g.t.Helper()
	if _, err := g.access.Load(); err != nil {
		g.t.Fatal(err)
	}
	b.AccessChanged()
}

// as is a CONNECT with a name that is its password, too.
func as(version byte, user string) connectOptions {
	return connectOptions{version: version, id: user + "-id", user: &user, password: &user}
}

func text(s string) *string { return &s }

func TestConnectIsChecked(t *testing.T) {
	g := newGuard(t, "topic #")
	b := start(t, g.options)
	open := start(t, g.options, func(s *setup) { s.options.Listeners[0].AllowAnonymous = true })
	for _, tt := range []struct {
		name           string
		b              *broker
		user, password *string
		v5, v311       byte // CONNACK's reason and return code
	}{
		{"right", b, text("alice"), text("alice"), wire.Success, 0},
		{"wrong password", b, text("alice"), text("x"), wire.BadUsernameOrPassword, 4},
		{"no password", b, text("alice"), nil, wire.BadUsernameOrPassword, 4},
		{"unknown", b, text("mallory"), text("alice"), wire.BadUsernameOrPassword, 4},
		{"anonymous", b, nil, nil, wire.NotAuthorized, 5},
		{"empty name", b, text(""), text("x"), wire.NotAuthorized, 5},
		{"anonymous where it may", open, nil, nil, wire.Success, 0},
		{"wrong password where anonymous may", open, text("alice"), text("x"), wire.BadUsernameOrPassword, 4},
	} {
		for _, v := range bothVersions {
			t.Run(tt.name+versionName(v), func(t *testing.T) {
				want := tt.v5
				if v == wire.V311 {
					want = tt.v311
				}
				c := tt.b.dial()
				p := c.connect(connectOptions{version: v, id: "c", user: tt.user, password: tt.password})
				if p.kind != wire.CONNACK || p.body[1] != want {
					t.Fatalf("%v % x, want reason %#x", p.kind, p.body, want)
				}
				if want != 0 {
					c.expectEnd(0)
				}
			})
		}
	}
}

// TestUnknownClientTakesNothingOver: who isn't let in can't end the session of somebody who is.
func TestUnknownClientTakesNothingOver(t *testing.T) {
	b := start(t, newGuard(t, "").options)
	alice := b.connect(as(wire.V5, "alice"))
	o := as(wire.V5, "alice")
	o.password = text("wrong")
	if p := b.dial().connect(o); p.body[1] != wire.BadUsernameOrPassword {
		t.Fatalf("CONNACK % x", p.body)
	}
	alice.ping()
}

const guardedACL = `user alice
topic readwrite a/#
topic deny a/secret
topic write keyed/#
topic write local/#
user bob
topic read a/+/x
pattern readwrite own/%c/%u
user carol
topic #
`

// TestDeniedPublish: what the protocol says, for each version and QoS, in order with the other acknowledgements, and nothing of it
// is stored or delivered.
func TestDeniedPublish(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t, newGuard(t, guardedACL).options)
			watch := b.connect(as(wire.V5, "carol"))
			watch.subscribe(filter{"#", 0})
			c := b.connect(as(v, "alice"))
			denied := byte(wire.NotAuthorized)
			if v == wire.V311 {
				denied = 0 // it has no word for it
			}
			release := b.disk.hold(t)
			c.publish(
				outMessage{topic: "a/1", payload: "1", qos: 1, id: 1},
				outMessage{topic: "b/2", payload: "2", qos: 1, id: 2},
				outMessage{topic: "a/3", payload: "3", qos: 2, id: 3},
				outMessage{topic: "a/secret", payload: "4", qos: 2, id: 4},
				outMessage{topic: "b", payload: "5"},
				outMessage{topic: "local/6", payload: "6", qos: 1, id: 6},
				outMessage{topic: "$SYS/7", payload: "7", qos: 1, id: 7},
			)
			release()
			c.expectAck(wire.PUBACK, 1, 0)
			c.expectAck(wire.PUBACK, 2, denied)
			c.expectAck(wire.PUBREC, 3, 0)
			c.expectAck(wire.PUBREC, 4, denied)
			c.expectAck(wire.PUBACK, 6, 0)
			c.expectAck(wire.PUBACK, 7, denied)
			if n := b.dropped(dropDenied); n != 4 {
				t.Errorf("%d are counted", n)
			}
			c.ack(wire.PUBREL, 3)
			c.expectAck(wire.PUBCOMP, 3, 0)
			if v == wire.V311 { // it doesn't know that there is nothing to release
				c.ack(wire.PUBREL, 4)
				c.expectAck(wire.PUBCOMP, 4, 0)
			}
			if records := b.stored(2); len(records) != 2 {
				t.Errorf("%d records", len(records))
			}
			got := map[string]bool{}
			for range 3 {
				got[watch.parse(watch.read()).topic] = true
			}
			if len(got) != 3 || !got["a/1"] || !got["a/3"] || !got["local/6"] {
				t.Errorf("delivered %v", got)
			}
			watch.ping()
		})
	}
}

// TestDeniedPublishCloses: a listener may say that a version 3.1.1 client is closed. What it sent before is stored.
func TestDeniedPublishCloses(t *testing.T) {
	b := start(t, newGuard(t, guardedACL).options, func(s *setup) { s.options.Listeners[0].CloseDenied = true })
	c := b.connect(as(wire.V311, "alice"))
	c.publish(outMessage{topic: "a/1", qos: 1, id: 1}, outMessage{topic: "b", qos: 1, id: 2}, outMessage{topic: "a/3", qos: 1, id: 3})
	c.expectEnd(0)
	if records := b.stored(1); len(records) != 1 || b.dropped(dropDenied) != 1 {
		t.Errorf("%d records", len(records))
	}
	c = b.connect(as(wire.V5, "alice"))
	c.publish(outMessage{topic: "b", qos: 1, id: 2})
	c.expectAck(wire.PUBACK, 2, wire.NotAuthorized)
}

// TestDeliveriesAreChecked: a subscription is granted whatever it asks for, and each delivery checked.
func TestDeliveriesAreChecked(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t, newGuard(t, guardedACL).options)
			bob := b.connect(as(v, "bob"))
			bob.subscribe(filter{"#", 1}, filter{"secret/plan", 1}, filter{"own/#", 1})
			carol := b.connect(as(v, "carol"))
			carol.publish(
				outMessage{topic: "a/1/x", payload: "1", qos: 1, id: 1},
				outMessage{topic: "secret/plan", payload: "2", qos: 1, id: 2},
				outMessage{topic: "own/bob-id/bob", payload: "3", qos: 1, id: 3},
				outMessage{topic: "own/bob-id/alice", payload: "4", qos: 1, id: 4},
				outMessage{topic: "own/carol-id/bob", payload: "5", qos: 1, id: 5},
				outMessage{topic: "a/2/x", payload: "6", qos: 1, id: 6},
			)
			bob.expectPublish("a/1/x", "1", 1)
			bob.expectPublish("own/bob-id/bob", "3", 1)
			bob.expectPublish("a/2/x", "6", 1)
			carol.publish(outMessage{topic: "secret/plan", payload: "7"}, outMessage{topic: "a/3/x", payload: "8"}) // QoS 0 goes another way
			bob.expectPublish("a/3/x", "8", 0)
			bob.ping()
			if n := b.dropped(dropDenied); n != 0 {
				t.Errorf("%d are counted as lost that are none of bob's business", n)
			}
		})
	}
}

// TestStrictSubscribe: where it is asked for, a subscription to more than the client may receive is refused, and those it had stay.
func TestStrictSubscribe(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			g := newGuard(t, guardedACL)
			strict, _, err := auth.New(auth.Options{PasswordFile: g.passwords, ACLFile: g.acl, StrictSubscribe: true})
			if err != nil {
				t.Fatal(err)
			}
			g.access = strict
			b := start(t, g.options)
			bob := b.connect(as(v, "bob"))
			bob.send(bob.subscribePacket(1, 0, filter{"#", 1}, filter{"a/+/x", 1}, filter{"a/#", 0}, filter{"$share/g/b", 0}, filter{"own/bob-id/bob", 2}))
			refused := byte(wire.NotAuthorized)
			if v == wire.V311 {
				refused = 0x80
			}
			if codes, want := bob.codes(bob.expect(wire.SUBACK)), []byte{refused, 1, refused, refused, 2}; !bytes.Equal(codes, want) {
				t.Errorf("SUBACK % x, want % x", codes, want)
			}
			carol := b.connect(as(v, "carol"))
			carol.publish(outMessage{topic: "a/y", payload: "1", qos: 1, id: 1}, outMessage{topic: "a/1/x", payload: "2", qos: 1, id: 2})
			bob.expectPublish("a/1/x", "2", 1)
		})
	}
}

func TestWillIsChecked(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			g := newGuard(t, guardedACL)
			b := start(t, g.options)
			watch := b.connect(as(v, "carol"))
			watch.subscribe(filter{"#", 0})
			will := func(topic string) *client {
				o := as(v, "alice")
				o.id, o.will = topic, &willOptions{topic: topic, payload: "gone"}
				return b.connect(o)
			}
			will("b/not/alice's").conn.Close()
			will("a/secret").conn.Close()
			will("a/will").conn.Close()
			watch.expectPublish("a/will", "gone", 0)
			eventually(t, func() bool { return b.dropped(dropDenied) == 2 })

			// What counts is what it may when the will is due.
			late, kept := will("a/late"), will("keyed/kept")
			g.write(g.acl, "user alice\ntopic keyed/#\nuser carol\ntopic #\n")
			g.reload(b)
			late.conn.Close()
			eventually(t, func() bool { return b.dropped(dropDenied) == 3 })
			kept.conn.Close()
			watch.expectPublish("keyed/kept", "gone", 0)
		})
	}
}

// TestReloadEndsWhoLostTheRight: and nobody else notices.
func TestReloadEndsWhoLostTheRight(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			g := newGuard(t, guardedACL)
			b := start(t, g.options)
			alice, bob, carol := b.connect(as(v, "alice")), b.connect(as(v, "bob")), b.connect(as(v, "carol"))
			half := alice.publishPacket(outMessage{topic: "a/b/x", payload: "whole", qos: 1, id: 9})
			alice.send(half[:5])
			bob.subscribe(filter{"#", 0})
			data, err := os.ReadFile(g.passwords)
			if err != nil {
				t.Fatal(err)
			}
			line := strings.Index(string(data), "\n") + 1
			g.write(g.passwords, string(data[:line])+hashed("bob", "new")) // no carol
			g.reload(b)
			reason := byte(wire.NotAuthorized)
			if v == wire.V311 {
				reason = 0
			}
			bob.expectEnd(reason)
			carol.expectEnd(reason)
			alice.send(half[5:])
			alice.expectAck(wire.PUBACK, 9, 0)
			if p := b.dial().connect(as(v, "bob")); p.body[1] == 0 {
				t.Error("bob's old password is still good")
			}
			o := as(v, "bob")
			o.password = text("new")
			b.connect(o).ping()
		})
	}
}

// TestReloadChangesWhatClientsMay: the topic that a connection published to last is asked for again, and a subscription whose topics
// were taken away falls silent.
func TestReloadChangesWhatClientsMay(t *testing.T) {
	g := newGuard(t, guardedACL)
	b := start(t, g.options)
	alice, bob := b.connect(as(wire.V5, "alice")), b.connect(as(wire.V5, "bob"))
	bob.subscribe(filter{"#", 0})
	publish := func(id uint16, reason byte) {
		t.Helper()
		alice.publish(outMessage{topic: "a/b/x", payload: fmt.Sprint(id), qos: 1, id: id})
		alice.expectAck(wire.PUBACK, id, reason)
	}
	publish(1, 0)
	bob.expectPublish("a/b/x", "1", 0)
	g.write(g.acl, "user alice\ntopic write a/#\n")
	g.reload(b)
	publish(2, 0)
	eventually(t, func() bool { // bob's right is asked for at the delivery, which follows the acknowledgement
		return !slices.ContainsFunc(b.fanout.readers, func(r *reader) bool { return r.next.Load() < r.partition.HighWatermark() })
	})
	g.write(g.acl, "user bob\ntopic read a/#\n")
	g.reload(b)
	publish(3, wire.NotAuthorized)
	g.write(g.acl, "user alice\ntopic write a/#\nuser bob\ntopic read a/#\n")
	g.reload(b)
	publish(4, 0)
	bob.expectPublish("a/b/x", "4", 0)
}

// TestRepeatOfWhatWasAllowed: a QoS 2 message that is in the log is acknowledged as stored, though the client may not publish
// it any more: it was told nothing yet.
func TestRepeatOfWhatWasAllowed(t *testing.T) {
	g := newGuard(t, guardedACL)
	b := start(t, g.options)
	c := b.connect(as(wire.V5, "alice"))
	c.publish(outMessage{topic: "a/b", payload: "1", qos: 2, id: 1})
	c.expectAck(wire.PUBREC, 1, 0)
	g.write(g.acl, "")
	g.reload(b)
	c.publish(outMessage{topic: "a/b", payload: "1", qos: 2, id: 1, dup: true}, outMessage{topic: "a/b", payload: "2", qos: 2, id: 2})
	c.expectAck(wire.PUBREC, 1, 0)
	c.expectAck(wire.PUBREC, 2, wire.NotAuthorized)
	c.ack(wire.PUBREL, 1)
	c.expectAck(wire.PUBCOMP, 1, 0)
	if records := b.stored(1); len(records) != 1 {
		t.Errorf("%d records", len(records))
	}
}

// TestSlowHashHoldsNothing: while passwords are checked that take long, clients that are in are served, though there is one workspace.
func TestSlowHashHoldsNothing(t *testing.T) {
	g := newGuard(t, guardedACL)
	data, err := os.ReadFile(g.passwords)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody knows the password of this hash of 60,000 iterations.
	slow := "slow:$7$60000$AAAAAAAAAAAAAAAA$" + base64.StdEncoding.EncodeToString(make([]byte, 64)) + "\n"
	g.write(g.passwords, string(data)+slow)
	if _, err := g.access.Load(); err != nil {
		t.Fatal(err)
	}
	b := start(t, g.options, func(s *setup) { s.options.ReadBuffers = 1 })
	alice := b.connect(as(wire.V5, "alice"))
	var waiting []*client
	for i := range 4 {
		c := b.dial()
		o := as(wire.V5, "slow")
		o.id, o.password = fmt.Sprint("slow", i), text(fmt.Sprint("wrong", i))
		c.send(o.encode())
		waiting = append(waiting, c)
	}
	began := time.Now()
	alice.publish(outMessage{topic: "a/b", qos: 1, id: 1})
	alice.expectAck(wire.PUBACK, 1, 0)
	t.Logf("acknowledged after %v", time.Since(began))
	waiting[3].conn.Close()
	for _, c := range waiting[:3] {
		if p := c.read(); p.kind != wire.CONNACK || p.body[1] != wire.BadUsernameOrPassword {
			t.Errorf("%v % x", p.kind, p.body)
		}
	}
	alice.ping()
}

// TestStopWhileWaiting: a client whose password waits to be checked doesn't hold up the broker's stop.
func TestStopWhileWaiting(t *testing.T) {
	g := newGuard(t, guardedACL)
	g.write(g.passwords, "slow:$7$200000$AAAAAAAAAAAAAAAA$"+base64.StdEncoding.EncodeToString(make([]byte, 64))+"\n")
	if _, err := g.access.Load(); err != nil {
		t.Fatal(err)
	}
	b := start(t, g.options)
	var clients []*client
	for i := range 6 {
		c := b.dial()
		o := as(wire.V5, "slow")
		o.id, o.password = fmt.Sprint("slow", i), text(fmt.Sprint("wrong", i))
		c.send(o.encode())
		clients = append(clients, c)
	}
	eventually(t, func() bool { return b.Stats().Connections == len(clients) })
	b.end()
}

func BenchmarkPublishAllowed(b *testing.B) {
	g := newGuard(b, guardedACL)
	c := &conn{srv: &Server{router: &router{}}, session: new(session)}
	c.session.client.Store(g.access.Client(auth.User{Name: "alice", Named: true}, "id"))
	w := newWorkspace()
	var m message
	topic := []byte("a/sensor/temperature")
	for _, name := range []string{"checked", "unchecked"} {
		b.Run(name, func(b *testing.B) {
			if name == "unchecked" {
				c.session.client.Store(nil)
			}
			c.route = routeCache{}
			b.ReportAllocs()
			for b.Loop() {
				c.locate(w, &m, topic)
				if m.denied {
					b.Fatal("denied")
				}
			}
		})
	}
}

// What is retained is checked when it is read, as of then, and an alias is what it stands for.
func TestRetainedAndAliasesAreChecked(t *testing.T) {
	g := newGuard(t, "user alice\ntopic write a/#\ntopic read #\nuser bob\ntopic read a/#\nuser carol\ntopic #\n")
	b := start(t, g.options)
	carol := b.connect(as(wire.V5, "carol"))
	for _, topic := range []string{"a/1", "a/2", "b/1", "secret"} {
		carol.retain(topic, "x", 1)
	}
	bob := b.connect(as(wire.V5, "bob"))
	bob.subscribe(filter{"#", 1}, filter{"secret", 1})
	bob.expectRetained("a/1", "x", 1)
	bob.expectRetained("a/2", "x", 1)
	bob.noMore()
	g.write(g.acl, "user alice\ntopic write a/#\nuser bob\ntopic read b/#\nuser carol\ntopic #\n")
	g.reload(b)
	bob.subscribe(filter{"#", 1})
	bob.expectRetained("b/1", "x", 1)
	bob.noMore()

	alice := b.connect(as(wire.V5, "alice"))
	alice.publish(
		outMessage{topic: "a/1", payload: "new", qos: 1, id: 1, alias: 1, retain: true},
		outMessage{topic: "b/1", payload: "new", qos: 1, id: 2, alias: 2, retain: true},
		outMessage{payload: "newer", qos: 1, id: 3, alias: 1, retain: true},
		outMessage{payload: "newer", qos: 1, id: 4, alias: 2, retain: true},
		outMessage{topic: "b/1", qos: 1, id: 5, retain: true}, // would clear it
	)
	alice.expectAck(wire.PUBACK, 1, 0)
	alice.expectAck(wire.PUBACK, 2, wire.NotAuthorized)
	alice.expectAck(wire.PUBACK, 3, 0)
	alice.expectAck(wire.PUBACK, 4, wire.NotAuthorized)
	alice.expectAck(wire.PUBACK, 5, wire.NotAuthorized)
	carol.subscribe(filter{"a/1", 1}, filter{"b/1", 1})
	carol.expectRetained("a/1", "newer", 1)
	carol.expectRetained("b/1", "x", 1)
}
