package mqtt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// comeBack takes a session up that there has to be.
func (b *broker) comeBack(o connectOptions) *client {
	b.t.Helper()
	c := b.dial()
	if p := c.connect(o); p.kind != wire.CONNACK || p.body[0] != 1 || p.body[1] != 0 {
		b.t.Fatalf("CONNACK % x of a session that should be there", p.body)
	}
	return c
}

// leave closes the connection without a DISCONNECT and waits until the broker knows.
func (b *broker) leave(c *client) {
	b.t.Helper()
	away := b.Stats().Away
	c.conn.Close()
	eventually(b.t, func() bool { return b.Stats().Away == away+1 })
}

// restart stops the broker and starts another one over the same directory. A crash leaves the sessions' state as the last commit
// group had it.
func (b *broker) restart(dir string, change ...func(*setup)) *broker {
	b.t.Helper()
	b.end()
	return start(b.t, append([]func(*setup){func(s *setup) { s.dir = dir }}, change...)...)
}

func (b *broker) publishAll(topic string, qos byte, from, to int) {
	b.t.Helper()
	pub := b.connect(connectOptions{id: "pub"})
	kind := wire.PUBACK
	if qos == 2 {
		kind = wire.PUBREC
	}
	for i := from; i < to; i++ {
		id := uint16(i%60000 + 1)
		pub.publish(outMessage{topic: topic, payload: fmt.Sprint(i), qos: qos, id: id})
		pub.expectAck(kind, id, 0)
		if qos == 2 {
			pub.ack(wire.PUBREL, id)
			pub.expectAck(wire.PUBCOMP, id, 0)
		}
	}
	pub.conn.Close()
}

// What is published while a client is away is there when it comes back: in order, within its receive maximum, sent for the first time.
func TestOfflineQueue(t *testing.T) {
	for _, v := range bothVersions {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprint(versionName(v), " restarted ", restarted), func(t *testing.T) {
				dir := t.TempDir()
				b := start(t, func(s *setup) { s.dir = dir })
				o := lasting(v, "sub")
				if v == wire.V5 {
					o.props = append(slices.Clone(o.props), 33, 0, 10)
				}
				sub := b.connect(o)
				sub.subscribe(filter{"t/#", 1})
				b.publishAll("t/a", 1, 0, 3)
				for i := range 3 {
					m := sub.expectPublish("t/a", fmt.Sprint(i), 1)
					sub.ack(wire.PUBACK, m.id)
				}
				sub.ping()
				b.leave(sub)
				b.publishAll("t/a", 1, 3, 203)
				if restarted {
					b = b.restart(dir)
				}
				sub = b.comeBack(o)
				var unacked []uint16
				for i := 3; i < 203; i++ {
					m := sub.expectPublish("t/a", fmt.Sprint(i), 1)
					if m.dup {
						t.Fatal("DUP at the first try")
					}
					if unacked = append(unacked, m.id); len(unacked) == 10 {
						if v == wire.V5 && i < 20 {
							sub.silent(20 * time.Millisecond)
						}
						for _, id := range unacked {
							sub.ack(wire.PUBACK, id)
						}
						unacked = nil
					}
				}
				sub.ping()
				b.publishAll("t/live", 1, 0, 1)
				sub.expectPublish("t/live", "0", 1)
			})
		}
	}
}

