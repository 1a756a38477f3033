package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// frame is a client's frame: masked, with the shortest length that fits.
func frame(first byte, payload string) []byte {
	return masked(first, len(payload), []byte(payload))
}

// masked is a frame that announces a length of its own choice.
func masked(first byte, length int, payload []byte) []byte {
	b := AppendHeader(nil, 0, length)
	b[0] = first
	b[1] |= 0x80
	key := [4]byte{0xA1, 0xB2, 0xC3, 0xD4}
	b = append(b, key[:]...)
	for i, c := range payload {
		b = append(b, c^key[i&3])
	}
	return b
}

// controls collects control frames.
type controls []string

var errStop = errors.New("stop")

func (c *controls) Control(opcode byte, payload []byte) error {
	*c = append(*c, string(append([]byte{opcode}, payload...)))
	if opcode == Close {
		return errStop
	}
	return nil
}

func join(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

func TestDecode(t *testing.T) {
	long, longer := strings.Repeat("l", 126), strings.Repeat("L", 70_000)
	tests := []struct {
		name     string
		in       []byte
		payload  string
		controls []string
		err      error
	}{
		{"message", frame(0x82, "hello"), "hello", nil, nil},
		{"empty message", frame(0x82, ""), "", nil, nil},
		{"two messages", join(frame(0x82, "hello"), frame(0x82, " world")), "hello world", nil, nil},
		{"16 bits of length", frame(0x82, long), long, nil, nil},
		{"64 bits of length", frame(0x82, longer), longer, nil, nil},
		{"fragments", join(frame(0x02, "a"), frame(0x00, ""), frame(0x00, "b"), frame(0x80, "c")), "abc", nil, nil},
		{"ping between fragments", join(frame(0x02, "a"), frame(0x89, "p"), frame(0x80, "b")), "ab", []string{"\x09p"}, nil},
		{"pong that nobody asked for", frame(0x8A, ""), "", []string{"\x0A"}, nil},
		{"largest control frame", frame(0x89, long[:125]), "", []string{"\x09" + long[:125]}, nil},
		{"close", frame(0x88, ""), "", []string{"\x08"}, errStop},
		{"close with code", frame(0x88, "\x03\xE8bye"), "", []string{"\x08\x03\xE8bye"}, errStop},
		{"close with half a code", frame(0x88, "\x03"), "", nil, errClosePacket},
		{"close with code 999", frame(0x88, "\x03\xE7"), "", nil, errClosePacket},
		{"close with code 1005", frame(0x88, "\x03\xED"), "", nil, errClosePacket},
		{"close with code 5000", frame(0x88, "\x13\x88"), "", nil, errClosePacket},
		{"text", frame(0x81, "hello"), "", nil, errText},
		{"unmasked", []byte{0x82, 0x01, 'x'}, "", nil, errUnmasked},
		{"reserved bit", frame(0xC2, "x"), "", nil, errReserved},
		{"reserved data opcode", frame(0x83, "x"), "", nil, errReserved},
		{"reserved control opcode", frame(0x8B, "x"), "", nil, errReserved},
		{"ping in fragments", frame(0x09, "x"), "", nil, errControl},
		{"ping too long", frame(0x89, long), "", nil, errControl},
		{"continuation of nothing", frame(0x80, "x"), "", nil, errSequence},
		{"message within a message", join(frame(0x02, "a"), frame(0x82, "b")), "", nil, errSequence},
		{"16 bits for a short length", []byte{0x82, 0x80 | 126, 0, 125, 1, 2, 3, 4}, "", nil, errLength},
		{"64 bits for a shorter length", []byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 1, 2, 3, 4}, "", nil, errLength},
		{"length above the limit", masked(0x82, 100_001, nil), "", nil, errTooBig},
		{"length with the highest bit", []byte{0x82, 0x80 | 127, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 2, 3, 4}, "", nil, errTooBig},
		{"fragments above the limit", join(frame(0x02, longer), masked(0x80, 30_001, nil)), "", nil, errTooBig},
		{"fragments up to the limit, twice", join(frame(0x02, longer), frame(0x80, longer[:30_000]), frame(0x02, longer), frame(0x80, longer[:30_000])),
			longer + longer[:30_000] + longer + longer[:30_000], nil, nil},
		{"empty fragments", join(frame(0x02, ""), bytes.Repeat(frame(0x00, ""), maxEmpty)), "", nil, errFragments},
		{"some empty fragments, again and again", bytes.Repeat(join(frame(0x02, ""), bytes.Repeat(frame(0x00, ""), maxEmpty-1), frame(0x80, "x")), 3), "xxx", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{len(tt.in), 1, 2, 3, 7, 4096} {
				if size == 0 || size == 1 && len(tt.in) > 100_000 {
					continue
				}
				payload, seen, err := decode(tt.in, size, 100_000)
				if err != tt.err {
					t.Fatalf("in pieces of %d: %v", size, err)
				}
				if err == nil && payload != tt.payload {
					t.Fatalf("in pieces of %d: %d bytes %.20q", size, len(payload), payload)
				}
				if strings.Join(seen, "|") != strings.Join(tt.controls, "|") {
					t.Fatalf("in pieces of %d: control frames %q", size, seen)
				}
			}
		})
	}
}

