package wire

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"
)

// CONNECT, MQTT 5 §3.1 (MQTT 3.1.1 has no properties):
//
//	2 + 4     protocol name "MQTT"
//	1         protocol level: 4 or 5
//	1         flags: 7 user name, 6 password, 5 will retain, 4-3 will QoS, 2 will, 1 clean, 0 reserved
//	2         keep alive in seconds
//	varint+n  properties
//	2 + n     client id
//	varint+n  will properties ┐
//	2 + n     will topic      ├ with the will flag
//	2 + n     will payload    ┘
//	2 + n     user name         with its flag
//	2 + n     password          with its flag
const (
	connectReserved   = 1 << 0
	connectClean      = 1 << 1
	connectWill       = 1 << 2
	connectWillRetain = 1 << 5
	connectPassword   = 1 << 6
	connectUsername   = 1 << 7
)

// Connect is a CONNECT. It shares no memory with the bytes it was parsed from.
type Connect struct {
	Version     byte   // V311 or V5
	CleanStart  bool   // version 3.1.1: clean session
	KeepAlive   uint16 // seconds, 0: none
	ClientID    string // empty: the server assigns one
	Will        *Will  // nil: none
	HasUsername bool
	HasPassword bool
	Username    string
	Password    []byte

	// Version 5 only, at their defaults in 3.1.1.

	SessionExpiry       uint32 // seconds after the connection ends; 0xFFFFFFFF: never
	HasSessionExpiry    bool
	ReceiveMaximum      uint16 // QoS 1 and 2 PUBLISHes the client takes unacknowledged; 65,535 unless given
	MaximumPacketSize   uint32 // largest packet the client takes, in bytes; 0: any
	TopicAliasMaximum   uint16 // aliases the client takes, 0: none
	RequestProblemInfo  bool   // reason strings are welcome; true unless given
	RequestResponseInfo bool
	HasAuthMethod       bool
	AuthMethod          string
	AuthData            []byte
}

// Will is the message to publish when the connection ends without a DISCONNECT
// that says otherwise.
type Will struct {
	Topic     string
	Payload   []byte
	Raw       []byte // forwardable properties, as PublishProps.Raw
	Delay     uint32 // seconds after the connection ends
	Expiry    uint32 // message expiry interval in seconds, if HasExpiry
	QoS       byte
	Retain    bool
	HasExpiry bool
	UTF8      bool // payload format indicator 1
}

// ConnectVersion looks at the protocol level that the body of a CONNECT asks
// for, so that a refusal can be answered in a form the client reads: V5 for
// level 5 and above, V311 for everything older, "MQIsdp" included, and 0 when
// the protocol isn't MQTT at all (then close without a CONNACK).
func ConnectVersion(body []byte) byte {
	for _, name := range []string{"\x00\x04MQTT", "\x00\x06MQIsdp"} {
		if len(body) > len(name) && string(body[:len(name)]) == name {
			if len(name) == 6 && body[6] >= V5 {
				return V5
			}
			return V311
		}
	}
	return 0
}

// ParseConnect reads a CONNECT strictly. On an *Error ask ConnectVersion how to
// answer. What it allocates is bounded by a small multiple of len(body).
func ParseConnect(h Header, body []byte) (c *Connect, err error) {
	defer func() {
		if err != nil {
			c = nil
		}
	}()
	defer recovered(&err)
	w, e := walkConnect(body)
	if e != nil {
		return nil, e
	}
	pk := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Connect, Remaining: len(body)},
		ProtocolVersion: w.version,
	}
	if pk.ConnectDecode(body) != nil {
		return nil, malformed("CONNECT")
	}
	return w.connect(&pk), nil
}

// connectWalk is what the strict walk found beside what packets decodes.
type connectWalk struct {
	version byte
	flags   byte
	props   properties
	will    properties
}

func walkConnect(b []byte) (w *connectWalk, e *Error) {
	w = &connectWalk{}
	if e := w.protocol(b); e != nil {
		return nil, e
	}
	off := 10
	if w.version == V5 {
		n, e := w.props.walk(b[off:], connectProps)
		if e != nil {
			return nil, e
		}
		if w.props.has(propAuthData) && !w.props.has(propAuthMethod) {
			return nil, violation("authentication data without a method") // MQTT 5 §3.1.2.11.10
		}
		off += n
	}
	n, e := stringSize(b[off:])
	if e != nil {
		return nil, e
	}
	if n-2 > MaxClientIDBytes {
		return nil, &Error{ClientIDNotValid, "client id too long"}
	}
	if n == 2 && w.version == V311 && w.flags&connectClean == 0 {
		return nil, &Error{ClientIDNotValid, "empty client id without clean session"} // MQTT 3.1.1 §3.1.3.1
	}
	off += n
	if w.flags&connectWill != 0 {
		n, e := w.walkWill(b[off:])
		if e != nil {
			return nil, e
		}
		off += n
	}
	return w, w.credentials(b[off:])
}

