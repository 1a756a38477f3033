package mqtt

import (
	"encoding/binary"
	"io"
	"sync"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/websocket"
)

// webSocket is WebSocket over another stream. MQTT sees bytes: where messages begin and end means nothing [MQTT-6.0.0-2].
//
// Frames are taken apart in the reader's own buffer. A frame that is sent announces as many bytes as the caller has; what of them
// isn't taken comes again by stream's rule, so that nothing is kept here.
type webSocket struct {
	stream // below
	in     websocket.Decoder
	early  []byte // came in behind the opening request; the connection's goroutine only

	mu      sync.Mutex
	owed    []byte // under mu: begin of a frame that must go out before anything else
	left    int    // under mu: payload bytes that the frame in hand still wants
	control []byte // under mu: control frame to send between two others; the last of several
	blocked bool   // under mu: write owns owed and left
	closing uint16 // under mu: code of the Close frame
	closed  bool   // under mu: the Close frame was sent or queued; nothing may follow
}

// leastMessageLimit is how large a message of a client may always be, in bytes.
const leastMessageLimit = 1 << 20

// framePool has buffers in which a header and the begin of its payload come together.
var framePool = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// openWebSocket waits for the client's request and answers it.
func openWebSocket(below stream, rules websocket.Rules, maxPacket int) (*webSocket, error) {
	request := make([]byte, 0, 512)
	end := 0
	var err error
	waitErr := below.await(func() bool {
		for err == nil && end == 0 {
			if len(request) == websocket.MaxRequest {
				err = &websocket.Error{Code: websocket.MessageTooBig, What: "WebSocket request larger than the limit"}
				return true
			}
			if len(request) == cap(request) {
				request = append(make([]byte, 0, min(2*len(request), websocket.MaxRequest)), request...)
			}
			var n int
			n, err = below.read(request[len(request):cap(request)])
			if n == 0 && err == nil {
				return false
			}
			request = request[:len(request)+n]
			end = websocket.RequestEnd(request)
		}
		return true
	})
	if err == nil {
		err = waitErr
	}
	if err != nil {
		return nil, err
	}
	answer, err := websocket.Upgrade(request[:end], rules)
	if n, e := below.tryWrite(answer); err == nil && (e != nil || n < len(answer)) {
		err = io.ErrShortWrite // of the first bytes of a connection: nobody reads
	}
	if err != nil {
		return nil, err
	}
	ws := &webSocket{stream: below, closing: websocket.NormalClosure}
	ws.in.Limit = max(leastMessageLimit, 4*int64(maxPacket))
	if end < len(request) {
		ws.early = append([]byte(nil), request[end:]...)
	}
	return ws, nil
}

func (ws *webSocket) read(p []byte) (n int, err error) {
	for {
		if n = copy(p, ws.early); n > 0 {
			if ws.early = ws.early[n:]; len(ws.early) == 0 {
				ws.early = nil
			}
		} else if n, err = ws.stream.read(p); n == 0 || err != nil {
			return n, err
		}
		n, err = ws.in.Decode(p[:n], ws)
		if e, ok := err.(*websocket.Error); ok {
			ws.mu.Lock()
			ws.closing = e.Code
			ws.mu.Unlock()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Control implements websocket.Handler.
func (ws *webSocket) Control(opcode byte, payload []byte) error {
	switch opcode {
	case websocket.Close:
		ws.mu.Lock()
		if ws.closing = 0; len(payload) >= 2 {
			ws.closing = binary.BigEndian.Uint16(payload) // RFC 6455 §5.5.1
		}
		ws.mu.Unlock()
		return io.EOF
	case websocket.Ping:
		ws.sendControl(websocket.AppendControl(nil, websocket.Pong, payload), false)
	}
	return nil
}

// sendControl sends a control frame as soon as no other is in hand. It never waits. Should the socket not take it, it goes out with
// what is sent next; a Ping may then have been answered by a later one's Pong, as RFC 6455 §5.5.3 allows.
func (ws *webSocket) sendControl(frame []byte, last bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return
	}
	ws.control, ws.closed = frame, last
	if !ws.blocked {
		ws.sendLocked(nil, ws.stream.tryWrite)
	}
}

func (ws *webSocket) tryWrite(p []byte) (n int, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.sendLocked(p, ws.stream.tryWrite)
}

func (ws *webSocket) write(p []byte) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.blocked = true
	defer func() { ws.blocked = false }()
	_, err := ws.sendLocked(p, func(b []byte) (int, error) {
		ws.mu.Unlock()
		defer ws.mu.Lock()
		if err := ws.stream.write(b); err != nil {
			return 0, err
		}
		return len(b), nil
	})
	return err
}

// sendLocked sends what is owed and p, through write, until that takes no more. n counts bytes of p.
func (ws *webSocket) sendLocked(p []byte, write func([]byte) (int, error)) (n int, err error) {
	buf := framePool.Get().(*[4 << 10]byte)
	defer framePool.Put(buf)
	for {
		if len(ws.owed) == 0 && ws.left == 0 {
			switch {
			case ws.control != nil:
				ws.owed, ws.control = ws.control, nil
			case ws.closed:
				return len(p), nil // nobody listens any more
			case n < len(p):
				ws.left = len(p) - n
				ws.owed = websocket.AppendHeader(ws.owed[:0], websocket.Binary, ws.left)
			default:
				return n, nil
			}
		}
		header := copy(buf[:], ws.owed)
		payload := 0
		if header == len(ws.owed) {
			payload = copy(buf[header:header+min(ws.left, len(buf)-header)], p[n:])
		}
		if header+payload == 0 {
			return n, nil // the frame wants bytes that the caller doesn't have
		}
		taken, err := write(buf[:header+payload])
		ofHeader := min(taken, len(ws.owed))
		ws.owed = ws.owed[ofHeader:]
		ws.left -= taken - ofHeader
		n += taken - ofHeader
		if err != nil || taken < header+payload {
			return n, err
		}
	}
}

func (ws *webSocket) sendClose() {
	ws.mu.Lock()
	code := ws.closing
	ws.mu.Unlock()
	ws.sendControl(websocket.AppendClose(nil, code), true)
}

func (ws *webSocket) linger(d time.Duration) {
	ws.sendClose()
	ws.stream.linger(d)
}

func (ws *webSocket) close() {
	ws.sendClose()
	ws.stream.close()
}
