package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// violation is a packet that breaks a rule, or that has nothing to refer to, and the exact answer. In version 3.1.1 a client is told of what it
// did wrong by the close of its connection alone; in CONNECT a return code comes before it, where there is one that fits.
type violation struct {
	name     string
	old, new string    // statements of MQTT 3.1.1 and of MQTT 5 that it is about, numbers alone
	first    bool      // it comes instead of CONNECT
	open     bool      // the connection stays open
	raw      [2][]byte // by version; nil: not in this one
	answer   [2][]byte
}

// The versions' indices in a violation.
const (
	at311 = iota
	at5
)

func versionAt(v int) byte { return bothVersions[v] }

// cat joins parts: byte and int are one byte, uint16 and uint32 big endian, string and []byte as they are.
func cat(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			b = append(b, p)
		case int:
			b = append(b, byte(p))
		case uint16:
			b = binary.BigEndian.AppendUint16(b, p)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, p)
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		default:
			panic(fmt.Sprintf("cat: %T", p))
		}
	}
	return b
}

// str is a field with its length before it, props a section of less than 128 bytes of properties, raw a packet.
func str(s string) []byte                 { return appendString(nil, s) }
func props(parts ...any) []byte           { b := cat(parts...); return cat(len(b), b) }
func raw(first byte, parts ...any) []byte { return frame(first, cat(parts...)) }

// none are no properties.
var none = props()

// connect4 and connect5 are CONNECTs with flags and what follows the keepalive; level is one of a protocol and its level.
func connect4(flags int, rest ...any) []byte {
	return raw(0x10, str("MQTT"), 4, flags, uint16(0), cat(rest...))
}
func connect5(flags int, rest ...any) []byte {
	return raw(0x10, str("MQTT"), 5, flags, uint16(0), cat(rest...))
}

func level(name string, level int) []byte {
	return raw(0x10, str(name), level, 2, uint16(0), none, str("c"), "a few more bytes")
}

// Answers.
func disconnect(reason byte) []byte { return []byte{0xE0, 1, reason} }
func connack(reason byte) []byte    { return []byte{0x20, 3, 0, reason, 0} }
func connack4(code byte) []byte     { return []byte{0x20, 2, 0, code} }

var silence = []byte{}

// both is a violation of either version by the same bytes behind CONNECT. reason is the DISCONNECT's in version 5.
func both(name, old, new string, packet []byte, reason byte) violation {
	return violation{name: name, old: old, new: new, raw: [2][]byte{packet, packet}, answer: [2][]byte{silence, disconnect(reason)}}
}

// eachOf is both with a packet that looks different in each version.
func eachOf(name, old, new string, packet4, packet5 []byte, reason byte) violation {
	v := both(name, old, new, nil, reason)
	v.raw = [2][]byte{packet4, packet5}
	return v
}

// only4 and only5 are violations in one version.
func only4(name, old string, packet []byte) violation {
	return eachOf(name, old, "", packet, nil, 0)
}

func only5(name, new string, packet []byte, reason byte) violation {
	return eachOf(name, "", new, nil, packet, reason)
}

// refused is what comes instead of CONNECT. An answer of nil leaves the version out.
func refused(name, old, new string, packet4, packet5, answer4, answer5 []byte) violation {
	return violation{name: name, old: old, new: new, first: true, raw: [2][]byte{packet4, packet5}, answer: [2][]byte{answer4, answer5}}
}

// answered is what gets an answer and leaves the connection open.
func answered(name, old, new string, packet4, packet5, answer4, answer5 []byte) violation {
	v := refused(name, old, new, packet4, packet5, answer4, answer5)
	v.first, v.open = false, true
	return v
}