// protocol reads the ten bytes before the properties.
func (w *connectWalk) protocol(b []byte) *Error {
	const name = "\x00\x04MQTT"
	if len(b) < 10 || string(b[:6]) != name {
		if ConnectVersion(b) != 0 {
			return &Error{UnsupportedProtocolVersion, "protocol version"}
		}
		return &Error{UnsupportedProtocolVersion, "protocol name"}
	}
	w.version, w.flags = b[6], b[7]
	if w.version != V311 && w.version != V5 {
		return &Error{UnsupportedProtocolVersion, "protocol version"}
	}
	if w.flags&connectReserved != 0 {
		return malformed("reserved flag of CONNECT") // MQTT 5 §3.1.2.3
	}
	willQoS := w.flags >> 3 & 3
	if willQoS == 3 {
		return malformed("will QoS 3") // MQTT 5 §3.1.2.6
	}
	if w.flags&connectWill == 0 && (willQoS != 0 || w.flags&connectWillRetain != 0) {
		return malformed("will QoS or will retain without a will")
	}
	if w.version == V311 && w.flags&connectPassword != 0 && w.flags&connectUsername == 0 {
		return malformed("password without a user name") // MQTT 3.1.1 §3.1.2.9; legal in 5
	}
	return nil
}

func (w *connectWalk) walkWill(b []byte) (int, *Error) {
	off := 0
	if w.version == V5 {
		n, e := w.will.walk(b, willProps)
		if e != nil {
			return 0, e
		}
		off = n
	}
	n, e := binarySize(b[off:])
	if e != nil {
		return 0, e
	}
	if n == 2 {
		return 0, malformed("empty will topic")
	}
	if e := checkTopic(b[off+2 : off+n]); e != nil {
		return 0, e
	}
	off += n
	n, e = binarySize(b[off:])
	return off + n, e
}

// credentials reads user name and password, which end the packet.
func (w *connectWalk) credentials(b []byte) *Error {
	if w.flags&connectUsername != 0 {
		n, e := stringSize(b)
		if e != nil {
			return e
		}
		b = b[n:]
	}
	if w.flags&connectPassword != 0 {
		n, e := binarySize(b)
		if e != nil {
			return e
		}
		b = b[n:]
	}
	if len(b) != 0 {
		return malformed("bytes after CONNECT")
	}
	return nil
}

// connect copies what pk aliases. Presence of zero values and the raw bytes of
// the will's properties come from the walk: packets can't tell them.
func (w *connectWalk) connect(pk *packets.Packet) *Connect {
	in, props := &pk.Connect, &pk.Properties
	c := &Connect{
		Version:             w.version,
		CleanStart:          in.Clean,
		KeepAlive:           in.Keepalive,
		ClientID:            strings.Clone(in.ClientIdentifier),
		HasUsername:         in.UsernameFlag,
		HasPassword:         in.PasswordFlag,
		Username:            string(in.Username),
		Password:            bytes.Clone(in.Password),
		SessionExpiry:       props.SessionExpiryInterval,
		HasSessionExpiry:    w.props.has(propSessionExpiry),
		ReceiveMaximum:      65535,
		MaximumPacketSize:   props.MaximumPacketSize,
		TopicAliasMaximum:   props.TopicAliasMaximum,
		RequestProblemInfo:  !w.props.noProblemInfo,
		RequestResponseInfo: w.props.responseInfo,
		HasAuthMethod:       w.props.has(propAuthMethod),
		AuthMethod:          strings.Clone(props.AuthenticationMethod),
		AuthData:            bytes.Clone(props.AuthenticationData),
	}
	if w.props.has(propReceiveMaximum) {
		c.ReceiveMaximum = props.ReceiveMaximum
	}
	if in.WillFlag {
		c.Will = &Will{
			Topic:     strings.Clone(in.WillTopic),
			Payload:   bytes.Clone(in.WillPayload),
			Raw:       bytes.Clone(w.will.raw),
			Delay:     in.WillProperties.WillDelayInterval,
			Expiry:    w.will.expiry,
			QoS:       in.WillQos,
			Retain:    in.WillRetain,
			HasExpiry: w.will.has(propMessageExpiry),
			UTF8:      w.will.utf8,
		}
	}
	return c
}

