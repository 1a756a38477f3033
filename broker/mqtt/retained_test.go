package mqtt

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// Options of a subscription (MQTT 5 §3.8.3.1).
const (
	noLocal           = 1 << 2
	retainAsPublished = 1 << 3
	onlyIfNew         = 1 << 4
	dontSend          = 2 << 4
)

// retain publishes a retained message and waits for its acknowledgement, or at QoS 0 until the broker has it.
func (c *client) retain(topic, payload string, qos byte) {
	c.t.Helper()
	c.publish(outMessage{topic: topic, payload: payload, qos: qos, id: 9, retain: true})
	switch qos {
	case 0:
		c.ping()
	case 1:
		c.expectAck(wire.PUBACK, 9, 0)
	case 2:
		c.expectAck(wire.PUBREC, 9, 0)
		c.ack(wire.PUBREL, 9)
		c.expectAck(wire.PUBCOMP, 9, 0)
	}
}

// expectRetained wants a message with RETAIN set, which it acknowledges.
func (c *client) expectRetained(topic, payload string, qos byte) publishIn {
	c.t.Helper()
	m := c.message()
	if m.topic != topic || m.payload != payload || m.qos != qos || !m.retain {
		c.t.Fatalf("%+v, not %q %q at QoS %d with RETAIN", m, topic, payload, qos)
	}
	c.complete(m)
	return m
}

// complete acknowledges a message.
func (c *client) complete(m publishIn) {
	c.t.Helper()
	switch m.qos {
	case 1:
		c.ack(wire.PUBACK, m.id)
	case 2:
		c.ack(wire.PUBREC, m.id)
		c.ack(wire.PUBCOMP, m.id) // ahead of the PUBREL, which message passes over
	}
}

// noMore wants no further message.
func (c *client) noMore() {
	c.t.Helper()
	c.send([]byte{0xC0, 0})
	for p := c.read(); p.kind != wire.PINGRESP; p = c.read() {
		if p.kind == wire.PUBLISH {
			c.t.Fatalf("%+v", c.parse(p))
		}
	}
}

// message is the next PUBLISH.
func (c *client) message() publishIn {
	c.t.Helper()
	for {
		if p := c.read(); p.kind != wire.PUBREL && p.kind != wire.SUBACK {
			return c.parse(p)
		}
	}
}

// retained is what is retained for a filter, as a new subscriber is told.
func (b *broker) retained(name string) map[string]string {
	b.t.Helper()
	c := b.connect(connectOptions{id: "reader"})
	defer c.conn.Close()
	c.subscribe(filter{name, 0})
	found := map[string]string{}
	c.send([]byte{0xC0, 0})
	for {
		p := c.read()
		if p.kind == wire.PINGRESP {
			// It overtakes what didn't fit into the first write: then there is more.
			if p, err := c.next(50 * time.Millisecond); err == nil {
				m := c.parse(p)
				found[m.topic] = m.payload
				c.send([]byte{0xC0, 0})
				continue
			}
			return found
		}
		m := c.parse(p)
		if !m.retain {
			b.t.Fatalf("%q without RETAIN", m.topic)
		}
		found[m.topic] = m.payload
	}
}

func TestRetainedIsSentToNewSubscribers(t *testing.T) {
	for _, v := range bothVersions {
		for qos := range byte(3) {
			t.Run(fmt.Sprintf("%s QoS %d", versionName(v), qos), func(t *testing.T) {
				b := start(t)
				live := b.connect(connectOptions{version: v, id: "live"})
				live.subscribe(filter{"#", 2})
				pub := b.connect(connectOptions{version: v, id: "pub"})
				pub.retain("a/b", "first", qos)
				pub.retain("a/b", "second", qos)
				pub.retain("local/x", "unrouted", qos)
				pub.retain("c", "gone", qos)
				pub.retain("c", "", qos)
				for range 5 { // in any order: what has no record is handed on sooner
					m := live.message()
					if m.retain || m.qos != qos {
						t.Errorf("live message %+v", m)
					}
					live.complete(m)
				}
				for granted := range byte(3) {
					sub := b.connect(connectOptions{version: v, id: "sub"})
					sub.subscribe(filter{"#", granted})
					sub.expectRetained("a/b", "second", min(granted, qos))
					sub.expectRetained("local/x", "unrouted", min(granted, qos))
					sub.noMore()
				}
				records := b.stored(4)
				for _, r := range records {
					value, _ := r.Header(record.EnvelopeKey)
					if e, err := record.ParseEnvelope(value); err != nil || !e.Retain || e.QoS != qos {
						t.Errorf("envelope %+v, %v", e, err)
					}
				}
				if len(records) != 4 {
					t.Errorf("%d records", len(records))
				}
			})
		}
	}
}

