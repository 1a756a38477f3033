package mqtt

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"github.com/sluicemq/sluice/broker/mqtt/websocket"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// open does what comes before MQTT on the connection's listener: PROXY header, TLS, WebSocket, in this order. The time for all of it
// is that for CONNECT; whoever finds it over calls unblock.
func (c *conn) open() error {
	o := &c.listener.options
	if o.ProxyProtocol != nil {
		if err := c.openProxied(); err != nil {
			return err
		}
	}
	if c.listener.tls != nil {
		if err := c.openTLS(); err != nil {
			return c.openFailed(err, &c.srv.counters.failedTLS, "TLS: ")
		}
	}
	if o.WebSocket != nil {
		rules := websocket.Rules{Path: o.WebSocket.Path, Origins: o.WebSocket.Origins, Secure: o.TLS != nil, Protocol: "mqtt"}
		ws, err := openWebSocket(c.stream, rules, c.srv.options.MaxPacketBytes)
		if err != nil {
			return c.openFailed(err, &c.srv.counters.failedWebSocket, "")
		}
		c.setStream(ws)
	}
	return nil
}

// setStream puts a transport on top of the one so far.
func (c *conn) setStream(s stream) {
	c.mu.Lock()
	c.stream = s
	c.mu.Unlock()
}

// openProxied takes the PROXY header. From here on the client's address is the connection's.
func (c *conn) openProxied() error {
	client, err := c.socket.readProxyHeader()
	if err != nil {
		return c.openFailed(err, &c.srv.counters.failedProxy, "")
	}
	if !client.IsValid() {
		return nil
	}
	c.remote = net.TCPAddrFromAddrPort(client)
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if !c.srv.countLocked(c, client.Addr()) {
		return endCrowded
	}
	return nil
}

// openTLS makes the TLS session and takes the user name from the client's certificate.
func (c *conn) openTLS() error {
	files := c.listener.tls
	state := files.current.Load()
	t := newTLSStream(c.socket, state.config, &turns{c.srv.turns, c.srv.clock, &c.waiting})
	if err := t.handshake(c.srv.options.ConnectTimeout); err != nil {
		return err
	}
	c.setStream(t)
	if state.ca == nil {
		return nil
	}
	session := t.conn.ConnectionState()
	var err error
	if c.tlsUser, err = files.options.userOf(session); err != nil {
		return err
	}
	if len(session.PeerCertificates) > 0 {
		// ReloadTLS looks at this connection from now on. What it changed before is looked at here.
		c.secured.Store(t.conn)
		if now := files.current.Load(); now != state {
			return now.check(session, true)
		}
	}
	return nil
}

// openFailed says how a connection ends that didn't get as far as MQTT. What the client did wrong is counted; that it went away, or
// that somebody ended it, isn't its doing.
func (c *conn) openFailed(err error, counter *atomic.Int64, prefix string) error {
	if e := c.cause.Load(); e != nil {
		return e
	}
	var network net.Error
	if errors.Is(err, io.EOF) || errors.As(err, &network) && !remoteAlert(err) {
		return endLost
	}
	counter.Add(1)
	e := *endingOf(err)
	if e.what == endLost.what {
		e = ending{reason: wire.ProtocolError, what: prefix + err.Error()}
	}
	e.what = e.what[:min(len(e.what), maxCause)]
	return &e
}

// maxCause bounds what is logged of an error that may quote a client's certificate.
const maxCause = 200

// remoteAlert says whether err is a TLS alert that the client sent, which crypto/tls makes look like the network's.
func remoteAlert(err error) bool {
	var e *net.OpError
	return errors.As(err, &e) && e.Op == "remote error"
}