// Connack is a CONNACK. Only SessionPresent and Reason mean something in
// version 3.1.1; properties at their zero value are left out.
type Connack struct {
	SessionPresent    bool
	Reason            byte   // MQTT 5 reason code in either version
	ReceiveMaximum    uint16 // QoS 1 and 2 PUBLISHes the server takes unacknowledged
	TopicAliasMaximum uint16
	ServerKeepAlive   uint16 // seconds, if HasServerKeepAlive
	MaximumQoS        byte   // 0 or 1, if HasMaximumQoS
	SessionExpiry     uint32 // seconds, if HasSessionExpiry: what the server uses instead of what was asked
	MaximumPacketSize uint32 // bytes
	AssignedClientID  string
	ResponseInfo      string // only for a client that asked for it (MQTT 5 §3.2.2.3.15)
	ReasonString      string // leave empty when problem information was refused

	HasServerKeepAlive bool
	HasMaximumQoS      bool
	HasSessionExpiry   bool
	NoRetain           bool // retained messages are not supported
	NoWildcards        bool // wildcard filters are not supported
	NoSubscriptionIDs  bool
	NoShared           bool // shared subscriptions are not supported
}

// AppendConnack appends c. In version 3.1.1 the reason becomes a return code;
// where none fits (malformed packets, for one) nothing is appended and the
// connection is just to be closed.
func AppendConnack(dst []byte, version byte, c *Connack) []byte {
	present := byte(0)
	if c.SessionPresent && c.Reason == Success {
		present = 1
	}
	if version != V5 {
		code, ok := connackCode311(c.Reason)
		if !ok {
			return dst
		}
		return append(dst, byte(CONNACK)<<4, 2, present, code)
	}
	var scratch [128]byte
	props := c.appendProps(scratch[:0])
	n := 2 + varintSize(len(props)) + len(props)
	dst = append(dst, byte(CONNACK)<<4)
	dst = appendVarint(dst, n)
	dst = append(dst, present, c.Reason)
	dst = appendVarint(dst, len(props))
	return append(dst, props...)
}

func (c *Connack) appendProps(b []byte) []byte {
	if c.HasSessionExpiry {
		b = binary.BigEndian.AppendUint32(append(b, propSessionExpiry), c.SessionExpiry)
	}
	if c.ReceiveMaximum != 0 {
		b = binary.BigEndian.AppendUint16(append(b, propReceiveMaximum), c.ReceiveMaximum)
	}
	if c.HasMaximumQoS {
		b = append(b, propMaximumQoS, c.MaximumQoS)
	}
	if c.NoRetain {
		b = append(b, propRetainAvailable, 0)
	}
	if c.MaximumPacketSize != 0 {
		b = binary.BigEndian.AppendUint32(append(b, propMaximumPacketSize), c.MaximumPacketSize)
	}
	if c.AssignedClientID != "" {
		b = appendStringProp(b, propAssignedClientID, c.AssignedClientID)
	}
	if c.TopicAliasMaximum != 0 {
		b = binary.BigEndian.AppendUint16(append(b, propTopicAliasMaximum), c.TopicAliasMaximum)
	}
	if c.ReasonString != "" {
		b = appendStringProp(b, propReasonString, c.ReasonString)
	}
	if c.NoWildcards {
		b = append(b, propWildcardAvailable, 0)
	}
	if c.NoSubscriptionIDs {
		b = append(b, propSubIDAvailable, 0)
	}
	if c.NoShared {
		b = append(b, propSharedAvailable, 0)
	}
	if c.HasServerKeepAlive {
		b = binary.BigEndian.AppendUint16(append(b, propServerKeepAlive), c.ServerKeepAlive)
	}
	if c.ResponseInfo != "" {
		b = appendStringProp(b, propResponseInfo, c.ResponseInfo)
	}
	return b
}

// appendStringProp appends a string property. A string that doesn't fit its
// length field is a mistake of ours, never a client's.
func appendStringProp(b []byte, id byte, s string) []byte {
	if len(s) > 0xFFFF {
		s = s[:0]
	}
	b = binary.BigEndian.AppendUint16(append(b, id), uint16(len(s)))
	return append(b, s...)
}
