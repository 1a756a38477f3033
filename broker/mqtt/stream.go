package mqtt

import (
	"io"
	"time"
)

// stream is what a connection needs of a transport. There are a plain socket, TLS over a socket, and WebSocket over either.
//
// Reading never needs a buffer but while there is something to read: a connection that waits holds its goroutine and
// nothing else.
//
// Writing follows one rule: bytes that a call did not take come again, first, with the next call, unchanged. A transport that
// puts bytes into frames or records of its own may have begun one with them.
type stream interface {
	// await calls readable each time that there may be something to read, until it returns true. An error means that
	// unblock or close was called. The connection's goroutine only.
	await(readable func() bool) error
	// read reads what is there. n is 0 with a nil error when nothing is; the end of the stream is io.EOF. It is called from
	// await's readable only.
	read(p []byte) (n int, err error)
	// tryWrite writes what the transport takes now and never waits. It must not be called while write runs.
	tryWrite(p []byte) (n int, err error)
	// write waits until all of p is written, or the time of writeBy is over, or the stream is closed.
	write(p []byte) error
	// unblock makes await return once readable doesn't return true. It never waits.
	unblock()
	// writeBy makes write give up at a time.
	writeBy(t time.Time)
	// linger tells the peer that nothing more comes and takes what it still sends, for at most d. Closing with bytes unread
	// would make the kernel reset the connection, and the peer would never see what was written last.
	linger(d time.Duration)
	close()
}

// discard reads what is still sent and throws it away, until an error, for lingerReads reads at most.
func discard(r io.Reader) {
	var sink [512]byte
	for range lingerReads {
		if _, err := r.Read(sink[:]); err != nil {
			return
		}
	}
}

// lingerReads bounds what a peer that goes on sending can make linger read.
const lingerReads = 512
