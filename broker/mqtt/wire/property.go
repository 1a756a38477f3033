package wire

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// Properties, MQTT 5 §2.2.2: a variable byte integer that counts the bytes that
// follow, then identifier and value by turns. Identifiers are variable byte
// integers too, but all of them fit one byte. Values by kind:
//
//	byte, 2 bytes, 4 bytes   big endian
//	varint                   1..4 bytes
//	string, binary           2 bytes length, bytes
//	pair                     two strings
const (
	propPayloadFormat       = 1
	propMessageExpiry       = 2
	propContentType         = 3
	propResponseTopic       = 8
	propCorrelationData     = 9
	propSubscriptionID      = 11
	propSessionExpiry       = 17
	propAssignedClientID    = 18
	propServerKeepAlive     = 19
	propAuthMethod          = 21
	propAuthData            = 22
	propRequestProblemInfo  = 23
	propWillDelay           = 24
	propRequestResponseInfo = 25
	propResponseInfo        = 26
	propServerReference     = 28
	propReasonString        = 31
	propReceiveMaximum      = 33
	propTopicAliasMaximum   = 34
	propTopicAlias          = 35
	propMaximumQoS          = 36
	propRetainAvailable     = 37
	propUser                = 38
	propMaximumPacketSize   = 39
	propWildcardAvailable   = 40
	propSubIDAvailable      = 41
	propSharedAvailable     = 42
)

type kind byte

const (
	kindNone kind = iota
	kindByte
	kindUint16
	kindUint32
	kindVarint
	kindString
	kindBinary
	kindPair
)

// kinds holds the value kind of every property that a client may send.
var kinds = [64]kind{
	propPayloadFormat: kindByte, propMessageExpiry: kindUint32, propContentType: kindString,
	propResponseTopic: kindString, propCorrelationData: kindBinary, propSubscriptionID: kindVarint,
	propSessionExpiry: kindUint32, propAuthMethod: kindString, propAuthData: kindBinary,
	propRequestProblemInfo: kindByte, propWillDelay: kindUint32, propRequestResponseInfo: kindByte,
	propServerReference: kindString, propReasonString: kindString, propReceiveMaximum: kindUint16,
	propTopicAliasMaximum: kindUint16, propTopicAlias: kindUint16, propUser: kindPair,
	propMaximumPacketSize: kindUint32,
}

// Sets of identifiers, one bit each.
const (
	// forwardable go from publisher to subscriber unaltered (MQTT 5 §3.3.2.3).
	forwardable uint64 = 1<<propPayloadFormat | 1<<propContentType | 1<<propResponseTopic |
		1<<propCorrelationData | 1<<propUser

	connectProps uint64 = 1<<propSessionExpiry | 1<<propReceiveMaximum | 1<<propMaximumPacketSize |
		1<<propTopicAliasMaximum | 1<<propRequestResponseInfo | 1<<propRequestProblemInfo |
		1<<propUser | 1<<propAuthMethod | 1<<propAuthData
	willProps        uint64 = forwardable | 1<<propMessageExpiry | 1<<propWillDelay
	publishProps     uint64 = forwardable | 1<<propMessageExpiry | 1<<propTopicAlias | 1<<propSubscriptionID
	ackProps         uint64 = 1<<propReasonString | 1<<propUser
	subscribeProps   uint64 = 1<<propSubscriptionID | 1<<propUser
	unsubscribeProps uint64 = 1 << propUser
	disconnectProps  uint64 = 1<<propSessionExpiry | 1<<propReasonString | 1<<propUser | 1<<propServerReference
	authProps        uint64 = 1<<propAuthMethod | 1<<propAuthData | 1<<propReasonString | 1<<propUser
)

// properties is what a walk over one property section found. Slices alias the
// section, raw may alias scratch.
type properties struct {
	seen    uint64 // identifiers met
	raw     []byte // forwardable properties, in order
	scratch []byte
	rawEnd  int // end of raw in the section while it lies there in one piece
	users   int

	expiry            uint32
	sessionExpiry     uint32
	willDelay         uint32
	maximumPacketSize uint32
	subscriptionID    uint32
	receiveMaximum    uint16
	topicAliasMaximum uint16
	alias             uint16
	utf8              bool
	noProblemInfo     bool
	responseInfo      bool
	copied            bool // raw lies in scratch
}

func (p *properties) has(id byte) bool { return p.seen>>id&1 != 0 }

