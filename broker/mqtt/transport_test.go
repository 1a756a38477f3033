package mqtt

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// transport is a way to a broker.
type transport struct {
	name     string
	listener func(t testing.TB, a *authority) Listener
	dial     func(t testing.TB, a *authority, to net.Addr) net.Conn
}

const proxyLine = "PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n"

func loopbackProxy() *ProxyProtocol {
	return &ProxyProtocol{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func dialPlain(t testing.TB, _ *authority, to net.Addr) net.Conn {
	t.Helper()
	conn, err := net.Dial(to.Network(), to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// dialTLS speaks one version of TLS over a connection.
func dialTLS(version uint16) func(t testing.TB, a *authority, to net.Addr) net.Conn {
	return func(t testing.TB, a *authority, to net.Addr) net.Conn {
		t.Helper()
		c := a.client()
		c.MinVersion, c.MaxVersion = version, version
		return tls.Client(dialPlain(t, a, to), c)
	}
}

func webSocketOver(dial func(t testing.TB, a *authority, to net.Addr) net.Conn) func(t testing.TB, a *authority, to net.Addr) net.Conn {
	return func(t testing.TB, a *authority, to net.Addr) net.Conn {
		t.Helper()
		ws, answer, err := upgrade(dial(t, a, to), wsRequest)
		if err != nil || answer.StatusCode != 101 {
			t.Fatal(answer, err)
		}
		ws.fragments = 3
		return ws
	}
}

func proxied(dial func(t testing.TB, a *authority, to net.Addr) net.Conn) func(t testing.TB, a *authority, to net.Addr) net.Conn {
	return func(t testing.TB, a *authority, to net.Addr) net.Conn {
		t.Helper()
		conn := dialPlain(t, a, to)
		conn.Write([]byte(proxyLine))
		c := a.client()
		return tls.Client(conn, c)
	}
}

var transports = []transport{
	{"tcp", func(testing.TB, *authority) Listener { return Listener{Address: "127.0.0.1:0"} }, dialPlain},
	{"unix", func(t testing.TB, a *authority) Listener {
		return Listener{Address: "unix:" + filepath.Join(a.dir, "mqtt.sock")}
	}, dialPlain},
	{"tls1.2", func(t testing.TB, a *authority) Listener { return Listener{Address: "127.0.0.1:0", TLS: a.server()} }, dialTLS(tls.VersionTLS12)},
	{"tls1.3", func(t testing.TB, a *authority) Listener { return Listener{Address: "127.0.0.1:0", TLS: a.server()} }, dialTLS(tls.VersionTLS13)},
	{"ws", func(t testing.TB, a *authority) Listener {
		return Listener{Address: "127.0.0.1:0", WebSocket: &WebSocket{}}
	}, webSocketOver(dialPlain)},
	{"wss", func(t testing.TB, a *authority) Listener {
		return Listener{Address: "127.0.0.1:0", TLS: a.server(), WebSocket: &WebSocket{}}
	}, webSocketOver(dialTLS(tls.VersionTLS13))},
	{"proxied wss", func(t testing.TB, a *authority) Listener {
		return Listener{Address: "127.0.0.1:0", TLS: a.server(), WebSocket: &WebSocket{}, ProxyProtocol: loopbackProxy()}
	}, webSocketOver(proxied(nil))},
}

// startAt starts a broker with one listener.
func startAt(t testing.TB, l Listener, change ...func(*setup)) *broker {
	t.Helper()
	return start(t, append([]func(*setup){func(s *setup) { s.options.Listeners = []Listener{l} }}, change...)...)
}

// over is a client on a connection that is there.
func (b *broker) over(conn net.Conn) *client {
	return &client{t: b.t, conn: conn, in: bufio.NewReader(conn), version: wire.V5}
}

// each runs a test on each transport.
func each(t *testing.T, test func(t *testing.T, b *broker, dial func() *client), change ...func(*setup)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			a := newAuthority(t, "authority")
			b := startAt(t, tr.listener(t, a), change...)
			test(t, b, func() *client { return b.over(tr.dial(t, a, b.Addrs()[0])) })
		})
	}
}

// hello makes a session.
func (c *client) hello(o connectOptions) *client {
	c.t.Helper()
	if p := c.connect(o); p.kind != wire.CONNACK || p.body[1] != 0 {
		c.t.Fatalf("CONNACK %v", p)
	}
	return c
}

// Messages of all sizes arrive whole and in order, on each transport, however the reads cut them.
func TestTransports(t *testing.T) {
	each(t, func(t *testing.T, b *broker, dial func() *client) {
		sub := dial().hello(connectOptions{id: "sub"})
		sub.subscribe(filter{"t/#", 1})
		pub := dial().hello(connectOptions{id: "pub", version: wire.V311})
		id := uint16(0)
		for _, size := range []int{0, 1, 100, 125, 126, 4096, 16383, 16384, 65535, 65536, 200_000} {
			id++
			payload := bytes.Repeat([]byte{byte(id)}, size)
			pub.publish(outMessage{topic: fmt.Sprint("t/", size), payload: string(payload), qos: 1, id: id})
			pub.expectAck(wire.PUBACK, id, 0)
			m := sub.parse(sub.expect(wire.PUBLISH))
			if m.topic != fmt.Sprint("t/", size) || m.payload != string(payload) {
				t.Fatalf("%d bytes: %s with %d", size, m.topic, len(m.payload))
			}
			sub.ack(wire.PUBACK, m.id)
		}
		pub.ping()
		sub.send(wire.AppendDisconnect(nil, 0, ""))
		sub.expectEnd(0)
	})
}

// A client that reads nothing for a while finds everything when it does: what the socket didn't take came again.
func TestTransportsSlowReader(t *testing.T) {
	each(t, func(t *testing.T, b *broker, dial func() *client) {
		sub := dial().hello(connectOptions{id: "sub"})
		sub.subscribe(filter{"t", 1})
		pub := dial().hello(connectOptions{id: "pub", version: wire.V311})
		const n, size = 60, 250_000 // more than both sockets' buffers hold
		for i := range uint16(n) {
			pub.publish(outMessage{topic: "t", payload: string(bytes.Repeat([]byte{byte(i)}, size)), qos: 1, id: i + 1})
			pub.expectAck(wire.PUBACK, i+1, 0)
		}
		for i := range n {
			m := sub.parse(sub.expect(wire.PUBLISH))
			if len(m.payload) != size || m.payload[0] != byte(i) || m.payload[size-1] != byte(i) {
				t.Fatalf("message %d: %d bytes of %d", i, len(m.payload), m.payload[0])
			}
			sub.ack(wire.PUBACK, m.id)
		}
		sub.ping()
	}, func(s *setup) { s.options.QueueBytes, s.options.QueueTotalBytes = 32<<20, 64<<20 })
}

// Packets that arrive byte by byte are packets, and so are several in one piece.
func TestTransportsPieces(t *testing.T) {
	each(t, func(t *testing.T, b *broker, dial func() *client) {
		c := dial()
		all := connectOptions{version: wire.V5, id: "a"}.encode()
		all = append(all, c.subscribePacket(1, 0, filter{"x", 0})...)
		all = append(all, c.publishPacket(outMessage{topic: "x", payload: "payload", qos: 1, id: 1})...)
		for _, piece := range [][]byte{all[:len(all)-1], all[len(all)-1:], {0xC0}, {0}} {
			for i := range piece {
				c.send(piece[i : i+1])
			}
		}
		got := map[wire.Type]bool{}
		for range 5 {
			got[c.read().kind] = true
		}
		c.send(bytes.Repeat([]byte{0xC0, 0}, 50))
		for range 50 {
			c.expect(wire.PINGRESP)
		}
		if !got[wire.CONNACK] || !got[wire.SUBACK] || !got[wire.PUBLISH] || !got[wire.PUBACK] || !got[wire.PINGRESP] {
			t.Error(got)
		}
	})
}

// The time for CONNECT holds whatever the client does instead of finishing what comes before it.
func TestTransportsDeadline(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t, "authority")
			l := tr.listener(t, a)
			b := startAt(t, l, func(s *setup) { s.options.ConnectTimeout = 200 * time.Millisecond })
			conns := []net.Conn{dialPlain(t, a, b.Addrs()[0])}
			first := map[bool]string{true: "GET /mqtt HTTP/1.1\r\nHost", false: "\x10\x20\x00\x04MQ"}[l.WebSocket != nil]
			if l.ProxyProtocol != nil {
				first = proxyLine[:20]
			} else if l.TLS != nil {
				first = "\x16\x03\x01\x02\x00\x01"
			}
			conns = append(conns, dialPlain(t, a, b.Addrs()[0]))
			conns[1].Write([]byte(first))
			c := tr.dial(t, a, b.Addrs()[0])
			if tc, ok := c.(*tls.Conn); ok {
				if err := tc.Handshake(); err != nil {
					t.Fatal(err)
				}
			}
			for _, conn := range append(conns, c) {
				b.over(conn).expectEnd(0)
			}
			eventually(t, func() bool { return b.Stats().Connections == 0 })
			if s := b.Stats(); s.NoConnect != 3 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A session that is taken over is told so on each transport.
func TestTransportsTakeOver(t *testing.T) {
	each(t, func(t *testing.T, b *broker, dial func() *client) {
		first := dial().hello(connectOptions{id: "same"})
		second := dial().hello(connectOptions{id: "same"})
		first.expectEnd(wire.SessionTakenOver)
		second.ping()
	})
}
