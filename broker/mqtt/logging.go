package mqtt

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
)

const levelEnds = slog.LevelDebug

// warning is a kind of thing to warn of; each is logged once in warnInterval at most.
type warning int

const (
	warnAccept  warning = iota // a listener can't accept
	warnPaced                  // connections wait to be accepted
	warnFull                   // there are too many connections
	warnAddress                // there are too many connections of one address
	warnProxy                  // a connection isn't a proxy's
	warnClient                 // a client broke the protocol
	warnRefused                // messages can't be stored
	warnWill                   // a will can't be stored
	warnLogin                  // a client is not let in
	warnDenied                 // a client published what it may not
	warnFanout                 // stored messages can't be read back
	warnState                  // a session's state can't be read or stored
	warnings
)

const warnInterval = time.Second

// warnLimits keeps a flood of one kind from being a flood in the log. The zero value is ready; safe for concurrent use.
type warnLimits [warnings]struct {
	next       atomic.Int64 // on the server's clock in ns
	suppressed atomic.Int64
}

// warn logs unless one of its kind was logged just before; the next one says how many were not.
func (s *Server) warn(kind warning, msg string, args ...any) {
	l := &s.warnLimits[kind]
	now, next := s.clock(), l.next.Load()
	if now < next || !l.next.CompareAndSwap(next, now+int64(warnInterval)) {
		l.suppressed.Add(1)
		return
	}
	if n := l.suppressed.Swap(0); n > 0 {
		args = append(args, "suppressed", n)
	}
	s.logger.Log(context.Background(), slog.LevelWarn, msg, args...)
}

// name is the client's id, escaped: it comes from the client and may hold anything.
func (c *conn) name() string {
	if c.session == nil {
		return ""
	}
	return strconv.Quote(c.session.id)
}
