package mqtt

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// Broken packets cost their own connection only, and leave nothing behind. What is left is looked at when the broker ends.
func TestMutatedPackets(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxPacketBytes = 64 << 10 })
	witness := b.connect(connectOptions{id: "witness"})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 400 {
		c := b.dial()
		c.version = bothVersions[i%2]
		will := &willOptions{topic: "will", payload: "w", qos: byte(i % 3)}
		will.retain = i%4 == 0
		valid := connectOptions{version: c.version, id: fmt.Sprint("m", i%5), keepAlive: 5, will: will, props: []byte{34, 0, 2}}.encode()
		cut := len(valid)
		valid = append(valid, c.subscribePacket(1, byte(i%2), filter{"a/#", 1}, filter{"+", 2})...)
		for q := range byte(3) {
			valid = append(valid, c.publishPacket(outMessage{topic: "a/b", payload: strings.Repeat("x", rng.IntN(40)), qos: q, id: uint16(q) + 1, raw: []byte{3, 0, 1, 'x'}})...)
		}
		for alias := range uint16(3) {
			valid = append(valid, c.publishPacket(outMessage{topic: fmt.Sprint("a/", rng.IntN(9)), payload: "x", retain: true, alias: alias, qos: byte(alias), id: alias + 3})...)
		}
		if c.version == wire.V5 {
			valid = append(valid, c.publishPacket(outMessage{payload: "x", retain: true, alias: 1 + uint16(i%2)})...)
			valid = append(valid, c.subscribePacket(2, 0, filter{"$SYS/#", 0}, filter{"#", 1})...)
		}
		valid = wire.AppendPubrel(valid, c.version, 2, 0)
		valid = wire.AppendPuback(valid, c.version, 1, 0)
		valid = append(valid, 0xC0, 0)
		if i%3 > 0 {
			cut = 0 // spoil CONNECT, too
		}
		for range 1 + rng.IntN(3) {
			at := cut + rng.IntN(len(valid)-cut)
			switch rng.IntN(3) {
			case 0:
				valid[at] ^= 1 << rng.IntN(8)
			case 1:
				valid[at] = byte(rng.Uint32())
			default:
				valid = append(valid[:at], valid[min(len(valid), at+1+rng.IntN(4)):]...)
			}
			if len(valid) <= cut {
				break
			}
		}
		for len(valid) > 0 {
			n := 1 + rng.IntN(len(valid))
			c.conn.Write(valid[:n])
			valid = valid[n:]
		}
		if i%4 == 0 {
			c.next(5 * time.Millisecond)
		}
		c.conn.Close()
	}
	witness.ping()
	eventually(t, func() bool { return b.Stats().Connections == 1 })
	if s := b.Stats(); s.Filters != 0 || s.Sessions != 1 {
		t.Errorf("%+v", s)
	}
}

// Publishers, subscribers and sessions that come and go at once: order per topic holds and nothing is missing.
func TestCrowd(t *testing.T) {
	b := start(t)
	const publishers, messages = 8, 300
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"crowd/+", 2})
	var wg sync.WaitGroup
	for p := range publishers {
		c := b.connect(connectOptions{id: fmt.Sprint("pub", p), version: bothVersions[p%2]})
		wg.Go(func() {
			for i := range messages {
				id := uint16(i + 1)
				c.publish(outMessage{topic: fmt.Sprint("crowd/", p), payload: fmt.Sprint(i), qos: 1, id: id})
				if p, err := c.next(patience); err != nil || p.kind != wire.PUBACK || p.id() != id {
					t.Error(p, err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				c := b.dial()
				c.version = wire.V5
				c.send(connectOptions{version: wire.V5, id: fmt.Sprint("passer", i%2), will: &willOptions{topic: "w", qos: 1}}.encode(),
					c.subscribePacket(1, 0, filter{"crowd/#", byte(n % 3)}))
				c.next(time.Second)
				c.conn.Close()
			}
		})
	}
	next := map[string]int{}
	for range publishers * messages {
		p := sub.read()
		m := sub.parse(p)
		if m.payload != fmt.Sprint(next[m.topic]) {
			t.Fatalf("%s: %s instead of %d", m.topic, m.payload, next[m.topic])
		}
		next[m.topic]++
		sub.ack(wire.PUBACK, m.id)
	}
	close(stop)
	wg.Wait()
}

// A group that finally fails is not acknowledged, and its clients are told to come again.
func TestFailedCommit(t *testing.T) {
	b := start(t)
	clients := make([]*client, 2)
	for i, v := range bothVersions {
		clients[i] = b.connect(connectOptions{version: v, id: versionName(v)})
	}
	release := b.disk.hold(t)
	clients[1].publish(outMessage{topic: "t", qos: 2, id: 1})
	clients[0].publish(outMessage{topic: "t", qos: 1, id: 1})
	clients[0].ping()
	clients[1].ping()
	// The log gives a group up when it closes with a broken disk; this is what it tells its members then.
	b.mu.Lock()
	for c := range b.conns {
		c.Committed(c.acks.newest, errDisk)
	}
	b.mu.Unlock()
	release()
	for i, want := range []byte{0, wire.ImplementationSpecificError} {
		c := clients[i]
		got := byte(0)
		for {
			p, err := c.next(patience)
			if err != nil {
				break
			}
			if got = p.reason(); p.kind != wire.DISCONNECT {
				t.Errorf("%v % x", p.kind, p.body)
			}
		}
		if got != want {
			t.Errorf("%s: DISCONNECT with %#x", versionName(c.version), got)
		}
	}
}

// The committer may give a group up before its acknowledgements are queued, and another cause may have come first.
func TestFailedCommitBeforeItsAcknowledgements(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{version: wire.V5, id: "a"})
	b.mu.Lock()
	for conn := range b.conns {
		conn.mu.Lock()
		conn.cause.Store(endTakenOver)
		conn.mu.Unlock()
		conn.Committed(1000, errDisk)
		conn.queueAcks(batch{group: 1000, size: 10, slots: 1, frees: 1}, wire.AppendPuback(nil, wire.V5, 1, wire.Success))
		conn.stream.unblock()
	}
	b.mu.Unlock()
	for {
		p, err := c.next(patience)
		if err != nil {
			return
		}
		if p.kind == wire.PUBACK {
			t.Fatal("acknowledged although the group failed")
		}
	}
}

func TestWarningsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := &Server{epoch: time.Now().Add(-time.Second), logger: slog.New(slog.NewTextHandler(&out, nil))}
		for range 10 {
			s.warn(warnClient, "flood")
		}
		s.warn(warnWill, "other kind")
		time.Sleep(warnInterval)
		s.warn(warnClient, "flood")
		if got := strings.Count(out.String(), "\n"); got != 3 || !strings.Contains(out.String(), "suppressed=9") {
			t.Error(out.String())
		}
	})
}

func TestEndingOf(t *testing.T) {
	tests := []struct {
		err    error
		reason byte
	}{
		{endTakenOver, wire.SessionTakenOver},
		{&wire.Error{Reason: 0x81}, 0x81},
		{fmt.Errorf("append: %w", segment.ErrClosed), wire.ServerShuttingDown},
		{errors.New("reset by peer"), 0},
	}
	for _, tt := range tests {
		if got := endingOf(tt.err); got.reason != tt.reason {
			t.Errorf("%v: %#x", tt.err, got.reason)
		}
	}
}
