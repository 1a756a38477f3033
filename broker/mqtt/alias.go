package mqtt

import (
	"bytes"
	"hash/maphash"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// Topic aliases (MQTT 5 §3.3.2.3.4). Both directions have a table of their own, which lives as long as the connection.

// inboundAliases are what the client has set. The connection's goroutine only.
type inboundAliases struct {
	topics [][]byte // alias n is at n-1; nil: not set
	bytes  int
}

// aliasBytes bounds the topics that a connection's aliases stand for, in each direction.
const aliasBytes = 16 << 10

// resolveAlias makes p's topic the one that its alias stands for, and says whether that is not in the packet: then it lies in the table,
// until the next packet. Whatever judges a topic comes after this.
func (c *conn) resolveAlias(p *wire.Publish) (elsewhere bool, err error) {
	if int(p.Props.Alias) > max(0, c.srv.options.TopicAliasMaximum) {
		return false, endTopicAlias
	}
	if c.aliases == nil {
		c.aliases = &inboundAliases{topics: make([][]byte, c.srv.options.TopicAliasMaximum)}
	}
	t := c.aliases
	known := &t.topics[p.Props.Alias-1]
	if len(p.Topic) == 0 {
		if p.Topic = *known; p.Topic == nil {
			return false, endUnknownAlias
		}
		return true, nil
	}
	if more := len(p.Topic) - cap(*known); more > 0 {
		if t.bytes += more; t.bytes > aliasBytes {
			return false, endAliasBytes
		}
		*known = make([]byte, 0, len(p.Topic))
	}
	*known = append((*known)[:0], p.Topic...)
	return false, nil
}

// outboundAliases are what the client was told. They are under conn.mu, and made when the first message is sent to a client that takes
// aliases.
//
// A topic gets one when it comes again soon after it came. When all are given, one whose topic wasn't used since the search last
// came by gives way. So a client with few topics has them all, one with many has those that come most, and one that gets
// ten thousand by turns has its aliases left alone.
type outboundAliases struct {
	slots  []aliasSlot
	hand   int        // where the search for one to give way goes on
	recent [32]uint32 // hashes of topics that came and have no alias
	next   int        // in recent
	bytes  int        // of all topics
	limit  int        // aliases
}

type aliasSlot struct {
	hash  uint32
	used  bool // since the hand came by
	topic []byte
}

const (
	maxOutboundAliases = 64 // of a connection, however many the client takes
	minAliasTopic      = 2 * wire.AliasBytes
)

var aliasSeed = maphash.MakeSeed()

// find returns the alias of a topic, 0 for none. isNew says that the client doesn't know it yet: the message that carries it
// must have the topic, too, and be sent.
func (a *outboundAliases) find(topic []byte) (alias uint16, isNew bool) {
	hash := uint32(maphash.Bytes(aliasSeed, topic))
	for i := range a.slots {
		if s := &a.slots[i]; s.hash == hash && bytes.Equal(s.topic, topic) {
			s.used = true
			return uint16(i + 1), false
		}
	}
	if !a.cameBefore(hash) {
		return 0, false
	}
	at := a.free(len(topic))
	if at < 0 {
		return 0, false
	}
	s := &a.slots[at]
	a.bytes += len(topic) - len(s.topic)
	*s = aliasSlot{hash, true, bytes.Clone(topic)}
	return uint16(at + 1), true
}

// forget takes an alias back that the client wasn't told.
func (a *outboundAliases) forget(alias uint16) {
	s := &a.slots[alias-1]
	a.bytes -= len(s.topic)
	*s = aliasSlot{}
}

// cameBefore says whether a topic without alias came lately, and takes note of it.
func (a *outboundAliases) cameBefore(hash uint32) bool {
	for _, h := range a.recent {
		if h == hash {
			return true
		}
	}
	a.recent[a.next] = hash
	a.next = (a.next + 1) % len(a.recent)
	return false
}

// free returns the place for a topic of that many bytes, below 0 for none.
func (a *outboundAliases) free(size int) int {
	if len(a.slots) < a.limit && a.bytes+size <= aliasBytes {
		a.slots = append(a.slots, aliasSlot{})
		return len(a.slots) - 1
	}
	if len(a.slots) == 0 {
		return -1
	}
	at := a.hand
	s := &a.slots[at]
	a.hand = (at + 1) % len(a.slots)
	if s.used || a.bytes+size-len(s.topic) > aliasBytes {
		s.used = false
		return -1
	}
	return at
}

// aliasLocked lets m go with a topic alias where that saves bytes. A message that is sent again in another connection has its topic: no
// alias outlives the connection.
func (c *conn) aliasLocked(m *wire.Outgoing) {
	if m.Dup || len(m.Topic) <= minAliasTopic {
		return
	}
	if c.sent == nil {
		c.sent = &outboundAliases{limit: min(c.limits.aliases, maxOutboundAliases)}
	}
	m.Alias = 0
	alias, isNew := c.sent.find(m.Topic)
	switch m.Alias = alias; {
	case alias != 0 && !isNew:
		m.Topic = nil
	case isNew && wire.PublishSize(c.limits.version, m) > c.limits.maxPacket:
		c.sent.forget(alias)
		m.Alias = 0
	}
}
