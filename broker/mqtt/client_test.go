package mqtt

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// packet is one from the broker.
type packet struct {
	kind  wire.Type
	flags byte
	body  []byte
}

func (p packet) id() uint16 { return binary.BigEndian.Uint16(p.body) }

// reason is an acknowledgement's or a DISCONNECT's.
func (p packet) reason() byte {
	at := 2
	if p.kind == wire.DISCONNECT {
		at = 0
	}
	if len(p.body) <= at {
		return 0
	}
	return p.body[at]
}

// client is a raw MQTT client: it sends what it is told and answers nothing by itself.
type client struct {
	t       testing.TB
	conn    net.Conn
	in      *bufio.Reader
	version byte
}

func (b *broker) dial() *client {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.Addrs()[0].String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return &client{t: b.t, conn: conn, in: bufio.NewReader(conn), version: wire.V5}
}

// connectOptions make a CONNECT.
type connectOptions struct {
	version   byte
	id        string
	keepAlive uint16
	props     []byte // version 5
	persist   bool   // 3.1.1: CleanSession 0
	will      *willOptions
	user      *string
	password  *string
}

// lasting is a CONNECT that takes up the session of a client id, which outlives the connection.
func lasting(version byte, id string) connectOptions {
	o := connectOptions{version: version, id: id, persist: true}
	if version == wire.V5 {
		o.props = []byte{17, 0, 0, 14, 16} // an hour
	}
	return o
}

type willOptions struct {
	topic, payload string
	qos            byte
	retain         bool
	props          []byte
}

func (o connectOptions) encode() []byte {
	flags := byte(2)
	if o.persist {
		flags = 0
	}
	if w := o.will; w != nil {
		flags |= 4 | w.qos<<3
		if w.retain {
			flags |= 32
		}
	}
	if o.user != nil {
		flags |= 128
	}
	if o.password != nil {
		flags |= 64
	}
	body := []byte{0, 4, 'M', 'Q', 'T', 'T', o.version, flags, byte(o.keepAlive >> 8), byte(o.keepAlive)}
	if o.version == wire.V5 {
		body = append(append(body, byte(len(o.props))), o.props...)
	}
	body = appendString(body, o.id)
	if w := o.will; w != nil {
		if o.version == wire.V5 {
			body = append(append(body, byte(len(w.props))), w.props...)
		}
		body = appendString(appendString(body, w.topic), w.payload)
	}
	for _, field := range []*string{o.user, o.password} {
		if field != nil {
			body = appendString(body, *field)
		}
	}
	return frame(0x10, body)
}

func appendString(b []byte, s string) []byte {
	return append(append(b, byte(len(s)>>8), byte(len(s))), s...)
}

func frame(first byte, body []byte) []byte {
	b := []byte{first}
	n := len(body)
	for n >= 128 {
		b = append(b, byte(n)|128)
		n >>= 7
	}
	return append(append(b, byte(n)), body...)
}

// connect makes a session, which must be granted.
func (b *broker) connect(o connectOptions) *client {
	b.t.Helper()
	c := b.dial()
	if p := c.connect(o); p.kind != wire.CONNACK || p.body[1] != 0 {
		b.t.Fatalf("CONNACK %v", p)
	}
	return c
}

func (c *client) connect(o connectOptions) packet {
	c.t.Helper()
	if o.version == 0 {
		o.version = wire.V5
	}
	c.version = o.version
	c.send(o.encode())
	return c.read()
}

func (c *client) send(p ...[]byte) {
	c.t.Helper()
	c.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.conn.Write(bytes.Join(p, nil)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) next(d time.Duration) (packet, error) {
	c.conn.SetReadDeadline(time.Now().Add(d))
	first, err := c.in.ReadByte()
	if err != nil {
		return packet{}, err
	}
	n, err := binary.ReadUvarint(c.in)
	if err != nil {
		return packet{}, err
	}
	p := packet{kind: wire.Type(first >> 4), flags: first & 15, body: make([]byte, n)}
	_, err = io.ReadFull(c.in, p.body)
	return p, err
}

// read returns the next packet.
func (c *client) read() packet {
	c.t.Helper()
	p, err := c.next(patience)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *client) expect(kind wire.Type) packet {
	c.t.Helper()
	p := c.read()
	if p.kind != kind {
		c.t.Fatalf("%v % x, not %v", p.kind, p.body, kind)
	}
	return p
}

// expectAck reads an acknowledgement of a packet id with a reason.
func (c *client) expectAck(kind wire.Type, id uint16, reason byte) {
	c.t.Helper()
	if p := c.expect(kind); p.id() != id || p.reason() != reason {
		c.t.Fatalf("%v % x, not of id %d with reason %#x", kind, p.body, id, reason)
	}
}

// expectEnd reads up to the connection's end, and wants a DISCONNECT with reason before it, or none for 0.
func (c *client) expectEnd(reason byte) {
	c.t.Helper()
	got := byte(0)
	for {
		p, err := c.next(patience)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Fatal("connection is still open")
		}
		if err != nil {
			break
		}
		if p.kind == wire.DISCONNECT {
			if got = p.reason(); c.version != wire.V5 {
				c.t.Error("a 3.1.1 client got a DISCONNECT")
			}
		}
	}
	if got != reason {
		c.t.Fatalf("DISCONNECT with %#x, not %#x", got, reason)
	}
}