// Messages in flight go again first, under their ids and with DUP, whether the broker ran on or not.
func TestResend(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restarted), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			sub := b.connect(lasting(wire.V5, "sub"))
			sub.subscribe(filter{"t", 2})
			b.publishAll("t", 1, 0, 2)
			b.publishAll("t", 2, 2, 6)
			ids := make([]uint16, 6)
			for i := range ids {
				qos := byte(1)
				if i >= 2 {
					qos = 2
				}
				ids[i] = sub.expectPublish("t", fmt.Sprint(i), qos).id
			}
			sub.ack(wire.PUBACK, ids[0])
			sub.ack(wire.PUBREC, ids[2])
			sub.expectAck(wire.PUBREL, ids[2], 0)
			sub.ack(wire.PUBREC, ids[3])
			sub.expectAck(wire.PUBREL, ids[3], 0)
			sub.ack(wire.PUBCOMP, ids[3])
			sub.ping()
			b.leave(sub)
			b.publishAll("t", 1, 6, 7)
			if restarted {
				b = b.restart(dir)
			}
			sub = b.comeBack(lasting(wire.V5, "sub"))
			if m := sub.expectPublish("t", "1", 1); m.id != ids[1] || !m.dup {
				t.Errorf("id %d, not %d, DUP %v", m.id, ids[1], m.dup)
			}
			sub.expectAck(wire.PUBREL, ids[2], 0)
			for i := 4; i < 6; i++ {
				if m := sub.expectPublish("t", fmt.Sprint(i), 2); m.id != ids[i] || !m.dup {
					t.Errorf("id %d, not %d, DUP %v", m.id, ids[i], m.dup)
				}
			}
			m := sub.expectPublish("t", "6", 1)
			if slices.Contains(ids, m.id) || m.dup {
				t.Errorf("id %d, DUP %v", m.id, m.dup)
			}
		})
	}
}

// A subscriber that doesn't keep up falls back to the log and comes live again, without a gap or a repeat.
func TestSlowSubscriberReadsTheLog(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		for _, o := range []connectOptions{{id: "sub"}, lasting(wire.V5, "sub")} {
			t.Run(fmt.Sprint("QoS ", qos, " persistent ", o.persist), func(t *testing.T) {
				b := start(t, func(s *setup) { s.options.SendWindow = 5 })
				sub := b.connect(o)
				sub.subscribe(filter{"t", qos})
				b.publishAll("t", qos, 0, 300)
				if d := b.dropped(dropSlow); d != 0 {
					t.Errorf("%d dropped", d)
				}
				receive := func(from, to int) {
					for i := from; i < to; i++ {
						m := sub.parse(sub.readPublish())
						if m.payload != fmt.Sprint(i) || m.dup {
							t.Fatalf("%q DUP %v, not %d", m.payload, m.dup, i)
						}
						if qos == 1 {
							sub.ack(wire.PUBACK, m.id)
						} else {
							sub.ack(wire.PUBREC, m.id)
						}
					}
				}
				receive(0, 300)
				b.publishAll("t", qos, 300, 320)
				receive(300, 320)
			})
		}
	}
}

// readPublish reads up to the next PUBLISH and finishes QoS 2 handshakes on the way.
func (c *client) readPublish() packet {
	c.t.Helper()
	for {
		p := c.read()
		switch p.kind {
		case wire.PUBREL:
			c.ack(wire.PUBCOMP, p.id())
		case wire.PUBLISH:
			return p
		default:
			c.t.Fatalf("%v % x", p.kind, p.body)
		}
	}
}

// The state of a session that is over is gone, for whatever reason it is.
func TestSessionEnds(t *testing.T) {
	b := start(t)
	state := func() (keys []string) {
		for _, prefix := range []string{sessionPrefix, progressPrefix, willPrefix, receivedPrefix} {
			b.log.Range([]byte(prefix), func(key, _ []byte) bool {
				keys = append(keys, string(key))
				return true
			})
		}
		return keys
	}
	begin := func() *client {
		c := b.connect(lasting(wire.V5, "c"))
		c.subscribe(filter{"t", 2}, filter{"u/+", 1})
		c.publish(outMessage{topic: "x", qos: 2, id: 9})
		c.expectAck(wire.PUBREC, 9, 0)
		if keys := state(); len(keys) != 3 {
			t.Fatalf("state %q", keys)
		}
		return c
	}
	ends := map[string]func(c *client){
		"clean start": func(c *client) {
			b.leave(c)
			c = b.connect(connectOptions{id: "c"})
			c.conn.Close()
		},
		"DISCONNECT with expiry 0": func(c *client) { c.send([]byte{0xE0, 7, 0, 5, 17, 0, 0, 0, 0}) },
		"taken over by a clean start": func(*client) {
			c := b.connect(connectOptions{id: "c"})
			c.conn.Close()
		},
		"expiry": func(c *client) {
			c.send([]byte{0xE0, 7, 0, 5, 17, 0, 0, 0, 1})
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			end(begin())
			eventually(t, func() bool { s := b.Stats(); return s.Sessions == 0 && s.Filters == 0 })
			eventually(t, func() bool { return len(state()) == 0 })
		})
	}
}

