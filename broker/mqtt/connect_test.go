package mqtt

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestConnack(t *testing.T) {
	b := start(t, func(s *setup) {
		s.options.ReceiveMaximum, s.options.MaxPacketBytes, s.options.MaxSessionExpiry = 7, 1<<16, 50
	})
	c := b.dial()
	p := c.connect(connectOptions{props: []byte{17, 0, 0, 0, 60}}) // session expiry 60 s, no client id
	want := map[string][]byte{
		"session expiry 50":   {17, 0, 0, 0, 50},
		"receive maximum":     {33, 0, 7},
		"maximum packet size": {39, 0, 1, 0, 0},
		"topic alias maximum": {34, 0, 16},
		"assigned client id":  append([]byte{18, 0, 23}, "sluice-"...),
	}
	for name, prop := range want {
		if !bytes.Contains(p.body, prop) {
			t.Errorf("no %s in % x", name, p.body)
		}
	}
	if p.body[0] != 0 || p.body[1] != 0 || bytes.Contains(p.body, []byte{37, 0}) {
		t.Errorf("CONNACK % x", p.body)
	}
	c = b.dial()
	if p := c.connect(connectOptions{version: wire.V311}); !bytes.Equal(p.body, []byte{0, 0}) {
		t.Errorf("3.1.1 CONNACK % x", p.body)
	}
}

func TestConnectRefused(t *testing.T) {
	auth := append([]byte{21, 0, 1}, 'x')
	tests := []struct {
		name    string
		options connectOptions
		code    byte
	}{
		{"enhanced authentication", connectOptions{version: wire.V5, id: "c", props: auth}, wire.BadAuthenticationMethod},
		{"level 6", connectOptions{version: 6, id: "c"}, wire.UnsupportedProtocolVersion},
		{"level 3", connectOptions{version: 3, id: "c"}, 1},
		{"receive maximum 0", connectOptions{version: wire.V5, id: "c", props: []byte{33, 0, 0}}, wire.ProtocolError},
		{"duplicate property", connectOptions{version: wire.V5, id: "c", props: []byte{33, 0, 1, 33, 0, 1}}, wire.ProtocolError},
	}
	b := start(t)
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s %d", tt.name, tt.options.version), func(t *testing.T) {
			c := b.dial()
			c.t = t
			if p := c.connect(tt.options); p.kind != wire.CONNACK || p.body[1] != tt.code {
				t.Errorf("%v % x, not code %#x", p.kind, p.body, tt.code)
			}
			c.expectEnd(0)
		})
	}
	eventually(t, func() bool { return b.Stats().Connections == 0 })
}

func TestFirstPacket(t *testing.T) {
	tests := []struct {
		name  string
		bytes []byte
	}{
		{"PINGREQ", []byte{0xC0, 0}},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"TLS", []byte{0x16, 3, 1, 2, 0}},
		{"length of five bytes", []byte{0x10, 0xff, 0xff, 0xff, 0xff, 1}},
		{"256 MB announced", []byte{0x10, 0xff, 0xff, 0xff, 0x7f}},
		{"wrong protocol", frame(0x10, []byte{0, 4, 'M', 'Q', 'X', 'X', 4, 2, 0, 0, 0, 1, 'c'})},
		{"will QoS 3", frame(0x10, []byte{0, 4, 'M', 'Q', 'T', 'T', 4, 0x1E, 0, 0, 0, 1, 'c', 0, 1, 'w', 0, 0})},
	}
	b := start(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := b.dial()
			c.t, c.version = t, wire.V311
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c.send(tt.bytes)
			c.expectEnd(0)
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
				t.Errorf("%d bytes allocated", grown)
			}
		})
	}
}

func TestConnectTimeout(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ConnectTimeout = 100 * time.Millisecond })
	silent, slow := b.dial(), b.dial()
	slow.send(connectOptions{version: wire.V5, id: "slow"}.encode()[:9])
	stays := b.connect(connectOptions{id: "stays"})
	silent.expectEnd(0)
	slow.expectEnd(0)
	stays.ping()
}

// A client may go on before it has seen CONNACK, and TCP may cut what it sends anywhere.
func TestConnectInPieces(t *testing.T) {
	b := start(t)
	will := &willOptions{topic: "w", payload: strings.Repeat("x", 40<<10)} // larger than one read
	for _, size := range []int{1, 3, 16 << 10, 1 << 20} {
		c := b.dial()
		p := connectOptions{version: wire.V5, id: "c", will: will}.encode()
		p = append(p, c.publishPacket(outMessage{topic: "t", qos: 1, id: 1})...)
		p = append(p, 0xC0, 0)
		for len(p) > 0 {
			n := min(size, len(p))
			if size < 100 && len(p) < 40<<10 && len(p) > 100 {
				n = len(p) - 100
			}
			c.send(p[:n])
			p = p[n:]
		}
		c.expect(wire.CONNACK)
		got := map[wire.Type]bool{c.read().kind: true, c.read().kind: true}
		if !got[wire.PUBACK] || !got[wire.PINGRESP] {
			t.Errorf("in pieces of %d: %v", size, got)
		}
		c.send([]byte{0xE0, 0})
		c.expectEnd(0)
	}
}

func TestTooManyConnections(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxConnections = 2 })
	first := b.connect(connectOptions{id: "1"})
	b.connect(connectOptions{id: "2"})
	if p := b.dial().connect(connectOptions{id: "3"}); p.kind != wire.CONNACK || p.body[1] != wire.QuotaExceeded {
		t.Errorf("%v % x", p.kind, p.body)
	}
	if p := b.dial().connect(connectOptions{version: wire.V311, id: "3"}); p.kind != wire.CONNACK || p.body[1] != 3 {
		t.Errorf("%v % x", p.kind, p.body)
	}
	b.connect(connectOptions{id: "1"}) // takes over: no more than before
	first.expectEnd(wire.SessionTakenOver)
}

func TestProtocolErrorsAfterConnect(t *testing.T) {
	connect := connectOptions{version: wire.V5, id: "c"}.encode()
	tests := []struct {
		name   string
		bytes  []byte
		reason byte
	}{
		{"second CONNECT", connect, wire.ProtocolError},
		{"CONNACK", []byte{0x20, 2, 0, 0}, wire.ProtocolError},
		{"AUTH", []byte{0xF0, 0}, wire.BadAuthenticationMethod},
		{"SUBSCRIBE that ends behind its filter", []byte{0x82, 8, 0, 1, 0, 0, 3, 'a', '/', 'b'}, wire.MalformedPacket},
		{"SUBSCRIBE without a filter", []byte{0x82, 3, 0, 1, 0}, wire.ProtocolError},
		{"remaining length of six bytes", []byte{0xC0, 0x80, 0x80, 0x80, 0x80, 0x80, 0}, wire.MalformedPacket},
		{"PINGREQ with a body", []byte{0xC0, 1, 0}, wire.MalformedPacket},
		{"DISCONNECT with an expiry", []byte{0xE0, 7, 0, 5, 17, 0, 0, 0, 1}, wire.ProtocolError},
	}
	b := start(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := b.connect(connectOptions{id: "c"})
			c.t = t
			c.send(tt.bytes)
			c.expectEnd(tt.reason)
		})
	}
	b.connect(connectOptions{id: "alive"}).ping()
}
