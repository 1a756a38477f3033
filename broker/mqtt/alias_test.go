package mqtt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

func TestInboundAliases(t *testing.T) {
	b := start(t, func(s *setup) { s.options.TopicAliasMaximum = 2 })
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"#", 1})
	c := b.connect(connectOptions{id: "c"})
	c.publish(
		outMessage{topic: "a", payload: "1", qos: 1, id: 1, alias: 1},
		outMessage{payload: "2", qos: 1, id: 2, alias: 1},
		outMessage{topic: "keyed/b", payload: "3", qos: 1, id: 3, alias: 2},
		outMessage{payload: "4", qos: 1, id: 4, alias: 2},
		outMessage{payload: "5", qos: 1, id: 5, alias: 1},
		outMessage{topic: "c/longer", payload: "6", qos: 1, id: 6, alias: 1}, // set anew
		outMessage{payload: "7", qos: 1, id: 7, alias: 1, retain: true},
		outMessage{topic: "a", payload: "8", qos: 1, id: 8},
	)
	for i, topic := range []string{"a", "a", "keyed/b", "keyed/b", "a", "c/longer", "c/longer", "a"} {
		c.expectAck(wire.PUBACK, uint16(i+1), 0)
		m := sub.expectPublish(topic, fmt.Sprint(i+1), 1)
		sub.complete(m)
		if len(m.props) != 0 {
			t.Errorf("properties % x are passed on", m.props)
		}
	}
	c.publish(outMessage{payload: "9", qos: 0, alias: 2})
	sub.expectPublish("keyed/b", "9", 0)
	if found := b.retained("#"); len(found) != 1 || found["c/longer"] != "7" {
		t.Errorf("retained %v", found)
	}
	if r := b.stored(9); string(r[3].Key) != "key:b" || string(r[6].Key) != "c/longer" || string(r[8].Key) != "key:b" {
		t.Errorf("%+v", r)
	}
	// Another connection has none of them.
	c.conn.Close()
	c = b.connect(connectOptions{id: "c"})
	c.publish(outMessage{alias: 1})
	c.expectEnd(wire.ProtocolError)
	c = b.connect(connectOptions{id: "c"})
	c.publish(outMessage{topic: "a", alias: 3})
	c.expectEnd(wire.TopicAliasInvalid)
}

func TestNoAliases(t *testing.T) {
	b := start(t, func(s *setup) { s.options.TopicAliasMaximum = -1 })
	c := b.dial()
	if p := c.connect(connectOptions{id: "c"}); bytes.Contains(p.body, []byte{34, 0}) {
		t.Errorf("CONNACK % x", p.body)
	}
	c.publish(outMessage{topic: "a", alias: 1})
	c.expectEnd(wire.TopicAliasInvalid)
}

// Setting aliases anew and anew takes no more memory.
func TestInboundAliasBytes(t *testing.T) {
	b := start(t)
	c := b.connect(connectOptions{id: "c"})
	for i := range 100 {
		c.publish(outMessage{topic: string(bytes.Repeat([]byte{byte('a' + i%20)}, 900+i)), alias: uint16(1 + i%16)})
	}
	c.ping()
	b.mu.Lock()
	table := b.sessions["c"].conn.aliases
	b.mu.Unlock()
	if total := 0; true {
		for _, topic := range table.topics {
			total += cap(topic)
		}
		if total > aliasBytes || table.bytes != total {
			t.Errorf("%d bytes, accounted %d", total, table.bytes)
		}
	}
}

// aliasesOf takes the messages of a client that allows aliases.
type aliasReader struct {
	topics map[uint16]string
	named  int // messages that came with their topic
	set    int // aliases set
	bytes  int
}

func (r *aliasReader) read(t testing.TB, c *client, most int) publishIn {
	t.Helper()
	p := c.read()
	m := c.parse(p)
	r.bytes += len(p.body)
	alias := uint16(0)
	if len(m.props) >= 3 && m.props[len(m.props)-3] == 35 {
		alias = binary.BigEndian.Uint16(m.props[len(m.props)-2:])
		if alias == 0 || int(alias) > most {
			t.Fatalf("alias %d", alias)
		}
	}
	switch {
	case m.topic == "" && alias == 0:
		t.Fatal("no topic and no alias")
	case m.topic == "":
		if m.topic = r.topics[alias]; m.topic == "" {
			t.Fatalf("alias %d stands for nothing", alias)
		}
	default:
		r.named++
		if alias > 0 {
			r.set++
			r.topics[alias] = m.topic
		}
	}
	return m
}

