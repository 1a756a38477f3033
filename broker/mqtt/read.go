package mqtt

import (
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// input is what a connection's goroutine keeps between two reads.
type input struct {
	partial []byte // begin of a packet whose rest hasn't arrived
	charged int64  // bytes of partial that are in Server.partials
	need    int    // size of that packet, 0 while its header isn't complete
	failure error  // why readable ended the reading
}

// readable takes what there is to read and works it off, until there is nothing left: it is called by stream.await each
// time the socket may have something. It returns true when reading is over; failure says why.
func (c *conn) readable() (done bool) {
	for {
		n, err := c.readOnce()
		if e := c.cause.Load(); e != nil && err == nil {
			err = e
		}
		if err != nil {
			c.in.failure = err
			return true
		}
		if c.session == nil && c.in.need > 0 && len(c.in.partial) >= c.in.need {
			return true // the whole CONNECT is here
		}
		if n == 0 {
			return false
		}
	}
}

// readOnce reads once and works off every whole packet. n is the number of bytes read; with a nil error 0 means that there
// are none.
func (c *conn) readOnce() (n int, err error) {
	if c.mustWait() {
		if err := c.awaitRoom(); err != nil {
			return 0, err
		}
	}
	if c.in.need > readBytes {
		return c.readLarge()
	}
	w := c.takeWorkspace()
	defer c.srv.workspaces.put(w)
	have := copy(w.data[:], c.in.partial)
	n, err = c.stream.read(w.data[have:])
	if n == 0 || err != nil {
		return 0, err
	}
	c.srv.counters.bytesReceived.Add(int64(n))
	rest, err := c.work(w, w.data[:have+n])
	if err != nil {
		return 0, err
	}
	c.save(rest)
	return n, nil
}

// takeWorkspace waits for a workspace if it has to. The client isn't to blame for the silence meanwhile.
func (c *conn) takeWorkspace() *workspace {
	w, ok := c.srv.workspaces.tryGet()
	if !ok {
		c.waiting.Store(busy)
		w = c.srv.workspaces.get()
		c.waiting.Store(c.srv.clock())
	}
	return w
}

// save keeps the begin of a packet in as many bytes as it has.
func (c *conn) save(rest []byte) {
	switch {
	case len(rest) == 0:
		if cap(c.in.partial) > keepPartialBytes {
			c.in.partial = nil
		}
		c.in.partial = c.in.partial[:0]
	case len(rest) <= cap(c.in.partial):
		c.in.partial = append(c.in.partial[:0], rest...)
	default:
		c.in.partial = make([]byte, len(rest))
		copy(c.in.partial, rest)
	}
}

// keepPartialBytes is how large an empty partial may be and stay, so that reads that end in the middle of a message don't allocate.
const keepPartialBytes = 256

// readLarge reads into a packet that no workspace holds. Room for it grows with what has arrived, never on the
// word of its header alone.
func (c *conn) readLarge() (n int, err error) {
	if len(c.in.partial) == cap(c.in.partial) {
		if err := c.growPartial(); err != nil {
			return 0, err
		}
	}
	n, err = c.stream.read(c.in.partial[len(c.in.partial):cap(c.in.partial)])
	if n == 0 || err != nil {
		return 0, err
	}
	c.srv.counters.bytesReceived.Add(int64(n))
	c.in.partial = c.in.partial[:len(c.in.partial)+n]
	if len(c.in.partial) < c.in.need || c.session == nil {
		return n, nil
	}
	w := c.takeWorkspace()
	defer c.srv.workspaces.put(w)
	packet := c.in.partial
	defer c.dropPartial()
	_, err = c.work(w, packet)
	return n, err
}

// growPartial doubles the room for a large packet, up to its size. It waits while all such packets together take too much.
func (c *conn) growPartial() error {
	size := min(c.in.need, max(2*cap(c.in.partial), 2*readBytes))
	more := int64(size) - c.in.charged
	start := time.Now()
	for c.srv.partials.Add(more) > c.srv.options.PartialBytes {
		c.srv.partials.Add(-more)
		if time.Since(start) > c.limits.stall {
			return endPartials
		}
		c.prepareToWait()
		if err := c.pause(firstRetry); err != nil {
			return err
		}
	}
	if c.waiting.Load() == busy {
		c.waiting.Store(c.srv.clock())
	}
	c.in.charged += more
	grown := make([]byte, len(c.in.partial), size)
	copy(grown, c.in.partial)
	c.in.partial = grown
	return nil
}

// dropPartial frees a large packet.
func (c *conn) dropPartial() {
	c.srv.partials.Add(-c.in.charged)
	c.in.charged, c.in.partial = 0, nil
}

// resume works off what came in together with CONNECT.
func (c *conn) resume() error {
	data := c.in.partial
	if len(data) == 0 {
		return nil
	}
	c.in.partial = nil
	w := c.takeWorkspace()
	defer c.srv.workspaces.put(w)
	rest, err := c.work(w, data)
	if err != nil {
		return err
	}
	c.save(rest)
	return nil
}

// work works off the whole packets at the start of data, which isn't changed, and returns the rest.
func (c *conn) work(w *workspace, data []byte) (rest []byte, err error) {
	if c.session == nil {
		return data, c.peek(data)
	}
	silent := c.waiting.Swap(busy)
	w.now = time.Now()
	w.credit = int(c.srv.options.ReceiveMaximum) - int(c.received.Load())
	c.in.need = 0
	w.source, w.at = data, 0
	packets, answers := 0, 0
	for len(data) > 0 {
		h, n, e := wire.ParseHeader(data)
		if e == wire.ErrIncomplete {
			break
		}
		if e == nil {
			e = c.checkHeader(h, n)
		}
		if e != nil {
			err = e
			break
		}
		size := n + h.Remaining
		if len(data) < size {
			c.in.need = size
			break
		}
		w.at = len(w.source) - len(data) + n
		if err = c.packet(w, h, data[n:size:size]); err != nil {
			break
		}
		data = data[size:]
		packets++
		switch h.Type {
		case wire.PINGREQ, wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PUBREC:
			answers++ // those of messages are counted as they are stored
		}
	}
	c.srv.counters.packetsReceived.Add(int64(packets))
	if answers > 0 {
		c.srv.counters.packetsSent.Add(int64(answers))
	}
	if e := c.finish(w); err == nil {
		err = e
	}
	if packets > 0 { // part of a packet is no sign of life: MQTT 5 §3.1.2.10
		silent = c.srv.clock()
	}
	c.waiting.Store(silent)
	return data, err
}

// peek looks at the begin of a client's first packet, which must be a CONNECT, and bounds it before anything is kept.
func (c *conn) peek(data []byte) error {
	h, n, err := wire.ParseHeader(data)
	if err == wire.ErrIncomplete {
		return nil
	}
	if err != nil {
		return err
	}
	if h.Type != wire.CONNECT {
		return endNotConnect
	}
	c.in.need = n + h.Remaining
	return c.checkHeader(h, n)
}

// checkHeader refuses a packet by what its first bytes say.
func (c *conn) checkHeader(h wire.Header, n int) error {
	if n+h.Remaining > c.srv.options.MaxPacketBytes {
		return endTooLarge
	}
	if h.Type == wire.PUBLISH {
		return nil // ParsePublish looks at its length
	}
	return h.CheckInbound(c.limits.version)
}

// packet works off one packet. Messages are only parsed: finish or flush stores them.
func (c *conn) packet(w *workspace, h wire.Header, body []byte) error {
	switch h.Type {
	case wire.PUBLISH:
		return c.publish(w, h, body)
	case wire.PUBREL:
		return c.release(w, h, body)
	case wire.PUBACK, wire.PUBREC, wire.PUBCOMP:
		return c.acknowledged(w, h, body)
	case wire.SUBSCRIBE:
		return c.subscribe(w, h, body)
	case wire.UNSUBSCRIBE:
		return c.unsubscribe(w, h, body)
	case wire.PINGREQ:
		w.direct = wire.AppendPingresp(w.direct)
		return nil
	case wire.DISCONNECT:
		return c.disconnected(h, body)
	case wire.AUTH:
		if _, err := wire.ParseAuth(h, body, c.limits.version); err != nil {
			return err
		}
		return endAuth
	case wire.CONNECT:
		return endSecondConnect
	}
	panic("mqtt: packet type " + h.Type.String() + " passed the check of its header")
}

func (c *conn) disconnected(h wire.Header, body []byte) error {
	d, err := wire.ParseDisconnect(h, body, c.limits.version)
	switch {
	case err != nil:
		return err
	case d.HasSessionExpiry && d.SessionExpiry > 0 && c.session.expiry == 0:
		return endExpiry
	case d.HasSessionExpiry:
		c.session.expiry = min(d.SessionExpiry, c.srv.options.MaxSessionExpiry)
	}
	if d.Reason == wire.Success {
		return endDisconnect
	}
	return endWithWill
}

// finish stores what was parsed and sends what waits for nothing.
func (c *conn) finish(w *workspace) error {
	err := c.flush(w)
	if err == nil {
		err = c.sendReleases(w)
	}
	if len(w.direct) == 0 {
		return err
	}
	c.mu.Lock()
	c.sendLocked(w.direct)
	c.mu.Unlock()
	w.direct = w.direct[:0]
	return err
}

// mustWait says whether the connection has so much in flight that it may not be read from.
func (c *conn) mustWait() bool {
	return c.inflight.Load() >= int64(c.srv.options.InflightBytes) || c.replies.Load() > maxReplyBytes
}

// awaitRoom waits until less is in flight. TCP pushes back meanwhile. A version 3.1.1 client waits no longer than half its
// keepalive: its PINGREQ is not read either, and it would rather be told by a close.
func (c *conn) awaitRoom() error {
	c.prepareToWait()
	start := time.Now()
	for c.mustWait() {
		left := c.limits.stall - time.Since(start)
		if left <= 0 {
			return endStall
		}
		if err := c.pause(left); err != nil {
			return err
		}
	}
	c.waiting.Store(c.srv.clock())
	return nil
}
