package mqtt

import (
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment"
)

// Bits of FuzzConnection's mode.
const (
	fuzzOld      = 1 << iota // version 3.1.1
	fuzzConnect              // a CONNECT comes before the data
	fuzzLasting              // with a session that outlives the connection
	fuzzWill                 // and a will
	fuzzTakeOver             // another connection of the same client comes behind the data
	fuzzReset                // the connection is given up without waiting for the broker
)

// FuzzConnection sends arbitrary bytes in arbitrary pieces behind a CONNECT or instead of it. Each byte of cuts is the size of a piece, and
// the rest is one. Afterwards no goroutine is left of it, nothing is accounted for it, and another client is still served.
func FuzzConnection(f *testing.F) {
	for _, v := range violations() {
		for at, p := range v.raw {
			mode := byte(0)
			if at == at311 {
				mode |= fuzzOld
			}
			if !v.first {
				mode |= fuzzConnect
			}
			if len(p) > 0 && len(p) < 300 {
				f.Add(mode, p, []byte{1, 3})
			}
		}
	}
	f.Add(byte(fuzzConnect|fuzzLasting|fuzzWill|fuzzTakeOver), dialogue(wire.V5), []byte{})
	f.Add(byte(fuzzConnect|fuzzOld|fuzzLasting|fuzzReset), dialogue(wire.V311), []byte{2, 1, 40})
	b := start(f, func(s *setup) {
		s.log.FS = vfs.NewMem(vfs.MemOptions{})
		s.topic = segment.TopicOptions{Name: "mqtt", Partitions: 1, SegmentBytes: 1 << 20, RetentionBytes: 4 << 20}
		s.options.MaxSessionExpiry, s.options.MaxPacketBytes = 1, 4<<10
	})
	witness := b.connect(connectOptions{id: "witness 4b1c9d07"}) // an id that data doesn't have
	witness.subscribe(filter{"#", 1})
	f.Fuzz(func(t *testing.T, mode byte, data, cuts []byte) {
		idle := runtime.NumGoroutine()
		b.t, witness.t = t, t
		defer func() { b.t, witness.t = f, f }()
		fuzzConnection(b, mode, data, cuts)
		eventually(t, func() bool { return b.Stats().Connections == 1 })
		eventually(t, func() bool { return runtime.NumGoroutine() <= idle })
		eventually(t, func() bool { return b.queued.Load() == 0 && b.partials.Load() == 0 })
		witness.drain()
	})
}

// dialogue is what a lively client sends behind its CONNECT.
func dialogue(version byte) []byte {
	c := client{version: version}
	p := c.subscribePacket(1, 1, filter{"a/#", 1}, filter{"$share/g/a/+", 2}, filter{"local/+", 2})
	for q := range byte(3) {
		p = append(p, c.publishPacket(outMessage{topic: "a/b", payload: "p", qos: q, id: uint16(q) + 1, raw: cat(3, str("x"))})...)
		p = append(p, c.publishPacket(outMessage{topic: "local/b", payload: "p", qos: q, id: uint16(q) + 4})...)
	}
	for _, id := range []uint16{1, 2, 3} {
		p = wire.AppendPuback(p, version, id, 0)
		p = wire.AppendPubrec(p, version, id, 0)
		p = wire.AppendPubrel(p, version, id, 0)
		p = wire.AppendPubcomp(p, version, id, 0)
	}
	return append(p, 0xC0, 0)
}

// fuzzConnection is one client's life.
func fuzzConnection(b *broker, mode byte, data, cuts []byte) {
	c := b.dial()
	o := connectOptions{version: wire.V5, id: "fuzz"}
	if mode&fuzzOld != 0 {
		o.version = wire.V311
	}
	if mode&fuzzLasting != 0 {
		o = lasting(o.version, o.id)
	}
	if mode&fuzzWill != 0 {
		o.will = &willOptions{topic: "a/will", payload: "gone", qos: 1}
	}
	if mode&fuzzConnect != 0 {
		c.send(o.encode())
	}
	for _, n := range append(cuts, 0xFF) {
		size := min(int(n)+1, len(data))
		if n == 0xFF {
			size = len(data)
		}
		if _, err := c.conn.Write(data[:size]); err != nil {
			break // the broker has closed
		}
		data = data[size:]
	}
	if mode&fuzzTakeOver != 0 {
		other := b.dial()
		other.send(o.encode())
		other.finish()
	}
	if mode&fuzzReset == 0 {
		c.finish()
	}
	c.conn.Close()
}

// finish says that nothing more comes and reads what does.
func (c *client) finish() {
	c.conn.(interface{ CloseWrite() error }).CloseWrite()
	c.conn.SetReadDeadline(time.Now().Add(patience))
	io.Copy(io.Discard, c.in)
	c.conn.Close()
}

// drain takes and acknowledges messages up to the answer to a PINGREQ.
func (c *client) drain() {
	c.t.Helper()
	c.send([]byte{0xC0, 0})
	for {
		p := c.read()
		if p.kind == wire.PINGRESP {
			return
		}
		if m := c.parse(p); m.qos > 0 {
			c.ack(wire.PUBACK, m.id)
		}
	}
}
