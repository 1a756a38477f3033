package mqtt

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// Options say how the door behaves. Start from DefaultOptions; a field at zero is given its default.
type Options struct {
	Listeners []Listener
	// Access says who may connect and what for; nil: whoever reaches a listener may do everything.
	Access *auth.Authenticator
	// MaxConnections is how many clients may be connected; further ones are refused in CONNACK.
	MaxConnections int
	// MaxSessions is how many sessions there may be, of connected clients and of those that are away. Clients that would need
	// one more are refused in CONNACK.
	MaxSessions int
	// MaxSessionExpiry in seconds is how long a session is kept at most while its client is away.
	MaxSessionExpiry uint32
	// SessionMaxMessages, SessionMaxBytes and SessionMaxAge bound what a session that was away is given of what came meanwhile:
	// the oldest so many messages and bytes of topic and payload, and nothing older. 0: no bound but the log's.
	SessionMaxMessages int64
	SessionMaxBytes    int64
	SessionMaxAge      time.Duration
	// MaxConnections, MaxPerAddress and ConnectRate may be changed while the server runs; see SetLimits.
	// MaxPerAddress is how many connections one address may have, an IPv6 network of 64 bits counting as one. Loopback and unix
	// sockets aren't counted: who is on this machine has other ways. What is beyond is closed at once.
	MaxPerAddress int
	// ConnectRate is how many connections a second are taken, over all listeners, once so many came at once. Those beyond it aren't
	// refused but wait to be accepted.
	ConnectRate int
	// MaxPacketBytes is the largest packet taken from a client, fixed header included.
	MaxPacketBytes int
	// ReceiveMaximum is how many QoS 1 and 2 messages a version 5 client may have unacknowledged.
	ReceiveMaximum uint16
	// ConnectTimeout is how long a client may take from its connection to a complete CONNECT and its session, with everything
	// that comes before CONNECT: PROXY header, TLS, WebSocket.
	ConnectTimeout time.Duration
	// InflightBytes of a connection's messages may wait for their commit. Beyond it the connection isn't read from.
	InflightBytes int
	// PartialBytes of packets that have begun to arrive may be held, over all connections. Beyond it large packets wait.
	PartialBytes int64
	// ReadBuffers is how many connections may have a read in hand at once; the rest waits its turn.
	ReadBuffers int
	// QueueBytes bounds what waits to be written to one slow subscriber. Beyond it QoS 1 and 2 messages are read from the log
	// once there is room; those of QoS 0, and what isn't stored, are dropped and counted.
	QueueBytes int
	// QueueTotalBytes bounds what waits for all subscribers together.
	QueueTotalBytes int64
	// SendWindow is how many QoS 1 and 2 messages a subscriber is sent before it acknowledges one. A version 5 client's receive
	// maximum lowers it.
	SendWindow int
	// MaxSubscriptions is how many filters one session may subscribe to.
	MaxSubscriptions int
	// FilterTotalBytes bounds the filters of all sessions together, WillTotalBytes their wills.
	FilterTotalBytes int64
	WillTotalBytes   int64
	// MaxRetainedMessages and MaxRetainedBytes bound what is retained, beside what was before the limits were lowered. A message
	// counts with its topic, properties, client id, and 250 bytes.
	MaxRetainedMessages int
	MaxRetainedBytes    int64
	// TopicAliasMaximum is how many topic aliases a version 5 client may set. Below 0: none.
	TopicAliasMaximum int
	// MaxKeepAlive is the longest keepalive of a version 5 client, in whole seconds; longer ones and none become this. 0: any.
	MaxKeepAlive time.Duration
	// ResponsePrefix, with the client id behind it, is told a version 5 client that asks for response information. Empty: none is.
	ResponsePrefix string
	// SysInterval is the time between two updates of the $SYS topics. Below 0: there are none.
	SysInterval time.Duration
	// Version is that of the broker, for $SYS.
	Version string
	// Incarnation marks what this run of the process stores; see record.Envelope.
	Incarnation uint32
}

