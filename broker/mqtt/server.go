package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// Server is the MQTT door. Its methods may be called from any goroutine, Listen, Serve and Close once each, in that order.
type Server struct {
	options    Options
	log        *segment.Log
	router     Router
	drops      *admission.Drops
	logger     *slog.Logger
	epoch      time.Time // start of the server's clock
	warnLimits warnLimits

	tree       topics.Tree[*session]
	fanout     *fanout
	workspaces *workspaces

	running    sync.WaitGroup // connections and their writers
	background sync.WaitGroup // listeners, fan-out, watch over silence
	stop       chan struct{}

	mu        sync.Mutex
	listeners []*net.TCPListener
	conns     map[*conn]struct{}
	sessions  map[string]*session // by client id
	numbers   uint64              // sessions so far
	closing   bool

	partials atomic.Int64 // bytes of large packets that have arrived in part
	queued   atomic.Int64 // bytes that wait for clients to take them

	counters struct{ accepted, refused, published, delivered atomic.Int64 }
}

// Stats are counters since the start and present levels.
type Stats struct {
	Accepted    int64 // TCP connections
	Refused     int64 // of them, for lack of room
	Connections int   // open now, without a session included
	Sessions    int
	Filters     int   // subscriptions of all sessions
	Published   int64 // messages and releases from clients
	Delivered   int64 // messages to subscribers
	QueuedBytes int64 // that wait for clients to take them
}

// New makes a server over an open log. It deletes what sessions of an earlier run left in the log's state.
func New(o Options, log *segment.Log, r Router, drops *admission.Drops, lg *slog.Logger) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if lg == nil {
		lg = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		options: o.withDefaults(), log: log, router: r, drops: drops, logger: lg, epoch: time.Now(),
		stop: make(chan struct{}), conns: make(map[*conn]struct{}), sessions: make(map[string]*session),
	}
	s.workspaces = newWorkspaces(s.options.ReadBuffers)
	s.fanout = newFanout(s)
	if err := forgetReceived(log); err != nil {
		// Harmless: a session's ids replace those that an earlier one left under its keys.
		lg.Warn("QoS 2 state of earlier sessions is still there; the next start tries again", "cause", err)
	}
	return s, nil
}

// clock is the time since the server was made, in ns. It runs on whatever the wall clock does.
func (s *Server) clock() int64 { return int64(time.Since(s.epoch)) }

// Serve starts to take connections and returns.
func (s *Server) Serve() {
	s.background.Go(s.fanout.run)
	s.background.Go(s.watchSilence)
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
	connections, sessions := len(s.conns), len(s.sessions)
	s.mu.Unlock()
	return Stats{
		Accepted: s.counters.accepted.Load(), Refused: s.counters.refused.Load(), Connections: connections, Sessions: sessions, Filters: s.tree.Len(),
		Published: s.counters.published.Load(), Delivered: s.counters.delivered.Load(), QueuedBytes: s.queued.Load(),
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

// countDropID is countDrop by the log topic's id.
func (s *Server) countDropID(id uint32, reason string) {
	topic := unstored
	if id != math.MaxUint32 {
		for _, t := range s.log.Topics() {
			if t.ID() == id {
				topic = t.Name()
			}
		}
	}
	s.drops.Count(topic, reason, 1)
}

// unstored stands for the log topic of messages that have none.
const unstored = "(not stored)"
