package broker

import (
	"net"
	"os"
	"strconv"
	"time"
)

// notifier speaks sd_notify(3): datagrams to the socket that the service manager named. Without one it says nothing, and
// failures are not errors: a broker that can't report is still a broker.
type notifier struct {
	address  *net.UnixAddr // nil: nobody listens
	watchdog time.Duration // 0: no watchdog
}

func newNotifier(getenv func(string) string) *notifier {
	n := &notifier{}
	name := getenv("NOTIFY_SOCKET")
	if name == "" || (name[0] != '/' && name[0] != '@') {
		return n // unset, or a kind that we don't speak (vsock)
	}
	n.address = &net.UnixAddr{Name: name, Net: "unixgram"} // a leading @ is the abstract namespace for both
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 || usec > int64(24*time.Hour/time.Microsecond) {
		return n
	}
	if pid := getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

func (n *notifier) send(message string) {
	if n.address == nil {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, n.address)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte(message))
}

// interval is how often to report: twice within the watchdog's time as sd_watchdog_enabled(3) advises; 0: never.
func (n *notifier) interval() time.Duration {
	switch {
	case n.address == nil:
		return 0
	case n.watchdog > 0:
		return n.watchdog / 2
	}
	return 30 * time.Second
}
