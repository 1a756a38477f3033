package wire

import (
	"bytes"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"
)

// DISCONNECT and AUTH, MQTT 5 §3.14 and §3.15:
//
//	1         reason code; absent: 0x00
//	varint+n  properties; DISCONNECT may leave them out, AUTH only with the reason code
//
// In MQTT 3.1.1 DISCONNECT has no body, and there is no AUTH.

// Disconnect is a DISCONNECT from a client.
type Disconnect struct {
	Reason           byte   // DisconnectWithWill asks for the will; so do all of 0x80 and above
	SessionExpiry    uint32 // seconds, if HasSessionExpiry. A protocol error if CONNECT's was 0 and this isn't
	HasSessionExpiry bool
}

// ParseDisconnect reads a DISCONNECT strictly; it returns an *Error.
func ParseDisconnect(h Header, body []byte, version byte) (d Disconnect, err error) {
	defer recovered(&err)
	if version != V5 {
		if len(body) != 0 {
			return d, malformed("DISCONNECT with a body")
		}
		return d, nil
	}
	if len(body) == 0 {
		return d, nil
	}
	d.Reason = body[0]
	if !disconnectReasonValid(d.Reason) {
		return d, violation("reason code a client's DISCONNECT can't carry")
	}
	if len(body) == 1 {
		return d, nil
	}
	var props properties
	n, e := props.walk(body[1:], disconnectProps)
	if e != nil {
		return d, e
	}
	if 1+n != len(body) {
		return d, malformed("bytes after DISCONNECT")
	}
	if props.has(propServerReference) {
		return d, violation("server reference from a client")
	}
	d.SessionExpiry, d.HasSessionExpiry = props.sessionExpiry, props.has(propSessionExpiry)
	return d, nil
}

// disconnectReasonValid holds the codes MQTT 5 §3.14.2.1 lets a client send.
func disconnectReasonValid(reason byte) bool {
	switch reason {
	case Success, DisconnectWithWill, UnspecifiedError, MalformedPacket, ProtocolError,
		ImplementationSpecificError, TopicNameInvalid, ReceiveMaximumExceeded, TopicAliasInvalid,
		PacketTooLarge, MessageRateTooHigh, QuotaExceeded, AdministrativeAction, PayloadFormatInvalid:
		return true
	}
	return false
}

// AppendDisconnect appends a version 5 DISCONNECT; a 3.1.1 server has none to
// send and just closes. reasonString may be empty, and must be when the client
// refused problem information.
func AppendDisconnect(dst []byte, reason byte, reasonString string) []byte {
	first := byte(DISCONNECT) << 4
	props := reasonStringSize(reasonString)
	if props == 0 {
		return append(dst, first, 1, reason)
	}
	dst = appendVarint(append(dst, first), 1+varintSize(props)+props)
	return appendReasonString(append(dst, reason), reasonString)
}

// AppendPingresp appends a PINGRESP.
func AppendPingresp(dst []byte) []byte { return append(dst, byte(PINGRESP)<<4, 0) }

// Auth is an AUTH. It shares no memory with the bytes it was parsed from.
type Auth struct {
	Reason    byte // Success, ContinueAuthentication or ReAuthenticate
	HasMethod bool
	Method    string
	Data      []byte
}

// ParseAuth reads an AUTH strictly; it returns an *Error.
func ParseAuth(h Header, body []byte, version byte) (a Auth, err error) {
	defer recovered(&err)
	if version != V5 {
		return a, malformed("reserved packet type 15")
	}
	if len(body) == 0 {
		return a, nil // packets refuses this, MQTT 5 §3.15.2.1 doesn't
	}
	var props properties
	n, e := props.walk(body[1:], authProps)
	if e != nil {
		return a, e
	}
	if 1+n != len(body) {
		return a, malformed("bytes after AUTH")
	}
	switch body[0] {
	case Success, ContinueAuthentication, ReAuthenticate:
	default:
		return a, violation("reason code AUTH can't carry")
	}
	if !props.has(propAuthMethod) {
		return a, violation("AUTH without a method") // MQTT 5 §3.15.2.2.2
	}
	pk := packets.Packet{
		FixedHeader:     packets.FixedHeader{Type: packets.Auth, Remaining: len(body)},
		ProtocolVersion: version,
	}
	if pk.AuthDecode(body) != nil {
		return a, malformed("AUTH")
	}
	return Auth{
		Reason:    pk.ReasonCode,
		HasMethod: true,
		Method:    strings.Clone(pk.Properties.AuthenticationMethod),
		Data:      bytes.Clone(pk.Properties.AuthenticationData),
	}, nil
}
