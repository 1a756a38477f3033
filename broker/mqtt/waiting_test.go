package mqtt

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// A message that found no room behind one that was about to be written leaves once that one is: no acknowledgement, and so
// nothing else, would bring it up.
func TestQueueMovesOnAfterAFlush(t *testing.T) {
	b := start(t, func(s *setup) { s.options.QueueBytes = 1 << 10 })
	sub := b.connect(connectOptions{id: "sub"})
	sub.subscribe(filter{"small", 0}, filter{"large", 1})
	pub := b.connect(connectOptions{id: "pub"})
	large := strings.Repeat("x", 2<<10)
	release := b.disk.hold(t)
	pub.publish(outMessage{topic: "small", payload: "s", qos: 1, id: 1}, outMessage{topic: "large", payload: large, qos: 1, id: 2})
	pub.ping()
	release()
	sub.expectPublish("small", "s", 0)
	sub.expectPublish("large", large, 1)
}

// What was published before somebody subscribed is not delivered, although the fan-out is still behind when the only
// subscription has ended and another one comes.
func TestNextSubscriptionStartsNow(t *testing.T) {
	b := start(t)
	first := b.connect(connectOptions{id: "first"})
	first.subscribe(filter{"t", 1})
	first.publish(outMessage{topic: "t", payload: "old", qos: 1, id: 1})
	first.expect(wire.PUBACK)
	first.expect(wire.PUBLISH)
	first.send([]byte{0xE0, 0})
	eventually(t, func() bool { return b.Stats().Sessions == 0 })
	b.fanout.readers[0].next.Store(0) // as if it had not got there yet
	second := b.connect(connectOptions{id: "second"})
	second.subscribe(filter{"t", 1})
	second.publish(outMessage{topic: "t", payload: "new", qos: 1, id: 1})
	second.expect(wire.PUBACK)
	second.expectPublish("t", "new", 1)
}

// Answers that wait behind a commit are bounded like messages: a client that goes on sending what needs no commit of its own is
// not read from.
func TestAnswersBehindACommitAreBounded(t *testing.T) {
	b := start(t, func(s *setup) { s.options.InflightBytes = 8 << 10 })
	c := b.connect(connectOptions{id: "c"})
	release := b.disk.hold(t)
	c.publish(outMessage{topic: "t", qos: 1, id: 1})
	c.ping()
	releases := bytes.Repeat(wire.AppendPubrel(nil, wire.V5, 7, 0), 1000)
	sent := make(chan error, 1)
	go func() {
		c.conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
		var err error
		for range 4000 {
			if _, err = c.conn.Write(releases); err != nil {
				break
			}
		}
		sent <- err
	}()
	if err := <-sent; err == nil {
		t.Error("16 MB of packets were taken while none was answered")
	}
	release()
}

// Publishers that wait for a log that takes nothing don't keep everybody else from being read.
func TestStalledPublishersLeaveRoom(t *testing.T) {
	b := start(t, func(s *setup) { s.options.ReadBuffers = 2 })
	b.disk.fail(errDisk)
	defer b.disk.fail(nil)
	trigger := b.connect(connectOptions{id: "trigger"})
	trigger.publish(outMessage{topic: "t", qos: 0})
	eventually(t, func() bool { return b.log.Status().Refusing != nil })
	for i := range 2 {
		old := b.connect(connectOptions{version: wire.V311, id: fmt.Sprint("old", i)})
		old.publish(outMessage{topic: "t", qos: 1, id: 1})
	}
	other := b.connect(connectOptions{id: "other"})
	begin := time.Now()
	other.ping()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("PINGRESP after %v", took)
	}
}

// A key that a route makes of nothing is empty, not null: null has no partition of its own, and compacted topics refuse it.
func TestEmptyKeyIsNotNull(t *testing.T) {
	b := start(t)
	c := &conn{srv: b.Server, session: &session{id: "c", idBytes: []byte("c")}}
	w := newWorkspace()
	w.source = []byte("t")
	c.fill(w, &message{topic: place{0, 1}, bareKey: true})
	if w.record.Key == nil {
		t.Error("the record's key is null")
	}
}