// badConnects are first packets. MQTT 5 lets a server close without a CONNACK when it can't tell that there is an MQTT 5 client at all.
var badConnects = []violation{
	refused("PINGREQ before CONNECT", "3.1.0-1", "3.1.0-1 3.14.0-1", cat(0xC0, 0), cat(0xC0, 0), silence, silence),
	refused("PUBLISH before CONNECT", "3.1.0-1", "3.1.0-1 3.14.0-1", raw(0x30, str("t")), raw(0x30, str("t"), none), silence, silence),
	refused("DISCONNECT before CONNECT", "3.1.0-1", "3.1.0-1 3.14.0-1", cat(0xE0, 0), cat(0xE0, 0), silence, silence),
	refused("SUBSCRIBE with the body of a CONNECT", "3.1.0-1", "3.1.0-1 3.14.0-1", raw(0x82, str("MQTT"), 4, 2, uint16(0), str("c")),
		raw(0x82, str("MQTT"), 5, 2, uint16(0), none, str("c")), silence, silence),
	refused("flags in CONNECT's fixed header", "2.2.2-1 2.2.2-2", "2.1.3-1", raw(0x11, str("MQTT"), 4, 2, uint16(0), str("c")),
		raw(0x11, str("MQTT"), 5, 2, uint16(0), none, str("c")), silence, silence),
	refused("wrong protocol name", "3.1.2-1 3.1.4-1", "3.1.2-1 3.1.4-1", level("MQTX", 4), level("mqtt", 5), silence, silence),
	refused("MQTT 3.1", "3.1.2-2 3.2.2-4 3.2.2-5", "", level("MQIsdp", 3), nil, connack4(1), nil),
	refused("level 3", "3.1.2-2 3.2.2-4 3.2.2-5", "", level("MQTT", 3), nil, connack4(1), nil),
	refused("level 6", "", "3.1.2-2 3.2.2-6 3.2.2-7 4.13.2-1", nil, level("MQTT", 6), nil, connack(wire.UnsupportedProtocolVersion)),
	refused("reserved flag of CONNECT", "3.1.2-3 3.1.4-1 3.2.2-6", "3.1.2-3 3.1.4-1", connect4(3, str("c")), connect5(3, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("will QoS 3", "3.1.2-14 3.1.4-1", "3.1.2-12 3.1.4-1", connect4(0x1E, str("c"), str("w"), str("")),
		connect5(0x1E, none, str("c"), none, str("w"), str("")), silence, connack(wire.MalformedPacket)),
	refused("will QoS without a will", "3.1.2-11 3.1.2-13", "3.1.2-11", connect4(0x0A, str("c")), connect5(0x0A, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("will retain without a will", "3.1.2-11 3.1.2-15", "3.1.2-13", connect4(0x22, str("c")), connect5(0x22, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("will without its topic", "3.1.2-9", "3.1.2-9", connect4(6, str("c")), connect5(6, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("will without its payload", "3.1.2-9", "3.1.2-9", connect4(6, str("c"), str("w")), connect5(6, none, str("c"), none, str("w")), silence,
		connack(wire.MalformedPacket)),
	refused("will topic with a wildcard", "4.7.1-1", "4.7.0-1", connect4(6, str("c"), str("w/#"), str("")),
		connect5(6, none, str("c"), none, str("w/+"), str("")), silence, connack(wire.MalformedPacket)),
	refused("empty will topic", "4.7.3-1", "4.7.3-1", connect4(6, str("c"), str(""), str("")), connect5(6, none, str("c"), none, str(""), str("")),
		silence, connack(wire.MalformedPacket)),
	refused("will topic that isn't UTF-8", "3.1.3-10 1.5.3-1", "3.1.3-11 1.5.4-1", connect4(6, str("c"), str("\xff"), str("")),
		connect5(6, none, str("c"), none, str("\xff"), str("")), silence, connack(wire.MalformedPacket)),
	refused("will fields without the flag", "3.1.2-11", "3.1.4-1", connect4(2, str("c"), str("w"), str("x")),
		connect5(2, none, str("c"), none, str("w"), str("x")), silence, connack(wire.MalformedPacket)),
	refused("user name without its flag", "3.1.2-18", "3.1.2-16", connect4(2, str("c"), str("u")), connect5(2, none, str("c"), str("u")), silence,
		connack(wire.MalformedPacket)),
	refused("flag without a user name", "3.1.2-19", "3.1.2-17", connect4(0x82, str("c")), connect5(0x82, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("password without its flag", "3.1.2-20", "3.1.2-18", connect4(0x82, str("c"), str("u"), str("p")),
		connect5(0x82, none, str("c"), str("u"), str("p")), silence, connack(wire.MalformedPacket)),
	refused("flag without a password", "3.1.2-21", "3.1.2-19", connect4(0xC2, str("c"), str("u")), connect5(0x42, none, str("c")), silence,
		connack(wire.MalformedPacket)),
	refused("password flag without the user name's", "3.1.2-22", "", connect4(0x42, str("c"), str("p")), nil, silence, nil),
	refused("no client id", "3.1.3-3 3.1.4-1", "3.1.3-3 3.1.4-1", connect4(2), connect5(2, props(17, uint32(1))), silence,
		connack(wire.MalformedPacket)),
	refused("client id that isn't UTF-8", "3.1.3-4 1.5.3-1", "3.1.3-4 1.5.4-1", connect4(2, str("a\xc3")), connect5(2, none, str("a\xc3")), silence,
		connack(wire.MalformedPacket)),
	refused("client id with U+0000", "1.5.3-2", "1.5.4-2", connect4(2, str("a\x00")), connect5(2, none, str("a\x00")), silence,
		connack(wire.MalformedPacket)),
	refused("empty client id for a lasting session", "3.1.3-7 3.1.3-8 3.2.2-4 3.2.2-5", "", connect4(0, str("")), nil, connack4(2), nil),
	refused("client id of more than 1,024 bytes", "3.1.3-9", "3.1.3-8 3.2.2-7", connect4(2, str(strings.Repeat("c", 1025))),
		connect5(2, none, str(strings.Repeat("c", 1025))), connack4(2), connack(wire.ClientIDNotValid)),
	refused("user name with a surrogate", "3.1.3-11 1.5.3-1", "3.1.3-12 1.5.4-1", connect4(0x82, str("c"), str("\xed\xa0\x80")),
		connect5(0x82, none, str("c"), str("\xed\xa0\x80")), silence, connack(wire.MalformedPacket)),
	refused("user name with U+0000", "1.5.3-2", "1.5.4-2", connect4(0x82, str("c"), str("u\x00")), connect5(0x82, none, str("c"), str("u\x00")), silence,
		connack(wire.MalformedPacket)),
	refused("data behind a refused CONNECT", "3.1.4-5 3.2.2-5", "3.1.4-6 3.2.2-7",
		cat(connect4(0, str("")), raw(0x32, str("t"), uint16(1)), 0xC0, 0),
		cat(connect5(2, props(33, uint16(0)), str("c")), raw(0x32, str("t"), uint16(1), none), 0xC0, 0), connack4(2), connack(wire.ProtocolError)),

	refused("receive maximum 0", "", "3.1.4-1", nil, connect5(2, props(33, uint16(0)), str("c")), nil, connack(wire.ProtocolError)),
	refused("maximum packet size 0", "", "3.1.4-1", nil, connect5(2, props(39, uint32(0)), str("c")), nil, connack(wire.ProtocolError)),
	refused("property of CONNECT given twice", "", "3.1.4-1", nil, connect5(2, props(17, uint32(0), 17, uint32(0)), str("c")), nil,
		connack(wire.ProtocolError)),
	refused("property that CONNECT can't have", "", "3.1.4-1", nil, connect5(2, props(35, uint16(1)), str("c")), nil, connack(wire.MalformedPacket)),
	refused("property of CONNECT that is cut", "", "3.1.4-1", nil, connect5(2, 2, 33, 0, 1, str("c")), nil, connack(wire.MalformedPacket)),
	refused("request problem information 2", "", "3.1.4-1", nil, connect5(2, props(23, 2), str("c")), nil, connack(wire.ProtocolError)),
	refused("length of CONNECT's properties with a spare byte", "", "1.5.5-1", nil, connect5(2, 0x80, 0, str("c")), nil, connack(wire.MalformedPacket)),
	refused("authentication data without a method", "", "3.1.4-1", nil, connect5(2, props(22, str("x")), str("c")), nil, connack(wire.ProtocolError)),
	refused("authentication method", "", "4.12.0-1 3.1.4-2 4.12.0-4", nil, connect5(2, props(21, str("SCRAM-SHA-1")), str("c")), nil,
		connack(wire.BadAuthenticationMethod)),
	refused("user property of the will that isn't UTF-8", "", "1.5.7-1 1.5.4-1", nil,
		connect5(6, none, str("c"), props(38, str("k"), str("\xff")), str("w"), str("")), nil, connack(wire.MalformedPacket)),
}

// badPackets come behind a CONNECT.
var badPackets = []violation{
	eachOf("second CONNECT", "3.1.0-2 4.8.0-1", "3.1.0-2 3.2.0-2 4.13.1-1", connect4(2, str("c")), connect5(2, none, str("c")), wire.ProtocolError),
	both("packet type 0", "2.2.2-2 4.8.0-1", "4.13.1-1", cat(0, 0), wire.MalformedPacket),
	both("CONNACK from a client", "4.8.0-1", "4.13.1-1", cat(0x20, 2, 0, 0), wire.ProtocolError),
	both("SUBACK from a client", "4.8.0-1", "4.13.1-1", cat(0x90, 3, 0, 1, 0), wire.ProtocolError),
	both("UNSUBACK from a client", "4.8.0-1", "4.13.1-1", cat(0xB0, 3, 0, 1, 0), wire.ProtocolError),
	both("PINGRESP from a client", "4.8.0-1", "4.13.1-1", cat(0xD0, 0), wire.ProtocolError),
	both("AUTH without a method in CONNECT", "4.8.0-1", "4.12.0-7 4.12.1-1 4.12.1-2", cat(0xF0, 0), wire.BadAuthenticationMethod),
	only5("AUTH with flags", "3.15.1-1", cat(0xF1, 0), wire.MalformedPacket),
	only5("AUTH with a reason it can't have", "3.15.2-1", raw(0xF0, 1, props(21, str("x"))), wire.ProtocolError),
	only5("AUTH without a method", "4.13.1-1", raw(0xF0, 0x18, none), wire.ProtocolError),

	both("PINGREQ with flags", "2.2.2-1 2.2.2-2", "2.1.3-1", cat(0xC1, 0), wire.MalformedPacket),
	both("PINGREQ with a body", "4.8.0-1", "4.13.1-1", cat(0xC0, 1, 0), wire.MalformedPacket),
	both("PUBACK with flags", "2.2.2-1 2.2.2-2", "2.1.3-1", cat(0x42, 2, 0, 1), wire.MalformedPacket),
	both("PUBREC with flags", "2.2.2-1 2.2.2-2", "2.1.3-1", cat(0x51, 2, 0, 1), wire.MalformedPacket),
	both("PUBCOMP with flags", "2.2.2-1 2.2.2-2", "2.1.3-1", cat(0x72, 2, 0, 1), wire.MalformedPacket),
	both("PUBREL with other flags", "3.6.1-1 2.2.2-2", "3.6.1-1", cat(0x60, 2, 0, 1), wire.MalformedPacket),
	eachOf("SUBSCRIBE with other flags", "3.8.1-1 2.2.2-2", "3.8.1-1", raw(0x80, uint16(1), str("t"), 0), raw(0x80, uint16(1), none, str("t"), 0),
		wire.MalformedPacket),
	eachOf("UNSUBSCRIBE with other flags", "3.10.1-1 2.2.2-2", "3.10.1-1", raw(0xA0, uint16(1), str("t")), raw(0xA0, uint16(1), none, str("t")),
		wire.MalformedPacket),
	both("DISCONNECT with flags", "3.14.1-1 2.2.2-2", "3.14.1-1", cat(0xE1, 0), wire.MalformedPacket),
	both("remaining length of five bytes", "4.8.0-1", "4.13.1-1", cat(0xC0, 0x80, 0x80, 0x80, 0x80, 0), wire.MalformedPacket),
	both("packet beyond the maximum size", "", "3.2.2-15", cat(0x30, 0xFF, 0xFF, 0xFF, 0x7F), wire.PacketTooLarge),

	eachOf("QoS 3", "3.3.1-4", "3.3.1-4", raw(0x36, str("t"), uint16(1)), raw(0x36, str("t"), uint16(1), none), wire.MalformedPacket),
	eachOf("DUP at QoS 0", "3.3.1-2", "3.3.1-2", raw(0x38, str("t")), raw(0x38, str("t"), none), wire.MalformedPacket),
	eachOf("QoS 1 with packet id 0", "2.3.1-1", "2.2.1-3", raw(0x32, str("t"), uint16(0)), raw(0x32, str("t"), uint16(0), none), wire.ProtocolError),
	eachOf("QoS 2 with packet id 0", "2.3.1-1", "2.2.1-3", raw(0x34, str("t"), uint16(0)), raw(0x34, str("t"), uint16(0), none), wire.ProtocolError),
	both("QoS 1 without a packet id", "2.3.1-1", "2.2.1-3", raw(0x32, str("t")), wire.MalformedPacket),
	eachOf("SUBSCRIBE with packet id 0", "2.3.1-1", "2.2.1-3", raw(0x82, uint16(0), str("t"), 0), raw(0x82, uint16(0), none, str("t"), 0),
		wire.ProtocolError),
	eachOf("UNSUBSCRIBE with packet id 0", "2.3.1-1", "2.2.1-3", raw(0xA2, uint16(0), str("t")), raw(0xA2, uint16(0), none, str("t")),
		wire.ProtocolError),
	both("PUBLISH that ends in its topic", "3.3.2-1", "3.3.2-1", raw(0x30, uint16(5), "abc"), wire.MalformedPacket),
	eachOf("topic that isn't UTF-8", "3.3.2-1 1.5.3-1", "3.3.2-1 1.5.4-1", raw(0x30, str("a\xff")), raw(0x30, str("a\xff"), none), wire.MalformedPacket),
	eachOf("topic with a surrogate", "3.3.2-1 1.5.3-1", "3.3.2-1 1.5.4-1", raw(0x30, str("\xed\xb0\x80")), raw(0x30, str("\xed\xb0\x80"), none),
		wire.MalformedPacket),
	eachOf("topic with U+0000", "1.5.3-2 4.7.3-2", "1.5.4-2 4.7.3-2", raw(0x30, str("a\x00")), raw(0x30, str("a\x00"), none), wire.MalformedPacket),
	eachOf("topic with +", "3.3.2-2 4.7.1-1", "3.3.2-2 4.7.0-1", raw(0x30, str("a/+")), raw(0x30, str("a/+"), none), wire.MalformedPacket),
	eachOf("topic with #", "3.3.2-2 4.7.1-1", "3.3.2-2 4.7.0-1", raw(0x30, str("#")), raw(0x30, str("#"), none), wire.MalformedPacket),
	eachOf("empty topic", "4.7.3-1", "4.7.3-1", raw(0x30, str(""), "x"), raw(0x30, str(""), none, "x"), wire.ProtocolError),
	only5("PUBLISH without a property length", "2.2.2-1", raw(0x30, str("t")), wire.MalformedPacket),
	only5("property length with a spare byte", "1.5.5-1", raw(0x30, str("t"), 0x80, 0), wire.MalformedPacket),
	only5("property length beyond the packet", "4.13.1-1", raw(0x30, str("t"), 9, 1, 0), wire.MalformedPacket),
	only5("property that there isn't", "4.13.1-1", raw(0x30, str("t"), props(4, 0)), wire.MalformedPacket),
	only5("property that PUBLISH can't have", "4.13.1-1", raw(0x30, str("t"), props(17, uint32(1))), wire.MalformedPacket),
	only5("property given twice", "4.13.1-1", raw(0x30, str("t"), props(3, str("a"), 3, str("b"))), wire.ProtocolError),
	only5("payload format 2", "4.13.1-1", raw(0x30, str("t"), props(1, 2)), wire.ProtocolError),
	only5("user property's key that isn't UTF-8", "1.5.7-1 1.5.4-1", raw(0x30, str("t"), props(38, str("\xff"), str("v"))), wire.MalformedPacket),
	only5("user property's value with U+0000", "1.5.7-1 1.5.4-2", raw(0x30, str("t"), props(38, str("k"), str("\x00"))), wire.MalformedPacket),
	only5("content type that isn't UTF-8", "3.3.2-19 1.5.4-1", raw(0x30, str("t"), props(3, str("\xff"))), wire.MalformedPacket),
	only5("response topic that isn't UTF-8", "3.3.2-13 1.5.4-1", raw(0x30, str("t"), props(8, str("\xff"))), wire.MalformedPacket),
	only5("response topic with #", "3.3.2-14", raw(0x30, str("t"), props(8, str("r/#"))), wire.ProtocolError),
	only5("response topic with +", "3.3.2-14", raw(0x30, str("t"), props(8, str("+"))), wire.ProtocolError),
	only5("subscription identifier from a client", "3.3.4-6", raw(0x30, str("t"), props(11, 1)), wire.ProtocolError),
	only5("topic alias 0", "3.3.2-8", raw(0x30, str("t"), props(35, uint16(0))), wire.TopicAliasInvalid),
	only5("topic alias beyond the maximum", "3.3.2-9 3.2.2-17", raw(0x30, str("t"), props(35, uint16(65535))), wire.TopicAliasInvalid),
	only5("topic alias that stands for nothing", "3.3.2-7", raw(0x30, str(""), props(35, uint16(1))), wire.ProtocolError),

	only5("PUBACK with a reason it can't have", "3.4.2-1", raw(0x40, uint16(1), 1), wire.ProtocolError),
	only5("PUBREC with a reason it can't have", "3.5.2-1", raw(0x50, uint16(1), 0x92), wire.ProtocolError),
	only5("PUBREL with a reason it can't have", "3.6.2-1", raw(0x62, uint16(1), 0x10), wire.ProtocolError),
	only5("PUBCOMP with a reason it can't have", "3.7.2-1", raw(0x70, uint16(1), 0x97), wire.ProtocolError),
	only4("PUBACK of three bytes", "4.8.0-1", raw(0x40, uint16(1), 0)),
	both("PUBACK of packet id 0", "2.3.1-6", "2.2.1-5", raw(0x40, uint16(0)), wire.ProtocolError),
	answered("PUBACK of an unknown packet id", "", "", raw(0x40, uint16(9)), raw(0x40, uint16(9)), silence, silence),
	answered("PUBREC of an unknown packet id", "4.3.3-1", "4.3.3-4", raw(0x50, uint16(9)), raw(0x50, uint16(9)), cat(0x62, 2, 0, 9),
		cat(0x62, 3, 0, 9, wire.PacketIDNotFound)),
	answered("PUBREC of an unknown packet id with a failure", "", "4.3.3-4", nil, raw(0x50, uint16(9), 0x80), nil, silence),
	answered("PUBREL of an unknown packet id", "4.3.3-2", "4.3.3-11", raw(0x62, uint16(9)), raw(0x62, uint16(9)), cat(0x70, 2, 0, 9),
		cat(0x70, 3, 0, 9, wire.PacketIDNotFound)),

	both("SUBSCRIBE without a filter", "3.8.3-3", "2.2.2-1", raw(0x82, uint16(1)), wire.MalformedPacket),
	only5("SUBSCRIBE with properties and no filter", "3.8.3-2", raw(0x82, uint16(1), none), wire.ProtocolError),
	eachOf("SUBSCRIBE that ends behind its filter", "4.8.0-1", "4.13.1-1", raw(0x82, uint16(1), str("a/b")), raw(0x82, uint16(1), none, str("a/b")),
		wire.MalformedPacket),
	eachOf("filter that isn't UTF-8", "3.8.3-1 1.5.3-1", "3.8.3-1 1.5.4-1", raw(0x82, uint16(1), str("\xff"), 0), raw(0x82, uint16(1), none, str("\xff"), 0),
		wire.MalformedPacket),
	eachOf("filter with U+0000", "4.7.3-2 1.5.3-2", "4.7.3-2 1.5.4-2", raw(0x82, uint16(1), str("a\x00"), 0), raw(0x82, uint16(1), none, str("a\x00"), 0),
		wire.MalformedPacket),
	eachOf("empty filter", "4.7.3-1", "4.7.3-1", raw(0x82, uint16(1), str(""), 0), raw(0x82, uint16(1), none, str(""), 0), wire.MalformedPacket),
	eachOf("SUBSCRIBE with QoS 3", "3.8.3-4", "4.13.1-1", raw(0x82, uint16(1), str("t"), 3), raw(0x82, uint16(1), none, str("t"), 3), wire.ProtocolError),
	eachOf("reserved bits of the options", "3.8.3-4", "3.8.3-5", raw(0x82, uint16(1), str("t"), 0x40), raw(0x82, uint16(1), none, str("t"), 0xC0),
		wire.MalformedPacket),
	only4("options of version 5", "3.8.3-4", raw(0x82, uint16(1), str("t"), 4)),
	only5("retain handling 3", "4.13.1-1", raw(0x82, uint16(1), none, str("t"), 0x30), wire.ProtocolError),
	only5("no local on a shared subscription", "3.8.3-4", raw(0x82, uint16(1), none, str("$share/g/t"), 4), wire.ProtocolError),
	only5("subscription identifier 0", "4.13.1-1", raw(0x82, uint16(1), props(11, 0), str("t"), 0), wire.ProtocolError),
	subscribed("# behind a character", "4.7.1-2", "4.7.1-1", "a#"),
	subscribed("# before the end", "4.7.1-2", "4.7.1-1", "a/#/b"),
	subscribed("+ behind a character", "4.7.1-3", "4.7.1-2", "a+"),
	subscribed("+ before a character", "4.7.1-3", "4.7.1-2", "+a/b"),
	subscribed("shared subscription without a group", "", "4.8.2-1", "$share//a"),
	subscribed("shared subscription's group with +", "", "4.8.2-2", "$share/g+/a"),
	subscribed("shared subscription's group with #", "", "4.8.2-2", "$share/#/a"),
	subscribed("shared subscription that ends behind its group", "", "4.8.2-2", "$share/g"),
	subscribed("shared subscription without a filter", "", "4.8.2-2", "$share/g/"),

	both("UNSUBSCRIBE without a filter", "3.10.3-2", "2.2.2-1", raw(0xA2, uint16(1)), wire.MalformedPacket),
	only5("UNSUBSCRIBE with properties and no filter", "3.10.3-2", raw(0xA2, uint16(1), none), wire.ProtocolError),
	eachOf("UNSUBSCRIBE of a filter that isn't UTF-8", "3.10.3-1 1.5.3-1", "3.10.3-1 1.5.4-1", raw(0xA2, uint16(1), str("\xff")),
		raw(0xA2, uint16(1), none, str("\xff")), wire.MalformedPacket),
	answered("UNSUBSCRIBE of what isn't subscribed", "3.10.4-5 2.3.1-7", "3.10.4-5 3.11.3-2 2.2.1-6", raw(0xA2, uint16(0x102), str("t")),
		raw(0xA2, uint16(0x102), none, str("t")), cat(0xB0, 2, 1, 2), cat(0xB0, 4, 1, 2, 0, wire.NoSubscriptionExisted)),

	only4("DISCONNECT with a body", "4.8.0-1", raw(0xE0, 0)),
	only5("DISCONNECT with a reason it can't have", "3.14.2-1", raw(0xE0, 1), wire.ProtocolError),
	only5("DISCONNECT with a server's reason", "3.14.2-1", raw(0xE0, 0x8B), wire.ProtocolError),
	only5("DISCONNECT with an expiry where CONNECT had none", "4.13.1-1", raw(0xE0, 0, props(17, uint32(1))), wire.ProtocolError),
	only5("DISCONNECT with a server reference", "4.13.1-1", raw(0xE0, 0, props(28, str("x"))), wire.ProtocolError),
	{name: "packets behind DISCONNECT", old: "3.14.4-1 3.14.4-2", new: "3.14.4-1", answer: [2][]byte{silence, silence},
		raw: [2][]byte{cat(0xE0, 0, 0xC0, 0, raw(0x32, str("t"), uint16(1))), cat(0xE0, 0, 0xC0, 0, raw(0x32, str("t"), uint16(1), none))}},
}

// subscribed is a SUBSCRIBE with a filter that is refused, and only that.
func subscribed(name, old, new, filter string) violation {
	return answered(name, old, new, raw(0x82, uint16(0x102), str(filter), 1), raw(0x82, uint16(0x102), none, str(filter), 1),
		cat(0x90, 3, 1, 2, 0x80), cat(0x90, 4, 1, 2, 0, wire.TopicFilterInvalid))
}

func violations() []violation { return slices.Concat(badConnects, badPackets) }

// TestViolations sends each and wants the answer and the connection's end, to the byte. A version 5 client asks for no reason strings,
// so that no answer has one.
func TestViolations(t *testing.T) {
	b := start(t)
	witness := b.connect(connectOptions{id: "witness"})
	for _, v := range violations() {
		for at := range v.raw {
			if v.raw[at] == nil || v.answer[at] == nil {
				continue
			}
			t.Run(v.name+"/"+versionName(versionAt(at)), func(t *testing.T) { v.run(t, b, at) })
		}
	}
	witness.ping()
	eventually(t, func() bool { s := b.Stats(); return s.Connections == 1 && s.Sessions == 1 && s.Filters == 0 })
	if r := b.stored(0); len(r) != 0 {
		t.Errorf("%d messages were stored", len(r))
	}
}

func (v *violation) run(t *testing.T, b *broker, at int) {
	c := b.dial()
	c.t = t
	if !v.first {
		o := connectOptions{version: versionAt(at), id: "c"}
		if o.version == wire.V5 {
			o.props = []byte{23, 0}
		}
		if p := c.connect(o); p.kind != wire.CONNACK || p.body[1] != 0 {
			t.Fatalf("CONNACK %v", p)
		}
	}
	c.send(v.raw[at])
	want := v.answer[at]
	if v.open {
		c.send([]byte{0xC0, 0})
		want = c.behindPing(want)
	}
	got := c.bytes(len(want), v.open)
	if !bytes.Equal(got, want) {
		t.Errorf("% x is answered with % x, not % x", v.raw[at], got, want)
	}
	c.conn.Close()
}

// behindPing is an answer that waits for no commit and a PINGRESP.
func (c *client) behindPing(answer []byte) []byte { return cat(answer, 0xD0, 0) }

// bytes are those that come until the connection ends, or the first n.
func (c *client) bytes(n int, open bool) []byte {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(patience))
	if open {
		got := make([]byte, n)
		k, _ := io.ReadFull(c.in, got)
		return got[:k]
	}
	got, err := io.ReadAll(c.in)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Error("the connection is still open")
	}
	return got
}
