package mqtt

import (
	"errors"

	"github.com/sluicemq/sluice/broker/mqtt/websocket"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// ending is why a connection ends.
type ending struct {
	reason byte   // of the DISCONNECT that a version 5 client gets; 0: it gets none
	what   string // in fixed words that hold nothing the client sent
	noWill bool   // the client took its will back
	quiet  bool   // nothing is wrong
}

func (e *ending) Error() string { return e.what }

// The endings that aren't a fault in a packet.
var (
	endDisconnect    = &ending{what: "client disconnected", noWill: true, quiet: true}
	endWithWill      = &ending{what: "client disconnected and asked for its will", quiet: true}
	endLost          = &ending{what: "connection lost", quiet: true}
	endTakenOver     = &ending{reason: wire.SessionTakenOver, what: "another connection took the client id over", quiet: true}
	endShutdown      = &ending{reason: wire.ServerShuttingDown, what: "broker is stopping", quiet: true}
	endSilent        = &ending{reason: wire.KeepAliveTimeout, what: "client was silent for longer than its keepalive allows", quiet: true}
	endStorage       = &ending{reason: wire.ImplementationSpecificError, what: "messages could not be stored and are not acknowledged"}
	endStall         = &ending{reason: wire.QuotaExceeded, what: "messages can't be stored for now"}
	endNoConnect     = &ending{what: "no session within the time for CONNECT", quiet: true}
	endNotConnect    = &ending{reason: wire.ProtocolError, what: "first packet is not a CONNECT"}
	endSecondConnect = &ending{reason: wire.ProtocolError, what: "second CONNECT"}
	endRefused       = &ending{what: "CONNECT refused", quiet: true}
	endUnauthorized  = &ending{reason: wire.NotAuthorized, what: "client lost its right to connect"}
	endDenied        = &ending{reason: wire.NotAuthorized, what: "message to a topic that the client may not publish to"}
	endTooLarge      = &ending{reason: wire.PacketTooLarge, what: "packet is larger than the limit"}
	// SUBACK and UNSUBACK have a code for each filter, so they can be neither cut nor left out (MQTT-3.1.2-24, MQTT-3.8.4-1,
	// MQTT-3.10.4-4): what they would answer isn't begun.
	endLargeAnswer  = &ending{reason: wire.PacketTooLarge, what: "answer is larger than the client takes: fewer filters in a packet"}
	endTopicAlias   = &ending{reason: wire.TopicAliasInvalid, what: "topic alias beyond the maximum"}
	endUnknownAlias = &ending{reason: wire.ProtocolError, what: "topic alias that stands for no topic"}
	endAliasBytes   = &ending{reason: wire.QuotaExceeded, what: "topic aliases for more than 16 KiB of topics"}
	endTinyPackets  = &ending{what: "client takes no packet as large as CONNACK"}
	endReceiveMax   = &ending{reason: wire.ReceiveMaximumExceeded, what: "more unacknowledged messages than the receive maximum"}
	endWrongAck     = &ending{reason: wire.ProtocolError, what: "acknowledgement of the wrong type for its packet id"}
	endAuth         = &ending{reason: wire.BadAuthenticationMethod, what: "AUTH without an authentication method in CONNECT"}
	endExpiry       = &ending{reason: wire.ProtocolError, what: "DISCONNECT with a session expiry where CONNECT had none"}
	endProxy        = &ending{reason: wire.ProtocolError, what: "no valid PROXY header"}
	endCrowded      = &ending{what: "too many connections from the address", quiet: true}
	endRevoked      = &ending{reason: wire.NotAuthorized, what: "the client's certificate is no longer good"}
	endPartials     = &ending{reason: wire.QuotaExceeded, what: "no memory for a large packet"}
)

// endingOf says how a connection ends that err stopped.
func endingOf(err error) *ending {
	var e *ending
	var w *wire.Error
	var ws *websocket.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &w):
		return &ending{reason: w.Reason, what: w.What}
	case errors.Is(err, errProxyHeader):
		return endProxy
	case errors.As(err, &ws) && ws.Code == websocket.MessageTooBig:
		return &ending{reason: wire.PacketTooLarge, what: ws.What}
	case errors.As(err, &ws):
		return &ending{reason: wire.ProtocolError, what: ws.What}
	case errors.Is(err, segment.ErrClosed):
		return endShutdown
	}
	return endLost // end of stream, reset, deadline: the network's business
}
