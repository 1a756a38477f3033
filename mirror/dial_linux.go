package mirror

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledgedLimit is how long the peer may acknowledge nothing of what was sent before the connection counts as dead.
const unacknowledgedLimit = 40 * time.Second

// limitUnacknowledged bounds a connection by progress rather than by time (tcp(7), TCP_USER_TIMEOUT): a request that
// trickles over a slow link goes on, while one into a link that is gone fails long before its deadline. Without it a
// connection over a link that vanished retransmits for about a quarter of an hour.
func limitUnacknowledged(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// Where the kernel refuses, the request's own deadline does the work.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledgedLimit.Milliseconds()))
	})
}
