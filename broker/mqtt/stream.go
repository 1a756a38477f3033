package mqtt

import (
	"io"
	"net"
	"syscall"
	"time"
)

// stream is a connection's bytes. It is the one place that knows of TCP: another transport has to offer what these methods do.
//
// Reading goes through the raw descriptor, so that a buffer is needed only while there is something to read: a
// connection that waits holds its goroutine and nothing else.
type stream struct {
	tcp *net.TCPConn
	raw syscall.RawConn

	readable func(fd uintptr) bool // called while reading; returns false when there is nothing to read

	// used by whoever calls tryWrite, under conn.mu
	tryFn  func(fd uintptr) bool
	try    []byte
	tryN   int
	tryErr error
}

func (s *stream) init(tcp *net.TCPConn, readable func(fd uintptr) bool) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	s.tcp, s.raw, s.readable, s.tryFn = tcp, raw, readable, s.writeOnce
	return nil
}

// read calls readable each time that there may be something to read, until it returns true. An error means that unblock
// or close was called.
func (s *stream) read() error { return s.raw.Read(s.readable) }

// readInto reads what is there. n is 0 with a nil error when nothing is; the end of the stream is io.EOF.
func readInto(fd uintptr, p []byte) (n int, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// tryWrite writes what fits into the socket's buffer and never waits. It must not be called while write runs.
func (s *stream) tryWrite(p []byte) (n int, err error) {
	s.try, s.tryN, s.tryErr = p, 0, nil
	err = s.raw.Write(s.tryFn)
	s.try = nil
	if err == nil {
		err = s.tryErr
	}
	return s.tryN, err
}

func (s *stream) writeOnce(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), s.try)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
		case err != nil:
			s.tryErr = err
		default:
			s.tryN = n
		}
		return true
	}
}

// write waits until all of p is written, or finish's time is over, or the stream is closed.
func (s *stream) write(p []byte) error {
	_, err := s.tcp.Write(p)
	return err
}

// unblock makes read return once readable doesn't return true. It never waits. The usual time.Unix(1, 0) is still to come on a
// gateway that has just booted.
func (s *stream) unblock() { s.tcp.SetReadDeadline(time.Now()) }

// writeBy makes write give up at a time.
func (s *stream) writeBy(t time.Time) { s.tcp.SetWriteDeadline(t) }

// linger tells the peer that nothing more comes and takes what it still sends, for at most d. Closing with bytes unread
// would make the kernel reset the connection, and the peer would never see what was written last.
func (s *stream) linger(d time.Duration) {
	if s.tcp.CloseWrite() != nil {
		return
	}
	s.tcp.SetReadDeadline(time.Now().Add(d))
	var sink [512]byte
	for range lingerReads {
		if _, err := s.tcp.Read(sink[:]); err != nil {
			return
		}
	}
}

// lingerReads bounds what a peer that goes on sending can make linger read.
const lingerReads = 512

func (s *stream) close() { s.tcp.Close() }
