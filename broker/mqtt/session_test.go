package mqtt

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestTakeOver(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			old := b.connect(connectOptions{version: v, id: "c"})
			young := b.connect(connectOptions{version: v, id: "c"})
			if v == wire.V5 {
				old.expectEnd(wire.SessionTakenOver)
			} else {
				old.expectEnd(0)
			}
			young.ping()
			if s := b.Stats(); s.Sessions != 1 {
				t.Errorf("%d sessions", s.Sessions)
			}
		})
	}
}

// The will stands behind the connection's last message and before its successor's first.
func TestTakeOverWillOrder(t *testing.T) {
	b := start(t)
	old := b.connect(connectOptions{id: "c", will: &willOptions{topic: "will", payload: "gone", qos: 1}})
	release := b.disk.hold(t)
	for id := uint16(1); id <= 50; id++ {
		old.publish(outMessage{topic: "old", qos: 1, id: id})
	}
	old.ping()
	young := b.connect(connectOptions{id: "c"})
	release()
	young.publish(outMessage{topic: "young", qos: 1, id: 1})
	young.expectAck(wire.PUBACK, 1, 0)
	records := b.stored(52)
	for i, r := range records {
		want := "old"
		if i == 50 {
			want = "will"
		} else if i == 51 {
			want = "young"
		}
		if string(r.Key) != want {
			t.Errorf("record %d is of %q", i, r.Key)
		}
	}
}

// A subscriber that has stopped reading hurts nobody, and its successor gets in.
func TestStuckSubscriber(t *testing.T) {
	for _, v := range bothVersions {
		t.Run(versionName(v), func(t *testing.T) {
			b := start(t)
			stuck := b.connect(connectOptions{version: v, id: "stuck"})
			stuck.subscribe(filter{"t", 1}, filter{"zero", 0})
			pub := b.connect(connectOptions{id: "pub"})
			payload := strings.Repeat("x", 100<<10)
			for id := uint16(1); id <= 200; id++ {
				pub.publish(outMessage{topic: "t", payload: payload, qos: 1, id: id}, outMessage{topic: "zero", payload: payload})
				pub.expectAck(wire.PUBACK, id, 0)
			}
			eventually(t, func() bool { return b.dropped(dropSlow) > 0 })
			if q := b.Stats().QueuedBytes; q > 3*int64(b.options.QueueBytes) {
				t.Errorf("%d bytes queued for one subscriber", q)
			}
			began := time.Now()
			b.connect(connectOptions{version: v, id: "stuck"}).ping()
			if d := time.Since(began); d > 500*time.Millisecond {
				t.Errorf("successor waited %v", d)
			}
		})
	}
}

func TestManySuccessors(t *testing.T) {
	b := start(t)
	var wg sync.WaitGroup
	for range 20 {
		c := b.dial()
		wg.Go(func() {
			c.send(connectOptions{version: wire.V5, id: "c"}.encode())
			for {
				if _, err := c.next(patience); err != nil {
					return
				}
			}
		})
	}
	eventually(t, func() bool {
		return b.counters.accepted.Load() == 20 && b.Stats().Connections == 1 && b.Stats().Sessions == 1
	})
	b.connect(connectOptions{id: "c"}).send([]byte{0xE0, 0})
	wg.Wait()
	eventually(t, func() bool { return b.Stats().Connections == 0 })
}

func TestWill(t *testing.T) {
	will := func(qos byte) *willOptions { return &willOptions{topic: "will", payload: "gone", qos: qos} }
	tests := []struct {
		name    string
		version byte
		end     []byte // sent before closing
		sent    bool
	}{
		{"lost", wire.V311, nil, true},
		{"lost", wire.V5, nil, true},
		{"DISCONNECT", wire.V311, []byte{0xE0, 0}, false},
		{"DISCONNECT", wire.V5, []byte{0xE0, 0}, false},
		{"DISCONNECT 0", wire.V5, []byte{0xE0, 1, 0}, false},
		{"DISCONNECT 4", wire.V5, []byte{0xE0, 1, 4}, true},
		{"DISCONNECT 0x80", wire.V5, []byte{0xE0, 1, 0x80}, true},
		{"protocol error", wire.V5, []byte{0x00, 0}, true},
	}
	for _, tt := range tests {
		for qos := range byte(3) {
			t.Run(tt.name+versionName(tt.version), func(t *testing.T) {
				b := start(t)
				sub := b.connect(connectOptions{id: "sub"})
				sub.subscribe(filter{"#", 2})
				c := b.connect(connectOptions{version: tt.version, id: "c", will: will(qos)})
				if tt.end != nil {
					c.send(tt.end)
				}
				c.conn.Close()
				eventually(t, func() bool { return b.Stats().Sessions == 1 })
				if tt.sent {
					sub.expectPublish("will", "gone", qos)
					b.stored(1)
				}
				sub.publish(outMessage{topic: "after", qos: 1, id: 1})
				m := sub.read()
				if m.kind == wire.PUBACK {
					m = sub.read()
				}
				if got := sub.parse(m); got.topic != "after" {
					t.Errorf("%q", got.topic)
				}
			})
		}
	}
}

