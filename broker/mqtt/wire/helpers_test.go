package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// cat joins parts: byte and int are one byte, uint16 and uint32 big endian,
// string and []byte as they are.
func cat(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case byte:
			b = append(b, v)
		case int:
			b = append(b, byte(v))
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case string:
			b = append(b, v...)
		case []byte:
			b = append(b, v...)
		default:
			panic(fmt.Sprintf("cat: %T", p))
		}
	}
	return b
}

// str is a length-prefixed field, props a property section, packet a packet
// with its fixed header.
func str(s string) []byte         { return cat(uint16(len(s)), s) }
func props(parts ...any) []byte   { b := cat(parts...); return cat(appendVarint(nil, len(b)), b) }
func user(key, val string) []byte { return cat(propUser, str(key), str(val)) }

func packet(first byte, parts ...any) []byte {
	b := cat(parts...)
	return cat(first, appendVarint(nil, len(b)), b)
}

func publish5(topic string, properties []byte, payload string) []byte {
	return packet(0x30, str(topic), properties, payload)
}

// connect5 and connect4 are CONNECTs with the given flags and what follows
// keep alive.
func connect5(flags int, rest ...any) []byte {
	return packet(0x10, str("MQTT"), 5, flags, uint16(60), cat(rest...))
}

func connect4(flags int, rest ...any) []byte {
	return packet(0x10, str("MQTT"), 4, flags, uint16(60), cat(rest...))
}

// parse reads one whole packet as a server does.
func parse(raw []byte, version byte) (any, error) {
	h, n, err := ParseHeader(raw)
	if err != nil {
		return nil, err
	}
	if err := h.CheckInbound(version); err != nil {
		return nil, err
	}
	if len(raw)-n < h.Remaining {
		return nil, errors.New("test packet is shorter than it says")
	}
	body := raw[n : n+h.Remaining]
	switch h.Type {
	case CONNECT:
		return ParseConnect(h, body)
	case PUBLISH:
		var p Publish
		err := ParsePublish(&p, h, body, version)
		return p, err
	case PUBACK, PUBREC, PUBREL, PUBCOMP:
		id, reason, err := ParseAck(h, body, version)
		return [2]int{int(id), int(reason)}, err
	case SUBSCRIBE:
		return ParseSubscribe(h, body, version)
	case UNSUBSCRIBE:
		return ParseUnsubscribe(h, body, version)
	case DISCONNECT:
		return ParseDisconnect(h, body, version)
	case AUTH:
		return ParseAuth(h, body, version)
	}
	return nil, nil // PINGREQ
}

func mustParse[T any](t testing.TB, raw []byte, version byte) T {
	t.Helper()
	v, err := parse(raw, version)
	if err != nil {
		t.Fatalf("% x: %v", raw, err)
	}
	return v.(T)
}
