package mqtt

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Listen binds every address of every listener, or none.
func (s *Server) Listen() error {
	var bound []*net.TCPListener
	for _, l := range s.options.Listeners {
		addrs, err := l.addresses()
		if err == nil {
			bound, err = bind(bound, addrs)
		}
		if err != nil {
			for _, b := range bound {
				b.Close()
			}
			return err
		}
	}
	s.mu.Lock()
	s.listeners = bound
	s.mu.Unlock()
	return nil
}

// bind listens on addrs, which stand for one listener: the first must be there, others may be missing on this machine.
// A port of 0 becomes the same free one for all.
func bind(bound []*net.TCPListener, addrs []netip.AddrPort) ([]*net.TCPListener, error) {
	port := addrs[0].Port()
	for i, addr := range addrs {
		addr = netip.AddrPortFrom(addr.Addr(), port)
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		switch {
		case err == nil:
			port = l.Addr().(*net.TCPAddr).AddrPort().Port()
			bound = append(bound, l)
		case i > 0 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)):
		default:
			return bound, bindError(addr, err)
		}
	}
	return bound, nil
}

func bindError(addr netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen %v: address in use; stop the program that has it, or choose another port", addr)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listen %v: not permitted; choose a port above 1023, or give the program CAP_NET_BIND_SERVICE", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listen %v: this machine doesn't have the address; choose another", addr)
	}
	return fmt.Errorf("listen %v: %w", addr, errors.Unwrap(err))
}

const (
	firstAcceptRetry   = 5 * time.Millisecond
	longestAcceptRetry = time.Second
	spareConnections   = 64 // without a session yet, beyond those that may have one
)

// acceptLoop is a listener's goroutine. It ends only with the listener: when there is no file descriptor to accept with, say,
// it tries again.
func (s *Server) acceptLoop(l *net.TCPListener) {
	retry := firstAcceptRetry
	for {
		tcp, err := l.AcceptTCP()
		if err == nil {
			retry = firstAcceptRetry
			s.accept(tcp)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.warn(warnAccept, "can't accept connections; trying again", "listener", l.Addr(), "cause", err)
		select {
		case <-s.stop:
			return
		case <-time.After(retry):
		}
		retry = min(2*retry, longestAcceptRetry)
	}
}

// accept starts a connection's goroutine, unless there are too many connections to even say so.
func (s *Server) accept(tcp *net.TCPConn) {
	s.counters.accepted.Add(1)
	c, err := newConn(s, tcp)
	if err != nil {
		tcp.Close()
		return
	}
	s.mu.Lock()
	refused := s.closing || len(s.conns) >= s.options.MaxConnections+max(spareConnections, s.options.MaxConnections/4)
	if !refused {
		s.conns[c] = struct{}{}
		s.running.Add(1)
	}
	s.mu.Unlock()
	if refused {
		s.counters.refused.Add(1)
		tcp.Close()
		return
	}
	go c.greet()
}

// forget is the last act of a connection's goroutine.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.running.Done()
}
