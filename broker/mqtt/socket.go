package mqtt

import (
	"io"
	"net"
	"syscall"
	"time"
)

// socket is the stream of a TCP or unix socket as it is, and what the other transports are built on.
//
// Reading goes through the raw descriptor, so that a buffer is needed only while there is something to read.
type socket struct {
	conn socketConn
	raw  syscall.RawConn

	// the connection's goroutine only
	fd         uintptr               // while readable runs
	readable   func() bool           // while await runs
	onReadable func(fd uintptr) bool // await's part that net calls

	// used by whoever calls tryWrite, one at a time
	tryFn  func(fd uintptr) bool
	try    []byte
	tryN   int
	tryErr error
}

// socketConn is a *net.TCPConn or a *net.UnixConn.
type socketConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

func (s *socket) init(conn socketConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	s.conn, s.raw, s.onReadable, s.tryFn = conn, raw, s.callReadable, s.writeOnce
	return nil
}

func (s *socket) await(readable func() bool) error {
	s.readable = readable
	return s.raw.Read(s.onReadable)
}

func (s *socket) callReadable(fd uintptr) bool {
	s.fd = fd
	return s.readable()
}

func (s *socket) read(p []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(int(s.fd), p); err != syscall.EINTR {
			return taken(n, err)
		}
	}
}

// taken is what a stream's reader makes of a read that wasn't interrupted: nothing there is no error, the end is io.EOF.
func taken(n int, err error) (int, error) {
	switch {
	case err == syscall.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s *socket) tryWrite(p []byte) (n int, err error) {
	s.try, s.tryN, s.tryErr = p, 0, nil
	err = s.raw.Write(s.tryFn)
	s.try = nil
	if err == nil {
		err = s.tryErr
	}
	return s.tryN, err
}

func (s *socket) writeOnce(fd uintptr) bool {
	s.tryN, s.tryErr = writeNow(fd, s.try)
	return true
}

// writeNow writes what fits into the descriptor's buffer; n is 0 with a nil error when nothing does.
func writeNow(fd uintptr, p []byte) (n int, err error) {
	for {
		n, err = syscall.Write(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, err
		}
		return n, nil
	}
}

func (s *socket) write(p []byte) error {
	_, err := s.conn.Write(p)
	return err
}

// unblock: the usual time.Unix(1, 0) is still to come on a gateway that has just booted.
func (s *socket) unblock() { s.conn.SetReadDeadline(time.Now()) }

func (s *socket) writeBy(t time.Time) { s.conn.SetWriteDeadline(t) }

func (s *socket) linger(d time.Duration) {
	if s.conn.CloseWrite() != nil {
		return
	}
	s.conn.SetReadDeadline(time.Now().Add(d))
	discard(s.conn)
}

func (s *socket) close() { s.conn.Close() }