func TestOutboundAliases(t *testing.T) {
	b := start(t)
	for _, c := range []struct {
		name             string
		topics, most     int
		named, setAtMost int // of 1000 messages
	}{
		{"one topic", 1, 10, 2, 1},
		{"as many as aliases", 10, 10, 20, 10},
		{"too many by turns", 500, 10, 1000, 0},
		{"none allowed", 1, 0, 1000, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := b.connect(connectOptions{id: "sub", props: []byte{34, 0, byte(c.most)}})
			sub.subscribe(filter{"#", 0})
			pub := b.connect(connectOptions{id: "pub"})
			r := aliasReader{topics: map[uint16]string{}}
			for i := range 1000 {
				topic, payload := fmt.Sprintf("sensors/%d", i%c.topics), fmt.Sprint(i)
				pub.publish(outMessage{topic: topic, payload: payload})
				if m := r.read(t, sub, c.most); m.topic != topic || m.payload != payload {
					t.Fatalf("%+v, not %s=%s", m, topic, payload)
				}
			}
			if r.named != c.named || r.set > c.setAtMost {
				t.Errorf("%d with topic, %d aliases set; not %d, at most %d", r.named, r.set, c.named, c.setAtMost)
			}
			sub.conn.Close()
			pub.conn.Close()
		})
	}
}

// Random topics, few of them often: every message must come under its own topic, and the hot ones by alias.
func TestOutboundAliasesRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	a := &outboundAliases{limit: 8}
	known := map[uint16]string{}
	hot, byAlias := 0, 0
	for range 100000 {
		topic := fmt.Sprintf("hot/%d", rng.IntN(6))
		isHot := rng.IntN(2) == 0
		if !isHot {
			topic = fmt.Sprintf("cold/%d", rng.IntN(5000))
		}
		alias, isNew := a.find([]byte(topic))
		switch {
		case isNew:
			known[alias] = topic
		case alias != 0 && known[alias] != topic:
			t.Fatalf("alias %d is %q, not %q", alias, known[alias], topic)
		}
		if isHot {
			hot++
			if alias != 0 && !isNew {
				byAlias++
			}
		}
	}
	if byAlias < hot*9/10 {
		t.Errorf("%d of %d messages of hot topics went by alias", byAlias, hot)
	}
}

func TestOutboundAliasBytes(t *testing.T) {
	a := &outboundAliases{limit: maxOutboundAliases}
	for i := range 1000 {
		topic := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 500+i%10*100)
		a.find(topic)
		a.find(topic)
		total := 0
		for _, s := range a.slots {
			total += cap(s.topic)
		}
		if a.bytes > aliasBytes || total > aliasBytes+aliasBytes/4 {
			t.Fatalf("%d bytes, accounted %d", total, a.bytes)
		}
	}
}

// A client that takes only so large packets isn't sent one that its alias makes larger.
func TestAliasWithinMaximumPacketSize(t *testing.T) {
	b := start(t)
	topic := "sensors/a" // 2 + 2+9 + 1 + payload
	sub := b.connect(connectOptions{id: "sub", props: []byte{34, 0, 5, 39, 0, 0, 0, 64}})
	sub.subscribe(filter{"#", 0})
	pub := b.connect(connectOptions{id: "pub"})
	r := aliasReader{topics: map[uint16]string{}}
	for _, size := range []int{50, 50, 48, 48, 47, 50, 49} {
		pub.publish(outMessage{topic: topic, payload: string(make([]byte, size))})
		if m := r.read(t, sub, 5); len(m.payload) != size || m.topic != topic {
			t.Fatalf("%+v", m)
		}
	}
	if r.set != 1 || r.named != 5 {
		t.Errorf("%d set, %d named", r.set, r.named)
	}
}

// Messages that come and go by alias cost no allocation. The runs beside it show what a message costs without.
func BenchmarkAlias(b *testing.B) {
	a := &outboundAliases{limit: 16}
	topic := []byte("sensors/bench/client")
	a.find(topic)
	b.ReportAllocs()
	for b.Loop() {
		if alias, _ := a.find(topic); alias == 0 {
			b.Fatal("no alias")
		}
	}
}
