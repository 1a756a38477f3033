package wire

import "encoding/binary"

// PUBACK, PUBREC, PUBREL, PUBCOMP, MQTT 5 §3.4 to §3.7:
//
//	2         packet id
//	1         reason code; absent: 0x00. Never in MQTT 3.1.1
//	varint+n  properties; absent when nothing follows the reason code

// AppendPuback appends a PUBACK. Version 3.1.1 has no room for a reason: a
// refused message must not be acknowledged there at all.
func AppendPuback(dst []byte, version byte, id uint16, reason byte) []byte {
	return appendAck(dst, byte(PUBACK)<<4, version, id, reason)
}

// AppendPubrec appends a PUBREC; see AppendPuback for version 3.1.1.
func AppendPubrec(dst []byte, version byte, id uint16, reason byte) []byte {
	return appendAck(dst, byte(PUBREC)<<4, version, id, reason)
}

// AppendRefusal appends a version 5 PUBACK or PUBREC, as t says, with a reason
// that isn't Success. why is its reason string. It may be empty, and must be
// when the client refused problem information.
func AppendRefusal(dst []byte, t Type, id uint16, reason byte, why string) []byte {
	n := reasonStringSize(why)
	if n == 0 {
		return appendAck(dst, byte(t)<<4, V5, id, reason)
	}
	dst = appendVarint(append(dst, byte(t)<<4), 3+varintSize(n)+n)
	dst = append(dst, byte(id>>8), byte(id), reason)
	return appendReasonString(dst, why)
}

// AppendPubrel appends a PUBREL; reason is Success or PacketIDNotFound.
func AppendPubrel(dst []byte, version byte, id uint16, reason byte) []byte {
	return appendAck(dst, byte(PUBREL)<<4|2, version, id, reason)
}

// AppendPubcomp appends a PUBCOMP; reason is Success or PacketIDNotFound.
func AppendPubcomp(dst []byte, version byte, id uint16, reason byte) []byte {
	return appendAck(dst, byte(PUBCOMP)<<4, version, id, reason)
}

func appendAck(dst []byte, first, version byte, id uint16, reason byte) []byte {
	if reason == Success || version != V5 {
		return append(dst, first, 2, byte(id>>8), byte(id))
	}
	return append(dst, first, 3, byte(id>>8), byte(id), reason)
}

// ParseAck reads a PUBACK, PUBREC, PUBREL or PUBCOMP from a client. reason is
// 0x00 when the packet leaves it out. It returns an *Error, and allocates
// nothing otherwise.
func ParseAck(h Header, body []byte, version byte) (id uint16, reason byte, err error) {
	defer recovered(&err)
	if len(body) < 2 || (version != V5 && len(body) != 2) {
		return 0, 0, malformed("acknowledgement of the wrong length")
	}
	if id = binary.BigEndian.Uint16(body); id == 0 {
		return 0, 0, violation("acknowledgement of packet id 0")
	}
	if len(body) == 2 {
		return id, Success, nil
	}
	reason = body[2]
	if !ackReasonValid(h.Type, reason) {
		return 0, 0, violation("reason code the acknowledgement can't carry")
	}
	if len(body) > 3 {
		var props properties
		n, e := props.walk(body[3:], ackProps)
		if e != nil {
			return 0, 0, e
		}
		if 3+n != len(body) {
			return 0, 0, malformed("bytes after the acknowledgement")
		}
	}
	return id, reason, nil
}

// ackReasonValid follows the tables in MQTT 5 §3.4.2.1, §3.5.2.1, §3.6.2.1, §3.7.2.1.
func ackReasonValid(t Type, reason byte) bool {
	if reason == Success {
		return true
	}
	if t == PUBREL || t == PUBCOMP {
		return reason == PacketIDNotFound
	}
	switch reason {
	case NoMatchingSubscribers, UnspecifiedError, ImplementationSpecificError, NotAuthorized,
		TopicNameInvalid, PacketIDInUse, QuotaExceeded, PayloadFormatInvalid:
		return true
	}
	return false
}
