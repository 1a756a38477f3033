package mqtt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

func TestPublishIsStoredWithItsEnvelope(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "dev/1"})
	contentType := []byte{3, 0, 1, 'x'}
	before := time.Now().UnixMilli()
	c.publish(
		outMessage{topic: "a/b", payload: "zero"},
		outMessage{topic: "keyed/k", payload: "", qos: 1, id: 1},
		outMessage{topic: "a/b", payload: "two", qos: 2, id: 2, raw: contentType, expiry: 0, hasExpiry: true},
	)
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectAck(wire.PUBREC, 2, 0)
	records := b.stored(3)
	want := []struct {
		key, value, topic string
		envelope          record.Envelope
	}{
		{"a/b", "zero", "", record.Envelope{QoS: 0}},
		{"key:k", "", "keyed/k", record.Envelope{QoS: 1}},
		{"a/b", "two", "", record.Envelope{QoS: 2, HasExpiry: true, Properties: contentType}},
	}
	for i, w := range want {
		r := records[i]
		if string(r.Key) != w.key || string(r.Value) != w.value || r.Value == nil {
			t.Errorf("record %d: %q %q", i, r.Key, r.Value)
		}
		if r.Timestamp < before || r.Timestamp > time.Now().UnixMilli() {
			t.Errorf("record %d: timestamp %d", i, r.Timestamp)
		}
		topic, _ := r.Header(record.TopicKey)
		if string(topic) != w.topic {
			t.Errorf("record %d: topic %q", i, topic)
		}
		value, _ := r.Header(record.EnvelopeKey)
		e, err := record.ParseEnvelope(value)
		w.envelope.Incarnation, w.envelope.ClientID = 77, []byte("dev/1")
		if err != nil || fmt.Sprint(e) != fmt.Sprint(w.envelope) {
			t.Errorf("record %d: envelope %v, %v", i, e, err)
		}
	}
}

func TestAcksWaitForTheirCommit(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			c := b.connect(lasting(v, "c"))
			release := b.disk.hold(t)
			c.publish(outMessage{topic: "t", qos: 1, id: 1}, outMessage{topic: "t", qos: 2, id: 2})
			c.ping() // PINGRESP overtakes
			c.silent(50 * time.Millisecond)
			release()
			c.expectAck(wire.PUBACK, 1, 0)
			c.expectAck(wire.PUBREC, 2, 0)

			release = b.disk.hold(t)
			c.ack(wire.PUBREL, 2)
			c.ping()
			c.silent(50 * time.Millisecond)
			release()
			c.expectAck(wire.PUBCOMP, 2, 0)
		})
	}
}

// What needs no commit keeps its place among what does.
func TestAnswersKeepTheirOrder(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	release := b.disk.hold(t)
	c.send(
		c.publishPacket(outMessage{topic: "t", qos: 1, id: 1}),
		c.publishPacket(outMessage{topic: "$SYS/x", qos: 1, id: 2}),
		c.subscribePacket(3, 0, filter{"nothing", 1}),
		wire.AppendPubrel(nil, c.version, 99, 0),
		c.publishPacket(outMessage{topic: "t", qos: 1, id: 4}),
	)
	c.ping()
	c.silent(20 * time.Millisecond)
	release()
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectAck(wire.PUBACK, 2, 0)
	if p := c.expect(wire.SUBACK); p.id() != 3 {
		t.Fatal(p)
	}
	c.expectAck(wire.PUBCOMP, 99, wire.PacketIDNotFound)
	c.expectAck(wire.PUBACK, 4, 0)
	// With nothing in flight there is nothing to wait for.
	release = b.disk.hold(t)
	c.send(c.subscribePacket(5, 0, filter{"nothing", 1}))
	c.expect(wire.SUBACK)
	release()
}

func TestOneWriteForAllAcksOfACommit(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	release := b.disk.hold(t)
	const n = 50
	c.publish(outMessage{topic: "first", qos: 1, id: 1}) // takes the commit that is held
	c.ping()
	eventually(t, func() bool { b.disk.mu.Lock(); defer b.disk.mu.Unlock(); return b.disk.syncs > 0 })
	for id := uint16(2); id <= n; id++ {
		c.publish(outMessage{topic: "t", qos: 1, id: id})
	}
	c.ping()
	before := segmentsIn(t, c)
	release()
	for id := uint16(1); id <= n; id++ {
		c.expectAck(wire.PUBACK, id, 0)
	}
	if got := segmentsIn(t, c) - before; got > 2 {
		t.Errorf("two commits were acknowledged in %d segments", got)
	}
}

// segmentsIn is how many TCP segments with data a client has received.
func segmentsIn(t *testing.T, c *client) (n uint32) {
	t.Helper()
	return tcpInfo(t, c).Data_segs_in
}

