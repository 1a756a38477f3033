package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// Server is the MQTT door. Its methods may be called from any goroutine, Listen, Serve and Close once each, in that order.
type Server struct {
	options    Options // immutable but for SetLimits' fields, under mu
	log        *segment.Log
	router     Router
	drops      *admission.Drops
	logger     *slog.Logger
	epoch      time.Time // start of the server's clock
	warnLimits warnLimits

	access atomic.Uint32 // raised when what clients may do changes

	tree       topics.Tree[*session]
	fanout     *fanout
	keeper     *keeper
	sys        *sys
	workspaces *workspaces

	running    sync.WaitGroup // connections and their writers
	background sync.WaitGroup // listeners, fan-out, watch over silence
	stop       chan struct{}

	pacer *pacer
	turns chan struct{} // for TLS handshakes, see turns

	mu         sync.Mutex
	listeners  []*listener
	conns      map[*conn]struct{}
	perAddress map[netip.Addr]int  // connections, see networkOf
	sessions   map[string]*session // by client id
	attached   int                 // of them, have a connection
	shares     map[string]*session // shared subscriptions, by filter with $share/group/
	shared     int                 // memberships in them
	numbers    uint64              // sessions so far
	closing    bool

	partials atomic.Int64 // bytes of large packets that have arrived in part
	queued   atomic.Int64 // bytes that wait for clients to take them
	filters  atomic.Int64 // bytes of all sessions' filters
	wills    atomic.Int64 // bytes of all sessions' wills

	counters counters
}

// counters are since the start. What each message would have to pay for is added up by read and by write.
type counters struct {
	accepted, refused            atomic.Int64
	crowded, paced, untrusted    atomic.Int64
	failedProxy, failedTLS       atomic.Int64
	failedWebSocket              atomic.Int64
	noConnect, revoked           atomic.Int64
	published                    atomic.Int64 // messages and releases from clients
	passing                      atomic.Int64 // of them, messages that a route keeps out of the log
	delivered                    atomic.Int64 // messages to subscribers
	packetsReceived, packetsSent atomic.Int64 // sent: without messages
	bytesReceived, bytesSent     atomic.Int64
	received, payloadReceived    atomic.Int64 // messages, and bytes of their payloads
	payloadSent                  atomic.Int64
	connects                     atomic.Int64 // that got a session
	connected, most              atomic.Int64 // sessions with a connection: now, and at once at most
	expired                      atomic.Int64 // sessions
}

// connect counts a connection that got its session.
func (c *counters) connect() {
	c.connects.Add(1)
	c.packetsReceived.Add(1)
	c.packetsSent.Add(1)
	now := c.connected.Add(1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
}

// Stats are counters since the start and present levels.
type Stats struct {
	Accepted        int64 // connections, at all listeners
	Refused         int64 // of them, for more connections or sessions than there may be
	Crowded         int64 // of them, for more connections than one address may have
	Paced           int64 // of them, those that others had to wait for, for the rate of connections
	Untrusted       int64 // of them, from other addresses than those of trusted proxies
	FailedProxy     int64 // of them, without a valid PROXY header
	FailedTLS       int64 // of them, whose TLS handshake failed
	FailedWebSocket int64 // of them, whose WebSocket handshake was refused or failed
	NoConnect       int64 // of them, without a session in the time for CONNECT
	Revoked         int64 // closed since their certificate is no longer good

	Connections int   // open now, without a session included
	Sessions    int   // of connected clients and of those that are away
	Away        int   // sessions whose clients are away
	Expired     int64 // sessions that ended while their clients were away
	Filters     int   // subscriptions of all sessions
	Published   int64 // messages and releases from clients
	NotStored   int64 // of them, messages that were taken and that a route with log: none keeps out of the log
	Delivered   int64 // messages to subscribers
	QueuedBytes int64 // that wait for clients to take them
}

// New makes a server over an open log, with the sessions that an earlier run left in the log's state.
func New(o Options, log *segment.Log, r Router, drops *admission.Drops, lg *slog.Logger) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if lg == nil {
		lg = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		options: o.withDefaults(), log: log, router: r, drops: drops, logger: lg, epoch: time.Now(),
		stop: make(chan struct{}), conns: make(map[*conn]struct{}), sessions: make(map[string]*session), shares: make(map[string]*session),
		perAddress: make(map[netip.Addr]int), turns: newTurns(),
	}
	s.pacer = newPacer(s.options.ConnectRate)
	s.workspaces = newWorkspaces(s.options.ReadBuffers)
	s.fanout = newFanout(s)
	s.keeper = newKeeper(s)
	s.sys = newSys(s)
	if err := s.keeper.load(); err != nil {
		return nil, fmt.Errorf("read retained messages from the state: %w", err)
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("read sessions from the state: %w", err)
	}
	return s, nil
}

// clock is the time since the server was made, in ns. It runs on whatever the wall clock does.
func (s *Server) clock() int64 { return int64(time.Since(s.epoch)) }

// Serve starts to take connections and returns.
func (s *Server) Serve() {
	s.background.Go(s.fanout.run)
	s.background.Go(s.watchSilence)
	s.background.Go(s.janitor)
	s.background.Go(s.tend)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		s.background.Go(func() { s.acceptLoop(l) })
	}
}

// Close takes no more connections, gives what clients have sent a moment to be committed and acknowledged, and ends every
// connection. It returns ctx's error when ctx ends first; then connections may still be there.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return errors.New("mqtt server is closed already")
	}
	s.closing = true
	for _, l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.kill(endShutdown)
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(s.stop)
		close(s.fanout.stop)
		s.background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mqtt connections did not end: %w", ctx.Err())
	}
}

// Addrs are the addresses that Listen bound.
func (s *Server) Addrs() []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]net.Addr, len(s.listeners))
	for i, l := range s.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Stats returns the present figures.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	connections, sessions, attached := len(s.conns), len(s.sessions), s.attached
	s.mu.Unlock()
	n := &s.counters
	return Stats{
		Accepted: n.accepted.Load(), Refused: n.refused.Load(), Crowded: n.crowded.Load(), Paced: n.paced.Load(), Untrusted: n.untrusted.Load(),
		FailedProxy: n.failedProxy.Load(), FailedTLS: n.failedTLS.Load(), FailedWebSocket: n.failedWebSocket.Load(),
		NoConnect: n.noConnect.Load(), Revoked: n.revoked.Load(),
		Connections: connections, Sessions: sessions, Away: sessions - attached, Expired: n.expired.Load(), Filters: s.tree.Len(),
		Published: n.published.Load(), NotStored: n.passing.Load(), Delivered: n.delivered.Load(), QueuedBytes: s.queued.Load(),
	}
}

// countDrop counts a message that a subscriber doesn't get, under its log topic.
func (s *Server) countDrop(from *segment.Partition, reason string) {
	topic := unstored
	if from != nil {
		topic = from.Topic().Name()
	}
	s.drops.Count(topic, reason, 1)
}

// unstored stands for the log topic of messages that have none.
const unstored = "(not stored)"