// silent wants nothing to arrive: it makes a round trip with PINGREQ, which overtakes acknowledgements only.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	if p, err := c.next(d); err == nil {
		c.t.Fatalf("unexpected %v % x", p.kind, p.body)
	} else if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatal(err)
	}
}

// ping waits until the broker has worked off what was sent before.
func (c *client) ping() {
	c.t.Helper()
	c.send([]byte{0xC0, 0})
	c.expect(wire.PINGRESP)
}

type outMessage struct {
	topic, payload string
	qos            byte
	id             uint16
	dup, retain    bool
	raw            []byte
	expiry         uint32
	hasExpiry      bool
	alias          uint16
}

func (c *client) publishPacket(m outMessage) []byte {
	return wire.AppendPublish(nil, c.version, &wire.Outgoing{
		Topic: []byte(m.topic), Payload: []byte(m.payload), QoS: m.qos, PacketID: m.id, Dup: m.dup, Retain: m.retain,
		Raw: m.raw, Expiry: m.expiry, HasExpiry: m.hasExpiry, Alias: m.alias,
	})
}

func (c *client) publish(m ...outMessage) {
	c.t.Helper()
	for _, m := range m {
		c.send(c.publishPacket(m))
	}
}

type filter struct {
	name    string
	options byte
}

func (c *client) subscribePacket(id uint16, subID byte, filters ...filter) []byte {
	body := []byte{byte(id >> 8), byte(id)}
	if c.version == wire.V5 {
		if subID > 0 {
			body = append(body, 2, 11, subID)
		} else {
			body = append(body, 0)
		}
	}
	for _, f := range filters {
		body = append(appendString(body, f.name), f.options)
	}
	return frame(0x82, body)
}

// subscribe wants all filters granted as asked.
func (c *client) subscribe(filters ...filter) {
	c.t.Helper()
	c.send(c.subscribePacket(1, 0, filters...))
	codes := c.codes(c.expect(wire.SUBACK))
	for i, f := range filters {
		if codes[i] != f.options&3 {
			c.t.Fatalf("SUBACK % x", codes)
		}
	}
}

func (c *client) codes(p packet) []byte {
	if c.version == wire.V5 {
		return p.body[3+int(p.body[2]):]
	}
	return p.body[2:]
}

// publishIn parses a PUBLISH from the broker.
type publishIn struct {
	topic, payload string
	qos            byte
	id             uint16
	dup, retain    bool
	props          []byte
}

func (c *client) parse(p packet) publishIn {
	c.t.Helper()
	if p.kind != wire.PUBLISH {
		c.t.Fatalf("%v % x is not a PUBLISH", p.kind, p.body)
	}
	m := publishIn{qos: p.flags >> 1 & 3, dup: p.flags&8 != 0, retain: p.flags&1 != 0}
	b := p.body
	n := int(binary.BigEndian.Uint16(b))
	m.topic, b = string(b[2:2+n]), b[2+n:]
	if m.qos > 0 {
		m.id, b = binary.BigEndian.Uint16(b), b[2:]
	}
	if c.version == wire.V5 {
		size, used := binary.Uvarint(b)
		m.props, b = b[used:used+int(size)], b[used+int(size):]
	}
	m.payload = string(b)
	return m
}

func (c *client) expectPublish(topic, payload string, qos byte) publishIn {
	c.t.Helper()
	m := c.parse(c.read())
	if m.topic != topic || m.payload != payload || m.qos != qos {
		c.t.Fatalf("PUBLISH %q %q at QoS %d, not %q %q at %d", m.topic, m.payload, m.qos, topic, payload, qos)
	}
	return m
}

func (c *client) ack(kind wire.Type, id uint16) {
	c.t.Helper()
	switch kind {
	case wire.PUBACK:
		c.send(wire.AppendPuback(nil, c.version, id, 0))
	case wire.PUBREC:
		c.send(wire.AppendPubrec(nil, c.version, id, 0))
	case wire.PUBREL:
		c.send(wire.AppendPubrel(nil, c.version, id, 0))
	case wire.PUBCOMP:
		c.send(wire.AppendPubcomp(nil, c.version, id, 0))
	}
}

var bothVersions = []byte{wire.V311, wire.V5}

func versionName(v byte) string {
	if v == wire.V5 {
		return "v5"
	}
	return "v3.1.1"
}
