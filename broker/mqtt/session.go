package mqtt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// session is what the protocol keeps for a client id (MQTT 5 §4.1). One that has an expiry outlives its connection, and the
// process: see session_state.go.
type session struct {
	id      string
	idBytes []byte // the same
	number  uint64 // in order of creation, unique

	// Under Server.mu.
	owner *conn         // the connection that has the session; nil while the client is away
	held  bool          // somebody has the session, a connection or the janitor: others wait for ended
	ended chan struct{} // made by whoever waits, closed when it is let go
	away  int64         // since when the client is away, on the server's clock in ns

	// Of whoever has the session.
	expiry   uint32         // seconds that it outlives its connection (MQTT 5 §3.1.2.11.2)
	will     *wire.Will     // to be published when the connection ends, or later
	willAt   int64          // when a will that waits is due, on the server's clock in ns; 0: none waits
	stored   bool           // there are keys of it in the state
	subs     []subscription // changed under mu, too: the fan-out reads it there
	received *receivedIDs   // nil until the first QoS 2 message
	passing  *receivedIDs   // the same for messages that leave neither record nor retained message; in memory only

	mu      sync.Mutex // before conn.mu
	conn    *conn      // under mu: to send to; nil while there is none
	lasting bool       // under mu: it outlives its connection
	out     outbound   // under mu
	cursors []cursor   // under mu: by reader
	unkept  bool       // under mu: progress that the state doesn't know

	// client is who the session's client was found to be when it last connected; nil where nobody asks, and in a session of an earlier
	// run before its client is back.
	client atomic.Pointer[auth.Client]
	groups atomic.Pointer[[]*session] // the shared subscriptions that it is a member of; see sharing
	share  *share                     // what makes it one itself; immutable

	blocked  blocking // set by the fan-out's goroutine
	catching bool     // the fan-out's goroutine only: is in fanout.catching
	chunk    uint64   // the fan-out's goroutine only: the last chunk that it takes part in
}

// subscription is one filter of a session.
type subscription struct {
	filter string
	sub    topics.Subscription
}

// neverExpires is the expiry of a session that is kept for ever (MQTT 5 §3.1.2.11.2).
const neverExpires = 0xFFFFFFFF

// assignedID makes a client id for a client that has none.
func assignedID() string {
	var b [8]byte
	rand.Read(b[:])
	return "sluice-" + hex.EncodeToString(b[:])
}

// take makes c the owner of its client id's session. A connection that has it ends first, with its will stored: a
// successor's CONNACK comes after both. old is the session that c finds, nil for none; it is in no other hands. The
// caller either goes on with it or ends it, and calls install. It fails with the connection's cause, or with errTooMany.
func (s *Server) take(c *conn, id string) (old *session, err error) {
	c.prepareToWait()
	for {
		s.mu.Lock()
		old = s.sessions[id]
		if s.attached >= s.options.MaxConnections && (old == nil || old.owner == nil) || old == nil && len(s.sessions) >= s.options.MaxSessions {
			s.mu.Unlock()
			return nil, errTooMany
		}
		if old == nil || !old.held {
			ss := old
			if ss == nil {
				s.numbers++
				ss = &session{id: id, idBytes: []byte(id), number: s.numbers}
				s.sessions[id] = ss
			}
			ss.owner, ss.held = c, true
			c.session = ss
			s.attached++
			s.mu.Unlock()
			return old, nil
		}
		if old.ended == nil {
			old.ended = make(chan struct{})
		}
		ended, owner := old.ended, old.owner
		s.mu.Unlock()
		if owner != nil {
			owner.kill(endTakenOver)
		}
		select {
		case <-ended:
		case <-c.wake:
			if e := c.cause.Load(); e != nil {
				return nil, e
			}
		}
	}
}

// letGo ends the hold on a session. One that is over is forgotten.
func (s *Server) letGo(ss *session, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over {
		delete(s.sessions, ss.id)
	}
	if ss.owner != nil {
		ss.owner = nil
		ss.away = s.clock()
		s.attached--
	}
	ss.held = false
	if ss.ended != nil {
		close(ss.ended)
		ss.ended = nil
	}
}

// reset makes a session that c has taken a new one (MQTT 5 §3.1.2.4): its subscriptions end, a will that waits is published,
// and nothing is known of what was in flight.
func (s *Server) reset(ss *session) {
	s.unsubscribeAll(ss)
	if ss.will != nil {
		s.publishWill(ss)
	}
	ss.mu.Lock()
	ss.out, ss.cursors = outbound{}, nil
	ss.mu.Unlock()
	ss.passing = nil
	ss.blocked.clear()
}

func (s *Server) unsubscribeAll(ss *session) {
	if len(ss.subs) == 0 {
		return
	}
	s.filters.Add(-ss.filterBytes())
	var filters []string
	for i := range ss.subs {
		if filter := ss.subs[i].filter; topics.IsShared(filter) {
			s.leaveShare(ss, filter, nil)
		} else {
			filters = append(filters, filter)
		}
	}
	s.tree.UnsubscribeAll(ss, filters)
	ss.mu.Lock()
	ss.subs = nil
	ss.mu.Unlock()
}

// endConnection takes the connection out of its session, by the connection's goroutine: no deliveries any more, then the will, after
// the client's last message, then whoever waits for the session.
func (s *Server) endConnection(ss *session, e *ending) {
	subscribed := len(ss.subs) > 0
	ss.mu.Lock()
	ss.conn, ss.lasting = nil, ss.expiry > 0
	s.queued.Add(-int64(ss.out.detach()))
	ss.mu.Unlock()
	ss.blocked.clear()
	if subscribed {
		s.fanout.leave(ss)
	}
	if ss.will != nil && e.noWill {
		s.dropWill(ss)
	}
	over := ss.expiry == 0
	switch {
	case ss.will == nil:
	case !over && ss.will.Delay > 0:
		ss.willAt = s.clock() + int64(min(ss.will.Delay, ss.expiry))*1e9
	default:
		s.publishWill(ss)
	}
	if over {
		s.unsubscribeAll(ss)
		s.eraseSession(ss)
	} else {
		s.storeAway(ss)
	}
	s.letGo(ss, over)
}

func (ss *session) find(filter string) int {
	return slices.IndexFunc(ss.subs, func(s subscription) bool { return s.filter == filter })
}

// logEnd reports the end of a connection: as a matter of course where nothing is wrong, and not too often otherwise.
func (s *Server) logEnd(c *conn, e *ending) {
	if !e.quiet {
		s.warn(warnClient, "mqtt connection closed", "client", c.name(), "remote", c.remote, "cause", e.what)
		return
	}
	if s.logger.Enabled(context.Background(), levelEnds) {
		s.logger.Log(context.Background(), levelEnds, "mqtt connection closed", "client", c.name(), "remote", c.remote, "cause", e.what)
	}
}
