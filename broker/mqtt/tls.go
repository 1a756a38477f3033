package mqtt

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// tlsStream is TLS over a socket.
//
// crypto/tls reads and writes as if it could wait. After the handshake it never does: reading, the socket says with a temporary
// error that there is nothing more, which leaves a record that arrived in part where it is (crypto/tls documents that for
// timeouts); so the goroutine of an idle connection waits in the same place, with as small a stack, as without TLS. Writing,
// what the socket doesn't take of a record is kept here.
type tlsStream struct {
	*socket
	conn  *tls.Conn
	turns *turns // during the handshake
	ready bool   // the handshake is over: set by the connection's goroutine before anybody else writes

	ahead int // plaintext bytes in unsent that no caller was told about; used by whoever may call tryWrite

	mu     sync.Mutex
	unsent []byte // under mu: records that the socket didn't take
}

const (
	// recordBytes of plaintext go into one record. RFC 8446 §5.1 allows no more.
	recordBytes = 16 << 10
	// maxUnsentBytes bounds what a client that asks for new keys again and again, and reads nothing, makes of answers.
	maxUnsentBytes = 64 << 10
)

// errUnsent ends a connection at that bound.
var errUnsent = errors.New("TLS answers that the client doesn't take")

func newTLSStream(s *socket, config *tls.Config, t *turns) *tlsStream {
	ts := &tlsStream{socket: s, turns: t}
	ts.conn = tls.Server((*tlsSocket)(ts), config)
	return ts
}

// handshake waits for the client's part. limit is how long writing may take; reading ends with unblock.
func (s *tlsStream) handshake(limit time.Duration) error {
	s.writeBy(time.Now().Add(limit))
	s.turns.enter()
	err := s.conn.Handshake()
	s.turns.leave()
	s.writeBy(time.Time{})
	s.turns, s.ready = nil, err == nil
	release(s.conn, tlsBuffers.records, 0)
	release(s.conn, tlsBuffers.messages, 0)
	return err
}

func (s *tlsStream) read(p []byte) (n int, err error) {
	n, err = s.conn.Read(p)
	switch {
	case n > 0:
		return n, nil // an end behind the bytes is found by the next read
	case err == errNoData:
		release(s.conn, tlsBuffers.records, keepRecordBytes)
		return 0, nil
	}
	return 0, err
}

// tryWrite takes whole records' worth. Of the last one the socket may have taken a part only: then its bytes count as not
// taken, come again by stream's rule, and are passed over once the rest of the record is out.
func (s *tlsStream) tryWrite(p []byte) (n int, err error) {
	if done, err := s.flush(false); !done || err != nil {
		return 0, err
	}
	n = min(s.ahead, len(p))
	s.ahead -= n
	for n < len(p) {
		m := min(len(p)-n, recordBytes)
		if _, err := s.conn.Write(p[n : n+m]); err != nil {
			return n, err
		}
		if done, err := s.flush(false); !done || err != nil {
			s.ahead = m
			return n, err
		}
		n += m
	}
	return n, nil
}

func (s *tlsStream) write(p []byte) error {
	for {
		n, err := s.tryWrite(p)
		if err != nil || n == len(p) {
			return err
		}
		p = p[n:]
		if _, err := s.flush(true); err != nil {
			return err
		}
	}
}

// flush writes what the socket didn't take before, and waits for the socket if it is to. done says that nothing is left.
func (s *tlsStream) flush(wait bool) (done bool, err error) {
	s.mu.Lock()
	done = len(s.unsent) == 0
	s.mu.Unlock()
	if done {
		return true, nil
	}
	e := s.raw.Write(func(fd uintptr) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.unsent) > 0 && err == nil {
			var n int
			if n, err = writeNow(fd, s.unsent); n == 0 {
				break
			}
			s.unsent = s.unsent[n:]
		}
		if done = len(s.unsent) == 0; done {
			s.unsent = nil
		}
		return done || err != nil || !wait
	})
	if err == nil {
		err = e
	}
	return done, err
}

func (s *tlsStream) linger(d time.Duration) {
	s.conn.CloseWrite()
	s.socket.linger(d)
}

func (s *tlsStream) close() {
	if s.ready {
		s.conn.CloseWrite() // RFC 8446 §6.1: so that the peer can tell an end from a cut
	}
	s.socket.close()
}

// noData is the error of a read that would have to wait. It is a net.Error and temporary: crypto/tls keeps what
// arrived and may be called again.
type noData struct{}

func (noData) Error() string   { return "nothing to read" }
func (noData) Timeout() bool   { return true }
func (noData) Temporary() bool { return true }

var errNoData error = noData{}

// tlsSocket is the socket as crypto/tls sees it.
type tlsSocket tlsStream

// Read waits during the handshake only, and lets others compute meanwhile.
func (t *tlsSocket) Read(p []byte) (n int, err error) {
	if !t.ready {
		t.turns.leave()
		n, err = t.socket.conn.Read(p)
		t.turns.enter()
		return n, err
	}
	n, err = t.socket.read(p)
	if n == 0 && err == nil {
		err = errNoData
	}
	return n, err
}

// Write never waits after the handshake. crypto/tls calls it for one record at a time, also while it reads. It takes all: what the
// socket doesn't is flush's. The mutex isn't held while the socket is asked, since flush locks in the other order.
func (t *tlsSocket) Write(p []byte) (n int, err error) {
	if !t.ready {
		return t.writeHandshake(p)
	}
	t.mu.Lock()
	behind := len(t.unsent) > 0
	t.mu.Unlock()
	if !behind {
		if n, err = t.socket.tryWrite(p); err != nil {
			return n, err
		}
	}
	if n == len(p) {
		return n, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unsent)+len(p)-n > maxUnsentBytes {
		return n, errUnsent
	}
	t.unsent = append(t.unsent, p[n:]...)
	return len(p), nil
}

// writeHandshake waits if it has to, also without keeping others from computing: a client that reads nothing would.
func (t *tlsSocket) writeHandshake(p []byte) (n int, err error) {
	if n, err = t.socket.tryWrite(p); err != nil || n == len(p) {
		return n, err
	}
	t.turns.leave()
	m, err := t.socket.conn.Write(p[n:])
	t.turns.enter()
	return n + m, err
}

func (t *tlsSocket) Close() error                     { return t.socket.conn.Close() }
func (t *tlsSocket) LocalAddr() net.Addr              { return t.socket.conn.LocalAddr() }
func (t *tlsSocket) RemoteAddr() net.Addr             { return t.socket.conn.RemoteAddr() }
func (t *tlsSocket) SetDeadline(time.Time) error      { return nil }
func (t *tlsSocket) SetReadDeadline(time.Time) error  { return nil }
func (t *tlsSocket) SetWriteDeadline(time.Time) error { return nil } // CloseWrite sets one, and would spoil the socket's
