package mqtt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// session is what the protocol keeps for a client id. For now it ends with its connection.
type session struct {
	id      string
	idBytes []byte // the same
	number  uint64 // in order of creation, unique
	conn    *conn
	expires bool // CONNECT asked for an expiry

	// the connection's goroutine only
	will     *wire.Will
	received *receivedIDs // nil until the first QoS 2 message
	filters  []string     // subscribed to

	ended chan struct{} // under Server.mu: made by whoever waits for the session's end, closed then
}

// assignedID makes a client id for a client that has none.
func assignedID() string {
	var b [8]byte
	rand.Read(b[:])
	return "sluice-" + hex.EncodeToString(b[:])
}

// register makes s the session of its client id. The session that had it ends first, with its will stored: a
// successor's CONNACK comes after both. It fails with the connection's cause, or with errFull.
func (s *session) register(srv *Server) error {
	s.conn.prepareToWait()
	for {
		srv.mu.Lock()
		old := srv.sessions[s.id]
		switch {
		case old == nil && len(srv.sessions) >= srv.options.MaxConnections:
			srv.mu.Unlock()
			return errTooMany
		case old == nil:
			srv.numbers++
			s.number = srv.numbers
			srv.sessions[s.id] = s
			srv.mu.Unlock()
			return nil
		case old.ended == nil:
			old.ended = make(chan struct{})
		}
		ended := old.ended
		srv.mu.Unlock()
		old.conn.kill(endTakenOver)
		select {
		case <-ended:
		case <-s.conn.wake:
			if e := s.conn.cause.Load(); e != nil {
				return e
			}
		}
	}
}

// endSession takes the session out of everything, by its connection's goroutine: subscriptions, then the will, after the
// client's last message, then the register, which lets a successor in.
func (s *Server) endSession(ss *session, e *ending) {
	if len(ss.filters) > 0 {
		s.tree.UnsubscribeAll(ss, ss.filters)
		ss.filters = nil
		s.fanout.leave()
	}
	if ss.will != nil && !e.noWill {
		ss.conn.publishWill(ss.will)
	}
	if ss.received != nil && len(ss.received.chunks) > 0 {
		ss.conn.forgetReceived()
	}
	s.mu.Lock()
	delete(s.sessions, ss.id)
	if ss.ended != nil {
		close(ss.ended)
	}
	s.mu.Unlock()
}

// forgetReceived deletes the session's ids from state. If that fails, the next start of the broker does it.
func (c *conn) forgetReceived() {
	if c.writer.BeginState() == nil {
		c.session.received.forget(c.writer, c.session.id)
		c.writer.End()
	}
}

func (s *session) subscribed(filter string) bool { return slices.Contains(s.filters, filter) }

// removeFilter forgets that the session subscribed to filter.
func (s *session) removeFilter(filter string) {
	if i := slices.Index(s.filters, filter); i >= 0 {
		s.filters = slices.Delete(s.filters, i, i+1)
	}
}

// logEnd reports the end of a connection: as a matter of course where nothing is wrong, and not too often otherwise.
func (s *Server) logEnd(c *conn, e *ending) {
	if !e.quiet {
		s.warn(warnClient, "mqtt connection closed", "client", c.name(), "remote", c.stream.tcp.RemoteAddr(), "cause", e.what)
		return
	}
	if s.logger.Enabled(context.Background(), levelEnds) {
		s.logger.Log(context.Background(), levelEnds, "mqtt connection closed", "client", c.name(), "remote", c.stream.tcp.RemoteAddr(), "cause", e.what)
	}
}
