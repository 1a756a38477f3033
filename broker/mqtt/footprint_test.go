//go:build !race

package mqtt

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// The race detector needs memory of its own, so these figures are taken without it.

// An idle connection costs no more than its struct, its socket and a small stack; WebSocket adds a struct of its own.
func TestIdleConnectionBytes(t *testing.T) {
	measureIdle(t, Listener{Address: "127.0.0.1:0"}, func(connect []byte) []byte { return connect })
}

func TestIdleWebSocketBytes(t *testing.T) {
	measureIdle(t, Listener{Address: "127.0.0.1:0", WebSocket: &WebSocket{}}, func(connect []byte) []byte {
		return append([]byte(wsRequest), wsFrame(0x82, connect)...)
	})
}

// measureIdle says what a connection costs that sends hello of its CONNECT and then nothing. The clients live in this process, too: their
// sockets cost what the broker's do, about 600 bytes.
func measureIdle(t *testing.T, l Listener, hello func(connect []byte) []byte) {
	b := startAt(t, l)
	measure := func() (heap, stack uint64) {
		runtime.GC() // twice: pools give up what is in them at the second
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, m.StackInuse
	}
	const n = 400
	conns := make([]*net.TCPConn, 0, n+1)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	var heapBefore, stackBefore uint64
	for i := range n + 1 {
		conn, err := net.DialTCP("tcp", nil, b.Addrs()[0].(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		conn.Write(hello(connectOptions{version: wire.V5, id: fmt.Sprintf("client-%03d", i), keepAlive: 60}.encode()))
		if i == 0 { // the first brings what all share
			eventually(t, func() bool { return b.Stats().Sessions == 1 })
			heapBefore, stackBefore = measure()
		}
	}
	eventually(t, func() bool { return b.Stats().Sessions == n+1 })
	var answer [1]byte
	for _, conn := range conns {
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			t.Fatal(err)
		}
	}
	heap, stack := measure()
	heap, stack = (heap-heapBefore)/n, (stack-stackBefore)/n
	t.Logf("%d bytes for a connection and its client's socket, and %d of stack", heap, stack)
	if heap+stack > 6<<10 {
		t.Error("too many")
	}
}

// The way of a message allocates nothing. What the log allocates for a commit is spread over its messages.
func TestPublishAllocatesNothing(t *testing.T) {
	for _, v := range bothVersions {
		w := newWindow(t, v, 1)
		for range 200 {
			w.turn(t)
		}
		if n := testing.AllocsPerRun(500, func() { w.turn(t) }); n > windowMessages/4 {
			t.Errorf("%s: %v allocations for %d messages", versionName(v), n, windowMessages)
		} else {
			t.Logf("%s: %v allocations for %d messages", versionName(v), n, windowMessages)
		}
	}
}
