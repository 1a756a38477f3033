package mqtt

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/websocket"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// startWebSocket starts a broker and returns a way to it.
func startWebSocket(t *testing.T, origins ...string) (b *broker, dial func() *wsConn) {
	b = startAt(t, Listener{Address: "127.0.0.1:0", WebSocket: &WebSocket{Origins: origins}})
	return b, func() *wsConn {
		t.Helper()
		ws, answer, err := upgrade(dialPlain(t, nil, b.Addrs()[0]), wsRequest)
		if err != nil || answer.StatusCode != 101 {
			t.Fatal(answer, err)
		}
		return ws
	}
}

// What breaks WebSocket's rules is answered by a Close frame that says so, and by a DISCONNECT before it.
func TestWebSocketViolations(t *testing.T) {
	tests := []struct {
		name   string
		frame  []byte
		code   uint16
		reason byte // of the DISCONNECT
	}{
		{"text", wsFrame(0x80|websocket.Text, []byte{0xC0, 0}), websocket.UnsupportedData, wire.ProtocolError},
		{"unmasked", []byte{0x82, 2, 0xC0, 0}, websocket.ProtocolError, wire.ProtocolError},
		{"reserved bit", wsFrame(0xC2, []byte{0xC0, 0}), websocket.ProtocolError, wire.ProtocolError},
		{"continuation of nothing", wsFrame(0x80, []byte{0xC0, 0}), websocket.ProtocolError, wire.ProtocolError},
		{"too large", []byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0x20, 0, 0, 1, 2, 3, 4}, websocket.MessageTooBig, wire.PacketTooLarge},
		{"empty fragments", append(wsFrame(0x02, nil), bytes.Repeat(wsFrame(0x00, nil), 200)...), websocket.PolicyViolation, wire.ProtocolError},
		{"MQTT's rules", wsFrame(0x82, []byte{0xF1, 0}), websocket.NormalClosure, wire.MalformedPacket},
	}
	b, dial := startWebSocket(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ws := dial()
			c := b.over(ws)
			c.hello(connectOptions{id: "a"})
			ws.Conn.Write(tt.frame)
			if p := c.expect(wire.DISCONNECT); p.reason() != tt.reason {
				t.Errorf("DISCONNECT with %#x", p.reason())
			}
			c.expectEnd(0)
			if !ws.closed || ws.closeCode != tt.code {
				t.Errorf("Close frame: %v, code %d", ws.closed, ws.closeCode)
			}
			eventually(t, func() bool { return b.Stats().Connections == 0 })
		})
	}
}

func TestWebSocketPing(t *testing.T) {
	b, dial := startWebSocket(t)
	ws := dial()
	c := b.over(ws)
	c.hello(connectOptions{id: "a"})
	largest := strings.Repeat("p", 125)
	// Between the fragments of an MQTT packet, and behind it.
	ws.Conn.Write(bytes.Join([][]byte{
		wsFrame(0x02, []byte{0xC0}), wsFrame(0x89, []byte("one")), wsFrame(0x80, []byte{0}), wsFrame(0x8A, []byte("unasked")),
	}, nil))
	c.expect(wire.PINGRESP)
	ws.Conn.Write(wsFrame(0x89, []byte(largest)))
	ws.Conn.Write(wsFrame(0x89, nil))
	c.ping()
	got := string(bytes.Join(ws.pongs, []byte("|")))
	if got != "one|"+largest+"|" {
		t.Errorf("%q", got)
	}
}

// A client's Close frame is answered by one with its code, and the connection is lost: the will is sent.
func TestWebSocketClose(t *testing.T) {
	b, dial := startWebSocket(t)
	sub := b.over(dial())
	sub.hello(connectOptions{id: "sub"})
	sub.subscribe(filter{"will", 0})
	for _, code := range []uint16{websocket.NormalClosure, 4321, 0} {
		ws := dial()
		c := b.over(ws)
		c.hello(connectOptions{id: "a", will: &willOptions{topic: "will"}})
		frame := websocket.AppendClose(nil, code)
		ws.Conn.Write(wsFrame(frame[0], frame[2:]))
		c.expectEnd(0)
		if !ws.closed || ws.closeCode != code {
			t.Errorf("code %d: %v, %d", code, ws.closed, ws.closeCode)
		}
		sub.expect(wire.PUBLISH)
	}
}

// A DISCONNECT is answered by a Close frame.
func TestWebSocketDisconnect(t *testing.T) {
	b, dial := startWebSocket(t)
	ws := dial()
	c := b.over(ws)
	c.hello(connectOptions{id: "a"})
	c.send(wire.AppendDisconnect(nil, 0, ""))
	c.expectEnd(0)
	if !ws.closed || ws.closeCode != websocket.NormalClosure {
		t.Errorf("%v, %d", ws.closed, ws.closeCode)
	}
}

