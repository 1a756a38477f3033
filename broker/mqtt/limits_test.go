package mqtt

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestNetworkOf(t *testing.T) {
	tests := []struct{ ip, want string }{
		{"192.0.2.1", "192.0.2.1"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"},
		{"2001:db8:1:2::", "2001:db8:1:2::"},
		{"fe80::1%eth0", "fe80::1%eth0"},
		{"127.0.0.1", ""}, {"127.8.8.8", ""}, {"::1", ""},
	}
	for _, tt := range tests {
		want, _ := netip.ParseAddr(tt.want)
		if got := networkOf(netip.MustParseAddr(tt.ip)); got != want {
			t.Errorf("%s: %v", tt.ip, got)
		}
	}
	if networkOf(netip.Addr{}).IsValid() {
		t.Error("a unix socket's peer is counted")
	}
}

func TestPacer(t *testing.T) {
	const second = int64(time.Second)
	p := newPacer(10)
	now := 5 * second
	for i := range 9 {
		if wait := p.take(now); wait != 0 {
			t.Fatalf("connection %d of ten at once makes the next wait %v", i, wait)
		}
	}
	for i := 1; i < 30; i++ { // as many a second as may be
		wait := p.take(now)
		if wait != 100*time.Millisecond {
			t.Fatalf("connection %d: %v", i, wait)
		}
		now += int64(wait)
	}
	now += second / 2
	for i := range 4 {
		if wait := p.take(now); wait != 0 {
			t.Fatalf("half a second later, connection %d: %v", i, wait)
		}
	}
	if wait := p.take(now); wait != 0 {
		t.Fatal(wait)
	}
	if wait := p.take(now); wait != 100*time.Millisecond {
		t.Fatal(wait)
	}
}

// More connections than the rate allows are not refused, they wait.
func TestConnectRate(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ConnectRate = 20 })
	began := time.Now()
	var clients []*client
	for range 30 {
		clients = append(clients, b.dial())
	}
	for _, c := range clients {
		c.hello(connectOptions{version: wire.V311, id: "", keepAlive: 0, props: nil})
	}
	// 20 at once, ten more at one each 50 ms.
	if took := time.Since(began); took < 450*time.Millisecond {
		t.Errorf("all in after %v", took)
	}
	if s := b.Stats(); s.Paced < 9 || s.Refused != 0 || s.Accepted != 30 {
		t.Errorf("%+v", s)
	}
}

// A handshake that waits for its turn isn't late for that.
func TestTurns(t *testing.T) {
	b := start(t)
	c := &conn{srv: b.Server}
	c.waiting.Store(b.clock())
	free := make(chan struct{}, 1)
	first, second := &turns{free, b.clock, &c.waiting}, &turns{free, b.clock, &c.waiting}
	first.enter()
	before := c.waiting.Load()
	entered := make(chan struct{})
	go func() {
		second.enter()
		close(entered)
	}()
	eventually(t, func() bool { return c.waiting.Load() == busy })
	time.AfterFunc(20*time.Millisecond, first.leave)
	<-entered
	if moved := time.Duration(c.waiting.Load() - before); moved < 15*time.Millisecond {
		t.Errorf("the time that the client has went on: moved by %v", moved)
	}
	second.leave()
}

// A proxy's own address is nobody's: its connections are counted under their clients' only.
func TestProxyIsNotCounted(t *testing.T) {
	b := start(t)
	l := &listener{Listener: b.listeners[0].Listener, options: Listener{ProxyProtocol: &ProxyProtocol{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}
	for remote, want := range map[string]bool{"10.0.0.1:1": true, "192.0.2.1:1": false} {
		c := &conn{srv: b.Server, listener: l, remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))}
		if got := b.admit(c); got != want || c.network.IsValid() {
			t.Errorf("%s: %v, counted as %v", remote, got, c.network)
		}
		if want {
			b.forget(c)
		}
	}
}
