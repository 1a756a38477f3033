package wire

import "fmt"

// Reason codes of MQTT 5 §2.4 that a server sends or looks at.
const (
	Success                     byte = 0x00
	GrantedQoS0                 byte = 0x00
	GrantedQoS1                 byte = 0x01
	GrantedQoS2                 byte = 0x02
	DisconnectWithWill          byte = 0x04
	NoMatchingSubscribers       byte = 0x10
	NoSubscriptionExisted       byte = 0x11
	ContinueAuthentication      byte = 0x18
	ReAuthenticate              byte = 0x19
	UnspecifiedError            byte = 0x80
	MalformedPacket             byte = 0x81
	ProtocolError               byte = 0x82
	ImplementationSpecificError byte = 0x83
	UnsupportedProtocolVersion  byte = 0x84
	ClientIDNotValid            byte = 0x85
	BadUsernameOrPassword       byte = 0x86
	NotAuthorized               byte = 0x87
	ServerUnavailable           byte = 0x88
	ServerBusy                  byte = 0x89
	Banned                      byte = 0x8A
	ServerShuttingDown          byte = 0x8B
	BadAuthenticationMethod     byte = 0x8C
	KeepAliveTimeout            byte = 0x8D
	SessionTakenOver            byte = 0x8E
	TopicFilterInvalid          byte = 0x8F
	TopicNameInvalid            byte = 0x90
	PacketIDInUse               byte = 0x91
	PacketIDNotFound            byte = 0x92
	ReceiveMaximumExceeded      byte = 0x93
	TopicAliasInvalid           byte = 0x94
	PacketTooLarge              byte = 0x95
	MessageRateTooHigh          byte = 0x96
	QuotaExceeded               byte = 0x97
	AdministrativeAction        byte = 0x98
	PayloadFormatInvalid        byte = 0x99
	RetainNotSupported          byte = 0x9A
	QoSNotSupported             byte = 0x9B
	UseAnotherServer            byte = 0x9C
	ServerMoved                 byte = 0x9D
	SharedSubsNotSupported      byte = 0x9E
	ConnectionRateExceeded      byte = 0x9F
	MaximumConnectTime          byte = 0xA0
	SubIDsNotSupported          byte = 0xA1
	WildcardSubsNotSupported    byte = 0xA2
)

// Error says that a packet breaks the protocol or one of our limits. The
// connection it came from can't go on: Reason is the MQTT 5 code to close it
// with (CONNACK before, DISCONNECT after a session is established); What names
// the field, in fixed words that hold nothing the client sent.
type Error struct {
	Reason byte
	What   string
}

func (e *Error) Error() string { return fmt.Sprintf("mqtt: %s (0x%02X)", e.What, e.Reason) }

// malformed: the bytes can't be read as the packet they claim to be.
func malformed(what string) *Error { return &Error{Reason: MalformedPacket, What: what} }

// violation: well formed, but MQTT doesn't allow what it says.
func violation(what string) *Error { return &Error{Reason: ProtocolError, What: what} }

// overLimit: legal MQTT beyond a bound of ours.
func overLimit(what string) *Error { return &Error{Reason: QuotaExceeded, What: what} }

// recovered turns a decoder's panic into the error of that one packet. It must
// be deferred directly.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = malformed("undecodable packet")
	}
}

// connackCode311 maps a reason to the return code of MQTT 3.1.1 §3.2.2.3; ok is
// false where 3.1.1 has none: there the server closes without a CONNACK.
func connackCode311(reason byte) (code byte, ok bool) {
	switch reason {
	case Success:
		return 0, true
	case UnsupportedProtocolVersion:
		return 1, true
	case ClientIDNotValid:
		return 2, true
	case ServerUnavailable, ServerBusy, ServerShuttingDown, QuotaExceeded, ConnectionRateExceeded,
		UseAnotherServer, ServerMoved:
		return 3, true
	case BadUsernameOrPassword:
		return 4, true
	case NotAuthorized, Banned, BadAuthenticationMethod:
		return 5, true
	}
	return 0, false
}
