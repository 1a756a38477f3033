package record

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// EnvelopeKey is the key of the header that makes a record an MQTT message: it holds an Envelope.
const EnvelopeKey = "mqtt"

// TopicKey is the key of the header that holds the MQTT topic where the record's key is something else.
const TopicKey = "mqtt.topic"

// The MQTT envelope, the value of the header EnvelopeKey:
//
//	0  byte     bits 0-1 QoS of the PUBLISH, 2 retain, 3 expiry present, 4 properties present, 5-7 version, 0
//	1  uint32   incarnation of the gateway's process, big endian, random at each start
//	5  uvarint  length of the client id, and the client id
//	   [uint32] message expiry interval in seconds, big endian, if bit 3
//	   [rest]   MQTT 5 property bytes as on the wire, if bit 4
const (
	envelopeQoS        = 0x03
	envelopeRetain     = 0x04
	envelopeExpiry     = 0x08
	envelopeProperties = 0x10
	envelopeVersion    = 0xe0

	envelopeFixedBytes = 5
	maxClientIDBytes   = 65535 // MQTT 5 §1.5.4: a UTF-8 string's length is two bytes
)

// Envelope is what MQTT sessions and the audit need to know of a record that Kafka's fields don't say.
type Envelope struct {
	// QoS of the PUBLISH, 0 to 2.
	QoS byte
	// Retain is the PUBLISH's RETAIN flag.
	Retain bool
	// Incarnation tells one run of a gateway from any other, also from one of a copied device.
	Incarnation uint32
	// ClientID of the publisher.
	ClientID []byte
	// HasExpiry tells an expiry of 0 s from none.
	HasExpiry bool
	// ExpirySeconds is the message expiry interval as published (MQTT 5 §3.3.2.3.3).
	ExpirySeconds uint32
	// Properties are the PUBLISH's MQTT 5 properties that must be passed on unchanged (payload format, content type,
	// response topic, correlation data, user properties), as on the wire, without their length. Empty for none.
	Properties []byte
}

// ErrEnvelopeVersion says that a newer release wrote the envelope.
var ErrEnvelopeVersion = errors.New("mqtt envelope of a newer version")

// errEnvelope wraps what is wrong with an envelope.
const errEnvelope = malformed("malformed mqtt envelope")

// Append appends the encoded envelope to dst and returns it.
func (e *Envelope) Append(dst []byte) []byte {
	flags := e.QoS & envelopeQoS
	if e.Retain {
		flags |= envelopeRetain
	}
	if e.HasExpiry {
		flags |= envelopeExpiry
	}
	if len(e.Properties) > 0 {
		flags |= envelopeProperties
	}
	dst = append(dst, flags, byte(e.Incarnation>>24), byte(e.Incarnation>>16), byte(e.Incarnation>>8), byte(e.Incarnation))
	dst = binary.AppendUvarint(dst, uint64(len(e.ClientID)))
	dst = append(dst, e.ClientID...)
	if e.HasExpiry {
		dst = binary.BigEndian.AppendUint32(dst, e.ExpirySeconds)
	}
	return append(dst, e.Properties...)
}

// ParseEnvelope decodes an envelope; ClientID and Properties alias b. It doesn't look into the properties. Errors:
// ErrEnvelopeVersion for one that a newer release wrote, others for malformed bytes.
func ParseEnvelope(b []byte) (Envelope, error) {
	if len(b) > 0 && b[0]&envelopeVersion != 0 {
		return Envelope{}, ErrEnvelopeVersion
	}
	if len(b) <= envelopeFixedBytes {
		return Envelope{}, fmt.Errorf("%w: %d bytes", errEnvelope, len(b))
	}
	flags := b[0]
	e := Envelope{
		QoS:         flags & envelopeQoS,
		Retain:      flags&envelopeRetain != 0,
		HasExpiry:   flags&envelopeExpiry != 0,
		Incarnation: binary.BigEndian.Uint32(b[1:]),
	}
	if e.QoS > 2 {
		return Envelope{}, fmt.Errorf("%w: QoS %d", errEnvelope, e.QoS)
	}
	rest := b[envelopeFixedBytes:]
	n, used := binary.Uvarint(rest)
	if used <= 0 || n > maxClientIDBytes || n > uint64(len(rest)-used) {
		return Envelope{}, fmt.Errorf("%w: client id", errEnvelope)
	}
	e.ClientID, rest = rest[used:used+int(n)], rest[used+int(n):]
	if e.HasExpiry {
		if len(rest) < 4 {
			return Envelope{}, fmt.Errorf("%w: expiry", errEnvelope)
		}
		e.ExpirySeconds, rest = binary.BigEndian.Uint32(rest), rest[4:]
	}
	if (flags&envelopeProperties != 0) != (len(rest) > 0) {
		return Envelope{}, fmt.Errorf("%w: %d bytes of properties", errEnvelope, len(rest))
	}
	if len(rest) > 0 {
		e.Properties = rest
	}
	return e, nil
}
