package retained

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluicemq/sluice/segment/record"
)

// Retained messages in the log's state:
//
//	key    "retain/" topic, or, where that is too long for a key, "retain#" and the topic's SHA-256 in 32 bytes
//	value  0  byte     bit 0 the topic is here as well, 1-7 version, 0
//	       1  int64    the log's timestamp in ms of when it was stored, big endian
//	       9  uvarint  length of the envelope, and the envelope as a record has it
//	          [uvarint length of the topic, and the topic, if bit 0]
//	          rest     payload
const (
	// KeyPrefix begins the key of every retained message, and of nothing else.
	KeyPrefix = "retain"

	plainPrefix  = KeyPrefix + "/"
	hashedPrefix = KeyPrefix + "#"

	valueTopic      = 0x01
	valueVersion    = 0xfe
	valueFixedBytes = 9
)

// ErrVersion says that a newer release stored the message.
var ErrVersion = errors.New("retained message of a newer version")

// errValue wraps what is wrong with a stored message.
var errValue = errors.New("malformed retained message")

// Codec knows how long a key may be.
type Codec struct {
	// MaxKeyBytes is the longest key that the state takes, at least 64.
	MaxKeyBytes int
}

func (c Codec) fits(topic string) bool { return len(plainPrefix)+len(topic) <= c.MaxKeyBytes }

// AppendKey appends the key of a topic's message.
func (c Codec) AppendKey(dst []byte, topic string) []byte {
	if c.fits(topic) {
		return append(append(dst, plainPrefix...), topic...)
	}
	sum := sha256.Sum256([]byte(topic))
	return append(append(dst, hashedPrefix...), sum[:]...)
}

// AppendValue appends the value that stores m.
func (c Codec) AppendValue(dst []byte, m *Message, incarnation uint32) []byte {
	flags := byte(0)
	if !c.fits(m.Topic) {
		flags = valueTopic
	}
	dst = append(dst, flags)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Stamp))
	e := record.Envelope{
		QoS: m.QoS, Retain: true, Incarnation: incarnation, ClientID: []byte(m.Publisher),
		HasExpiry: m.HasExpiry, ExpirySeconds: m.Expiry, Properties: m.Properties,
	}
	var scratch [128]byte
	envelope := e.Append(scratch[:0])
	dst = binary.AppendUvarint(dst, uint64(len(envelope)))
	dst = append(dst, envelope...)
	if flags&valueTopic != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(m.Topic)))
		dst = append(dst, m.Topic...)
	}
	return append(dst, m.Payload...)
}

// Decode takes a key and its value apart. The message shares no memory with them. Errors: ErrVersion, and others for malformed
// bytes.
func (c Codec) Decode(key, value []byte) (*Message, error) {
	if len(value) > 0 && value[0]&valueVersion != 0 {
		return nil, ErrVersion
	}
	if len(value) < valueFixedBytes {
		return nil, fmt.Errorf("%w: %d bytes", errValue, len(value))
	}
	stamp := int64(binary.BigEndian.Uint64(value[1:]))
	envelope, rest, ok := cutText(value[valueFixedBytes:])
	if !ok {
		return nil, fmt.Errorf("%w: envelope", errValue)
	}
	e, err := record.ParseEnvelope(envelope)
	if errors.Is(err, record.ErrEnvelopeVersion) {
		return nil, ErrVersion
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errValue, err)
	}
	var topic []byte
	if value[0]&valueTopic != 0 {
		if topic, rest, ok = cutText(rest); !ok {
			return nil, fmt.Errorf("%w: topic", errValue)
		}
	} else if len(key) > len(plainPrefix) && string(key[:len(plainPrefix)]) == plainPrefix {
		topic = key[len(plainPrefix):]
	}
	if len(topic) == 0 || len(topic) > maxTopicBytes || string(c.AppendKey(nil, string(topic))) != string(key) {
		return nil, fmt.Errorf("%w: key of another topic", errValue)
	}
	if len(rest) == 0 {
		return nil, fmt.Errorf("%w: no payload", errValue)
	}
	return NewMessage(Message{
		Topic: string(topic), Payload: rest, Properties: e.Properties, Publisher: string(e.ClientID),
		Stamp: stamp, Expiry: e.ExpirySeconds, HasExpiry: e.HasExpiry, QoS: e.QoS,
	}), nil
}

// maxTopicBytes is the longest topic (MQTT 5 §4.7.3).
const maxTopicBytes = 65535

// cutText splits a length and that many bytes off b.
func cutText(b []byte) (text, rest []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, false
	}
	return b[used : used+int(n)], b[used+int(n):], true
}
