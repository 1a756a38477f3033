package broker

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// manager is the service manager's end of the socket.
func manager(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	// Not t.TempDir: a socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, name
}

func receive(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestNotify(t *testing.T) {
	conn, name := manager(t)
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	b, _ := newTestBroker(t, testOptions(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	if got := receive(t, conn); !strings.HasPrefix(got, "READY=1\nSTATUS=listening on 127.0.0.1:") {
		t.Errorf("first %q", got)
	}
	if got := receive(t, conn); !strings.HasPrefix(got, "WATCHDOG=1\nSTATUS=listening on 127.0.0.1:") {
		t.Errorf("then %q", got)
	}
	cancel()
	for {
		got := receive(t, conn)
		if strings.HasPrefix(got, "WATCHDOG=1") {
			continue // sent before it saw the end
		}
		if got != "STOPPING=1\nSTATUS=stopping" {
			t.Errorf("at the end %q", got)
		}
		break
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNotifier(t *testing.T) {
	environment := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	pid := strconv.Itoa(os.Getpid())
	tests := []struct {
		name   string
		getenv func(string) string
		want   time.Duration
	}{
		{"nothing", environment(), 0},
		{"no watchdog", environment("NOTIFY_SOCKET", "/run/notify"), 30 * time.Second},
		{"watchdog", environment("NOTIFY_SOCKET", "/run/notify", "WATCHDOG_USEC", "10000000", "WATCHDOG_PID", pid), 5 * time.Second},
		{"watchdog for anyone", environment("NOTIFY_SOCKET", "@abstract", "WATCHDOG_USEC", "10000000"), 5 * time.Second},
		{"watchdog for another", environment("NOTIFY_SOCKET", "/run/notify", "WATCHDOG_USEC", "10000000", "WATCHDOG_PID", "1"), 30 * time.Second},
		{"nonsense", environment("NOTIFY_SOCKET", "/run/notify", "WATCHDOG_USEC", "-1"), 30 * time.Second},
		{"a kind of socket we don't speak", environment("NOTIFY_SOCKET", "vsock:2:1234"), 0},
	}
	for _, test := range tests {
		if got := newNotifier(test.getenv).interval(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	newNotifier(environment("NOTIFY_SOCKET", "/nowhere/notify")).send("READY=1") // nobody there: no harm
}
