package mqtt

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// Nobody needs to wait for an interval: what $SYS has is there at SUBSCRIBE.
func TestSysIsThereAtOnce(t *testing.T) {
	b := start(t, func(s *setup) { s.options.Version = "1.2.3"; s.options.SysInterval = time.Hour })
	pub := b.connect(connectOptions{id: "pub"})
	pub.retain("t", "12345", 1)
	pub.publish(outMessage{topic: "t", payload: "1"})
	pub.ping()
	found := b.retained("$SYS/#")
	for name, want := range map[string]string{
		"version": "sluice version 1.2.3", "clients/connected": "2", "clients/total": "2", "clients/disconnected": "0", "clients/maximum": "2",
		"clients/expired": "0", "publish/messages/received": "2", "publish/bytes/received": "6", "publish/messages/sent": "0",
		"publish/messages/dropped": "0", "retained messages/count": "1", "subscriptions/count": "0", "messages/received": "5",
		"messages/sent": "4", "load/messages/received/1min": "0.00", "load/sockets/15min": "0.00",
	} {
		if got := found["$SYS/broker/"+name]; got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	for _, name := range []string{"heap/current", "heap/maximum", "bytes/received", "bytes/sent", "store/messages/bytes"} {
		if n, err := strconv.Atoi(found["$SYS/broker/"+name]); n <= 0 {
			t.Errorf("%s is %d, %v", name, n, err)
		}
	}
	if got := found["$SYS/broker/uptime"]; !strings.HasSuffix(got, " seconds") {
		t.Errorf("uptime %q", got)
	}
	if len(found) != 50 {
		t.Errorf("%d topics", len(found))
	}
	for topic := range b.retained("#") {
		if topic != "t" {
			t.Errorf("# matches %q", topic)
		}
	}
	if keys := b.stateKeys(""); len(keys) == 0 || strings.Contains(strings.Join(keys, " "), "$SYS") {
		t.Errorf("state %q", keys)
	}
	if r := b.stored(2); len(r) != 2 {
		t.Errorf("%d records", len(r))
	}
}

// Each interval brings what has changed, and nothing else.
func TestSysUpdates(t *testing.T) {
	b := start(t, func(s *setup) { s.options.SysInterval = time.Hour })
	sub := b.connect(connectOptions{id: "sub"})
	const topic = "$SYS/broker/publish/messages/received"
	sub.subscribe(filter{topic, 1}, filter{"$SYS/broker/version", 0})
	sub.expectRetained(topic, "0", 0)
	sub.expectRetained("$SYS/broker/version", "sluice version", 0)
	b.sys.tick()
	sub.noMore()
	pub := b.connect(connectOptions{id: "pub"})
	pub.publish(outMessage{topic: "x"})
	pub.ping()
	// Another one who looks doesn't take the change away from the first.
	if got := b.retained(topic)[topic]; got != "0" {
		t.Errorf("%q before the interval is over", got)
	}
	b.sys.tick()
	if m := sub.message(); m.topic != topic || m.payload != "1" || m.retain {
		t.Errorf("%+v", m)
	}
	b.sys.tick()
	sub.noMore()
	if n, _ := b.sys.store.Len(); n != 2 {
		t.Errorf("%d topics were made where 2 are subscribed to", n)
	}
}

func TestSysByTheClock(t *testing.T) {
	b := start(t, func(s *setup) { s.options.SysInterval = 20 * time.Millisecond })
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"$SYS/broker/bytes/received", 0})
	for i := range 3 { // each answer's PINGREQ changes it
		if m := sub.message(); m.retain != (i == 0) {
			t.Errorf("%+v", m)
		}
		sub.send([]byte{0xC0, 0})
		sub.expect(wire.PINGRESP)
	}
}

func TestSysOff(t *testing.T) {
	b := start(t, func(s *setup) { s.options.SysInterval = -1 })
	if found := b.retained("$SYS/#"); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

// The averages go to what is measured as mosquitto's do: 63 % of the way in their time.
func TestSysAverages(t *testing.T) {
	b := start(t, func(s *setup) { s.options.SysInterval = time.Hour })
	y := b.sys
	y.mu.Lock()
	defer y.mu.Unlock()
	y.averageLocked()
	b.counters.bytesReceived.Add(600)
	y.at = b.clock() - int64(time.Minute)
	y.averageLocked()
	l := y.loads[5]
	for i, want := range []float64{600 * 0.632, 600 * 0.181, 600 * 0.0645} {
		if got := l.average[i]; got < want*0.99 || got > want*1.01 {
			t.Errorf("%s: %.1f, not %.1f", loadMinutes[i].name, got, want)
		}
	}
}