// Sessions with an expiry of a second, subscribed and left in great number, leave nothing behind.
func TestExpiredSessionsLeaveNothing(t *testing.T) {
	b := start(t)
	for i := range 200 {
		c := b.connect(connectOptions{id: fmt.Sprint("c", i), props: []byte{17, 0, 0, 0, 1}})
		c.subscribe(filter{fmt.Sprint("t/", i), 1})
		c.conn.Close()
	}
	eventually(t, func() bool { s := b.Stats(); return s.Sessions == 0 && s.Filters == 0 && s.Expired == 200 })
}

// A delayed will is published when its delay or the session is over, with its properties, and not if the client comes back in time.
func TestDelayedWill(t *testing.T) {
	contentType := []byte{3, 0, 1, 'x'}
	delayed := func(s byte) *willOptions {
		return &willOptions{topic: "will", payload: "gone", qos: 1, props: append([]byte{24, 0, 0, 0, s}, contentType...)}
	}
	expiry := func(s byte) []byte { return []byte{17, 0, 0, 0, s} }
	t.Run("back in time", func(t *testing.T) {
		b := start(t)
		watch := b.connect(connectOptions{id: "watch"})
		watch.subscribe(filter{"will", 1})
		c := b.connect(connectOptions{id: "c", persist: true, props: expiry(60), will: delayed(2)})
		b.leave(c)
		b.comeBack(connectOptions{id: "c", persist: true, props: expiry(60)})
		watch.silent(3500 * time.Millisecond)
	})
	for name, o := range map[string]connectOptions{
		"delay over":   {id: "c", persist: true, props: expiry(60), will: delayed(1)},
		"session over": {id: "c", persist: true, props: expiry(1), will: delayed(60)},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			watch := b.connect(connectOptions{id: "watch"})
			watch.subscribe(filter{"will", 1})
			c := b.connect(o)
			began := time.Now()
			b.leave(c)
			if m := watch.expectPublish("will", "gone", 1); string(m.props) != string(contentType) {
				t.Errorf("properties % x", m.props)
			}
			if d := time.Since(began); d < 900*time.Millisecond || d > 4*time.Second {
				t.Errorf("after %v", d)
			}
			b.stored(1)
		})
	}
	t.Run("clean start", func(t *testing.T) {
		b := start(t)
		watch := b.connect(connectOptions{id: "watch"})
		watch.subscribe(filter{"will", 1})
		c := b.connect(connectOptions{id: "c", persist: true, props: expiry(60), will: delayed(60)})
		b.leave(c)
		b.connect(connectOptions{id: "c"})
		watch.expectPublish("will", "gone", 1)
	})
	t.Run("restart", func(t *testing.T) {
		dir := t.TempDir()
		b := start(t, func(s *setup) { s.dir = dir })
		c := b.connect(connectOptions{id: "c", persist: true, props: expiry(60), will: delayed(2)})
		b.leave(c)
		b = b.restart(dir)
		watch := b.connect(connectOptions{id: "watch"})
		watch.subscribe(filter{"will", 1})
		watch.expectPublish("will", "gone", 1)
		b.stored(1)
	})
}

// A subscription gets nothing that was stored before it, also on a session that has still to catch up.
func TestSubscriptionBeginsWhenItIsMade(t *testing.T) {
	b := start(t)
	o := lasting(wire.V5, "sub")
	sub := b.connect(o)
	sub.subscribe(filter{"a", 1})
	b.leave(sub)
	b.publishAll("a", 1, 0, 500)
	b.publishAll("b", 1, 0, 10)
	sub = b.comeBack(o)
	sub.send(sub.subscribePacket(1, 0, filter{"b", 1}, filter{"a", 1}))
	got := map[string]int{}
	for granted := false; got["a"] < 500 || !granted; {
		p := sub.read()
		if p.kind != wire.PUBLISH {
			granted = true
			continue
		}
		m := sub.parse(p)
		if m.payload != fmt.Sprint(got[m.topic]) {
			t.Fatalf("%s %s, not %d", m.topic, m.payload, got[m.topic])
		}
		got[m.topic]++
		sub.ack(wire.PUBACK, m.id)
	}
	if got["b"] > 0 {
		t.Errorf("%d messages from before the subscription", got["b"])
	}
	b.publishAll("b", 1, 10, 11)
	sub.expectPublish("b", "10", 1)
}