func tcpInfo(t *testing.T, c *client) *unix.TCPInfo {
	t.Helper()
	info, err := controlTCP(c.conn, func(fd int) (*unix.TCPInfo, error) {
		return unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestDollarTopicsAreAcknowledgedOnly(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 2}, filter{"$SYS/x", 2})
	c := b.connect(connectOptions{id: "c"})
	c.publish(outMessage{topic: "$SYS/x", retain: true}, outMessage{topic: "$SYS/x", qos: 1, id: 1}, outMessage{topic: "$SYS/x", payload: "x", qos: 2, id: 2, retain: true})
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectAck(wire.PUBREC, 2, 0)
	c.ack(wire.PUBREL, 2)
	c.expectAck(wire.PUBCOMP, 2, 0)
	c.publish(outMessage{topic: "end", qos: 1, id: 3})
	c.expectAck(wire.PUBACK, 3, 0)
	sub.expectPublish("end", "", 1)
	c.publish(outMessage{topic: "$foo", payload: "x", qos: 1, id: 3, retain: true})
	c.expectAck(wire.PUBACK, 3, 0)
	if keys := b.stateKeys("retain"); len(keys) != 0 {
		t.Errorf("state %q", keys)
	}
	if r := b.stored(1); len(r) != 1 {
		t.Errorf("%d records", len(r))
	}
}

func TestRefusedPublishes(t *testing.T) {
	tests := []struct {
		name    string
		message outMessage
		version byte
		reason  byte
	}{
		{"alias", outMessage{topic: "t", alias: 17}, wire.V5, wire.TopicAliasInvalid},
		{"alias 0", outMessage{topic: "t", raw: []byte{35, 0, 0}}, wire.V5, wire.TopicAliasInvalid},
		{"unknown alias", outMessage{alias: 1}, wire.V5, wire.ProtocolError},
		{"too long for an alias", outMessage{topic: strings.Repeat("a", 16<<10+1), alias: 1}, wire.V5, wire.QuotaExceeded},
		{"wildcard", outMessage{topic: "a/+"}, wire.V5, wire.MalformedPacket},
		{"wildcard", outMessage{topic: "a/#"}, wire.V311, 0},
		{"packet id 0", outMessage{topic: "a", qos: 1}, wire.V5, wire.ProtocolError},
		{"invalid UTF-8", outMessage{topic: "a\xff"}, wire.V311, 0},
		{"too large", outMessage{topic: "a", payload: strings.Repeat("x", 300<<10)}, wire.V5, wire.PacketTooLarge},
		{"too large", outMessage{topic: "a", payload: strings.Repeat("x", 300<<10)}, wire.V311, 0},
	}
	b := start(t)
	for _, tt := range tests {
		t.Run(tt.name+versionName(tt.version), func(t *testing.T) {
			c := b.connect(connectOptions{version: tt.version, id: "c"})
			c.conn.Write(c.publishPacket(tt.message))
			c.expectEnd(tt.reason)
		})
	}
	if r := b.stored(0); len(r) != 0 {
		t.Errorf("%d records", len(r))
	}
}

// Messages before the one that breaks the protocol are stored.
func TestMessagesBeforeAFaultAreStored(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	c.send(c.publishPacket(outMessage{topic: "good", qos: 1, id: 1}), []byte{0xF3, 0})
	c.expectEnd(wire.MalformedPacket)
	if r := b.stored(1); len(r) != 1 {
		t.Errorf("%d records", len(r))
	}
}

func TestLargePacketInPieces(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	payload := strings.Repeat("0123456789abcdef", 12<<10) // 192 KiB
	p := append(c.publishPacket(outMessage{topic: "small", qos: 1, id: 1}), c.publishPacket(outMessage{topic: "large", payload: payload, qos: 1, id: 2})...)
	p = append(p, c.publishPacket(outMessage{topic: "small", qos: 1, id: 3})...)
	for len(p) > 0 {
		n := min(len(p), 7001)
		c.send(p[:n])
		p = p[n:]
	}
	for id := uint16(1); id <= 3; id++ {
		c.expectAck(wire.PUBACK, id, 0)
	}
	if r := b.stored(3); string(r[1].Value) != payload {
		t.Error("large payload differs")
	}
}

func TestReceiveMaximum(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ReceiveMaximum = 3 })
	c := b.connect(connectOptions{id: "c"})
	release := b.disk.hold(t)
	c.publish(outMessage{topic: "t", qos: 1, id: 1}, outMessage{topic: "t", qos: 2, id: 2}, outMessage{topic: "t", qos: 1, id: 3})
	c.publish(outMessage{topic: "t"}) // QoS 0 doesn't count
	c.ping()
	release()
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectAck(wire.PUBREC, 2, 0) // keeps its place up to PUBCOMP
	c.expectAck(wire.PUBACK, 3, 0)
	release = b.disk.hold(t)
	c.publish(outMessage{topic: "t", qos: 1, id: 4}, outMessage{topic: "t", qos: 1, id: 5})
	c.publish(outMessage{topic: "t", qos: 2, id: 2, dup: true}) // a repeat takes no place
	c.ping()
	c.publish(outMessage{topic: "t", qos: 1, id: 6})
	c.expectEnd(wire.ReceiveMaximumExceeded)
	release()
}

