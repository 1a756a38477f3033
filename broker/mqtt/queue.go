package mqtt

import (
	"encoding/binary"
	"math"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// messageQueue holds messages for one subscriber, one behind the other in one buffer. Not safe for concurrent use.
//
//	0   uint32  size of the frame
//	4   uint32  log topic's id, noTopic for none
//	8   int64   when it was queued, on the server's clock in ns
//	16  uint32  expiry in seconds
//	20  uint32  size of the properties
//	24  uint16  length of the topic
//	26  uint16  number of subscription ids
//	28  byte    bits 0-1 QoS, 2 retain, 3 has an expiry
//	29          topic, properties, subscription ids (uint32 each), payload
type messageQueue struct {
	buf   []byte
	head  int // where the first frame starts
	count int
	ids   []uint32 // of the frame that peek returned
}

const (
	frameHeaderBytes = 29
	noTopic          = math.MaxUint32
)

func topicID(p *segment.Partition) uint32 {
	if p == nil {
		return noTopic
	}
	return p.Topic().ID()
}

func frameSize(m *wire.Outgoing) int {
	return frameHeaderBytes + len(m.Topic) + len(m.Raw) + 4*len(m.SubscriptionIDs) + len(m.Payload)
}

// bytes is what the frames take.
func (q *messageQueue) bytes() int { return len(q.buf) - q.head }

// push appends a copy of m.
func (q *messageQueue) push(m *wire.Outgoing, topic uint32, now int64) {
	if q.head > len(q.buf)/2 {
		q.buf = append(q.buf[:0], q.buf[q.head:]...)
		q.head = 0
	}
	flags := m.QoS
	if m.Retain {
		flags |= 4
	}
	if m.HasExpiry {
		flags |= 8
	}
	b := binary.BigEndian.AppendUint32(q.buf, uint32(frameSize(m)))
	b = binary.BigEndian.AppendUint32(b, topic)
	b = binary.BigEndian.AppendUint64(b, uint64(now))
	b = binary.BigEndian.AppendUint32(b, m.Expiry)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Raw)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.Topic)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.SubscriptionIDs)))
	b = append(b, flags)
	b = append(b, m.Topic...)
	b = append(b, m.Raw...)
	for _, id := range m.SubscriptionIDs {
		b = binary.BigEndian.AppendUint32(b, id)
	}
	q.buf = append(b, m.Payload...)
	q.count++
}

// peek makes m the first message, which aliases the queue until the next push or pop.
func (q *messageQueue) peek(m *wire.Outgoing) (topic uint32, since int64, size int) {
	b := q.buf[q.head:]
	size = int(binary.BigEndian.Uint32(b))
	props := int(binary.BigEndian.Uint32(b[20:]))
	name := int(binary.BigEndian.Uint16(b[24:]))
	ids := int(binary.BigEndian.Uint16(b[26:]))
	flags := b[28]
	rest := b[frameHeaderBytes:size]
	*m = wire.Outgoing{
		Topic: rest[:name], Raw: rest[name : name+props], Expiry: binary.BigEndian.Uint32(b[16:]),
		QoS: flags & 3, Retain: flags&4 != 0, HasExpiry: flags&8 != 0,
	}
	rest = rest[name+props:]
	q.ids = q.ids[:0]
	for i := range ids {
		q.ids = append(q.ids, binary.BigEndian.Uint32(rest[4*i:]))
	}
	m.SubscriptionIDs, m.Payload = q.ids, rest[4*ids:]
	return binary.BigEndian.Uint32(b[4:]), int64(binary.BigEndian.Uint64(b[8:])), size
}

// pop removes the first message.
func (q *messageQueue) pop() {
	q.head += int(binary.BigEndian.Uint32(q.buf[q.head:]))
	if q.count--; q.count == 0 {
		q.buf, q.head = q.buf[:0], 0
		if cap(q.buf) > keepOutputBytes {
			q.buf = nil
		}
	}
}
