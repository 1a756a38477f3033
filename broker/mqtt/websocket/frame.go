package websocket

import "encoding/binary"

// A frame (RFC 6455 §5.2):
//
//	FIN (1 bit) reserved (3) opcode (4) | MASK (1) length (7) | length (16 or 64, for 126 and 127) | masking key (32) | payload
//
// A client's frames are masked, a server's aren't.

// The opcodes.
const (
	Continuation byte = 0x0
	Text         byte = 0x1
	Binary       byte = 0x2
	Close        byte = 0x8
	Ping         byte = 0x9
	Pong         byte = 0xA
)

// Status codes of a Close frame, RFC 6455 §7.4.1.
const (
	NormalClosure   uint16 = 1000
	ProtocolError   uint16 = 1002
	UnsupportedData uint16 = 1003
	PolicyViolation uint16 = 1008
	MessageTooBig   uint16 = 1009
)

// Error is what a client's frame or handshake did wrong.
type Error struct {
	Code uint16 // of the Close frame that answers it
	What string // in fixed words that hold nothing the client sent
}

func (e *Error) Error() string { return e.What }

var (
	errReserved    = &Error{ProtocolError, "WebSocket frame with reserved bits, or a reserved opcode"}
	errUnmasked    = &Error{ProtocolError, "WebSocket frame that isn't masked"}
	errControl     = &Error{ProtocolError, "WebSocket control frame in fragments or of more than 125 bytes"}
	errSequence    = &Error{ProtocolError, "WebSocket fragments out of order"}
	errLength      = &Error{ProtocolError, "WebSocket frame with a length in more bytes than needed"}
	errClosePacket = &Error{ProtocolError, "WebSocket Close frame of one byte, or with a code that isn't one"}
	errText        = &Error{UnsupportedData, "WebSocket text message where MQTT is binary"} // MQTT-6.0.0-1
	errTooBig      = &Error{MessageTooBig, "WebSocket message larger than the limit"}
	errFragments   = &Error{PolicyViolation, "WebSocket message in too many empty fragments"}
)

const (
	maxHeader  = 14
	maxControl = 125 // bytes of a control frame's payload, RFC 6455 §5.5
	// MaxServerHeader is how long a frame header of ours gets, in bytes.
	MaxServerHeader = 10
	// maxEmpty fragments of a message may hold nothing. All others are bounded by the message's size.
	maxEmpty = 100
)

// Handler takes a client's control frames. payload is valid until it returns. An error ends the decoding.
type Handler interface {
	Control(opcode byte, payload []byte) error
}

// Decoder takes a client's frames apart, wherever reads cut them. The zero value, with a Limit, is ready. Not safe for
// concurrent use.
type Decoder struct {
	// Limit bounds a message, in bytes of its payload over all fragments.
	Limit int64

	header  [maxHeader]byte
	have    int    // bytes of header
	inFrame bool   // the header is complete and the payload isn't
	left    int64  // bytes of payload that are still to come
	at      int    // place in the masking key
	open    bool   // a message has begun and its last fragment hasn't
	size    int64  // bytes of that message, those announced included
	empty   int    // fragments of it without payload
	control []byte // payload of the control frame in hand
}

