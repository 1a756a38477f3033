package mqtt

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// errTooMany says that there are as many sessions as there may be.
var errTooMany = errors.New("too many sessions")

// connect reads the CONNECT, makes the session and sends CONNACK. What came in behind the CONNECT is left in partial.
func (c *conn) connect() error {
	if err := c.stream.read(); err != nil {
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
	c.limits.version = req.Version
	if reason := refusalOf(req); reason != wire.Success {
		c.sendRefusal(req.Version, reason)
		return endRefused
	}
	return c.establish(req)
}

// endingWith is the ending of a connection whose CONNECT was answered with what is wrong, if at all.
func endingWith(err error) error {
	e := *endingOf(err)
	e.reason = wire.Success
	return &e
}

// sendRefusal sends a CONNACK with a reason, in the words of a version; 0 is no version of MQTT and gets none.
func (c *conn) sendRefusal(version, reason byte) {
	if version == 0 {
		return
	}
	c.mu.Lock()
	c.sendLocked(wire.AppendConnack(nil, version, &wire.Connack{Reason: reason}))
	c.mu.Unlock()
}

// refusalOf is the reason to refuse a valid CONNECT that asks for what there isn't.
func refusalOf(req *wire.Connect) byte {
	v5 := req.Version == wire.V5
	switch {
	case req.HasAuthMethod:
		return wire.BadAuthenticationMethod
	case !v5 && !req.CleanStart:
		return wire.ServerUnavailable // no session outlives its connection
	case req.Will != nil && req.Will.Retain && v5:
		return wire.RetainNotSupported
	case req.Will != nil && req.Will.Retain:
		return wire.ServerUnavailable // 3.1.1 has no word for it
	}
	return wire.Success
}

// establish makes the session, once its predecessor has ended, and sends CONNACK.
func (c *conn) establish(req *wire.Connect) error {
	o := &c.srv.options
	ack := wire.Connack{
		ReceiveMaximum:    o.ReceiveMaximum,
		MaximumPacketSize: uint32(o.MaxPacketBytes),
		HasSessionExpiry:  req.HasSessionExpiry, // 0: the session ends with the connection
		NoRetain:          true,
		NoShared:          true,
	}
	id := req.ClientID
	if id == "" {
		id = assignedID()
		ack.AssignedClientID = id
	}
	c.limits.problemInfo = req.RequestProblemInfo
	c.limits.sendWindow = o.SendWindow
	if req.Version == wire.V5 {
		c.limits.sendWindow = min(o.SendWindow, int(req.ReceiveMaximum))
		if req.MaximumPacketSize > 0 && req.MaximumPacketSize < wire.MaxRemaining {
			c.limits.maxPacket = int(req.MaximumPacketSize)
		}
	}
	keepAlive := time.Duration(req.KeepAlive) * time.Second
	if keepAlive > 0 {
		c.limits.stall = keepAlive / 2
	}
	s := &session{id: id, idBytes: []byte(id), conn: c, expires: req.SessionExpiry > 0, will: req.Will}
	switch err := s.register(c.srv); err {
	case nil:
	case errTooMany:
		c.srv.counters.refused.Add(1)
		c.sendRefusal(req.Version, wire.QuotaExceeded)
		return endRefused
	default:
		return err
	}
	c.session = s
	c.established.Store(true)
	c.allowance.Store(int64(keepAlive + keepAlive/2)) // MQTT 5 §3.1.2.10
	c.waiting.Store(c.srv.clock())
	c.mu.Lock()
	c.sendLocked(wire.AppendConnack(nil, req.Version, &ack))
	c.mu.Unlock()
	if lg := c.srv.logger; lg.Enabled(context.Background(), slog.LevelDebug) {
		lg.Debug("mqtt client connected", "client", c.name(), "remote", c.stream.tcp.RemoteAddr(), "version", req.Version, "keepalive", keepAlive)
	}
	return nil
}