// decode feeds a decoder pieces of a size.
func decode(in []byte, size int, limit int64) (payload string, seen controls, err error) {
	d := Decoder{Limit: limit}
	var all []byte
	for in = bytes.Clone(in); len(in) > 0; {
		piece := in[:min(size, len(in))]
		n, err := d.Decode(piece, &seen)
		if err != nil {
			return string(all), seen, err
		}
		all = append(all, piece[:n]...)
		in = in[len(piece):]
	}
	return string(all), seen, nil
}

// Decoding in any pieces comes to the same.
func FuzzDecode(f *testing.F) {
	f.Add(join(frame(0x02, "a"), frame(0x89, "p"), frame(0x80, "b")), uint8(1))
	f.Add(frame(0x82, strings.Repeat("x", 300)), uint8(3))
	f.Add([]byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 1, 2, 3, 4}, uint8(2))
	f.Add(frame(0x88, "\x03\xE8"), uint8(5))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		whole, seen, err := decode(in, max(len(in), 1), 1000)
		parts, seenToo, errToo := decode(in, max(int(size), 1), 1000)
		if err != errToo || err == nil && whole != parts || strings.Join(seen, "|") != strings.Join(seenToo, "|") {
			t.Fatalf("%q, %q, %v; in pieces %q, %q, %v", whole, seen, err, parts, seenToo, errToo)
		}
		var e *Error
		if err != nil && err != errStop && !errors.As(err, &e) {
			t.Fatal(err)
		}
		if len(whole) > len(in) {
			t.Fatal("more payload than came in")
		}
	})
}

func TestAppendHeader(t *testing.T) {
	for _, length := range []int{0, 1, 125, 126, 65535, 65536, 1 << 30} {
		b := AppendHeader(nil, Binary, length)
		if len(b) > MaxServerHeader || b[0] != 0x82 || b[1]&0x80 != 0 {
			t.Errorf("%d: % x", length, b)
		}
		got := int(b[1])
		switch got {
		case 126:
			got = int(binary.BigEndian.Uint16(b[2:]))
		case 127:
			got = int(binary.BigEndian.Uint64(b[2:]))
		}
		if got != length {
			t.Errorf("%d: % x", length, b)
		}
	}
	if b := AppendControl(nil, Pong, make([]byte, 200)); len(b) != 2+maxControl {
		t.Errorf("% x", b)
	}
	if b := AppendClose(nil, 0); string(b) != "\x88\x00" {
		t.Errorf("% x", b)
	}
	if b := AppendClose(nil, MessageTooBig); string(b) != "\x88\x02\x03\xF1" {
		t.Errorf("% x", b)
	}
}

const example = "GET /mqtt?x=1 HTTP/1.1\r\nHost: broker:8083\r\nUpgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chat, mqtt\r\n\r\n"