// Decode takes what was read, and moves the payload of data frames to the front of b, n bytes. Control frames go to h. After an
// error, an *Error or h's, the decoder is of no use any more.
func (d *Decoder) Decode(b []byte, h Handler) (n int, err error) {
	for i := 0; i < len(b); {
		if !d.inFrame {
			used, err := d.takeHeader(b[i:])
			i += used
			if err != nil {
				return 0, err
			}
			if !d.inFrame {
				break
			}
		}
		p := b[i : i+int(min(d.left, int64(len(b)-i)))]
		d.unmask(p)
		i += len(p)
		d.left -= int64(len(p))
		if !d.isControl() {
			n += copy(b[n:], p)
		} else {
			d.control = append(d.control, p...)
		}
		if d.left > 0 {
			break
		}
		d.inFrame, d.have = false, 0
		if d.isControl() {
			payload := d.control
			d.control = nil
			if err := control(d.opcode(), payload, h); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (d *Decoder) opcode() byte    { return d.header[0] & 0x0F }
func (d *Decoder) isControl() bool { return d.opcode() >= Close }

// takeHeader takes the bytes that the header lacks, as far as they are there.
func (d *Decoder) takeHeader(b []byte) (used int, err error) {
	for used < len(b) {
		d.header[d.have] = b[used]
		d.have++
		used++
		switch {
		case d.have < 2:
		case d.header[1]&0x80 == 0:
			return used, errUnmasked // RFC 6455 §5.1
		case d.have == 2+d.lengthBytes()+4:
			return used, d.begin()
		}
	}
	return used, nil
}

// lengthBytes is how many bytes the length has beyond the header's first two.
func (d *Decoder) lengthBytes() int {
	switch d.header[1] & 0x7F {
	case 126:
		return 2
	case 127:
		return 8
	}
	return 0
}

// begin checks a complete header.
func (d *Decoder) begin() error {
	length := uint64(d.header[1] & 0x7F)
	least := uint64(0)
	switch length {
	case 126:
		length, least = uint64(binary.BigEndian.Uint16(d.header[2:])), 126
	case 127:
		length, least = binary.BigEndian.Uint64(d.header[2:]), 1<<16
	}
	final := d.header[0]&0x80 != 0
	opcode := d.opcode()
	switch {
	case d.header[0]&0x70 != 0, opcode > Binary && opcode < Close, opcode > Pong:
		return errReserved
	case d.isControl() && (!final || length > maxControl):
		return errControl
	case length < least:
		return errLength
	case opcode == Text:
		return errText
	case !d.isControl() && (opcode == Continuation) != d.open:
		return errSequence
	}
	if !d.isControl() {
		if err := d.count(length, final); err != nil {
			return err
		}
	}
	d.inFrame, d.left, d.at = true, int64(length), 0
	return nil
}

// count adds a fragment to the message.
func (d *Decoder) count(length uint64, final bool) error {
	if length > uint64(d.Limit-d.size) {
		return errTooBig
	}
	d.size += int64(length)
	if length == 0 && !final {
		if d.empty++; d.empty > maxEmpty {
			return errFragments
		}
	}
	if d.open = !final; final {
		d.size, d.empty = 0, 0
	}
	return nil
}

// unmask takes the masking key off, RFC 6455 §5.3.
func (d *Decoder) unmask(p []byte) {
	key := d.header[d.have-4 : d.have]
	var eight [8]byte
	for i := range eight {
		eight[i] = key[(d.at+i)&3]
	}
	d.at = (d.at + len(p)) & 3
	word := binary.LittleEndian.Uint64(eight[:])
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, binary.LittleEndian.Uint64(p)^word)
		p = p[8:]
	}
	for i := range p {
		p[i] ^= eight[i]
	}
}

// control checks a control frame and hands it on.
func control(opcode byte, payload []byte, h Handler) error {
	if opcode == Close && len(payload) > 0 {
		if len(payload) == 1 || !validCode(binary.BigEndian.Uint16(payload)) {
			return errClosePacket
		}
	}
	return h.Control(opcode, payload)
}

// validCode says whether a Close frame may carry code, RFC 6455 §7.4.
func validCode(code uint16) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}

// AppendHeader appends the header of a server's frame that is a whole message.
func AppendHeader(b []byte, opcode byte, length int) []byte {
	b = append(b, 0x80|opcode)
	switch {
	case length < 126:
		return append(b, byte(length))
	case length < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 126), uint16(length))
	}
	return binary.BigEndian.AppendUint64(append(b, 127), uint64(length))
}

// AppendControl appends a control frame. Of a payload that is too long it takes what a control frame may have.
func AppendControl(b []byte, opcode byte, payload []byte) []byte {
	payload = payload[:min(len(payload), maxControl)]
	return append(AppendHeader(b, opcode, len(payload)), payload...)
}

// AppendClose appends a Close frame; code 0 stands for none.
func AppendClose(b []byte, code uint16) []byte {
	if code == 0 {
		return AppendControl(b, Close, nil)
	}
	return AppendControl(b, Close, binary.BigEndian.AppendUint16(nil, code))
}