func TestRetainHandling(t *testing.T) {
	b := start(t)
	pub := b.connect(connectOptions{id: "pub"})
	pub.retain("t", "x", 1)
	c := b.connect(connectOptions{id: "c"})
	for _, step := range []struct {
		options byte
		sent    bool
	}{
		{dontSend, false}, {onlyIfNew, false}, {0, true}, {0, true}, {onlyIfNew, false}, {dontSend, false},
	} {
		c.subscribe(filter{"t", 1 | step.options})
		if step.sent {
			c.expectRetained("t", "x", 1)
		}
		c.ping()
	}
	c.send(frame(0xA2, append([]byte{0, 1, 0}, appendString(nil, "t")...)))
	c.expect(wire.UNSUBACK)
	c.subscribe(filter{"t", 1 | onlyIfNew})
	c.expectRetained("t", "x", 1)
	// Each subscription of a SUBSCRIBE gets its own.
	c.send(c.subscribePacket(2, 5, filter{"t/#", 0}, filter{"+", 2}))
	c.expect(wire.SUBACK)
	for _, qos := range []byte{0, 1} {
		if m := c.expectRetained("t", "x", qos); !bytes.Equal(m.props, []byte{11, 5}) {
			t.Errorf("properties % x", m.props)
		}
	}
	c.ping()
}

func TestRetainAsPublished(t *testing.T) {
	b := start(t)
	as := b.connect(connectOptions{id: "as"})
	as.subscribe(filter{"#", 1 | retainAsPublished})
	not := b.connect(connectOptions{id: "not"})
	not.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	for qos := range byte(2) {
		pub.retain("t", "retained", qos)
		pub.publish(outMessage{topic: "t", payload: "not", qos: qos, id: 3})
		if qos == 1 {
			pub.expectAck(wire.PUBACK, 3, 0)
		}
		for i, payload := range []string{"retained", "not"} {
			m := as.expectPublish("t", payload, qos)
			as.complete(m)
			if m.retain != (i == 0) {
				t.Errorf("as published: %+v", m)
			}
			m = not.expectPublish("t", payload, qos)
			not.complete(m)
			if m.retain {
				t.Errorf("RETAIN: %+v", m)
			}
		}
	}
}

func TestRetainedNoLocal(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	c.retain("t", "mine", 1)
	other := b.connect(connectOptions{id: "other"})
	other.retain("u", "other's", 1)
	c.subscribe(filter{"#", 1 | noLocal})
	c.expectRetained("u", "other's", 1)
	c.ping()
	c.silent(10 * time.Millisecond)
}

func TestRetainedProperties(t *testing.T) {
	b := start(t)
	props := []byte{38, 0, 1, 'k', 0, 1, '1', 1, 1, 3, 0, 1, 'c', 38, 0, 1, 'k', 0, 1, '2', 8, 0, 1, 'r', 9, 0, 2, 0, 255}
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t", payload: "x", qos: 1, id: 1, retain: true, raw: props, hasExpiry: true, expiry: 100})
	pub.expectAck(wire.PUBACK, 1, 0)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 1})
	if m := sub.expectRetained("t", "x", 1); !bytes.Equal(m.props, append(props[:len(props):len(props)], 2, 0, 0, 0, 100)) {
		t.Errorf("properties % x", m.props)
	}
	old := b.connect(connectOptions{id: "old", version: wire.V311})
	old.subscribe(filter{"t", 1})
	old.expectRetained("t", "x", 1)
}

