package mqtt

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// errTooMany says that there are as many sessions as there may be.
var errTooMany = errors.New("too many sessions")

// connect reads the CONNECT, makes the session and sends CONNACK. What came in behind the CONNECT is left in partial.
func (c *conn) connect() error {
	if err := c.stream.await(c.readable); err != nil {
		if e := c.cause.Load(); e != nil {
			return e
		}
		return err
	}
	if c.in.failure != nil {
		return c.in.failure
	}
	packet := c.in.partial[:c.in.need]
	rest := slices.Clone(c.in.partial[c.in.need:])
	c.dropPartial()
	c.in.partial, c.in.need = rest, 0
	h, n, err := wire.ParseHeader(packet)
	if err != nil {
		return err
	}
	req, err := wire.ParseConnect(h, packet[n:])
	if err != nil {
		if e, ok := err.(*wire.Error); ok {
			c.sendRefusal(wire.ConnectVersion(packet[n:]), e.Reason)
		}
		return endingWith(err)
	}
	c.limits.version, c.limits.maxPacket = req.Version, largestFor(req)
	if reason := refusalOf(req); reason != wire.Success {
		c.sendRefusal(req.Version, reason)
		return endRefused
	}
	if err := c.authenticate(req); err != nil {
		return err
	}
	return c.establish(req)
}

// endingWith is the ending of a connection whose CONNECT was answered with what is wrong, if at all.
func endingWith(err error) error {
	e := *endingOf(err)
	e.reason = wire.Success
	return &e
}

// sendRefusal sends a CONNACK with a reason, in the words of a version, unless it is larger than the client takes (MQTT-3.1.2-24). 0 is no
// version of MQTT and gets none.
func (c *conn) sendRefusal(version, reason byte) {
	if version == 0 {
		return
	}
	p := wire.AppendConnack(nil, version, &wire.Connack{Reason: reason})
	if len(p) > c.limits.maxPacket {
		return
	}
	c.mu.Lock()
	c.sendLocked(p)
	c.mu.Unlock()
}

// refusalOf is the reason to refuse a valid CONNECT that asks for what there isn't.
func refusalOf(req *wire.Connect) byte {
	if req.HasAuthMethod {
		return wire.BadAuthenticationMethod
	}
	return wire.Success
}

// establish makes or takes over the session and sends CONNACK, once what it says is durable.
func (c *conn) establish(req *wire.Connect) error {
	expiry := c.expiryOf(req)
	ack := wire.Connack{HasSessionExpiry: req.SessionExpiry != expiry, SessionExpiry: expiry}
	id := req.ClientID
	if id == "" {
		id = assignedID()
		ack.AssignedClientID = id
	}
	keepAlive := c.negotiate(req, id, &ack)
	if len(wire.AppendConnack(nil, req.Version, &ack)) > c.limits.maxPacket {
		return endTinyPackets
	}
	old, err := c.srv.take(c, id)
	switch {
	case err == errTooMany:
		c.srv.counters.refused.Add(1)
		c.sendRefusal(req.Version, wire.QuotaExceeded)
		return endRefused
	case err != nil:
		return err
	}
	ss := c.session
	present := old != nil && !req.CleanStart && ss.expiry > 0
	if old != nil && !present {
		c.srv.reset(ss)
	}
	c.admit(ss)
	c.warnOfWill(req.Will)
	ss.expiry = expiry
	if !c.srv.setWill(ss, req.Will) {
		c.srv.counters.refused.Add(1)
		c.srv.warn(warnState, "connection refused: the wills of all sessions take too much memory", "client", c.name())
		c.sendRefusal(req.Version, wire.QuotaExceeded)
		return endRefused
	}
	if err := c.awaitStored(!present); err != nil {
		c.sendRefusal(req.Version, wire.ServerUnavailable)
		return err
	}
	c.established.Store(true)
	c.srv.counters.connect()
	c.allowance.Store(int64(keepAlive + keepAlive/2)) // MQTT 5 §3.1.2.10
	c.waiting.Store(c.srv.clock())
	ack.SessionPresent = present
	c.mu.Lock()
	c.sendLocked(wire.AppendConnack(nil, req.Version, &ack))
	c.mu.Unlock()
	c.attach(present)
	if lg := c.srv.logger; lg.Enabled(context.Background(), slog.LevelDebug) {
		lg.Debug("mqtt client connected", "client", c.name(), "user", quoted(req.Username), "remote", c.remote, "version", req.Version, "keepalive", keepAlive,
			"session_present", present)
	}
	return nil
}

// expiryOf is how long the session outlives its connection, in seconds. In version 3.1.1 it is for ever (§3.1.2.4), which here means as long as any.
func (c *conn) expiryOf(req *wire.Connect) uint32 {
	longest := c.srv.options.MaxSessionExpiry
	switch {
	case req.Version == wire.V5:
		return min(req.SessionExpiry, longest)
	case req.CleanStart:
		return 0
	}
	return longest
}

// awaitStored stores the session and waits for the commit. All that an earlier connection of the session stored is durable then,
// too: a QoS 2 message that is sent again can be answered at once.
func (c *conn) awaitStored(fresh bool) error {
	group, err := c.storeConnected(fresh)
	if err != nil {
		c.srv.warn(warnState, "a session can't be stored", "client", c.name(), "cause", err)
		return endStorage
	}
	if group == 0 {
		return nil
	}
	c.mu.Lock()
	c.acks.newest = max(c.acks.newest, group)
	c.mu.Unlock()
	c.awaitAcks(c.srv.options.ConnectTimeout)
	c.mu.Lock()
	open := c.acks.open()
	c.mu.Unlock()
	if e := c.cause.Load(); e != nil {
		return e
	}
	if open {
		return endStall
	}
	return nil
}

// attach begins deliveries: what was in flight first, then what came while the client was away.
func (c *conn) attach(present bool) {
	ss, f := c.session, c.srv.fanout
	ss.mu.Lock()
	ss.conn, ss.lasting = c, ss.expiry > 0
	if present {
		ss.out.late = c.srv.newLate()
	}
	ss.mu.Unlock()
	if len(ss.subs) > 0 {
		f.join()
	}
	if !present {
		return
	}
	f.comeBack(ss)
	for _, g := range ss.sharing() {
		g.blocked.clear()
		f.comeBack(g)
	}
}

// newLate begins to count what a session gets of what came while it was away.
func (s *Server) newLate() (l late) {
	if o := &s.options; o.SessionMaxAge == 0 && o.SessionMaxMessages == 0 && o.SessionMaxBytes == 0 {
		return l
	}
	l.ends = make([]int64, len(s.fanout.readers))
	for i, r := range s.fanout.readers {
		l.ends[i] = r.partition.HighWatermark()
	}
	return l
}
