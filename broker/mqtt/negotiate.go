package mqtt

import (
	"strings"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// negotiate makes the connection's limits what CONNECT and the options come to, and tells the client of ours in ack. It returns the
// keepalive that holds. id is the client's, its own or assigned.
//
// Payloads that claim to be UTF-8 (payload format indicator) are not looked at: the standard leaves it to the server (MQTT 5 §3.3.2.3.2),
// a receiver has to be ready for anything anyway, and it would cost each message a pass over its payload. The claim is
// passed on as it came.
func (c *conn) negotiate(req *wire.Connect, id string, ack *wire.Connack) (keepAlive time.Duration) {
	o, l := &c.srv.options, &c.limits
	ack.ReceiveMaximum = o.ReceiveMaximum
	ack.MaximumPacketSize = uint32(o.MaxPacketBytes)
	ack.TopicAliasMaximum = uint16(max(0, o.TopicAliasMaximum))
	l.problemInfo = req.RequestProblemInfo
	l.sendWindow = o.SendWindow
	seconds := req.KeepAlive
	if req.Version == wire.V5 {
		l.sendWindow = min(o.SendWindow, int(req.ReceiveMaximum))
		l.aliases = int(req.TopicAliasMaximum)
		// An older client can't be told, and would be closed for keeping to what it asked for.
		if most := uint16(o.MaxKeepAlive / time.Second); most > 0 && (seconds == 0 || seconds > most) {
			seconds = most
			ack.HasServerKeepAlive, ack.ServerKeepAlive = true, most
		}
		if req.RequestResponseInfo {
			ack.ResponseInfo = responseInfo(o.ResponsePrefix, id)
		}
	}
	keepAlive = time.Duration(seconds) * time.Second
	if keepAlive > 0 {
		l.stall = keepAlive / 2
	}
	return keepAlive
}

// largestFor is the largest packet that the client of a CONNECT takes, in bytes.
func largestFor(req *wire.Connect) int {
	if n := req.MaximumPacketSize; req.Version == wire.V5 && n > 0 && n < wire.MaxRemaining {
		return int(n)
	}
	return wire.MaxRemaining
}

// responseInfo is the topic below which a client may have its responses sent (MQTT 5 §3.2.2.3.15): of no other client, so its id is
// the last level. None for an id that can't be one.
func responseInfo(prefix, id string) string {
	if prefix == "" || strings.ContainsAny(id, "+#/") {
		return ""
	}
	return prefix + id
}

// timeLeft is what is left of a stored message's expiry interval, in seconds (MQTT 5 §3.3.2.3.3). ok is false once it has expired.
// stamp is the record's timestamp.
func (s *Server) timeLeft(expiry uint32, stamp int64) (left uint32, ok bool) {
	waited := s.log.Clock().Age(stamp) / time.Second
	if waited > 0 && waited >= time.Duration(expiry) {
		return 0, false
	}
	return expiry - uint32(waited), true
}