// stateOf puts a retained message into the state of a log that no server has opened yet.
func stateOf(t *testing.T, dir string, m retained.Message) {
	t.Helper()
	o := segment.DefaultOptions()
	o.Dir, o.JournalBytes, o.MaxBytes = dir, 8<<20, 256<<10
	l, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	codec := retained.Codec{MaxKeyBytes: segment.MaxKeyBytes}
	ticket, err := l.Put(codec.AppendKey(nil, m.Topic), codec.AppendValue(nil, &m, 1))
	if err == nil {
		err = ticket.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A message of a year ago by the wall clock is not older than the log is by its own clock: nothing expires by a step.
func TestRetainedExpiryIsOfTheLogsClock(t *testing.T) {
	dir := t.TempDir()
	for i, stamp := range []int64{0, time.Now().AddDate(-1, 0, 0).UnixMilli(), time.Now().AddDate(50, 0, 0).UnixMilli()} {
		stateOf(t, dir, retained.Message{Topic: fmt.Sprint("t", i), Payload: []byte("x"), Stamp: stamp, Expiry: 3600, HasExpiry: true})
		stateOf(t, dir, retained.Message{Topic: fmt.Sprint("u", i), Payload: []byte("x"), Stamp: stamp})
	}
	b := start(t, func(s *setup) { s.dir = dir })
	if found := b.retained("#"); len(found) != 6 {
		t.Errorf("found %v", found)
	}
}

func TestRetainedExpires(t *testing.T) {
	b := start(t)
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t", payload: "x", qos: 1, id: 1, retain: true, hasExpiry: true, expiry: 1})
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.retain("u", "stays", 1)
	eventually(t, func() bool { return len(b.retained("#")) == 1 })
	w := b.log.NewWriter(nil)
	b.keeper.expire(w)
	eventually(t, func() bool { n, _ := b.keeper.store.Len(); return n == 1 && !b.keeper.store.Unsettled() })
	if keys := b.stateKeys(retained.KeyPrefix); len(keys) != 1 || keys[0] != "retain/u" {
		t.Errorf("state %q", keys)
	}
}

func (b *broker) stateKeys(prefix string) (keys []string) {
	b.t.Helper()
	if err := b.log.Range([]byte(prefix), func(key, _ []byte) bool {
		keys = append(keys, string(key))
		return true
	}); err != nil {
		b.t.Fatal(err)
	}
	return keys
}

func TestRetainedStoreIsBounded(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxRetainedMessages = 1 })
	v5 := b.connect(connectOptions{id: "v5"})
	v5.retain("a", "1", 1)
	v5.publish(outMessage{topic: "b", payload: "1", qos: 1, id: 1, retain: true}, outMessage{topic: "b", payload: "2", qos: 2, id: 2, retain: true})
	v5.expectAck(wire.PUBACK, 1, wire.QuotaExceeded)
	v5.expectAck(wire.PUBREC, 2, wire.QuotaExceeded)
	v5.publish(outMessage{topic: "b", payload: "3", qos: 2, id: 2}) // the id is free again
	v5.expectAck(wire.PUBREC, 2, 0)
	old := b.connect(connectOptions{id: "old", version: wire.V311})
	old.retain("b", "4", 1)
	old.retain("b", "5", 0)
	old.retain("a", "2", 1)
	if n := b.dropped(dropRetainedFull); n != 4 {
		t.Errorf("%d are counted", n)
	}
	if found := b.retained("#"); len(found) != 1 || found["a"] != "2" {
		t.Errorf("found %v", found)
	}
	var payloads []string
	for _, r := range b.stored(5) {
		payloads = append(payloads, string(r.Value))
	}
	if got := strings.Join(payloads, ""); got != "13452" {
		t.Errorf("stored %q", got)
	}
	v5.retain("a", "", 1)
	v5.retain("b", "6", 1)
	if found := b.retained("#"); len(found) != 1 || found["b"] != "6" {
		t.Errorf("found %v", found)
	}
}

