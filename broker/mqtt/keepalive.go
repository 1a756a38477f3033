package mqtt

import "time"

// Silent clients and clients that don't get to a session are found by looking at every connection now and then: that
// costs a few ns a connection, where a deadline moved at each read would cost more than the read's parsing.

const (
	shortestLook = 50 * time.Millisecond
	longestLook  = time.Second
)

// overdue says whether the connection has been silent for longer than it may at now, and otherwise for how long
// it still may. All times are on the server's clock in ns; left is longestLook where there is no limit.
func (c *conn) overdue(now int64) (left time.Duration, over bool) {
	since, allowance := c.waiting.Load(), c.allowance.Load()
	if since == busy || allowance == 0 {
		return longestLook, false
	}
	left = time.Duration(allowance - (now - since))
	return left, left < 0
}

// watchSilence is the goroutine that ends silent connections.
func (s *Server) watchSilence() {
	t := time.NewTimer(longestLook)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		t.Reset(s.endSilent())
	}
}

// endSilent ends what is overdue and says when to look again.
func (s *Server) endSilent() time.Duration {
	now, next := s.clock(), longestLook
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		left, over := c.overdue(now)
		if over {
			c.kill(c.silence())
		} else {
			next = min(next, left)
		}
	}
	return max(next, shortestLook)
}

// silence is what a client that is overdue did not do.
func (c *conn) silence() *ending {
	if c.established.Load() {
		return endSilent
	}
	return endNoConnect
}