// walk reads the property section at the start of b, length included, and
// returns its size. It refuses identifiers outside allowed (MQTT 5 §2.2.2.2),
// repeats, values out of range and values that overrun the section.
func (p *properties) walk(b []byte, allowed uint64) (int, *Error) {
	length, size := varint(b)
	if size == 0 {
		return 0, malformed("property length")
	}
	if length > len(b)-size {
		return 0, malformed("property length beyond the packet")
	}
	sec := b[size : size+length]
	for off := 0; off < length; {
		id := sec[off]
		if id > 63 || allowed>>id&1 == 0 {
			return 0, malformed("property not allowed in the packet")
		}
		if id == propUser {
			if p.users++; p.users > MaxUserProperties {
				return 0, overLimit("too many user properties")
			}
		} else if p.has(id) {
			return 0, violation("property given twice")
		}
		p.seen |= 1 << id
		n, e := p.value(id, sec[off+1:])
		if e != nil {
			return 0, e
		}
		end := off + 1 + n
		if forwardable>>id&1 != 0 {
			p.keep(sec, off, end)
		}
		off = end
	}
	return size + length, nil
}

// keep adds sec[from:to] to raw: by stretching it over the section while there
// is no gap, else by copying.
func (p *properties) keep(sec []byte, from, to int) {
	switch {
	case p.copied:
		p.scratch = append(p.scratch, sec[from:to]...)
		p.raw = p.scratch
	case len(p.raw) == 0:
		p.raw, p.rawEnd = sec[from:to:to], to
	case p.rawEnd == from:
		p.raw, p.rawEnd = sec[p.rawEnd-len(p.raw):to:to], to
	default:
		p.scratch = append(append(p.scratch[:0], p.raw...), sec[from:to]...)
		p.raw, p.copied = p.scratch, true
	}
}

// value reads the value of property id at the start of b and returns its size.
func (p *properties) value(id byte, b []byte) (int, *Error) {
	switch kinds[id] {
	case kindByte:
		if len(b) < 1 {
			return 0, errOverrun()
		}
		return 1, p.setByte(id, b[0])
	case kindUint16:
		if len(b) < 2 {
			return 0, errOverrun()
		}
		return 2, p.setUint16(id, binary.BigEndian.Uint16(b))
	case kindUint32:
		if len(b) < 4 {
			return 0, errOverrun()
		}
		return 4, p.setUint32(id, binary.BigEndian.Uint32(b))
	case kindVarint: // the subscription identifier alone
		v, size := varint(b)
		if size == 0 {
			return 0, malformed("subscription identifier")
		}
		if v == 0 {
			return 0, violation("subscription identifier 0") // MQTT 5 §3.8.2.1.2
		}
		p.subscriptionID = uint32(v)
		return size, nil
	case kindString:
		n, e := stringSize(b)
		if e == nil && id == propResponseTopic {
			e = checkResponseTopic(b[2:n])
		}
		return n, e
	case kindBinary:
		return binarySize(b)
	case kindPair:
		key, e := stringSize(b)
		if e != nil {
			return 0, e
		}
		val, e := stringSize(b[key:])
		return key + val, e
	}
	return 0, malformed("unknown property")
}

func (p *properties) setByte(id, v byte) *Error {
	if v > 1 {
		return violation("property value beyond 1") // MQTT 5 §3.3.2.3.2, §3.1.2.11.6, §3.1.2.11.7
	}
	switch id {
	case propPayloadFormat:
		p.utf8 = v == 1
	case propRequestProblemInfo:
		p.noProblemInfo = v == 0
	case propRequestResponseInfo:
		p.responseInfo = v == 1
	}
	return nil
}

func (p *properties) setUint16(id byte, v uint16) *Error {
	switch id {
	case propReceiveMaximum:
		if v == 0 {
			return violation("receive maximum 0") // MQTT 5 §3.1.2.11.3
		}
		p.receiveMaximum = v
	case propTopicAliasMaximum:
		p.topicAliasMaximum = v
	case propTopicAlias:
		if v == 0 {
			return &Error{TopicAliasInvalid, "topic alias 0"} // MQTT 5 §3.3.2.3.4
		}
		p.alias = v
	}
	return nil
}

func (p *properties) setUint32(id byte, v uint32) *Error {
	switch id {
	case propMessageExpiry:
		p.expiry = v
	case propSessionExpiry:
		p.sessionExpiry = v
	case propWillDelay:
		p.willDelay = v
	case propMaximumPacketSize:
		if v == 0 {
			return violation("maximum packet size 0") // MQTT 5 §3.1.2.11.4
		}
		p.maximumPacketSize = v
	}
	return nil
}