// The last acknowledged value is there after the process was killed, and after a clean stop.
func TestRetainedSurvives(t *testing.T) {
	for _, clean := range []bool{false, true} {
		t.Run(fmt.Sprint("clean ", clean), func(t *testing.T) {
			dir := t.TempDir()
			b := start(t, func(s *setup) { s.dir = dir })
			want := map[string]string{"end": "x"}
			for _, v := range bothVersions {
				c := b.connect(connectOptions{version: v, id: versionName(v)})
				for _, prefix := range []string{"a/", "local/", "keyed/", "/" + strings.Repeat("long", 10000)} {
					for qos := range byte(3) {
						topic := fmt.Sprint(prefix, v, qos)
						c.retain(topic, "old", qos)
						c.retain(topic, "new", qos)
						want[topic] = "new"
						c.retain(topic+"gone", "x", qos)
						c.retain(topic+"gone", "", qos)
					}
				}
				c.retain("end", "x", 1) // QoS 0 has no acknowledgement of its own
			}
			if clean {
				b.end()
			} else {
				killed := t.TempDir() // what is on disk now is what a killed process would leave
				if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				dir = killed
			}
			b = start(t, func(s *setup) { s.dir = dir })
			found := b.retained("#")
			if len(found) != len(want) {
				t.Errorf("%d found, not %d", len(found), len(want))
			}
			for topic, payload := range want {
				if found[topic] != payload {
					t.Errorf("%.30q is %q", topic, found[topic])
				}
			}
		})
	}
}

// What doesn't decode keeps nobody from starting, and stays for the release that wrote it.
func TestRetainedThatCantBeRead(t *testing.T) {
	dir := t.TempDir()
	b := start(t, func(s *setup) { s.dir = dir })
	for _, key := range []string{"retain/bad", "retain#bad", "retained"} {
		ticket, err := b.log.Put([]byte(key), []byte{0xff, 1, 2})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.connect(connectOptions{id: "c"}).retain("good", "x", 1)
	b.end()
	b = start(t, func(s *setup) { s.dir = dir })
	if found := b.retained("#"); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	if keys := b.stateKeys(retained.KeyPrefix); len(keys) != 4 {
		t.Errorf("state %q", keys)
	}
}

// A retained message is from its commit on, and its acknowledgement waits for that, also where the message has no record.
func TestRetainedWaitsForItsCommit(t *testing.T) {
	b := start(t)
	pub := b.connect(connectOptions{id: "pub"})
	pub.retain("t", "old", 1)
	release := b.disk.hold(t)
	pub.publish(outMessage{topic: "t", payload: "new", qos: 1, id: 1, retain: true}, outMessage{topic: "local/t", payload: "new", qos: 1, id: 2, retain: true})
	pub.ping()
	pub.silent(20 * time.Millisecond)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"t", 1}) // behind what is published, so that it gets that as retained, once it is durable
	sub.silent(20 * time.Millisecond)
	release()
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBACK, 2, 0)
	sub.expectRetained("t", "new", 1)
	sub.ping()
	sub.silent(20 * time.Millisecond) // not live as well
}

// Subscriptions begin at one point in the order of all that is published: of each topic a subscriber gets the last message before
// that as retained, every one after it live, none both ways.
func TestRetainedThenLive(t *testing.T) {
	for qos := range byte(2) {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			b := start(t, func(s *setup) { s.options.QueueBytes = 8 << 20 })
			stop := make(chan struct{})
			var publishers sync.WaitGroup
			for i := range 3 {
				pub := b.connect(connectOptions{id: fmt.Sprint("pub", i)})
				topic := fmt.Sprint("t", i)
				pub.retain(topic, "0", qos)
				publishers.Go(func() {
					for n := 1; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						pub.retain(topic, strconv.Itoa(n), qos)
					}
				})
			}
			retained := 0
			for round := range 100 {
				sub := b.connect(connectOptions{id: fmt.Sprint("sub", round)})
				sub.send(sub.subscribePacket(1, 0, filter{"#", qos}))
				next, seen := map[string]int{}, map[string]int{}
				for len(seen) < 3 || min(seen["t0"], seen["t1"], seen["t2"]) < 3 {
					m := sub.message()
					sub.complete(m)
					n, _ := strconv.Atoi(m.payload)
					if seen[m.topic] > 0 && (m.retain || n != next[m.topic]) {
						t.Fatalf("round %d: %s=%d with RETAIN %v, next is %d", round, m.topic, n, m.retain, next[m.topic])
					}
					if m.retain {
						retained++
					}
					next[m.topic] = n + 1
					seen[m.topic]++
				}
				sub.conn.Close()
			}
			if retained == 0 {
				t.Error("nothing came as retained")
			}
			close(stop)
			publishers.Wait()
		})
	}
}