// Frames may follow the request at once.
func TestWebSocketEarlyFrames(t *testing.T) {
	b, _ := startWebSocket(t)
	conn := dialPlain(t, nil, b.Addrs()[0])
	connect := connectOptions{version: wire.V5, id: "a"}.encode()
	ws, answer, err := upgrade(conn, wsRequest+string(wsFrame(0x82, connect[:10]))+string(wsFrame(0x82, append(connect[10:], 0xC0))))
	if err != nil || answer.StatusCode != 101 {
		t.Fatal(answer, err)
	}
	c := b.over(ws)
	c.expect(wire.CONNACK)
	ws.Conn.Write(wsFrame(0x82, []byte{0}))
	c.expect(wire.PINGRESP)
}

func TestWebSocketRefused(t *testing.T) {
	tests := []struct {
		name, request string
		status        int // 0: no answer
	}{
		{"MQTT", "\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a\r\n\r\n", 400},
		{"other page", with(wsRequest, "Host:", "Origin: http://127.0.0.1\r\nHost:"), 403},
		{"allowed page", with(wsRequest, "Host:", "Origin: https://a.example\r\nHost:"), 101},
		{"other path", with(wsRequest, "/mqtt", "/"), 404},
		{"a browser's user", "GET /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", 426},
		{"larger than the limit", with(wsRequest, "Host:", "X: "+strings.Repeat("x", websocket.MaxRequest)+"\r\nHost:"), 0},
	}
	b, _ := startWebSocket(t, "https://a.example")
	failed := int64(0)
	for _, tt := range tests {
		_, answer, err := upgrade(dialPlain(t, nil, b.Addrs()[0]), tt.request)
		if tt.status == 0 && err == nil || tt.status != 0 && (err != nil || answer.StatusCode != tt.status) {
			t.Errorf("%s: %v, %v", tt.name, answer, err)
		}
		if tt.status != 101 {
			failed++
		}
	}
	eventually(t, func() bool { return b.Stats().FailedWebSocket == failed })
}

// A Pong never comes between a frame's header and its payload, even when the socket is full.
func TestWebSocketPongBehindAFullSocket(t *testing.T) {
	below := &fullStream{room: 3}
	ws := &webSocket{stream: below, in: websocket.Decoder{Limit: 1000}}
	message := bytes.Repeat([]byte{'m'}, 10)
	n, err := ws.tryWrite(message)
	if n != 1 || err != nil { // header and one byte
		t.Fatal(n, err)
	}
	ws.Control(websocket.Ping, []byte("first"))
	ws.Control(websocket.Ping, []byte("last"))
	below.room = 4
	m, err := ws.tryWrite(message[n:])
	if n += m; m != 4 || err != nil {
		t.Fatal(m, err)
	}
	below.room = 100
	m, err = ws.tryWrite(append(message[n:], "next"...))
	if m != 10-n+4 || err != nil {
		t.Fatal(m, err)
	}
	want := string(message)
	got := string(below.got)
	if got != "\x82\x0a"+want+"\x8a\x04last\x82\x04next" {
		t.Errorf("%q", got)
	}
	below.room = 1
	ws.sendClose()
	ws.sendClose()
	below.room = 100
	if n, err := ws.tryWrite([]byte("late")); n != 4 || err != nil {
		t.Errorf("behind the Close frame: %d, %v", n, err)
	}
	if tail := string(below.got[len(got):]); tail != "\x88\x00" {
		t.Errorf("%q", tail)
	}
}

// fullStream takes as many bytes as it has room for.
type fullStream struct {
	stream
	room int
	got  []byte
}

func (s *fullStream) tryWrite(p []byte) (int, error) {
	n := min(len(p), s.room)
	s.got, s.room = append(s.got, p[:n]...), s.room-n
	return n, nil
}

// A write that waits lets Pongs through between its frames, and the Close frame too.
func TestWebSocketControlWhileAWriteWaits(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	ws := &webSocket{stream: pipeStream{conn: server}, in: websocket.Decoder{Limit: 1000}}
	done := make(chan error, 1)
	go func() { done <- ws.write([]byte("message")) }()
	var b [1]byte
	io.ReadFull(client, b[:]) // the write is under way
	ws.Control(websocket.Ping, []byte("p"))
	rest := make([]byte, len("\x07message\x8a\x01p"))
	client.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(client, rest); err != nil || string(rest) != "\x07message\x8a\x01p" {
		t.Errorf("%q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// pipeStream is a stream that can only write and wait.
type pipeStream struct {
	stream
	conn net.Conn
}

func (s pipeStream) write(p []byte) error {
	_, err := s.conn.Write(p)
	return err
}