// A client that uses its whole receive maximum again as soon as it sees an acknowledgement is never over it.
func TestReceiveMaximumIsFreeBeforeTheAck(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ReceiveMaximum = 2 })
	c := b.connect(connectOptions{id: "c"})
	id, n := uint16(2), 0
	c.publish(outMessage{topic: "t", qos: 1, id: 1}, outMessage{topic: "t", qos: 2, id: 2})
	for n < 2000 {
		p := c.read()
		switch p.kind {
		case wire.PUBACK, wire.PUBCOMP:
			n++
			id++
			c.publish(outMessage{topic: "t", qos: 1 + byte(n&1), id: id})
		case wire.PUBREC:
			c.ack(wire.PUBREL, p.id())
		default:
			t.Fatalf("after %d: %v % x", n, p.kind, p.body)
		}
	}
}

// A 3.1.1 client has no receive maximum: TCP holds it back.
func TestInflightBytesStopReading(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{version: wire.V311, id: "c"})
	release := b.disk.hold(t)
	const n, size = 3000, 1000
	sent := make(chan error, 1)
	go func() {
		for id := uint16(1); id <= n; id++ {
			if _, err := c.conn.Write(c.publishPacket(outMessage{topic: "t", payload: strings.Repeat("x", size), qos: 1, id: id})); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for c := range b.conns {
			return c.inflight.Load() >= int64(b.options.InflightBytes)
		}
		return false
	})
	c.silent(20 * time.Millisecond) // time to go too far
	b.mu.Lock()
	for c := range b.conns {
		if got := c.inflight.Load(); got > int64(b.options.InflightBytes)+readBytes+2000 {
			t.Errorf("%d bytes in flight", got)
		}
	}
	b.mu.Unlock()
	release()
	for id := uint16(1); id <= n; id++ {
		c.expectAck(wire.PUBACK, id, 0)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

var errDisk = errors.New("disk is broken")

// refuse makes the log refuse messages, with one held in limbo.
func refuse(t *testing.T, b *broker) {
	t.Helper()
	b.disk.fail(errDisk)
	probe := b.log.NewWriter(nil)
	w := b.connect(connectOptions{id: "limbo"})
	w.publish(outMessage{topic: "limbo", qos: 1, id: 1})
	eventually(t, func() bool {
		err := probe.Begin()
		if err == nil {
			probe.End()
		}
		return errors.Is(err, segment.ErrUnavailable)
	})
}

func TestLogRefusesVersion5(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	refuse(t, b)
	c.publish(outMessage{topic: "t", payload: "lost"}, outMessage{topic: "t", qos: 1, id: 1}, outMessage{topic: "t", qos: 2, id: 2},
		outMessage{topic: "$x", qos: 1, id: 3})
	c.expectAck(wire.PUBACK, 1, wire.QuotaExceeded)
	c.expectAck(wire.PUBREC, 2, wire.QuotaExceeded)
	c.expectAck(wire.PUBACK, 3, 0)
	if got := b.dropped(dropUnavailable); got != 3 {
		t.Errorf("%d messages counted", got)
	}
	b.disk.fail(nil)
	// Id 2 is free again: no repeat, and no release.
	eventually(t, func() bool {
		c.publish(outMessage{topic: "t", payload: "again", qos: 2, id: 2})
		return c.expect(wire.PUBREC).reason() == 0
	})
	c.ack(wire.PUBREL, 2)
	c.expectAck(wire.PUBCOMP, 2, 0)
	if r := b.stored(2); len(r) != 2 || string(r[1].Value) != "again" {
		t.Errorf("%d records", len(r))
	}
}

func TestLogRefusesVersion311(t *testing.T) {
	b := start(t)
	patient := b.connect(connectOptions{version: wire.V311, id: "patient", keepAlive: 60})
	hasty := b.connect(connectOptions{version: wire.V311, id: "hasty", keepAlive: 1})
	refuse(t, b)
	patient.publish(outMessage{topic: "t", payload: "kept", qos: 1, id: 1})
	hasty.publish(outMessage{topic: "t", qos: 1, id: 1})
	began := time.Now()
	hasty.expectEnd(0)
	if d := time.Since(began); d > 1200*time.Millisecond {
		t.Errorf("closed after %v, with a keepalive of 1 s", d)
	}
	patient.silent(time.Millisecond)
	b.disk.fail(nil)
	patient.expectAck(wire.PUBACK, 1, 0)
}

// A full log refuses messages, but not what frees packet ids.
func TestFullLog(t *testing.T) {
	b := start(t, func(s *setup) {
		s.log.MaxBytes, s.log.MaxRecordBytes, s.log.JournalBytes = 16<<10, 64<<10, 2<<20
		s.log.BudgetBytes, s.log.ReserveBytes = 14<<20, 1<<20
		s.topic.OnFull = segment.Reject
		s.options.MaxPacketBytes = 64 << 10
	})
	c := b.connect(connectOptions{id: "c"})
	c.publish(outMessage{topic: "t", qos: 2, id: 1})
	c.expectAck(wire.PUBREC, 1, 0)
	payload := make([]byte, 60<<10)
	for i := range payload {
		payload[i] = byte(i * i >> 3)
	}
	for i := range 1000 {
		for j := range payload[:1000] {
			payload[j*50] = byte(i * j >> 2)
		}
		c.publish(outMessage{topic: "t", payload: string(payload), qos: 1, id: 2})
		if p := c.expect(wire.PUBACK); p.reason() != 0 {
			break
		}
	}
	c.publish(outMessage{topic: "t", qos: 2, id: 3})
	c.expectAck(wire.PUBREC, 3, wire.QuotaExceeded)
	c.send(c.publishPacket(outMessage{topic: "t", qos: 2, id: 1, dup: true}), wire.AppendPubrel(nil, c.version, 1, 0), c.publishPacket(outMessage{topic: "t", qos: 1, id: 4}))
	c.expectAck(wire.PUBREC, 1, 0)
	c.expectAck(wire.PUBCOMP, 1, 0)
	c.expectAck(wire.PUBACK, 4, wire.QuotaExceeded)
	if b.dropped(dropFull) < 3 {
		t.Error("refused messages are not counted")
	}
}

// Of a connection's messages those of the full topic are refused, and no others.
func TestFullTopic(t *testing.T) {
	b := start(t)
	full, err := b.log.CreateTopic(segment.TopicOptions{
		Name: "full", Partitions: 1, SegmentBytes: 64 << 10, RetentionBytes: 128 << 10, OnFull: segment.Reject,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := full.Partitions()[0]
	b.router.(*router).other = p
	eventually(t, func() bool { // fills it
		ticket, err := b.log.Append(p, &record.Record{Value: make([]byte, 16<<10)})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		return errors.Is(err, segment.ErrFull)
	})
	end := p.HighWatermark()

	c := b.connect(connectOptions{id: "five"})
	c.send(
		c.publishPacket(outMessage{topic: "a", qos: 1, id: 1}),
		c.publishPacket(outMessage{topic: "other/a", qos: 1, id: 2}),
		c.publishPacket(outMessage{topic: "other/a", qos: 0}),
		c.publishPacket(outMessage{topic: "a", qos: 2, id: 3}),
		c.publishPacket(outMessage{topic: "other/b", qos: 2, id: 4}),
		c.publishPacket(outMessage{topic: "a", qos: 0}),
	)
	c.expectAck(wire.PUBACK, 1, 0)
	if p := c.expect(wire.PUBACK); p.id() != 2 || p.reason() != wire.QuotaExceeded || c.why(p) != refusals[refusedFull].what {
		t.Errorf("PUBACK %q", p.body)
	}
	c.expectAck(wire.PUBREC, 3, 0)
	c.expectAck(wire.PUBREC, 4, wire.QuotaExceeded)
	if n := len(b.stored(3)); n != 3 {
		t.Errorf("%d records stored, want 3", n)
	}
	for _, d := range b.drops.Snapshot() {
		if d.Topic != "full" || d.Reason != dropFull || d.Messages != 3 {
			t.Errorf("dropped %+v", d)
		}
	}

	old := b.connect(connectOptions{id: "four", version: wire.V311, keepAlive: 1})
	old.publish(outMessage{topic: "a", qos: 1, id: 1})
	old.expectAck(wire.PUBACK, 1, 0)
	old.publish(outMessage{topic: "other/a", qos: 0})
	old.publish(outMessage{topic: "a", qos: 1, id: 2})
	old.expectAck(wire.PUBACK, 2, 0)
	old.publish(outMessage{topic: "other/a", qos: 1, id: 3})
	old.expectEnd(0) // after a while without an answer
	if p.HighWatermark() != end {
		t.Errorf("%d records got into the full topic", p.HighWatermark()-end)
	}
	if n := len(b.stored(5)); n != 5 {
		t.Errorf("%d records stored, want 5", n)
	}
	if n := b.dropped(dropFull); n != 4 {
		t.Errorf("%d messages counted as dropped, want 4", n)
	}
}
