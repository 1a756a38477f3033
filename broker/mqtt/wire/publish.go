package wire

import "encoding/binary"

// PUBLISH, MQTT 5 §3.3 (MQTT 3.1.1 has no properties):
//
//	2 + n     topic name, length first
//	2         packet id, only at QoS 1 and 2
//	varint+n  properties
//	rest      payload

// Publish is a PUBLISH from a client. Its slices alias the bytes it was parsed
// from, except that Props.Raw may alias Scratch. One Publish can be parsed into
// again and again; keep it to one goroutine.
type Publish struct {
	Topic    []byte // empty only in version 5 with Props.Alias set
	Payload  []byte
	PacketID uint16 // 0 at QoS 0
	QoS      byte
	Dup      bool
	Retain   bool
	Props    PublishProps

	// Scratch is where Props.Raw is put together when the forwardable
	// properties don't lie side by side on the wire. ParsePublish overwrites it,
	// and gives a large one up at its next call.
	Scratch []byte
}

// maxScratch is what Publish.Scratch keeps from one packet to the next, in bytes.
const maxScratch = 4096

// PublishProps is what a version 5 PUBLISH says beside topic and payload.
type PublishProps struct {
	// Raw holds exactly those property bytes that go to subscribers unaltered
	// (payload format, content type, response topic, correlation data, user
	// properties), as and in the order they came. Read it with NextProperty.
	Raw       []byte
	Expiry    uint32 // message expiry interval in seconds; may be 0 and present
	Alias     uint16 // topic alias, 0: none. The caller checks it against its maximum
	HasExpiry bool
	UTF8      bool // payload format indicator 1: the payload claims to be UTF-8
}

// ParsePublish reads the PUBLISH whose fixed header is h and whose remaining
// bytes are body, strictly, into p. It returns an *Error; after one p holds
// nothing of use. No allocation but the growth of p.Scratch.
func ParsePublish(p *Publish, h Header, body []byte, version byte) (err error) {
	defer recovered(&err)
	p.QoS, p.Dup, p.Retain = h.Flags>>1&3, h.Flags&8 != 0, h.Flags&1 != 0
	p.PacketID = 0
	p.Props = PublishProps{}
	if cap(p.Scratch) > maxScratch {
		p.Scratch = nil
	}
	if len(body) < 2 {
		return malformed("PUBLISH ends in its topic")
	}
	off := 2 + int(binary.BigEndian.Uint16(body))
	if off > len(body) {
		return malformed("PUBLISH ends in its topic")
	}
	p.Topic = body[2:off:off]
	if e := checkTopic(p.Topic); e != nil {
		return e
	}
	if p.QoS > 0 {
		if len(body) < off+2 {
			return malformed("PUBLISH ends in its packet id")
		}
		if p.PacketID = binary.BigEndian.Uint16(body[off:]); p.PacketID == 0 {
			return violation("PUBLISH with packet id 0") // MQTT 5 §2.2.1
		}
		off += 2
	}
	if version == V5 {
		n, e := p.parseProps(body[off:])
		if e != nil {
			return e
		}
		off += n
	}
	if len(p.Topic) == 0 && p.Props.Alias == 0 {
		return violation("PUBLISH with an empty topic") // MQTT 5 §3.3.2.1, §4.7.3
	}
	p.Payload = body[off:]
	return nil
}

// parseProps reads the property section at the start of b and returns its size.
func (p *Publish) parseProps(b []byte) (int, *Error) {
	if len(b) > 0 && b[0] == 0 {
		return 1, nil
	}
	props := properties{scratch: p.Scratch[:0]}
	n, e := props.walk(b, publishProps)
	p.Scratch = props.scratch
	if e != nil {
		return 0, e
	}
	if props.has(propSubscriptionID) {
		return 0, violation("subscription identifier from a client") // MQTT 5 §3.3.4
	}
	p.Props.Raw = props.raw
	p.Props.HasExpiry, p.Props.Expiry = props.has(propMessageExpiry), props.expiry
	p.Props.Alias = props.alias
	p.Props.UTF8 = props.utf8
	return n, nil
}

// Outgoing is a PUBLISH to a client. Nothing in it is checked again: topic and
// Raw come from packets that were.
type Outgoing struct {
	Topic           []byte
	Payload         []byte
	Raw             []byte   // property bytes to pass on, as PublishProps.Raw has them; ignored in version 3.1.1
	SubscriptionIDs []uint32 // 1..MaxRemaining each; ignored in version 3.1.1
	Expiry          uint32   // seconds that remain, if HasExpiry; ignored in version 3.1.1
	PacketID        uint16   // QoS 1 and 2 only
	Alias           uint16   // topic alias, 0: none. Topic may be empty with one that the client knows; never in version 3.1.1
	QoS             byte
	Dup             bool
	Retain          bool
	HasExpiry       bool
}

// AliasBytes is the size of a topic alias in a PUBLISH.
const AliasBytes = 3

func (m *Outgoing) propsSize() int {
	n := len(m.Raw)
	if m.HasExpiry {
		n += 5
	}
	if m.Alias != 0 {
		n += AliasBytes
	}
	for _, id := range m.SubscriptionIDs {
		n += 1 + varintSize(int(id))
	}
	return n
}

// remaining is the remaining length for version, and the size of the
// properties that is part of it.
func (m *Outgoing) remaining(version byte) (n, props int) {
	n = 2 + len(m.Topic) + len(m.Payload)
	if m.QoS > 0 {
		n += 2
	}
	if version == V5 {
		props = m.propsSize()
		n += varintSize(props) + props
	}
	return n, props
}

// PublishSize is the number of bytes AppendPublish appends: what the client's
// Maximum Packet Size is compared with (MQTT 5 §3.1.2.11.4). It is more than
// MaxRemaining when the message can't be encoded.
func PublishSize(version byte, m *Outgoing) int {
	n, _ := m.remaining(version)
	return 1 + varintSize(n) + n
}

// AppendPublish appends m as a PUBLISH of the given version. The caller sees
// to it that the topic is at most 65,535 bytes and PublishSize at most
// MaxRemaining, as is true of whatever came in below a packet limit of ours.
func AppendPublish(dst []byte, version byte, m *Outgoing) []byte {
	n, props := m.remaining(version)
	first := byte(PUBLISH)<<4 | m.QoS<<1
	if m.Dup {
		first |= 8
	}
	if m.Retain {
		first |= 1
	}
	dst = append(dst, first)
	dst = appendVarint(dst, n)
	dst = append(dst, byte(len(m.Topic)>>8), byte(len(m.Topic)))
	dst = append(dst, m.Topic...)
	if m.QoS > 0 {
		dst = append(dst, byte(m.PacketID>>8), byte(m.PacketID))
	}
	if version == V5 {
		dst = appendVarint(dst, props)
		if props > 0 {
			dst = m.appendProps(dst)
		}
	}
	return append(dst, m.Payload...)
}

func (m *Outgoing) appendProps(dst []byte) []byte {
	dst = append(dst, m.Raw...)
	if m.HasExpiry {
		dst = append(dst, propMessageExpiry)
		dst = binary.BigEndian.AppendUint32(dst, m.Expiry)
	}
	if m.Alias != 0 {
		dst = append(dst, propTopicAlias, byte(m.Alias>>8), byte(m.Alias))
	}
	for _, id := range m.SubscriptionIDs {
		dst = append(dst, propSubscriptionID)
		dst = appendVarint(dst, int(id))
	}
	return dst
}
