//go:build !race

package mqtt

import (
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// The race detector needs memory of its own, so these figures are taken without it.

// An idle connection costs no more than its struct, its socket and a small stack.
func TestIdleConnectionBytes(t *testing.T) {
	b := start(t)
	b.connect(connectOptions{id: "warm"}).ping()
	measure := func() uint64 {
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const n = 400
	conns := make([]*net.TCPConn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	before := measure()
	for i := range n {
		conn, err := net.DialTCP("tcp", nil, b.Addrs()[0].(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		conn.Write(connectOptions{version: wire.V5, id: "client-" + string(rune('a'+i%26)) + string(rune('a'+i/26)), keepAlive: 60}.encode())
	}
	var connack [2]byte
	for _, conn := range conns {
		if _, err := io.ReadFull(conn, connack[:]); err != nil {
			t.Fatal(err)
		}
	}
	// The clients live in this process, too: their sockets cost what the broker's do, about 600 bytes.
	each := (measure() - before) / n
	t.Logf("%d bytes for a connection and its client's socket", each)
	if each > 6<<10 {
		t.Errorf("%d bytes for an idle connection", each)
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