func TestUpgrade(t *testing.T) {
	origin := func(o string) []string {
		return []string{"Host: broker:8083\r\n", "Host: broker:8083\r\nOrigin: " + o + "\r\n"}
	}
	tests := []struct {
		name    string
		change  []string // pairs: from, to
		origins []string
		status  string
	}{
		{"valid", nil, nil, "101"},
		{"lower case", []string{"Upgrade: WebSocket", "upgrade: websocket", "Connection", "connection"}, nil, "101"},
		{"protocols on two lines", []string{"chat, mqtt", "chat\r\nSec-WebSocket-Protocol: mqtt"}, nil, "101"},
		{"no space behind a colon", []string{"Sec-WebSocket-Version: 13", "Sec-WebSocket-Version:13"}, nil, "101"},
		{"an extension is offered", []string{"Sec-WebSocket-Version", "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Version"}, nil, "101"},
		{"origin that is allowed", origin("https://a.example"), []string{"https://b.example", "https://a.example"}, "101"},
		{"origin in other case", origin("HTTPS://A.example"), []string{"https://a.example"}, "101"},
		{"any origin", origin("https://a.example"), []string{"*"}, "101"},
		{"any origin, null", origin("null"), []string{"*"}, "101"},
		{"origin that isn't allowed", origin("https://a.example.evil"), []string{"https://a.example"}, "403"},
		{"origin where none is allowed", origin("http://broker:8083"), nil, "403"},
		{"origin null", origin("null"), []string{"https://a.example"}, "403"},
		{"own origin by name", origin("http://broker:8083"), []string{"https://a.example"}, "403"},
		{"own origin by name, over TLS", origin("https://broker:8083"), []string{"secure"}, "101"},
		{"another origin, over TLS", origin("https://a.example"), []string{"secure"}, "403"},
		{"own origin by address", []string{"Host: broker:8083", "Host: 192.0.2.1:8083\r\nOrigin: https://192.0.2.1:8083"}, nil, "101"},
		{"own origin by IPv6 address", []string{"Host: broker:8083", "Host: [2001:db8::1]:8083\r\nOrigin: http://[2001:db8::1]:8083"}, nil, "101"},
		{"own origin by address, no port", []string{"Host: broker:8083", "Host: [::1]\r\nOrigin: http://[::1]"}, nil, "101"},
		{"own origin as localhost", []string{"Host: broker:8083", "Host: localhost:8083\r\nOrigin: http://localhost:8083"}, nil, "101"},
		{"origin of another port", []string{"Host: broker:8083", "Host: localhost:8083\r\nOrigin: http://localhost:3000"}, nil, "403"},
		{"origin of another address", []string{"Host: broker:8083", "Host: 192.0.2.1\r\nOrigin: http://192.0.2.2"}, nil, "403"},
		{"origin empty", origin(""), []string{"https://a.example"}, "403"},
		{"two origins", origin("https://a.example\r\nOrigin: https://a.example"), []string{"https://a.example"}, "400"},
		{"other path", []string{"/mqtt?", "/other?"}, nil, "404"},
		{"path with more behind", []string{"/mqtt?", "/mqtt/x?"}, nil, "404"},
		{"other method", []string{"GET ", "POST "}, nil, "400"},
		{"HTTP/1.0", []string{"HTTP/1.1", "HTTP/1.0"}, nil, "400"},
		{"absolute URL", []string{"GET /", "GET http://broker/"}, nil, "400"},
		{"no host", []string{"Host: broker:8083\r\n", ""}, nil, "400"},
		{"not for WebSocket", []string{"Upgrade: WebSocket", "Upgrade: h2c"}, nil, "426"},
		{"no upgrade in Connection", []string{"keep-alive, upgrade", "keep-alive"}, nil, "426"},
		{"version 8", []string{"Version: 13", "Version: 8"}, nil, "426"},
		{"two versions", []string{"Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13"}, nil, "400"},
		{"other protocol", []string{"chat, mqtt", "chat"}, nil, "400"},
		{"protocol in upper case", []string{"chat, mqtt", "MQTT"}, nil, "400"},
		{"no protocol", []string{"Sec-WebSocket-Protocol: chat, mqtt\r\n", ""}, nil, "400"},
		{"no key", []string{"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""}, nil, "400"},
		{"short key", []string{"dGhlIHNhbXBsZSBub25jZQ==", "dGhl"}, nil, "400"},
		{"two keys", []string{"Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key"}, nil, "400"},
		{"folded line", []string{"Upgrade: WebSocket", "Upgrade:\r\n WebSocket"}, nil, "400"},
		{"space before a colon", []string{"Upgrade: WebSocket", "Upgrade : WebSocket"}, nil, "400"},
		{"line feed alone", []string{"Upgrade: WebSocket\r\n", "Upgrade: WebSocket\n"}, nil, "400"},
		{"body", []string{"Host:", "Content-Length: 5\r\nHost:"}, nil, "400"},
		{"chunked body", []string{"Host:", "Transfer-Encoding: chunked\r\nHost:"}, nil, "400"},
		{"too many fields", []string{"Host:", strings.Repeat("a: b\r\n", maxFields) + "Host:"}, nil, "400"},
		{"too long", []string{"Host:", "a: " + strings.Repeat("b", MaxRequest) + "\r\nHost:"}, nil, "400"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.NewReplacer(tt.change...).Replace(example)
			if len(tt.change) > 0 && text == example {
				t.Fatal("nothing was changed")
			}
			answer, err := Upgrade([]byte(text), Rules{Path: "/mqtt", Origins: tt.origins, Secure: slices.Contains(tt.origins, "secure"), Protocol: "mqtt"})
			if !strings.HasPrefix(string(answer), "HTTP/1.1 "+tt.status+" ") || !strings.HasSuffix(string(answer), "\r\n\r\n") || (err == nil) != (tt.status == "101") {
				t.Fatalf("%q, %v", answer, err)
			}
			var e *Error
			if err != nil {
				if !errors.As(err, &e) {
					t.Errorf("%T", err)
				}
				return
			}
			// The key and its answer are RFC 6455's own example, §1.3.
			for _, want := range []string{"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", "Sec-WebSocket-Protocol: mqtt\r\n"} {
				if !strings.Contains(string(answer), want) || strings.Contains(string(answer), "Extensions") {
					t.Errorf("%q", answer)
				}
			}
		})
	}
}

func TestRequestEnd(t *testing.T) {
	for n := range len(example) {
		if RequestEnd([]byte(example[:n])) != 0 {
			t.Fatal(n)
		}
	}
	if RequestEnd([]byte(example+"\x82\x80")) != len(example) {
		t.Error("the end isn't found")
	}
}

func FuzzUpgrade(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer, err := Upgrade(b, Rules{Path: "/mqtt", Protocol: "mqtt"})
		if (err == nil) != bytes.HasPrefix(answer, []byte("HTTP/1.1 101 ")) || RequestEnd(answer) != len(answer) {
			t.Fatalf("%q, %v", answer, err)
		}
	})
}
