package mqtt

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// On one processor a client that sends something is heard after a few handshakes, not after all that wait for their turn.
func TestTurnsLetOthersCompute(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()

	const handshakes, steps = 200, 4
	var taken atomic.Int64 // turns so far
	longest := make(chan int64)
	go func() {
		var sent [8]byte
		most := int64(0)
		for {
			if _, err := io.ReadFull(server, sent[:]); err != nil {
				longest <- most
				return
			}
			most = max(most, taken.Load()-int64(binary.BigEndian.Uint64(sent[:])))
		}
	}()
	free, epoch := newTurns(), time.Now()
	var all sync.WaitGroup
	for range handshakes {
		all.Go(func() {
			var waiting atomic.Int64
			turn := turns{free, func() int64 { return int64(time.Since(epoch)) }, &waiting}
			for range steps {
				turn.enter()
				if n := taken.Add(1); n%50 == 25 {
					_, _ = client.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
				}
				for began := time.Now(); time.Since(began) < time.Millisecond; { // computes
				}
				turn.leave()
			}
		})
	}
	all.Wait()
	client.Close()
	if n := <-longest; n > 60 {
		t.Errorf("somebody else had to wait for %d turns", n)
	} else {
		t.Logf("at most %d turns", n)
	}
}
