package mqtt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// listener is one address that is listened on. Immutable.
type listener struct {
	net.Listener
	options Listener
	tls     *tlsFiles // nil: no TLS
}

// Listen reads the listeners' files and binds every address of every listener, or none.
func (s *Server) Listen() error {
	var bound []*listener
	for _, l := range s.options.Listeners {
		var err error
		if bound, err = s.bind(bound, l.withDefaults()); err != nil {
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

// bind appends what one listener's addresses are bound to.
func (s *Server) bind(bound []*listener, o Listener) ([]*listener, error) {
	var files *tlsFiles
	if o.TLS != nil {
		files = &tlsFiles{options: *o.TLS}
		if err := s.loadTLS(files); err != nil {
			return bound, fmt.Errorf("listen %s: %w", o.Address, err)
		}
	}
	if path, ok := o.socketPath(); ok {
		l, err := listenUnix(path, o.Mode)
		if err != nil {
			return bound, fmt.Errorf("listen %s: %w", o.Address, err)
		}
		return append(bound, &listener{l, o, files}), nil
	}
	addrs, err := o.addresses()
	if err != nil {
		return bound, err
	}
	// The first must be there, others may be missing on this machine. A port of 0 becomes the same free one for all.
	port := addrs[0].Port()
	for i, addr := range addrs {
		addr = netip.AddrPortFrom(addr.Addr(), port)
		network := "tcp4"
		if addr.Addr().Is6() {
			network = "tcp6" // an address of one family only, also where it stands for all
		}
		l, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
		switch {
		case err == nil:
			port = l.Addr().(*net.TCPAddr).AddrPort().Port()
			bound = append(bound, &listener{l, o, files})
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
	return fmt.Errorf("listen %v: %w", addr, cmp.Or(errors.Unwrap(err), err))
}

// listenUnix makes a socket with the permissions of mode, and never more than those. The file that a broker left which was killed
// is removed, one that somebody listens on isn't.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		// Linux gives the file what the socket has, less the umask.
		var err error
		if e := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) }); e != nil {
			return e
		}
		return err
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = config.Listen(context.Background(), "unix", path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("the socket's directory doesn't exist; make it, or choose another path")
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.New("not permitted to make the socket; change its directory's owner or mode, or choose another path")
	case err != nil:
		return nil, cmp.Or(errors.Unwrap(err), err)
	}
	if err := os.Chmod(path, mode.Perm()); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// removeStale removes a socket's file that nobody listens on.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return errors.New("there is a file that is no socket; remove it, or choose another path")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return errors.New("address in use; stop the program that has it, or choose another path")
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("address in use, perhaps (%w); stop the program that has it, or remove the file", cmp.Or(errors.Unwrap(err), err))
}

const (
	firstAcceptRetry   = 5 * time.Millisecond
	longestAcceptRetry = time.Second
	spareConnections   = 64 // without a session yet, beyond those that may have one
)

// acceptLoop is a listener's goroutine. It ends only with the listener: when there is no file descriptor to accept with, say,
// it tries again.
func (s *Server) acceptLoop(l *listener) {
	retry := firstAcceptRetry
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		wait := retry
		if err != nil {
			s.warn(warnAccept, "can't accept connections; trying again", "listener", l.Addr(), "cause", err)
			retry = min(2*retry, longestAcceptRetry)
		} else {
			retry = firstAcceptRetry
			s.accept(l, nc.(socketConn))
			if wait = s.pacer.take(s.clock()); wait > 0 {
				s.counters.paced.Add(1)
				s.warn(warnPaced, "more connections a second than are taken; they wait", "listener", l.Addr(), "wait", wait)
			}
		}
		if wait > 0 && !s.sleep(wait) {
			return
		}
	}
}

// sleep returns false when the server stops meanwhile.
func (s *Server) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.stop:
		return false
	case <-t.C:
		return true
	}
}

// accept starts a connection's goroutine, unless there are too many connections to even say so.
func (s *Server) accept(l *listener, nc socketConn) {
	s.counters.accepted.Add(1)
	c, err := newConn(s, l, nc)
	if err != nil || !s.admit(c) {
		nc.Close()
		return
	}
	go c.greet()
}

// admit counts a connection, if there is room for it.
func (s *Server) admit(c *conn) bool {
	remote := addressOf(c.remote)
	proxied := c.listener.options.ProxyProtocol
	if proxied != nil && remote.IsValid() && !proxied.trusts(remote) {
		s.counters.untrusted.Add(1)
		s.warn(warnProxy, "connection from an address that isn't a trusted proxy's", "listener", c.listener.Addr(), "remote", c.remote)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return false
	case len(s.conns) >= s.options.MaxConnections+max(spareConnections, s.options.MaxConnections/4):
		s.counters.refused.Add(1)
		s.warn(warnFull, "too many connections", "max_connections", s.options.MaxConnections, "remote", c.remote)
		return false
	case proxied == nil && !s.countLocked(c, remote):
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	return true
}

// countLocked counts a connection under its client's address, unless there are too many of that. Server.mu.
func (s *Server) countLocked(c *conn, ip netip.Addr) bool {
	network := networkOf(ip)
	if !network.IsValid() {
		return true
	}
	if s.perAddress[network] >= s.options.MaxPerAddress {
		s.counters.crowded.Add(1)
		s.warn(warnAddress, "too many connections from one address", "max_connections_per_address", s.options.MaxPerAddress, "remote", c.remote)
		return false
	}
	s.perAddress[network]++
	c.network = network
	return true
}

// addressOf is a peer's IP address, or the zero value for a unix socket's.
func addressOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// networkOf is what counts as one address: of IPv6 the first 64 bits, all of which a host may well have for itself; not so for
// link-local ones, which share them. Loopback isn't counted.
func networkOf(ip netip.Addr) netip.Addr {
	switch {
	case !ip.IsValid() || ip.IsLoopback():
		return netip.Addr{}
	case ip.Is4() || ip.IsLinkLocalUnicast():
		return ip
	}
	prefix, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return prefix.Addr()
}

// forget is the last act of a connection's goroutine.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	if c.network.IsValid() {
		if s.perAddress[c.network]--; s.perAddress[c.network] == 0 {
			delete(s.perAddress, c.network)
		}
	}
	s.mu.Unlock()
	s.running.Done()
}
