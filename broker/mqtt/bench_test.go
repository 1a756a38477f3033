package mqtt

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/internal/vfs"
)

// unsynced is a file system whose syncs cost nothing, so that what is measured is the code.
type unsynced struct{ vfs.FS }

type unsyncedFile struct{ vfs.File }

func (u unsynced) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := u.FS.OpenFile(name, flag, perm)
	return unsyncedFile{f}, err
}

func (unsyncedFile) Sync() error { return nil }

// window is what a client sends at once, and a way to wait for its acknowledgements.
type window struct {
	conn net.Conn
	out  []byte
	in   []byte
}

const windowMessages = 20

func newWindow(tb testing.TB, version, qos byte) *window {
	b := start(tb, func(s *setup) { s.log.FS = unsynced{vfs.OS} })
	c := b.connect(connectOptions{version: version, id: "bench-client"})
	w := &window{conn: c.conn, in: make([]byte, windowMessages*4)}
	for id := uint16(1); id <= windowMessages; id++ {
		w.out = append(w.out, c.publishPacket(outMessage{topic: "sensors/bench/client", payload: string(bytes.Repeat([]byte{'x'}, 100)), qos: qos, id: id})...)
	}
	if qos == 0 {
		w.out = append(w.out, 0xC0, 0)
		w.in = w.in[:2]
	}
	return w
}

func (w *window) turn(tb testing.TB) {
	if _, err := w.conn.Write(w.out); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.ReadFull(w.conn, w.in); err != nil {
		tb.Fatal(err)
	}
}

// One read of 20 messages of 100 bytes, up to its acknowledgements.
func BenchmarkPublish(b *testing.B) {
	for qos := range byte(2) {
		b.Run("QoS "+string('0'+rune(qos)), func(b *testing.B) {
			w := newWindow(b, wire.V311, qos)
			for range 50 {
				w.turn(b)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				w.turn(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*windowMessages), "ns/message")
		})
	}
}

// The same with RETAIN, one topic.
func BenchmarkPublishRetained(b *testing.B) {
	for qos := range byte(2) {
		b.Run("QoS "+string('0'+rune(qos)), func(b *testing.B) {
			w := newWindow(b, wire.V311, qos)
			for at := 0; at < len(w.out); {
				h, n, _ := wire.ParseHeader(w.out[at:])
				if h.Type == wire.PUBLISH {
					w.out[at] |= 1
				}
				at += n + h.Remaining
			}
			for range 50 {
				w.turn(b)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				w.turn(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*windowMessages), "ns/message")
		})
	}
}

// A new subscriber takes 10,000 retained messages of 100 bytes.
func BenchmarkSubscribeRetained(b *testing.B) {
	const messages = 10000
	br := start(b, func(s *setup) { s.log.FS = unsynced{vfs.OS} })
	for i := range messages {
		br.keeper.store.Load(retained.NewMessage(retained.Message{Topic: fmt.Sprintf("site/%d/sensor/%d", i%100, i), Payload: make([]byte, 100)}))
	}
	b.ReportAllocs()
	for b.Loop() {
		c := br.connect(connectOptions{id: "c"})
		c.subscribe(filter{"#", 0})
		for range messages {
			c.read()
		}
		c.conn.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*messages), "ns/message")
}
