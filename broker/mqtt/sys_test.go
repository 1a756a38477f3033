package mqtt

import (
	"bufio"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/internal/mosquitto"
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
		"publish/messages/dropped": "0", "retained messages/count": "1", "subscriptions/count": "0", "shared_subscriptions/count": "0", "messages/received": "5",
		"clients/active": "2", "clients/inactive": "0", "store/messages/count": "1", "messages/stored": "1",
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
	checkSysDoc(t, found)
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

// checkSysDoc wants docs/sys.md to have a row for each topic and for no other.
func checkSysDoc(t *testing.T, found map[string]string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/sys.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, ok := strings.Cut(string(doc), "Not there:")
	if !ok {
		t.Error("docs/sys.md doesn't say what isn't there")
	}
	var names []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) == 2 && line[0] == '|' {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
				names = append(names, sysPrefix+strings.TrimPrefix(name[1], sysPrefix))
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == sysPrefix }) // the table's head
	slices.Sort(names)
	if published := slices.Sorted(maps.Keys(found)); !slices.Equal(published, names) {
		t.Errorf("docs/sys.md has\n%q, the broker\n%q", names, published)
	}
}

// TestSysAgainstMosquitto: the real one has the same names, no more and no fewer, and values of the same form.
func TestSysAgainstMosquitto(t *testing.T) {
	conn, err := net.Dial("tcp", mosquitto.Start(t, "sys_interval 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := start(t)
	c := &client{t: t, conn: conn, in: bufio.NewReader(conn)}
	c.connect(connectOptions{id: "reader"})
	c.subscribe(filter{"$SYS/#", 0})
	const version = sysPrefix + "version"
	ours, theirs := b.retained("$SYS/#"), map[string]string{}
	for missing := maps.Clone(ours); len(missing) > 0; {
		p, err := c.next(patience)
		if err != nil {
			t.Fatalf("mosquitto has no %q", slices.Sorted(maps.Keys(missing)))
		}
		m := c.parse(p)
		if m.topic == version && !strings.HasPrefix(m.payload, "mosquitto version 2.0.") {
			t.Skipf("%s has names of its own", m.payload)
		}
		theirs[m.topic] = m.payload
		delete(missing, m.topic)
	}
	number := regexp.MustCompile(`^[0-9]+|\.[0-9]{2}$`)
	for topic, want := range theirs {
		got, ok := ours[topic]
		if !ok || topic != version && number.ReplaceAllString(got, "0") != number.ReplaceAllString(want, "0") {
			t.Errorf("%s is %q, mosquitto's %q", topic, got, want)
		}
	}
}

// TestSysCountsSubscriptions: shared ones by member, and apart from the others, whatever brings them and takes them away.
func TestSysCountsSubscriptions(t *testing.T) {
	dir := t.TempDir()
	b := start(t, func(s *setup) { s.dir = dir })
	expect := func(own, shared int64) {
		t.Helper()
		eventually(t, func() bool { o, s := b.subscriptions(); return o == own && s == shared })
	}
	one := b.connect(lasting(wire.V5, "one"))
	one.subscribe(filter{"a", 0}, filter{"$share/g/a", 1}, filter{"$share/h/a", 1})
	expect(1, 2)
	one.subscribe(filter{"$share/g/a", 0}, filter{"a", 1}) // again
	expect(1, 2)
	two := b.connect(connectOptions{id: "two"})
	two.subscribe(filter{"$share/g/a", 1}, filter{"b", 1})
	expect(2, 3)
	b.leave(one) // its session stays
	expect(2, 3)
	two.conn.Close()
	expect(1, 2)
	b = b.restart(dir)
	expect(1, 2)
	one = b.comeBack(lasting(wire.V5, "one"))
	one.send(one.unsubscribePacket(1, "$share/g/a", "$share/g/a", "a"))
	one.expect(wire.UNSUBACK)
	expect(0, 1)
	b.connect(connectOptions{id: "one"}) // a clean start
	expect(0, 0)
	if found := b.retained("$SYS/broker/shared_subscriptions/#"); found["$SYS/broker/shared_subscriptions/count"] != "0" {
		t.Errorf("%v", found)
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