// A subscriber to everything costs the same little memory however much is retained, and gets all of it as it reads.
func TestRetainedIsPulled(t *testing.T) {
	const messages, size = 2000, 4000
	b := start(t, func(s *setup) { s.options.MaxRetainedMessages, s.options.MaxRetainedBytes = 1<<20, 1<<30 })
	for i := range messages {
		b.keeper.store.Load(retained.NewMessage(retained.Message{
			Topic: fmt.Sprintf("d/%05d", i), Payload: bytes.Repeat([]byte{'x'}, size), QoS: byte(i % 2),
		}))
	}
	var subs []*client
	for i := range 4 {
		sub := b.connect(connectOptions{id: fmt.Sprint("sub", i)})
		sub.conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		sub.subscribe(filter{"#", byte(i % 2)})
		subs = append(subs, sub)
	}
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "d", payload: "live", qos: 1, id: 1}) // nobody is held up
	pub.expectAck(wire.PUBACK, 1, 0)
	pub.silent(50 * time.Millisecond) // until the sockets take no more
	if q := b.queued.Load(); q > 4*2*maxWalkOutput {
		t.Errorf("%d bytes are queued", q)
	}
	for _, sub := range subs {
		last, live := "", 0
		for range messages + 1 {
			m := sub.message()
			sub.complete(m)
			if !m.retain {
				if live++; m.qos > 0 && last != fmt.Sprintf("d/%05d", messages-1) {
					t.Errorf("the live message comes behind %q", last)
				}
			} else if m.topic <= last || len(m.payload) != size {
				t.Fatalf("%q after %q", m.topic, last)
			} else {
				last = m.topic
			}
		}
		if live != 1 {
			t.Errorf("%d live messages", live)
		}
	}
}

func TestRetainedWill(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			live := b.connect(connectOptions{version: v, id: "live"})
			live.subscribe(filter{"#", 1})
			for _, topic := range []string{"stored", "local/x", "$foo"} {
				c := b.connect(connectOptions{version: v, id: "c", will: &willOptions{topic: topic, payload: "gone", qos: 1, retain: true}})
				c.conn.Close()
				if topic[0] != '$' {
					m := live.expectPublish(topic, "gone", 1)
					live.complete(m)
					if m.retain {
						t.Errorf("%+v", m)
					}
				}
			}
			eventually(t, func() bool { return b.Stats().Sessions == 1 })
			eventually(t, func() bool { return !b.keeper.store.Unsettled() })
			if found := b.retained("#"); len(found) != 2 || found["stored"] != "gone" || found["local/x"] != "gone" {
				t.Errorf("found %v", found)
			}
			if found := b.retained("$foo"); len(found) != 0 {
				t.Errorf("found %v", found)
			}
			if keys := b.stateKeys(retained.KeyPrefix); len(keys) != 2 {
				t.Errorf("state %q", keys)
			}
			// An empty one clears.
			c := b.connect(connectOptions{version: v, id: "c", will: &willOptions{topic: "stored", qos: 1, retain: true}})
			c.conn.Close()
			live.complete(live.expectPublish("stored", "", 1))
			eventually(t, func() bool { return len(b.stateKeys(retained.KeyPrefix)) == 1 })
		})
	}
}

