package mqtt

import (
	"context"
	"errors"
	"strconv"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// dropDenied is what messages are counted under that their publisher may not publish. What a subscriber may not have isn't
// counted: it is none of its business.
const dropDenied = "not authorized"

// authenticate finds out who the client of a CONNECT is, and answers it if it may not connect. Nothing of the connection waits in
// a place that others need while a password is checked: no workspace, and a stack that ends with CONNECT.
func (c *conn) authenticate(req *wire.Connect) error {
	access := c.srv.options.Access
	if access == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	c.mu.Lock()
	c.abort = cancel
	c.mu.Unlock()
	if e := c.cause.Load(); e != nil {
		return e
	}
	c.waiting.Store(busy) // the wait for a hash has a limit of its own
	user, err := access.Authenticate(ctx, auth.Credentials{
		User: req.Username, HasUser: req.HasUsername, Password: req.Password, HasPassword: req.HasPassword,
		Certificate: c.tlsUser, Address: networkOf(addressOf(c.remote)), AllowAnonymous: c.listener.options.AllowAnonymous,
	})
	c.mu.Lock()
	c.abort = nil
	c.mu.Unlock()
	c.waiting.Store(c.srv.clock())
	clear(req.Password)
	var e *ending
	switch {
	case err == nil:
		c.user = user
		return nil
	case errors.As(err, &e):
		return e // killed meanwhile
	}
	c.srv.counters.refused.Add(1)
	c.srv.warn(warnLogin, "mqtt client is not let in", "client", quoted(req.ClientID), "user", quoted(req.Username), "remote", c.remote, "cause", err)
	c.sendRefusal(req.Version, denialOf(err))
	return endRefused
}

// maxLogged is how much of what a client sent goes into the log, in bytes.
const maxLogged = 200

// quoted is a client's text for the log, escaped: it may hold anything.
func quoted[T string | []byte](s T) string { return strconv.Quote(string(s[:min(len(s), maxLogged)])) }

// denialOf is the reason for CONNACK (MQTT 5 §3.2.2.2).
func denialOf(err error) byte {
	switch {
	case errors.Is(err, auth.ErrBadCredentials):
		return wire.BadUsernameOrPassword
	case errors.Is(err, auth.ErrBusy):
		return wire.ServerBusy
	}
	return wire.NotAuthorized
}

// admit makes the connection's user the client of its session, unless it has lost the right to connect: a reload just before has not
// seen it. What an earlier connection of the session left behind is dealt with before: its rights may be others.
func (c *conn) admit(ss *session) {
	access := c.srv.options.Access
	if access == nil {
		return
	}
	client := access.Client(c.user, ss.id)
	c.user = auth.User{}
	ss.client.Store(client)
	c.mu.Lock()
	c.client = client
	c.mu.Unlock()
	c.stays()
}

// stays ends the connection if its user has lost the right to connect.
func (c *conn) stays() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil && !c.client.Valid() {
		c.killLocked(endUnauthorized)
	}
}

// AccessChanged tells that Options.Access has read its files again. Clients that may not be connected any more are closed; what the
// others may do follows the new files from here on.
func (s *Server) AccessChanged() {
	s.access.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.stays()
	}
}

// deny drops w's last message, m, or closes the connection where the listener says so and the protocol has no word for it. Of a
// message that the client could still publish when it first sent it, it gets the acknowledgement that it missed.
func (c *conn) deny(w *workspace, m *message) error {
	if m.qos == 2 && c.repeats(w, len(w.messages)-1) {
		m.partition, m.denied = nil, false // the log has it
		return nil
	}
	c.srv.countDrop(m.partition, dropDenied)
	if c.limits.version != wire.V5 && c.listener.options.CloseDenied {
		w.messages = w.messages[:len(w.messages)-1]
		return endDenied
	}
	m.refused = refusedDenied
	return nil
}

// warnOfWill says so if a client leaves a will that will not be published: the client has no other way to find out before it is due.
func (c *conn) warnOfWill(will *wire.Will) {
	if will != nil && !c.mayPublish([]byte(will.Topic)) {
		c.srv.warn(warnDenied, "client leaves a will that it may not publish", "client", c.name(), "topic", quoted(will.Topic))
	}
}

// mayPublish says whether the session's client may publish to a topic.
func (c *conn) mayPublish(topic []byte) bool {
	if client := c.session.client.Load(); client != nil {
		return client.MayPublish(topic)
	}
	return c.srv.options.Access == nil
}

// maySubscribe says whether the session's client may subscribe to a filter: always, unless auth.Options.StrictSubscribe is set.
func (ss *session) maySubscribe(filter string) bool {
	client := ss.client.Load()
	return client == nil || client.MaySubscribe(filter)
}

// mayReceive says whether the session's client may have a message of a topic, from a subscription of whatever kind. With ss.mu held it is
// asked of the client that the message goes to: another user may take the client id over at any time.
func (ss *session) mayReceive(topic []byte) bool {
	client := ss.client.Load()
	return client == nil || client.MayReceive(topic)
}