// DefaultOptions are those of a gateway with 64 MiB of memory and up.
func DefaultOptions() Options {
	return Options{
		Listeners:        []Listener{{Address: "localhost:1883"}},
		MaxConnections:   2000,
		MaxSessions:      10000,
		MaxSessionExpiry: 30 * 24 * 3600,
		MaxPerAddress:    1000,
		ConnectRate:      1000,
		MaxPacketBytes:   256 << 10,
		ReceiveMaximum:   64,
		ConnectTimeout:   10 * time.Second,
		InflightBytes:    64 << 10,
		PartialBytes:     8 << 20,
		ReadBuffers:      128,
		QueueBytes:       256 << 10,
		QueueTotalBytes:  8 << 20,
		SendWindow:       64,
		MaxSubscriptions: 100,
		FilterTotalBytes: 8 << 20,
		WillTotalBytes:   4 << 20,

		MaxRetainedMessages: 10000,
		MaxRetainedBytes:    4 << 20,
		TopicAliasMaximum:   16,
		SysInterval:         10 * time.Second,
	}
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	d := DefaultOptions()
	if len(o.Listeners) == 0 {
		o.Listeners = d.Listeners
	}
	fill(&o.MaxConnections, d.MaxConnections)
	fill(&o.MaxSessions, d.MaxSessions)
	fill(&o.MaxSessionExpiry, d.MaxSessionExpiry)
	fill(&o.MaxPerAddress, d.MaxPerAddress)
	fill(&o.ConnectRate, d.ConnectRate)
	fill(&o.MaxPacketBytes, d.MaxPacketBytes)
	fill(&o.ReceiveMaximum, d.ReceiveMaximum)
	fill(&o.ConnectTimeout, d.ConnectTimeout)
	fill(&o.InflightBytes, d.InflightBytes)
	fill(&o.PartialBytes, d.PartialBytes)
	fill(&o.ReadBuffers, d.ReadBuffers)
	fill(&o.QueueBytes, d.QueueBytes)
	fill(&o.QueueTotalBytes, d.QueueTotalBytes)
	fill(&o.SendWindow, d.SendWindow)
	fill(&o.MaxSubscriptions, d.MaxSubscriptions)
	fill(&o.FilterTotalBytes, d.FilterTotalBytes)
	fill(&o.WillTotalBytes, d.WillTotalBytes)
	fill(&o.MaxRetainedMessages, d.MaxRetainedMessages)
	fill(&o.MaxRetainedBytes, d.MaxRetainedBytes)
	fill(&o.TopicAliasMaximum, d.TopicAliasMaximum)
	fill(&o.SysInterval, d.SysInterval)
	return o
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate says what is wrong, all of it. It takes zero fields for their defaults.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	for _, l := range o.Listeners {
		for _, problem := range l.Validate() {
			errs = append(errs, fmt.Errorf("mqtt listener %q: %w", l.Address, problem))
		}
		errs = append(errs, o.checkExposure(l))
	}
	atLeast := func(name string, value, least int64) {
		if value < least {
			errs = append(errs, fmt.Errorf("mqtt %s is %d; at least %d is needed", name, value, least))
		}
	}
	atLeast("max connections", int64(o.MaxConnections), 1)
	atLeast("max sessions", int64(o.MaxSessions), 1)
	atLeast("session max messages", o.SessionMaxMessages, 0)
	atLeast("session max bytes", o.SessionMaxBytes, 0)
	atLeast("session max age in ns", int64(o.SessionMaxAge), 0)
	atLeast("max per address", int64(o.MaxPerAddress), 1)
	atLeast("connect rate", int64(o.ConnectRate), 1)
	atLeast("max packet bytes", int64(o.MaxPacketBytes), 128)
	atLeast("connect timeout in ms", o.ConnectTimeout.Milliseconds(), 1)
	atLeast("in-flight bytes", int64(o.InflightBytes), 1)
	atLeast("partial bytes", o.PartialBytes, int64(o.MaxPacketBytes))
	atLeast("read buffers", int64(o.ReadBuffers), 1)
	atLeast("queue bytes", int64(o.QueueBytes), 1)
	atLeast("queue total bytes", o.QueueTotalBytes, 1)
	atLeast("send window", int64(o.SendWindow), 1)
	atLeast("max subscriptions", int64(o.MaxSubscriptions), 1)
	atLeast("filter total bytes", o.FilterTotalBytes, 1)
	atLeast("will total bytes", o.WillTotalBytes, 1)
	atMost := func(name string, value, most int64) {
		if value > most {
			errs = append(errs, fmt.Errorf("mqtt %s is %d; at most %d is allowed", name, value, most))
		}
	}
	atMost("send window", int64(o.SendWindow), maxSendWindow)
	atLeast("max retained messages", int64(o.MaxRetainedMessages), 1)
	atLeast("max retained bytes", o.MaxRetainedBytes, 1)
	atMost("topic alias maximum", int64(o.TopicAliasMaximum), maxTopicAliases)
	atMost("max keepalive in s", int64(o.MaxKeepAlive/time.Second), 65535)
	if o.MaxKeepAlive != 0 {
		atLeast("max keepalive in s", int64(o.MaxKeepAlive/time.Second), 1)
	}
	if p := o.ResponsePrefix; p != "" && (topics.ValidTopic(p) != nil || p[0] == '$') {
		errs = append(errs, fmt.Errorf("mqtt response prefix %q can't begin a topic; use for example \"response/\"", p))
	}
	return errors.Join(errs...)
}

// maxTopicAliases keeps a connection's table of aliases small: whoever sets the last one has it.
const maxTopicAliases = 1024

// maxSendWindow keeps the list of unacknowledged packet ids short enough to be walked.
const maxSendWindow = 256

// checkExposure says whether a listener may be reached from other machines: its clients have to be known, or expressly not.
func (o Options) checkExposure(l Listener) error {
	if l.Local() || l.Certifies() || l.AllowAnonymous || o.Access != nil {
		return nil
	}
	return fmt.Errorf("mqtt listener %q is not a loopback address and lets everybody in; give it passwords, or allow anonymous clients", l.Address)
}

// Router says where messages are stored.
type Router interface {
	// Route says where a message to topic goes: the partition and the record key. The key is appended to dst, or is
	// topic itself (keyIsTopic). p is nil for what isn't stored. ok says whether a route takes the topic: one that says log: none has no
	// p, and topics that begin with $ have neither. It is a pure function of topic, safe for concurrent use, and allocates only
	// when dst is too small.
	Route(topic, dst []byte) (p *segment.Partition, key []byte, keyIsTopic, ok bool)
}
