package mqtt

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// Listener is one address to listen on.
type Listener struct {
	// Address is host:port with a loopback host. "localhost" means 127.0.0.1 and, where there is one, ::1. Port 0 takes a
	// free one.
	Address string
}

// Options say how the door behaves. Start from DefaultOptions; a field at zero is given its default.
type Options struct {
	Listeners []Listener
	// MaxConnections is how many sessions there may be; further ones are refused in CONNACK.
	MaxConnections int
	// MaxPacketBytes is the largest packet taken from a client, fixed header included.
	MaxPacketBytes int
	// ReceiveMaximum is how many QoS 1 and 2 messages a version 5 client may have unacknowledged.
	ReceiveMaximum uint16
	// ConnectTimeout is how long a client may take from TCP connection to a complete CONNECT and its session.
	ConnectTimeout time.Duration
	// InflightBytes of a connection's messages may wait for their commit. Beyond it the connection isn't read from.
	InflightBytes int
	// PartialBytes of packets that have begun to arrive may be held, over all connections. Beyond it large packets wait.
	PartialBytes int64
	// ReadBuffers is how many connections may have a read in hand at once; the rest waits its turn.
	ReadBuffers int
	// QueueBytes and QueueMessages bound what waits for one slow subscriber. Beyond either messages are dropped and counted.
	QueueBytes    int
	QueueMessages int
	// QueueTotalBytes bounds what waits for all subscribers together.
	QueueTotalBytes int64
	// SendWindow is how many QoS 1 and 2 messages a subscriber is sent before it acknowledges one. A version 5 client's receive
	// maximum lowers it.
	SendWindow int
	// MaxSubscriptions is how many filters one session may subscribe to.
	MaxSubscriptions int
	// Incarnation marks what this run of the process stores; see record.Envelope.
	Incarnation uint32
}

// DefaultOptions are those of a gateway with 64 MiB of memory and up.
func DefaultOptions() Options {
	return Options{
		Listeners:        []Listener{{Address: "localhost:1883"}},
		MaxConnections:   2000,
		MaxPacketBytes:   256 << 10,
		ReceiveMaximum:   64,
		ConnectTimeout:   10 * time.Second,
		InflightBytes:    64 << 10,
		PartialBytes:     8 << 20,
		ReadBuffers:      128,
		QueueBytes:       256 << 10,
		QueueMessages:    1000,
		QueueTotalBytes:  8 << 20,
		SendWindow:       64,
		MaxSubscriptions: 100,
	}
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	d := DefaultOptions()
	if len(o.Listeners) == 0 {
		o.Listeners = d.Listeners
	}
	fill(&o.MaxConnections, d.MaxConnections)
	fill(&o.MaxPacketBytes, d.MaxPacketBytes)
	fill(&o.ReceiveMaximum, d.ReceiveMaximum)
	fill(&o.ConnectTimeout, d.ConnectTimeout)
	fill(&o.InflightBytes, d.InflightBytes)
	fill(&o.PartialBytes, d.PartialBytes)
	fill(&o.ReadBuffers, d.ReadBuffers)
	fill(&o.QueueBytes, d.QueueBytes)
	fill(&o.QueueMessages, d.QueueMessages)
	fill(&o.QueueTotalBytes, d.QueueTotalBytes)
	fill(&o.SendWindow, d.SendWindow)
	fill(&o.MaxSubscriptions, d.MaxSubscriptions)
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
		errs = append(errs, l.Validate())
	}
	atLeast := func(name string, value, least int64) {
		if value < least {
			errs = append(errs, fmt.Errorf("mqtt %s is %d; at least %d is needed", name, value, least))
		}
	}
	atLeast("max connections", int64(o.MaxConnections), 1)
	atLeast("max packet bytes", int64(o.MaxPacketBytes), 128)
	atLeast("connect timeout in ms", o.ConnectTimeout.Milliseconds(), 1)
	atLeast("in-flight bytes", int64(o.InflightBytes), 1)
	atLeast("partial bytes", o.PartialBytes, int64(o.MaxPacketBytes))
	atLeast("read buffers", int64(o.ReadBuffers), 1)
	atLeast("queue bytes", int64(o.QueueBytes), 1)
	atLeast("queue messages", int64(o.QueueMessages), 1)
	atLeast("queue total bytes", o.QueueTotalBytes, 1)
	atLeast("send window", int64(o.SendWindow), 1)
	atLeast("max subscriptions", int64(o.MaxSubscriptions), 1)
	if o.SendWindow > maxSendWindow {
		errs = append(errs, fmt.Errorf("mqtt send window is %d; at most %d is allowed", o.SendWindow, maxSendWindow))
	}
	return errors.Join(errs...)
}

// maxSendWindow keeps the list of unacknowledged packet ids short enough to be walked.
const maxSendWindow = 256

// Validate says what is wrong with the address. There is no authentication, so only loopback will do.
func (l Listener) Validate() error {
	_, err := l.addresses()
	return err
}

// addresses are the loopback addresses that l stands for.
func (l Listener) addresses() ([]netip.AddrPort, error) {
	const remedy = `use "localhost:1883", "127.0.0.1:1883" or "[::1]:1883"`
	host, service, err := net.SplitHostPort(l.Address)
	if err != nil {
		return nil, fmt.Errorf("mqtt listener %q is not host:port; %s", l.Address, remedy)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("mqtt listener %q: port %q is not a number from 0 to 65535; %s", l.Address, service, remedy)
	}
	if host == "localhost" {
		return []netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)),
			netip.AddrPortFrom(netip.IPv6Loopback(), uint16(port)),
		}, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.Unmap().IsLoopback() {
		return nil, fmt.Errorf("mqtt listener %q: there is no authentication yet, so only loopback addresses are allowed; %s", l.Address, remedy)
	}
	return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(port))}, nil
}

// Router says where messages are stored.
type Router interface {
	// Route says where a message to topic goes: the partition and the record key. The key is appended to dst, or is
	// topic itself (keyIsTopic). ok is false for what is never stored: topics that begin with $, and routes without a log. It is a
	// pure function of topic, safe for concurrent use, and allocates only when dst is too small.
	Route(topic, dst []byte) (p *segment.Partition, key []byte, keyIsTopic, ok bool)
}
