package wire

import "errors"

// Fixed header, MQTT 5 §2.1:
//
//	byte 0     bits 7-4 packet type, bits 3-0 flags
//	byte 1..4  remaining length: 7 bits a byte, least significant first, bit 7 = one more follows

// Type is a packet type, MQTT 5 §2.1.2.
type Type byte

// Packet types.
const (
	CONNECT     Type = 1
	CONNACK     Type = 2
	PUBLISH     Type = 3
	PUBACK      Type = 4
	PUBREC      Type = 5
	PUBREL      Type = 6
	PUBCOMP     Type = 7
	SUBSCRIBE   Type = 8
	SUBACK      Type = 9
	UNSUBSCRIBE Type = 10
	UNSUBACK    Type = 11
	PINGREQ     Type = 12
	PINGRESP    Type = 13
	DISCONNECT  Type = 14
	AUTH        Type = 15
)

var typeNames = [16]string{"RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"}

func (t Type) String() string { return typeNames[t&15] }

// Protocol levels as they stand in CONNECT.
const (
	V311 byte = 4
	V5   byte = 5
)

// Limits of the format and of ours.
const (
	MaxRemaining   = 268_435_455 // largest remaining length, MQTT 5 §1.5.5
	MaxHeaderBytes = 5           // a fixed header's size at most

	MaxTopicLevels    = 128  // of a topic name: separators + 1
	MaxUserProperties = 128  // of one packet, and of one will
	MaxFilters        = 1024 // of one SUBSCRIBE or UNSUBSCRIBE
	MaxClientIDBytes  = 1024 // every stored record repeats its publisher's client id
)

// ErrIncomplete says that the bytes end inside a fixed header: read on.
var ErrIncomplete = errors.New("mqtt: incomplete fixed header")

// Header is a fixed header.
type Header struct {
	Type      Type
	Flags     byte // bits 3-0: for PUBLISH DUP, QoS, RETAIN; fixed for all others
	Remaining int  // bytes after the fixed header
}

// flagsWanted are the fixed flags of each type (MQTT 5 table 2-2). PUBLISH and
// type 0 are judged apart.
var flagsWanted = [16]byte{PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}

// ParseHeader reads the fixed header at the start of b; n is its size. It
// returns ErrIncomplete when b ends inside the header, and an *Error as soon as
// the bytes seen can't become a header. It allocates nothing for a good header
// and needs no more than MaxHeaderBytes of b, so the caller can refuse by type
// or by Remaining before it makes room for anything.
//
// A remaining length with needless continuation bytes is accepted up to four
// bytes: MQTT 3.1.1 doesn't forbid it and it is not ambiguous.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) == 0 {
		return h, 0, ErrIncomplete
	}
	h.Type, h.Flags = Type(b[0]>>4), b[0]&15
	if h.Type == PUBLISH {
		switch {
		case h.Flags&6 == 6:
			return h, 0, malformed("PUBLISH with QoS 3") // MQTT 5 §3.3.1.2
		case h.Flags&14 == 8:
			return h, 0, malformed("PUBLISH with DUP at QoS 0") // MQTT 5 §3.3.1.1
		}
	} else if h.Type == 0 {
		return h, 0, malformed("reserved packet type 0")
	} else if h.Flags != flagsWanted[h.Type&15] {
		return h, 0, malformed("fixed header flags")
	}
	if len(b) >= 2 && b[1] < 0x80 {
		h.Remaining = int(b[1])
		return h, 2, nil
	}
	for i := 1; i <= 4; i++ {
		if i == len(b) {
			return h, 0, ErrIncomplete
		}
		h.Remaining |= int(b[i]&0x7F) << (7 * (i - 1))
		if b[i] < 0x80 {
			return h, i + 1, nil
		}
	}
	return h, 0, malformed("remaining length of more than four bytes")
}

// CheckInbound says whether a client that speaks version may send a packet
// with this header at all, by type and by the bounds that the type sets to the
// remaining length. Before CONNECT is accepted, pass V5.
func (h Header) CheckInbound(version byte) error {
	least, most := 2, MaxRemaining // all that isn't named below starts with two bytes
	switch h.Type {
	case CONNACK, SUBACK, UNSUBACK, PINGRESP:
		return violation("packet type only a server sends")
	case AUTH:
		if version != V5 {
			return malformed("reserved packet type 15")
		}
		least = 0
	case CONNECT:
		least = 12 // name, level, flags, keep alive, empty client id
	case PUBACK, PUBREC, PUBREL, PUBCOMP:
		if version != V5 {
			most = 2
		}
	case PINGREQ:
		least, most = 0, 0
	case DISCONNECT:
		least = 0
		if version != V5 {
			most = 0
		}
	}
	if h.Remaining < least || h.Remaining > most {
		return malformed("remaining length for the packet type")
	}
	return nil
}

// appendVarint appends v (<= MaxRemaining) as a variable byte integer.
func appendVarint(dst []byte, v int) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

// varintSize is how many bytes appendVarint takes.
func varintSize(v int) int {
	switch {
	case v < 1<<7:
		return 1
	case v < 1<<14:
		return 2
	case v < 1<<21:
		return 3
	}
	return 4
}

// varint reads a variable byte integer of a version 5 packet: at most four
// bytes and none to spare (MQTT 5 §1.5.5). size is 0 when b doesn't start with one.
func varint(b []byte) (v, size int) {
	for i := 0; i < len(b) && i < 4; i++ {
		v |= int(b[i]&0x7F) << (7 * i)
		if b[i] < 0x80 {
			if b[i] == 0 && i > 0 {
				return 0, 0
			}
			return v, i + 1
		}
	}
	return 0, 0
}
