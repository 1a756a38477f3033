package mqtt

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// proxyHeader makes a version 2 header.
func proxyHeader(command, family byte, addresses string, tlv string) string {
	b := binary.BigEndian.AppendUint16([]byte(proxySignature+string([]byte{command, family})), uint16(len(addresses)+len(tlv)))
	return string(b) + addresses + tlv
}

const (
	proxyV4 = "\xC0\x00\x02\x01\xC6\x33\x64\x01\xDC\x04\x07\x5B" // 192.0.2.1:56324 → 198.51.100.1:1883
	proxyV6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\xDC\x04\x07\x5B"
)

func TestProxyHeader(t *testing.T) {
	const v4, v6 = "192.0.2.1:56324", "[2001:db8::1]:56324"
	tests := []struct {
		name, header string
		client       string // empty: the proxy's own
		bad          bool
	}{
		{"v1 TCP4", "PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n", v4, false},
		{"v1 TCP6", "PROXY TCP6 2001:db8::1 2001:db8::2 56324 1883\r\n", v6, false},
		{"v1 longest", "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
			"[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535", false},
		{"v1 UNKNOWN", "PROXY UNKNOWN\r\n", "", false},
		{"v1 UNKNOWN with addresses", "PROXY UNKNOWN ffff:f...f:ffff whatever 1 2\r\n", "", false},
		{"v1 IPv6 for TCP4", "PROXY TCP4 2001:db8::1 2001:db8::2 56324 1883\r\n", "", true},
		{"v1 IPv4 for TCP6", "PROXY TCP6 192.0.2.1 198.51.100.1 56324 1883\r\n", "", true},
		{"v1 UDP4", "PROXY UDP4 192.0.2.1 198.51.100.1 56324 1883\r\n", "", true},
		{"v1 bad port", "PROXY TCP4 192.0.2.1 198.51.100.1 65536 1883\r\n", "", true},
		{"v1 port with zeros", "PROXY TCP4 192.0.2.1 198.51.100.1 056324 1883\r\n", "", true},
		{"v1 bad destination", "PROXY TCP4 192.0.2.1 198.51.100 56324 1883\r\n", "", true},
		{"v1 two spaces", "PROXY TCP4  192.0.2.1 198.51.100.1 56324 1883\r\n", "", true},
		{"v1 zone", "PROXY TCP6 fe80::1%eth0 fe80::2 1 2\r\n", "", true},
		{"v1 field missing", "PROXY TCP4 192.0.2.1 198.51.100.1 56324\r\n", "", true},
		{"v1 line feed alone", "PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\n", "", true},
		{"v1 too long", "PROXY UNKNOWN " + strings.Repeat("x", 92) + "\r\n", "", true},
		{"v2 TCP4", proxyHeader(0x21, 0x11, proxyV4, ""), v4, false},
		{"v2 TCP6", proxyHeader(0x21, 0x21, proxyV6, ""), v6, false},
		{"v2 TCP4 with TLVs", proxyHeader(0x21, 0x11, proxyV4, "\x04\x00\x03abc"), v4, false},
		{"v2 unix", proxyHeader(0x21, 0x31, strings.Repeat("/", 216), ""), "", false},
		{"v2 unspecified", proxyHeader(0x21, 0x00, "", "\x04\x00\x00"), "", false},
		{"v2 LOCAL", proxyHeader(0x20, 0x00, "", ""), "", false},
		{"v2 LOCAL with addresses", proxyHeader(0x20, 0x11, proxyV4, ""), "", false},
		{"v2 LOCAL of an unknown family", proxyHeader(0x20, 0x77, "", ""), "", false},
		{"v2 addresses cut", proxyHeader(0x21, 0x11, proxyV4[:11], ""), "", true},
		{"v2 UDP", proxyHeader(0x21, 0x12, proxyV4, ""), "", true},
		{"v2 other command", proxyHeader(0x22, 0x11, proxyV4, ""), "", true},
		{"v2 other version", proxyHeader(0x11, 0x11, proxyV4, ""), "", true},
		{"v2 too long", proxyHeader(0x21, 0x11, proxyV4, strings.Repeat("x", maxProxyHeader)), "", true},
		{"MQTT", "\x10\x0d\x00\x04MQTT", "", true},
		{"TLS", "\x16\x03\x01", "", true},
		{"lower case", "proxy TCP4", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const behind = "\x10\x0d"
			client, size, err := parseProxyHeader([]byte(tt.header + behind))
			if tt.bad {
				if err == nil {
					t.Fatalf("taken for %v of %d bytes", client, size)
				}
				return
			}
			want, _ := netip.ParseAddrPort(tt.client)
			if err != nil || size != len(tt.header) || client != want {
				t.Errorf("%v, %d, %v", client, size, err)
			}
			for n := range len(tt.header) {
				if _, size, err := parseProxyHeader([]byte(tt.header[:n])); size != 0 || err != nil {
					t.Fatalf("the first %d bytes: %d, %v", n, size, err)
				}
			}
		})
	}
}