// While the state takes nothing, retained messages without a record are refused where there is a word for it, and others dropped.
func TestRetainedWhileTheDiskRefuses(t *testing.T) {
	b := start(t)
	v5 := b.connect(connectOptions{id: "v5"})
	v5.retain("local/t", "old", 1)
	b.disk.fail(errDisk)
	trigger := b.connect(connectOptions{id: "trigger"})
	trigger.publish(outMessage{topic: "t", qos: 0})
	eventually(t, func() bool { return b.log.Status().Refusing != nil })
	v5.publish(outMessage{topic: "local/t", payload: "new", qos: 1, id: 1, retain: true},
		outMessage{topic: "local/t", payload: "new", qos: 2, id: 2, retain: true}, outMessage{topic: "local/t", payload: "new", retain: true})
	v5.expectAck(wire.PUBACK, 1, wire.QuotaExceeded)
	v5.expectAck(wire.PUBREC, 2, wire.QuotaExceeded)
	old := b.connect(connectOptions{id: "old", version: wire.V311})
	old.publish(outMessage{topic: "local/t", payload: "new", retain: true})
	old.ping()
	if n := b.dropped(dropUnavailable); n != 4 {
		t.Errorf("%d are counted", n)
	}
	if found := b.retained("#"); len(found) != 1 || found["local/t"] != "old" {
		t.Errorf("found %v", found)
	}
	b.disk.fail(nil)
}

// What a group that is given up would have changed is as it was.
func TestRetainedOfALostGroup(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	c.retain("t", "old", 1)
	w := b.log.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		t.Fatal(err)
	}
	group := w.Group()
	ws := newWorkspace()
	for _, topic := range []string{"t", "u"} {
		ws.source = []byte(topic + "new")
		m := message{topic: place{0, 1}, payload: place{1, 3}, qos: 1}
		if !b.keeper.stage(ws, w, &m, "c", 0) {
			t.Fatal("no room")
		}
	}
	// The group goes on without what it was told: the state has the old value.
	b.keeper.Committed(group, errDisk)
	w.Delete([]byte("retain/t"))
	w.Put([]byte("retain/t"), b.keeper.codec.AppendValue(nil, &retained.Message{Topic: "t", Payload: []byte("old")}, 1))
	w.Delete([]byte("retain/u"))
	w.End()
	if found := b.retained("#"); len(found) != 1 || found["t"] != "old" {
		t.Errorf("found %v", found)
	}
	if n, _ := b.keeper.store.Len(); n != 1 || b.keeper.store.Unsettled() {
		t.Errorf("%d messages, or some that nobody settles", n)
	}
}

// A subscription doesn't begin between the moment a message is retained and that at which it is handed on.
func TestSubscriptionsBeginBetweenMessages(t *testing.T) {
	b := start(t)
	sub, pub := b.connect(connectOptions{id: "sub"}), b.connect(connectOptions{id: "pub"})
	b.keeper.handing.Lock()
	sub.send(sub.subscribePacket(1, 0, filter{"#", 0}))
	sub.silent(50 * time.Millisecond)
	b.keeper.handing.Unlock()
	sub.expect(wire.SUBACK)
	b.keeper.handing.Lock()
	pub.publish(outMessage{topic: "t", payload: "x", retain: true})
	sub.silent(50 * time.Millisecond)
	if n, _ := b.keeper.store.Len(); n > 0 && b.keeper.store.Get([]byte("t"), 1<<60) != nil {
		t.Error("it is visible and not handed on")
	}
	b.keeper.handing.Unlock()
	sub.expectPublish("t", "x", 0)
}

// What is live comes behind what is retained, also where that waits for its commit.
func TestLiveWaitsForRetained(t *testing.T) {
	b := start(t)
	pub := b.connect(connectOptions{id: "pub"})
	release := b.disk.hold(t)
	pub.publish(outMessage{topic: "z", qos: 1, id: 2}) // a group of its own, so that what follows shares the next one
	eventually(t, func() bool { return b.disk.holding() })
	pub.publish(outMessage{topic: "t", payload: "retained", qos: 1, id: 1, retain: true})
	pub.ping()
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	other := b.connect(connectOptions{id: "other"})
	other.publish(outMessage{topic: "u", payload: "live", qos: 1, id: 1})
	other.ping()
	sub.silent(20 * time.Millisecond)
	release()
	other.expectAck(wire.PUBACK, 1, 0)
	pub.expectAck(wire.PUBACK, 2, 0)
	sub.expectRetained("t", "retained", 1)
	sub.expectPublish("u", "live", 1)
}