func errOverrun() *Error { return malformed("property value beyond its section") }

// binarySize is the size of the length-prefixed field at the start of b,
// prefix included.
func binarySize(b []byte) (int, *Error) {
	if len(b) < 2 {
		return 0, malformed("field ends in its length")
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if n > len(b) {
		return 0, malformed("field longer than what is left")
	}
	return n, nil
}

// stringSize is binarySize for an MQTT string.
func stringSize(b []byte) (int, *Error) {
	n, e := binarySize(b)
	if e != nil {
		return 0, e
	}
	if !validString(b[2:n]) {
		return 0, malformed("string that isn't MQTT UTF-8")
	}
	return n, nil
}

// validString follows MQTT 5 §1.5.4: well-formed UTF-8, so no surrogates, and
// no U+0000. Control and non-characters are only discouraged there.
func validString(b []byte) bool {
	return bytes.IndexByte(b, 0) < 0 && utf8.Valid(b)
}

// reasonStringSize is the size of a property section that holds a reason string
// alone, without the section's length; 0 when there is none, or none that fits
// its length field.
func reasonStringSize(why string) int {
	if why == "" || len(why) > 0xFFFF {
		return 0
	}
	return 3 + len(why)
}

// appendReasonString appends such a section, length included.
func appendReasonString(dst []byte, why string) []byte {
	n := reasonStringSize(why)
	dst = appendVarint(dst, n)
	if n == 0 {
		return dst
	}
	return appendStringProp(dst, propReasonString, why)
}

// Byte classes in a topic name.
const (
	classNUL = 1 << iota
	classWildcard
	classHigh
)

var topicClass = func() (t [256]byte) {
	t[0] = classNUL
	t['+'], t['#'] = classWildcard, classWildcard
	for i := 0x80; i < 256; i++ {
		t[i] = classHigh
	}
	return t
}()

// checkTopic judges a topic name, which may be empty here, in one pass over its
// bytes: no wildcards (MQTT 5 §4.7.1), a valid string, a bounded depth.
func checkTopic(t []byte) *Error {
	var class byte
	for _, c := range t {
		class |= topicClass[c]
	}
	if class != 0 {
		if class&classNUL != 0 || class&classHigh != 0 && !utf8.Valid(t) {
			return malformed("topic that isn't MQTT UTF-8")
		}
		if class&classWildcard != 0 {
			return malformed("topic with a wildcard")
		}
	}
	if len(t) >= MaxTopicLevels && bytes.Count(t, slash) >= MaxTopicLevels {
		return &Error{TopicNameInvalid, "topic with too many levels"}
	}
	return nil
}

var slash = []byte{'/'}

// checkResponseTopic: a topic name that a subscriber is asked to publish to
// (MQTT 5 §3.3.2.3.5). Passing a bad one on would cost that subscriber its
// connection, so the publisher pays instead.
func checkResponseTopic(t []byte) *Error {
	if len(t) == 0 || bytes.IndexByte(t, '+') >= 0 || bytes.IndexByte(t, '#') >= 0 {
		return violation("response topic that can't be published to")
	}
	return nil
}

// Property identifiers that PublishProps.Raw may hold.
const (
	PropPayloadFormat   byte = propPayloadFormat
	PropContentType     byte = propContentType
	PropResponseTopic   byte = propResponseTopic
	PropCorrelationData byte = propCorrelationData
	PropUser            byte = propUser
)

// Property is one property of PublishProps.Raw; its slices alias it.
type Property struct {
	ID    byte
	Key   []byte // user properties only
	Value []byte // payload format: one byte, 0 or 1
}

// NextProperty splits the first property off raw, which must be bytes that
// ParsePublish or ParseConnect put into a Raw. ok is false at the end, and at
// anything else (bytes read back from flash may be damaged).
func NextProperty(raw []byte) (p Property, rest []byte, ok bool) {
	if len(raw) < 2 || raw[0] > 63 || forwardable>>raw[0]&1 == 0 {
		return Property{}, nil, false
	}
	p.ID, rest = raw[0], raw[1:]
	if p.ID == PropPayloadFormat {
		p.Value = rest[:1]
		return p, rest[1:], true
	}
	n, e := binarySize(rest)
	if e != nil {
		return Property{}, nil, false
	}
	p.Value, rest = rest[2:n], rest[n:]
	if p.ID == PropUser {
		if n, e = binarySize(rest); e != nil {
			return Property{}, nil, false
		}
		p.Key, p.Value, rest = p.Value, rest[2:n], rest[n:]
	}
	return p, rest, true
}
