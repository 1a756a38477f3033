package mqtt

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/sluicemq/sluice/broker/mqtt/websocket"
)

// wsConn is a client's side of WebSocket, over any connection. Each Write is a message of several fragments.
type wsConn struct {
	net.Conn
	in        *bufio.Reader
	left      int64 // payload bytes of the frame in hand
	fragments int
	mu        sync.Mutex
	pongs     [][]byte
	closeCode uint16 // of the Close frame that came
	closed    bool
}

const wsRequest = "GET /mqtt HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqttv3.1, mqtt\r\n\r\n"

// upgrade sends a request and reads the answer.
func upgrade(conn net.Conn, request string) (*wsConn, *http.Response, error) {
	ws := &wsConn{Conn: conn, in: bufio.NewReader(conn), fragments: 1}
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, nil, err
	}
	answer, err := http.ReadResponse(ws.in, nil)
	return ws, answer, err
}

// frame is a masked frame.
func wsFrame(first byte, payload []byte) []byte {
	key := [4]byte{0x12, 0x34, 0x56, 0x78}
	b := []byte{first}
	switch {
	case len(payload) < 126:
		b = append(b, 0x80|byte(len(payload)))
	case len(payload) < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(len(payload)))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(len(payload)))
	}
	b = append(b, key[:]...)
	for i, c := range payload {
		b = append(b, c^key[i&3])
	}
	return b
}

func (ws *wsConn) Write(p []byte) (int, error) {
	var b []byte
	n := max(1, min(ws.fragments, len(p)))
	for i := range n {
		first := byte(0)
		if i == 0 {
			first = websocket.Binary
		}
		if i == n-1 {
			first |= 0x80
		}
		b = append(b, wsFrame(first, p[i*len(p)/n:(i+1)*len(p)/n])...)
	}
	if _, err := ws.Conn.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (ws *wsConn) Read(p []byte) (int, error) {
	for ws.left == 0 {
		if err := ws.header(); err != nil {
			return 0, err
		}
	}
	n, err := ws.in.Read(p[:min(int64(len(p)), ws.left)])
	ws.left -= int64(n)
	return n, err
}

// header reads up to the next binary frame's payload.
func (ws *wsConn) header() error {
	var h [2]byte
	if _, err := io.ReadFull(ws.in, h[:]); err != nil {
		return err
	}
	length := int64(h[1])
	switch h[1] {
	case 126:
		var b [2]byte
		if _, err := io.ReadFull(ws.in, b[:]); err != nil {
			return err
		}
		length = int64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		if _, err := io.ReadFull(ws.in, b[:]); err != nil {
			return err
		}
		length = int64(binary.BigEndian.Uint64(b[:]))
	}
	if h[1]&0x80 != 0 || h[0]&0xF0 != 0x80 {
		return fmt.Errorf("frame % x", h)
	}
	opcode := h[0] & 15
	if opcode == websocket.Binary {
		ws.left = length
		return nil
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(ws.in, payload); err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch opcode {
	case websocket.Pong:
		ws.pongs = append(ws.pongs, payload)
	case websocket.Close:
		ws.closed = true
		if len(payload) >= 2 {
			ws.closeCode = binary.BigEndian.Uint16(payload)
		}
		return io.EOF
	default:
		return fmt.Errorf("opcode %#x", opcode)
	}
	return nil
}

// with changes a request.
func with(request string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(request)
}