// Properties go with the will, and none are added.
func TestWillProperties(t *testing.T) {
	b := start(t)
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"will", 1})
	contentType := []byte{3, 0, 1, 'x'}
	delayed := append([]byte{24, 0, 0, 0, 5}, contentType...)
	c := b.connect(connectOptions{id: "c", will: &willOptions{topic: "will", payload: "gone", qos: 1, props: delayed}})
	c.conn.Close()
	if m := sub.expectPublish("will", "gone", 1); string(m.props) != string(contentType) {
		t.Errorf("properties % x", m.props)
	}
}

func TestKeepalive(t *testing.T) {
	b := start(t)
	silent := b.connect(connectOptions{id: "silent", keepAlive: 1})
	old := b.connect(connectOptions{version: wire.V311, id: "old", keepAlive: 1})
	partial := b.connect(connectOptions{id: "partial", keepAlive: 1})
	lively := b.connect(connectOptions{id: "lively", keepAlive: 1})
	long := b.connect(connectOptions{id: "long", keepAlive: 43691})
	free := b.connect(connectOptions{id: "free"})
	began := time.Now()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		// One byte now and then is no packet.
		p := partial.publishPacket(outMessage{topic: "t", payload: strings.Repeat("x", 100)})
		for i := range p {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			partial.conn.Write(p[i : i+1])
			if i%5 == 0 {
				lively.conn.Write([]byte{0xC0, 0})
			}
		}
	})
	silent.expectEnd(wire.KeepAliveTimeout)
	if d := time.Since(began); d < 1400*time.Millisecond || d > 4*time.Second {
		t.Errorf("closed after %v", d)
	}
	old.expectEnd(0)
	partial.expectEnd(wire.KeepAliveTimeout)
	close(stop)
	wg.Wait()
	lively.expect(wire.PINGRESP)
	long.ping()
	free.ping()
}

// While a connection isn't read from, the silence isn't its client's.
func TestOverdue(t *testing.T) {
	const second = int64(time.Second)
	tests := []struct {
		since, allowance, now int64
		over                  bool
		left                  time.Duration
	}{
		{0, 0, 1 << 60, false, longestLook},
		{busy, second, 1 << 60, false, longestLook},
		{10 * second, 3 * second / 2, 11 * second, false, 500 * time.Millisecond},
		{10 * second, 3 * second / 2, 12 * second, true, -500 * time.Millisecond},
		{0, 43691 * 3 / 2 * second, 40000 * second, false, 25536 * time.Second},
		{0, 65535 * 3 / 2 * second, 98303 * second, true, -time.Second},
	}
	for _, tt := range tests {
		var c conn
		c.waiting.Store(tt.since)
		c.allowance.Store(tt.allowance)
		if left, over := c.overdue(tt.now); left != tt.left || over != tt.over {
			t.Errorf("%+v: %v %v", tt, left, over)
		}
	}
}

func TestCloseSendsDisconnectAfterTheAcks(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	old := b.connect(connectOptions{version: wire.V311, id: "old"})
	release := b.disk.hold(t)
	c.publish(outMessage{topic: "t", qos: 1, id: 1})
	c.ping()
	done := make(chan struct{})
	go func() { defer close(done); b.end() }()
	c.silent(50 * time.Millisecond)
	release()
	c.expectAck(wire.PUBACK, 1, 0)
	c.expectEnd(wire.ServerShuttingDown)
	old.expectEnd(0)
	<-done
}