// QoS 0 messages and subscriptions are not kept for a client that is away.
func TestQoS0IsNotKept(t *testing.T) {
	b := start(t)
	o := lasting(wire.V5, "sub")
	sub := b.connect(o)
	sub.subscribe(filter{"zero", 0}, filter{"one", 1})
	b.leave(sub)
	b.publishAll("zero", 1, 0, 5)
	pub := b.connect(connectOptions{id: "p0"})
	pub.publish(outMessage{topic: "one", payload: "x"})
	pub.ping()
	b.publishAll("one", 1, 0, 1)
	sub = b.comeBack(o)
	sub.expectPublish("one", "0", 1)
	sub.silent(50 * time.Millisecond)
}

// The oldest messages within a session's limits are kept, and the others counted.
func TestSessionLimits(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"messages": func(o *Options) { o.SessionMaxMessages = 10 },
		"bytes":    func(o *Options) { o.SessionMaxBytes = 10 * 2 },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(s *setup) { change(&s.options) })
			o := lasting(wire.V5, "sub")
			sub := b.connect(o)
			sub.subscribe(filter{"t", 1})
			b.leave(sub)
			for range 3 {
				b.publishAll("t", 1, 0, 10)
			}
			sub = b.comeBack(o)
			for i := range 10 {
				sub.ack(wire.PUBACK, sub.expectPublish("t", fmt.Sprint(i), 1).id)
			}
			eventually(t, func() bool { return b.dropped(dropTooMany) == 20 })
			b.publishAll("t", 1, 10, 30)
			for i := 10; i < 30; i++ {
				sub.ack(wire.PUBACK, sub.expectPublish("t", fmt.Sprint(i), 1).id)
			}
		})
	}
}

// A message that is larger than the client takes is discarded, and the rest is delivered.
func TestOfflineMessageTooLarge(t *testing.T) {
	b := start(t)
	o := lasting(wire.V5, "sub")
	o.props = append(slices.Clone(o.props), 39, 0, 0, 0, 100)
	sub := b.connect(o)
	sub.subscribe(filter{"t", 1})
	b.leave(sub)
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t", payload: strings.Repeat("x", 500), qos: 1, id: 1}, outMessage{topic: "t", payload: "small", qos: 1, id: 2})
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBACK, 2, 0)
	sub = b.comeBack(o)
	sub.expectPublish("t", "small", 1)
	if n := b.dropped(dropTooLarge); n != 1 {
		t.Errorf("%d dropped for their size", n)
	}
}

// Message expiry goes on while the client is away.
func TestOfflineExpiry(t *testing.T) {
	b := start(t)
	o := lasting(wire.V5, "sub")
	sub := b.connect(o)
	sub.subscribe(filter{"t", 1})
	b.leave(sub)
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t", payload: "short", qos: 1, id: 1, hasExpiry: true, expiry: 1},
		outMessage{topic: "t", payload: "long", qos: 1, id: 2, hasExpiry: true, expiry: 100})
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBACK, 2, 0)
	//lint:sleep the log's clock is the machine's
	time.Sleep(1100 * time.Millisecond)
	sub = b.comeBack(o)
	m := sub.expectPublish("t", "long", 1)
	if left := m.props[4]; m.props[0] != 2 || left < 90 || left > 99 {
		t.Errorf("properties % x", m.props)
	}
	if n := b.dropped(dropExpired); n != 1 {
		t.Errorf("%d expired", n)
	}
}

