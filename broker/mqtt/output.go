package mqtt

// output is what waits to be written to a connection. All of it is under conn.mu.
//
// Whoever has bytes for a client writes them at once if nothing waits, without ever blocking. What the socket doesn't
// take is queued, and a writer goroutine lives until the queue is empty.
type output struct {
	buf     []byte // whole packets, and perhaps the end of one; waits for the writer or for flushLocked
	taken   int    // bytes that the writer is writing
	writing bool   // a writer goroutine runs
	listed  bool   // somebody is about to call flushLocked
	closed  bool   // takes nothing any more

	messages int64 // PUBLISHes that the server's counters don't have yet
	payload  int64 // bytes of their payloads
}

const (
	keepOutputBytes = 4 << 10  // an empty buffer beyond this is freed
	flushBytes      = 16 << 10 // a buffer is written without waiting for more
	maxReplyBytes   = 64 << 10 // beyond this much in answers that a client doesn't take, it isn't read from
)

// queued is the number of bytes that wait.
func (o *output) queued() int { return len(o.buf) + o.taken }

// close drops what waits and returns how many bytes that was.
func (o *output) close() int64 {
	n := int64(o.queued())
	o.closed, o.buf, o.taken = true, nil, 0
	return n
}

// sendLocked writes p, which is whole packets, or queues what the socket doesn't take. It doesn't keep p.
func (c *conn) sendLocked(p []byte) {
	if len(p) == 0 || c.out.closed {
		return
	}
	if !c.out.writing && len(c.out.buf) == 0 {
		n, err := c.stream.tryWrite(p)
		if err != nil {
			c.brokenLocked()
			return
		}
		c.srv.counters.bytesSent.Add(int64(n))
		p = p[n:]
	}
	if len(p) == 0 {
		return
	}
	c.replies.Add(int32(len(p)))
	c.queueLocked(p)
	if !c.out.writing && !c.out.listed {
		c.startWriterLocked()
	}
}

// queueLocked appends whole packets, or what is left of one.
func (c *conn) queueLocked(p []byte) {
	c.out.buf = append(c.out.buf, p...)
	c.srv.queued.Add(int64(len(p)))
}

// flushLocked writes what waits, as far as the socket takes it.
func (c *conn) flushLocked() {
	c.out.listed = false
	c.tallyLocked()
	for len(c.out.buf) > 0 && !c.out.writing && !c.out.closed {
		n, err := c.stream.tryWrite(c.out.buf)
		if err != nil {
			c.brokenLocked()
			return
		}
		c.srv.queued.Add(-int64(n))
		c.srv.counters.bytesSent.Add(int64(n))
		if n < len(c.out.buf) {
			c.out.buf = append(c.out.buf[:0], c.out.buf[n:]...)
			c.startWriterLocked()
			return
		}
		if c.replies.Load() != 0 {
			c.replies.Store(0)
			c.wakeLocked()
		}
		c.out.emptied()
		c.writtenLocked()
	}
}

// tallyLocked hands what was counted for the connection to the server.
func (c *conn) tallyLocked() {
	if c.out.messages > 0 {
		c.srv.counters.delivered.Add(c.out.messages)
		c.srv.counters.payloadSent.Add(c.out.payload)
		c.out.messages, c.out.payload = 0, 0
	}
}

// writtenLocked tells the fan-out that there is room for what waits for it.
func (c *conn) writtenLocked() {
	if c.session == nil {
		return
	}
	if c.session.blocked.end(blockedSocket) {
		c.srv.fanout.nudge()
	}
	c.srv.fanout.madeRoom(c.session)
}

// emptied keeps a small buffer for the next time.
func (o *output) emptied() {
	o.buf = o.buf[:0]
	if cap(o.buf) > keepOutputBytes {
		o.buf = nil
	}
}

// brokenLocked ends a connection that can't be written to.
func (c *conn) brokenLocked() {
	c.srv.queued.Add(-c.out.close())
	c.killLocked(endLost)
}

func (c *conn) startWriterLocked() {
	c.out.writing = true
	c.srv.running.Go(c.drain)
}

// drain is the writer goroutine: it ends when nothing waits, or once the connection's end closes the stream.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out.buf) > 0 {
		p := c.out.buf
		c.out.buf, c.out.taken = nil, len(p)
		replies := c.replies.Load()
		c.mu.Unlock()
		err := c.stream.write(p)
		c.mu.Lock()
		if c.out.closed {
			break
		}
		if err != nil {
			c.brokenLocked()
			break
		}
		c.out.taken = 0
		c.replies.Add(-replies)
		c.wakeLocked()
		c.srv.queued.Add(-int64(len(p)))
		c.srv.counters.bytesSent.Add(int64(len(p)))
		if c.out.buf == nil {
			c.out.buf = p
			c.out.emptied()
		}
		c.writtenLocked()
	}
	c.tallyLocked()
	c.out.writing = false
	c.wakeLocked()
}