func FuzzProxyHeader(f *testing.F) {
	for _, s := range []string{proxyLine, "PROXY UNKNOWN\r\n", proxyHeader(0x21, 0x11, proxyV4, ""), proxyHeader(0x21, 0x21, proxyV6, "\x04\x00\x00"), "\x10"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		client, size, err := parseProxyHeader(b)
		if size < 0 || size > len(b) || size > maxProxyHeader || err != nil && size != 0 || size == 0 && client.IsValid() {
			t.Fatalf("%v, %d, %v", client, size, err)
		}
		if size == 0 {
			return
		}
		// What is behind the header, and how much of it is there, makes no difference.
		if c, n, err := parseProxyHeader(b[:size]); c != client || n != size || err != nil {
			t.Fatalf("without what follows: %v, %d, %v", c, n, err)
		}
		if _, n, _ := parseProxyHeader(b[:size-1]); n != 0 {
			t.Fatalf("a header of %d bytes is complete with %d", size, n)
		}
	})
}

// The client's address from the header is the connection's: in the log, and in the limit of an address.
func TestProxiedAddress(t *testing.T) {
	l := Listener{Address: "127.0.0.1:0", ProxyProtocol: loopbackProxy()}
	b := startAt(t, l, func(s *setup) { s.options.MaxPerAddress = 2 })
	dial := func(header string) *client {
		conn := dialPlain(t, nil, b.Addrs()[0])
		// In three pieces, the last with MQTT behind it.
		for _, piece := range []string{header[:5], header[5 : len(header)-2], header[len(header)-2:] + string(connectOptions{version: wire.V5}.encode())} {
			conn.Write([]byte(piece))
		}
		return b.over(conn)
	}
	one, two := dial(proxyLine), dial(proxyHeader(0x21, 0x11, proxyV4, ""))
	one.expect(wire.CONNACK)
	two.expect(wire.CONNACK)
	dial(proxyLine).expectEnd(0)
	dial("PROXY TCP4 192.0.2.2 198.51.100.1 56324 1883\r\n").expect(wire.CONNACK)
	for range 2 {
		dial("PROXY TCP6 2001:db8::1 2001:db8::2 56324 1883\r\n").expect(wire.CONNACK)
	}
	dial("PROXY TCP6 2001:db8::ffff 2001:db8::2 56324 1883\r\n").expectEnd(0) // of the same 64 bits
	dial("PROXY TCP6 2001:db8:0:1::1 2001:db8::2 56324 1883\r\n").expect(wire.CONNACK)
	dial("PROXY UNKNOWN\r\n").expect(wire.CONNACK)
	if s := b.Stats(); s.Crowded != 2 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	b.mu.Lock()
	remotes := map[string]int{}
	for c := range b.conns {
		remotes[addressOf(c.remote).String()]++
	}
	b.mu.Unlock()
	if remotes["192.0.2.1"] != 2 || remotes["2001:db8::1"] != 2 || remotes["127.0.0.1"] != 1 {
		t.Error(remotes)
	}
	one.conn.Close()
	eventually(t, func() bool { return b.Stats().Connections == 6 })
	dial(proxyLine).expect(wire.CONNACK)
}

// Without a header, or from elsewhere than a proxy, a connection is closed and nothing else is said.
func TestProxyIsStrict(t *testing.T) {
	tests := []struct {
		name    string
		trusted string
		first   string
		count   func(Stats) int64
	}{
		{"MQTT at once", "127.0.0.1/32", "\x10\x0d\x00\x04MQTT", func(s Stats) int64 { return s.FailedProxy }},
		{"header of a stranger", "10.0.0.0/8", proxyLine, func(s Stats) int64 { return s.Untrusted }},
		{"bad header", "127.0.0.1/32", "PROXY TCP4 a b c d\r\n", func(s Stats) int64 { return s.FailedProxy }},
		{"part of a header", "127.0.0.1/32", "PROXY TCP4", func(s Stats) int64 { return s.NoConnect }},
		{"nothing", "127.0.0.1/32", "", func(s Stats) int64 { return s.NoConnect }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := Listener{Address: "127.0.0.1:0", ProxyProtocol: &ProxyProtocol{Trusted: []netip.Prefix{netip.MustParsePrefix(tt.trusted)}}}
			b := startAt(t, l, func(s *setup) { s.options.ConnectTimeout = 100 * time.Millisecond })
			conn := dialPlain(t, nil, b.Addrs()[0])
			conn.Write([]byte(tt.first))
			conn.SetReadDeadline(time.Now().Add(patience))
			var answer [1]byte
			if n, err := conn.Read(answer[:]); n > 0 || err == nil || err.(interface{ Error() string }).Error() == "" {
				t.Errorf("%d bytes, %v", n, err)
			} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Error("still open")
			}
			eventually(t, func() bool { return tt.count(b.Stats()) == 1 })
		})
	}
}