// QoS 2 messages from a client are stored once across connections and restarts.
func TestReceivedIDsSurvive(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restarted), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			c := b.connect(lasting(wire.V311, "c"))
			m := outMessage{topic: "t", payload: "once", qos: 2, id: 7}
			c.publish(m)
			c.expectAck(wire.PUBREC, 7, 0)
			b.leave(c)
			if restarted {
				b = b.restart(dir)
			}
			c = b.comeBack(lasting(wire.V311, "c"))
			m.dup = true
			c.publish(m)
			c.expectAck(wire.PUBREC, 7, 0)
			c.ack(wire.PUBREL, 7)
			c.expectAck(wire.PUBCOMP, 7, 0)
			if r := b.stored(1); len(r) != 1 {
				t.Errorf("%d records", len(r))
			}
		})
	}
}

// Ids resume beyond every one that may have been in use.
func TestIDsAreNotReusedAfterARestart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, func(s *setup) { s.dir = dir })
	o := lasting(wire.V5, "sub")
	sub := b.connect(o)
	sub.subscribe(filter{"t", 1})
	b.publishAll("t", 1, 0, 5)
	var last uint16
	for i := range 5 {
		last = sub.expectPublish("t", fmt.Sprint(i), 1).id
	}
	b = b.restart(dir)
	sub = b.comeBack(o)
	for i := range 5 {
		if m := sub.expectPublish("t", fmt.Sprint(i), 1); m.id > last || !m.dup {
			t.Errorf("id %d, DUP %v", m.id, m.dup)
		}
	}
	b.publishAll("t", 1, 5, 6)
	if m := sub.expectPublish("t", "5", 1); m.id <= last+100 {
		t.Errorf("new message with id %d, the last one before was %d", m.id, last)
	}
}

func FuzzSessionState(f *testing.F) {
	b := start(f)
	ss := &session{id: "c", expiry: 60, subs: []subscription{{filter: "a/#"}}, cursors: make([]cursor, 1)}
	ss.out.flights = []flight{{id: 1, qos: 2, awaits: wire.PUBREC, offset: 5}, {id: 2, qos: 1, awaits: wire.PUBACK, reader: -1}}
	f.Add(ss.encode(b.fanout, 17))
	f.Add(ss.encodeProgress(nil, b.fanout))
	f.Add(encodeWill(&wire.Will{Topic: "t", Payload: []byte("x"), QoS: 1}, auth.User{Name: "u", Named: true}, 3))
	f.Fuzz(func(t *testing.T, value []byte) {
		a := &session{cursors: make([]cursor, 1)}
		if since, err := a.decode(value, b.fanout); err == nil {
			if again, err := new(session).decode(a.encode(b.fanout, since), b.fanout); err != nil || again != since {
				t.Errorf("%v %d %d", err, since, again)
			}
		}
		a = &session{cursors: make([]cursor, 1)}
		if a.decodeProgress(value, b.fanout) == nil {
			if err := (&session{cursors: make([]cursor, 1)}).decodeProgress(a.encodeProgress(nil, b.fanout), b.fanout); err != nil {
				t.Error(err)
			}
		}
		if w, u, since, err := decodeWill(value); err == nil {
			if _, who, again, err := decodeWill(encodeWill(w, u, since)); err != nil || again != since || who != u {
				t.Errorf("%v %d %d", err, since, again)
			}
		}
	})
}

// What a connection that has just ended would be sent again isn't accounted as waiting to be written: nobody would ever take it back.
func TestResendToAnEndedConnection(t *testing.T) {
	b := start(t)
	b.publishAll("t", 1, 0, 1)
	ss := &session{id: "c", cursors: make([]cursor, 1)}
	c := &conn{srv: b.Server, session: ss, limits: limits{version: wire.V5, sendWindow: 10, maxPacket: 1000}}
	c.out.closed = true
	ss.conn = c
	ss.out.flights = []flight{{id: 1, qos: 1, awaits: wire.PUBACK, tried: true}}
	newFanout(b.Server).resend(ss) // not the one that runs
	if n := b.queued.Load(); n != 0 || ss.out.unsent() != 1 {
		t.Errorf("%d bytes are accounted as queued, %d messages unsent", n, ss.out.unsent())
	}
}