// A live message of QoS 0 doesn't overtake what is retained for its topic and is still to come; that comes once.
func TestRetainedIsNotOvertaken(t *testing.T) {
	b := start(t)
	const messages = 3000
	for i := range messages {
		b.keeper.store.Load(retained.NewMessage(retained.Message{Topic: fmt.Sprintf("t/%04d", i), Payload: bytes.Repeat([]byte{'x'}, 1000)}))
	}
	c := b.connect(connectOptions{id: "c"})
	c.conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	c.send(c.subscribePacket(1, 0, filter{"#", 0}))
	c.expect(wire.SUBACK)
	pub := b.connect(connectOptions{id: "pub"})
	for i := messages - 10; i < messages; i++ {
		pub.publish(outMessage{topic: fmt.Sprintf("t/%04d", i), payload: "live"})
	}
	pub.ping()
	seen := map[string]int{}
	for range messages + 10 {
		m := c.message()
		if seen[m.topic]++; m.retain != (seen[m.topic] == 1) {
			t.Fatalf("%s: message %d with RETAIN %v", m.topic, seen[m.topic], m.retain)
		}
	}
	c.noMore()
}

func TestUnsubscribeEndsTheWalk(t *testing.T) {
	b := start(t)
	for i := range 200 {
		b.keeper.store.Load(retained.NewMessage(retained.Message{Topic: fmt.Sprint("t/", i), Payload: []byte("x"), QoS: 1}))
	}
	c := b.connect(connectOptions{id: "c", props: []byte{33, 0, 5}}) // receive maximum 5
	c.send(c.subscribePacket(1, 0, filter{"#", 1}))
	c.send(frame(0xA2, append([]byte{0, 2, 0}, appendString(nil, "#")...)))
	c.expect(wire.SUBACK)
	var got []publishIn
	for p := c.read(); p.kind != wire.UNSUBACK; p = c.read() {
		got = append(got, c.parse(p))
	}
	for _, m := range got {
		c.complete(m)
	}
	c.ping()
	if c.silent(20 * time.Millisecond); len(got) > 5 {
		t.Errorf("%d messages", len(got))
	}
}

// The client's receive maximum holds for retained messages, and live ones come behind them.
func TestRetainedWithinReceiveMaximum(t *testing.T) {
	b := start(t)
	const messages = 50
	for i := range messages {
		b.keeper.store.Load(retained.NewMessage(retained.Message{Topic: fmt.Sprintf("t/%02d", i), Payload: []byte("x"), QoS: 2}))
	}
	c := b.connect(connectOptions{id: "c", props: []byte{33, 0, 5}})
	c.subscribe(filter{"#", 1})
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "t/49", payload: "live", qos: 1, id: 1})
	pub.expectAck(wire.PUBACK, 1, 0)
	for i := range messages {
		m := c.expectPublish(fmt.Sprintf("t/%02d", i), "x", 1)
		if i%5 == 4 {
			c.silent(5 * time.Millisecond)
			for id := m.id - 4; id <= m.id; id++ {
				c.ack(wire.PUBACK, id)
			}
		}
	}
	c.expectPublish("t/49", "live", 1)
}

// A session that comes back gets what was in flight again, under its ids, and then the rest, each once.
func TestRetainedGoesOnInTheNextConnection(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprint("QoS ", qos), func(t *testing.T) {
			b := start(t)
			const messages = 20
			for i := range messages {
				b.keeper.store.Load(retained.NewMessage(retained.Message{Topic: fmt.Sprintf("t/%02d", i), Payload: []byte("x"), QoS: qos}))
			}
			lasting := connectOptions{id: "c", persist: true, props: []byte{17, 0, 0, 0, 100, 33, 0, 5}} // receive maximum 5
			c := b.connect(lasting)
			c.subscribe(filter{"#", qos})
			var first []publishIn
			for range 5 {
				first = append(first, c.message())
			}
			c.complete(first[0])
			c.message() // the sixth
			c.conn.Close()
			eventually(t, func() bool { return b.Stats().Away == 1 })
			c = b.connect(lasting)
			for i := 1; i < messages; i++ {
				m := c.message()
				if want := fmt.Sprintf("t/%02d", i); m.topic != want || !m.retain || m.dup != (i <= 5) || i < 5 && m.id != first[i].id {
					t.Fatalf("%+v, not %s", m, want)
				}
				c.complete(m)
			}
			c.noMore()
		})
	}
}
