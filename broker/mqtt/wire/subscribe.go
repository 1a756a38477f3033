package wire

import (
	"encoding/binary"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"
)

// SUBSCRIBE and UNSUBSCRIBE, MQTT 5 §3.8 and §3.10 (MQTT 3.1.1 has no properties):
//
//	2         packet id
//	varint+n  properties
//	2 + n     topic filter     ┐ once or more;
//	1         options          ┘ UNSUBSCRIBE has no options
//
// Options: bits 7-6 reserved, 5-4 retain handling, 3 retain as published,
// 2 no local, 1-0 QoS. In MQTT 3.1.1 only the QoS is there.

// Subscribe is a SUBSCRIBE. It shares no memory with the bytes it was parsed from.
type Subscribe struct {
	PacketID       uint16
	SubscriptionID uint32 // 0: none
	Filters        []SubscribeFilter
}

// SubscribeFilter is one filter of a SUBSCRIBE. It is a valid non-empty string;
// whether it is a valid topic filter is judged by topics.ValidFilter, because
// that costs one filter its SUBACK code, not the connection its life.
type SubscribeFilter struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0 send retained, 1 only if the subscription is new, 2 don't
}

// Unsubscribe is an UNSUBSCRIBE. It shares no memory with the bytes it was parsed from.
type Unsubscribe struct {
	PacketID uint16
	Filters  []string
}

// ParseSubscribe reads a SUBSCRIBE strictly; it returns an *Error.
func ParseSubscribe(h Header, body []byte, version byte) (s *Subscribe, err error) {
	defer func() {
		if err != nil {
			s = nil
		}
	}()
	defer recovered(&err)
	filters, e := walkFilters(body, version, true)
	if e != nil {
		return nil, e
	}
	pk := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Subscribe, Qos: 1, Remaining: len(body)},
		ProtocolVersion: version,
	}
	if pk.SubscribeDecode(body) != nil || len(pk.Filters) != filters {
		return nil, malformed("SUBSCRIBE")
	}
	s = &Subscribe{PacketID: pk.PacketID, Filters: make([]SubscribeFilter, len(pk.Filters))}
	if ids := pk.Properties.SubscriptionIdentifier; len(ids) == 1 {
		s.SubscriptionID = uint32(ids[0])
	}
	for i := range pk.Filters {
		f := &pk.Filters[i]
		s.Filters[i] = SubscribeFilter{
			Filter:            strings.Clone(f.Filter),
			QoS:               f.Qos,
			NoLocal:           f.NoLocal,
			RetainAsPublished: f.RetainAsPublished,
			RetainHandling:    f.RetainHandling,
		}
	}
	return s, nil
}

// ParseUnsubscribe reads an UNSUBSCRIBE strictly; it returns an *Error.
func ParseUnsubscribe(h Header, body []byte, version byte) (u *Unsubscribe, err error) {
	defer func() {
		if err != nil {
			u = nil
		}
	}()
	defer recovered(&err)
	filters, e := walkFilters(body, version, false)
	if e != nil {
		return nil, e
	}
	pk := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1, Remaining: len(body)},
		ProtocolVersion: version,
	}
	if pk.UnsubscribeDecode(body) != nil || len(pk.Filters) != filters {
		return nil, malformed("UNSUBSCRIBE")
	}
	u = &Unsubscribe{PacketID: pk.PacketID, Filters: make([]string, len(pk.Filters))}
	for i := range pk.Filters {
		u.Filters[i] = strings.Clone(pk.Filters[i].Filter)
	}
	return u, nil
}

// walkFilters is the strict walk over either packet; it returns how many
// filters there are.
func walkFilters(b []byte, version byte, options bool) (filters int, e *Error) {
	if len(b) < 2 {
		return 0, malformed("packet ends in its packet id")
	}
	if binary.BigEndian.Uint16(b) == 0 {
		return 0, violation("packet id 0") // MQTT 5 §2.2.1
	}
	off := 2
	if version == V5 {
		var props properties
		allowed := unsubscribeProps
		if options {
			allowed = subscribeProps
		}
		n, e := props.walk(b[off:], allowed)
		if e != nil {
			return 0, e
		}
		off += n
	}
	for off < len(b) {
		n, e := stringSize(b[off:])
		if e != nil {
			return 0, e
		}
		if n == 2 {
			return 0, malformed("empty topic filter") // MQTT 5 §4.7.3
		}
		filter := b[off+2 : off+n]
		off += n
		if options {
			if off == len(b) {
				return 0, malformed("SUBSCRIBE ends before its options")
			}
			if e := checkOptions(filter, b[off], version); e != nil {
				return 0, e
			}
			off++
		}
		if filters++; filters > MaxFilters {
			return 0, overLimit("too many topic filters in one packet")
		}
	}
	if filters == 0 {
		return 0, violation("no topic filter") // MQTT 5 §3.8.3, §3.10.3
	}
	return filters, nil
}

// checkOptions judges the options byte behind filter, MQTT 5 §3.8.3.1.
func checkOptions(filter []byte, o, version byte) *Error {
	switch {
	case version != V5 && o > 2:
		return malformed("SUBSCRIBE with an invalid QoS") // MQTT 3.1.1 §3.8.3
	case o&0xC0 != 0:
		return malformed("reserved subscription options")
	case o&3 == 3:
		return violation("SUBSCRIBE with QoS 3")
	case o>>4 == 3:
		return violation("retain handling 3")
	case o&4 != 0 && len(filter) >= len(sharePrefix) && string(filter[:len(sharePrefix)]) == sharePrefix:
		return violation("no local on a shared subscription")
	}
	return nil
}

const sharePrefix = "$share/"

// AppendSuback appends a SUBACK with one code for each filter: a granted QoS,
// or a reason of 0x80 and above, which becomes 0x80 in version 3.1.1. why is the
// reason string of version 5. It may be empty, and must be when the client
// refused problem information.
func AppendSuback(dst []byte, version byte, id uint16, codes []byte, why string) []byte {
	if version == V5 {
		return appendCodes(dst, SUBACK, id, codes, why)
	}
	dst = append(dst, byte(SUBACK)<<4)
	dst = appendVarint(dst, 2+len(codes))
	dst = append(dst, byte(id>>8), byte(id))
	for _, c := range codes {
		dst = append(dst, min(c, 0x80))
	}
	return dst
}

// AppendUnsuback appends an UNSUBACK with one code for each filter; version
// 3.1.1 has no codes there. why is as in AppendSuback.
func AppendUnsuback(dst []byte, version byte, id uint16, codes []byte, why string) []byte {
	if version == V5 {
		return appendCodes(dst, UNSUBACK, id, codes, why)
	}
	return append(dst, byte(UNSUBACK)<<4, 2, byte(id>>8), byte(id))
}

// SubackSize is how many bytes a version 5 SUBACK or UNSUBACK takes at least,
// with codes for that many filters.
func SubackSize(filters int) int {
	n := 2 + 1 + filters
	return 1 + varintSize(n) + n
}

// appendCodes appends a version 5 SUBACK or UNSUBACK.
func appendCodes(dst []byte, t Type, id uint16, codes []byte, why string) []byte {
	n := reasonStringSize(why)
	dst = appendVarint(append(dst, byte(t)<<4), 2+varintSize(n)+n+len(codes))
	dst = appendReasonString(append(dst, byte(id>>8), byte(id)), why)
	return append(dst, codes...)
}
