package mqtt

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// conn is one client's connection. An idle one is this struct, what net keeps and a goroutine: what only some need is
// allocated when they do.
type conn struct {
	srv      *Server
	listener *listener
	socket   *socket
	stream   stream // what CONNECT and the rest come through; set by the connection's goroutine, under mu
	limits   limits

	remote  net.Addr   // the client's; what a PROXY header says replaces the proxy's before there is a session
	network netip.Addr // under Server.mu: what the connection is counted under; the zero value: it isn't
	tlsUser string     // of the certificate that the client showed; set before there is a session

	session *session     // set once, before the session is registered; nil until CONNECT is accepted
	client  *auth.Client // the same, under mu when it is set; nil where everybody may do everything

	// the connection's goroutine only
	user    auth.User // from the check of its password to its session
	in      input
	writer  *segment.Writer // nil until the first message
	route   routeCache
	fixed   [3][]byte       // envelopes without expiry and properties, by QoS
	aliases *inboundAliases // nil until the client sets one

	established atomic.Bool              // there is a session
	secured     atomic.Pointer[tls.Conn] // set once a client that showed a certificate is in
	cause       atomic.Pointer[ending]   // why it ends; nil: it doesn't
	waiting     atomic.Int64             // since when it waits for a whole packet, on the server's clock in ns; busy: it doesn't
	allowance   atomic.Int64             // how long it may, in ns; 0: for ever
	inflight    atomic.Int64             // bytes of messages and acknowledgements that wait for a commit
	received    atomic.Int32             // places of the receive quota in use
	replies     atomic.Int32             // bytes of acknowledgements and answers that the socket didn't take yet

	mu    sync.Mutex
	acks  ackQueue                // under mu
	out   output                  // under mu
	sent  *outboundAliases        // under mu; nil until the client's first message, if it takes aliases
	wake  chan struct{}           // under mu; made when the goroutine first has to wait for something else than data
	abort context.CancelCauseFunc // under mu; while CONNECT waits for the check of its password
}

// limits are what CONNECT settled. Immutable once there is a session.
type limits struct {
	version     byte
	problemInfo bool // reason strings are welcome
	sendWindow  int  // QoS 1 and 2 messages that may be sent unacknowledged
	maxPacket   int  // bytes of the largest packet the client takes
	aliases     int  // topic aliases the client takes
	stall       time.Duration
}

// busy stands in conn.waiting while the connection isn't read from: only then is silence the client's.
const busy = math.MaxInt64

// longestStall is how long a connection without a keepalive isn't read from before it is closed.
const longestStall = 30 * time.Second

func newConn(s *Server, l *listener, nc socketConn) (*conn, error) {
	c := &conn{srv: s, listener: l, remote: nc.RemoteAddr(), socket: new(socket)}
	if _, isUnix := l.options.socketPath(); isUnix {
		c.remote = l.Addr() // the client's end has no name
	}
	c.stream = c.socket
	c.limits = limits{version: wire.V5, stall: longestStall, maxPacket: wire.MaxRemaining}
	c.waiting.Store(s.clock())
	c.allowance.Store(int64(s.options.ConnectTimeout))
	if err := c.socket.init(nc); err != nil {
		return nil, err
	}
	return c, nil
}

// greet is the connection's goroutine until CONNECT is answered. Serving goes on in another one: decoding CONNECT
// has grown this one's stack, which would stay that way until the next garbage collection.
func (c *conn) greet() {
	err := c.open()
	if err == nil {
		err = c.connect()
	}
	if err != nil {
		c.end(err)
		return
	}
	go c.serve()
}

// serve is the connection's goroutine from CONNACK to the end.
func (c *conn) serve() {
	if err := c.resume(); err != nil {
		c.end(err)
		return
	}
	if err := c.stream.await(c.readable); err != nil {
		c.in.failure = err
	}
	c.end(c.in.failure)
}

// kill ends the connection from another goroutine. The first cause counts. It never waits.
func (c *conn) kill(e *ending) {
	c.mu.Lock()
	c.killLocked(e)
	c.mu.Unlock()
}

func (c *conn) killLocked(e *ending) {
	if c.cause.CompareAndSwap(nil, e) {
		if c.abort != nil {
			c.abort(e)
		}
		c.wakeLocked()
		c.stream.unblock()
	}
}

func (c *conn) wakeLocked() {
	if c.wake != nil {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// pause waits until somebody wakes the connection's goroutine, for at most d. The caller looks again at what it waits for.
func (c *conn) pause(d time.Duration) error {
	c.waiting.Store(busy)
	t := time.NewTimer(d)
	select {
	case <-c.wake:
	case <-t.C:
	}
	t.Stop()
	if e := c.cause.Load(); e != nil {
		return e
	}
	return nil
}

// prepareToWait must be called before the condition of a pause is looked at: from here on no wake is lost.
func (c *conn) prepareToWait() {
	c.mu.Lock()
	if c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	c.mu.Unlock()
}

// end closes the connection for the reason err. Order matters: the session ends before anything that depends on the
// client's socket, so that a successor never waits for a socket that is stuck.
func (c *conn) end(err error) {
	e := endingOf(err)
	if !c.cause.CompareAndSwap(nil, e) {
		e = c.cause.Load()
	}
	if c.session != nil {
		if e == endShutdown {
			c.awaitAcks(shutdownPatience)
		}
		c.srv.endConnection(c.session, e)
		if c.established.Load() {
			c.srv.counters.connected.Add(-1)
		}
	}
	c.dropPartial()
	if e == endNoConnect {
		c.srv.counters.noConnect.Add(1)
	}
	c.srv.logEnd(c, e)
	c.farewell(e)
	c.stream.close()
	c.srv.forget(c)
}

const (
	shutdownPatience = 2 * time.Second        // for acknowledgements to become due
	farewellPatience = time.Second            // for a client to take the last bytes
	lingerPatience   = 250 * time.Millisecond // for a client to close after a DISCONNECT
)

// farewell sends what is queued and the DISCONNECT that the ending asks for, as far as the client takes it.
func (c *conn) farewell(e *ending) {
	c.mu.Lock()
	c.flushLocked()
	if e.reason != 0 && c.established.Load() && c.limits.version == wire.V5 && !c.out.closed {
		p := c.limits.appendExplained(nil, e.what, func(dst []byte, why string) []byte {
			return wire.AppendDisconnect(dst, e.reason, why)
		})
		if len(p) <= c.limits.maxPacket { // MQTT 5 §3.1.2.11.4
			c.sendLocked(p)
		}
	}
	c.stream.writeBy(time.Now().Add(farewellPatience))
	writing := c.out.writing
	c.mu.Unlock()
	if writing {
		c.prepareToWait()
		for deadline := time.Now().Add(farewellPatience); ; {
			c.mu.Lock()
			writing = c.out.writing
			c.mu.Unlock()
			left := time.Until(deadline)
			if !writing || left <= 0 {
				break
			}
			c.pause(left)
		}
	}
	c.mu.Lock()
	if !c.out.closed {
		c.srv.queued.Add(-c.out.close())
	}
	c.mu.Unlock()
	if e.reason != 0 || e == endRefused {
		c.stream.linger(lingerPatience)
	}
}
