package mqtt

import (
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// ackQueue holds the acknowledgements that wait for their commit group. All of it is under conn.mu.
//
// Two buffers are enough: group g+1 fills while g is synced, and isn't sealed before Committed(g) has returned.
// The order of acknowledgements is that of the packets they answer (MQTT 5 §4.6): a group's leave in the order they came in,
// and what needs no commit of its own queues behind the newest group that isn't committed.
type ackQueue struct {
	newest    uint64 // last group that acknowledgements were queued for
	committed uint64 // last group that Committed was called for
	failed    bool   // a group was given up: nothing is acknowledged any more
	groups    [2]ackGroup
}

// ackGroup is what becomes due with one commit group.
type ackGroup struct {
	packets  []byte
	inflight int64 // bytes of the messages and of packets
	frees    int32 // places in the receive quota
}

// keepAckBytes is how large an emptied buffer may be and stay.
const keepAckBytes = 1 << 10

// open says whether acknowledgements wait for a commit.
func (q *ackQueue) open() bool { return q.newest > q.committed }

// batch is the outcome of storing one read's messages.
type batch struct {
	group uint64 // that holds them; 0: nothing was stored
	size  int64  // bytes of the packets they came in
	slots int32  // places in the receive quota they take
	frees int32  // places that are free again once the group is committed

	passing int64 // messages of routes with log: none
}

// queueAcks queues the acknowledgements of a batch, packets, until they are due. They are sent now if they are.
//
// The committer may have been faster: then the group's Committed call is over and has found nothing to send.
func (c *conn) queueAcks(b batch, packets []byte) {
	c.received.Add(b.slots)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acks.failed {
		return
	}
	if b.group > c.acks.committed {
		c.acks.newest = b.group
		c.acks.groups[b.group&1].frees += b.frees
	} else {
		c.received.Add(-b.frees)
		b.size = 0
	}
	if !c.acks.open() {
		c.sendLocked(packets)
		return
	}
	// What waits behind a commit counts, whether it is stored itself or not: a sync may take for ever.
	waits := b.size + int64(len(packets))
	g := &c.acks.groups[c.acks.newest&1]
	g.packets = append(g.packets, packets...)
	g.inflight += waits
	c.inflight.Add(waits)
}

// Committed implements segment.Waiter. Places in the receive quota are free before the acknowledgement leaves: a
// client may answer it with a message faster than this goroutine goes on.
func (c *conn) Committed(group uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks.committed = group
	g := &c.acks.groups[group&1]
	c.received.Add(-g.frees)
	c.inflight.Add(-g.inflight)
	g.frees, g.inflight = 0, 0
	if err != nil {
		// Nothing of it was stored: the client has to send it again, in a new connection.
		c.acks.groups, c.acks.failed = [2]ackGroup{}, true
		c.killLocked(endStorage)
		return
	}
	c.sendLocked(g.packets)
	g.packets = g.packets[:0]
	if cap(g.packets) > keepAckBytes {
		g.packets = nil
	}
	c.wakeLocked()
	c.srv.fanout.walksGoOn()
}

// awaitAcks waits for the commits of what the client has sent, for at most d.
func (c *conn) awaitAcks(d time.Duration) {
	c.prepareToWait()
	for deadline := time.Now().Add(d); ; {
		c.mu.Lock()
		open := c.acks.open()
		c.mu.Unlock()
		left := time.Until(deadline)
		if !open || left <= 0 {
			return
		}
		c.pause(left)
	}
}

// appendAck appends the acknowledgement of a message or release to a client with limits l.
func (m *message) appendAck(dst []byte, l *limits) []byte {
	switch {
	case m.release && m.known:
		return wire.AppendPubcomp(dst, l.version, m.id, wire.Success)
	case m.release:
		return wire.AppendPubcomp(dst, l.version, m.id, wire.PacketIDNotFound)
	case m.refused != accepted && l.version == wire.V5:
		return m.appendRefusal(dst, l)
	case m.qos == 1:
		return wire.AppendPuback(dst, l.version, m.id, wire.Success)
	case m.qos == 2:
		return wire.AppendPubrec(dst, l.version, m.id, wire.Success)
	}
	return dst
}

// refusal is why a message isn't stored that should have been.
type refusal byte

const (
	accepted refusal = iota
	refusedDenied
	refusedFull
	refusedUnavailable
	refusedRetained
)

// refusals are the words that a version 5 client is told a refusal in: fixed ones, as in ending.what.
var refusals = [...]struct {
	reason byte
	what   string
}{
	refusedDenied:      {wire.NotAuthorized, "not allowed by the access rules"},
	refusedFull:        {wire.QuotaExceeded, "the log has no room for the message"},
	refusedUnavailable: {wire.QuotaExceeded, "the log can't be written for now"},
	refusedRetained:    {wire.QuotaExceeded, "there is no room for more retained messages"},
}

// appendRefusal appends the acknowledgement of a message of QoS 1 or 2 that a version 5 client published in vain.
func (m *message) appendRefusal(dst []byte, l *limits) []byte {
	kind := wire.PUBACK
	if m.qos == 2 {
		kind = wire.PUBREC
	}
	r := &refusals[m.refused]
	return l.appendExplained(dst, r.what, func(dst []byte, why string) []byte {
		return wire.AppendRefusal(dst, kind, m.id, r.reason, why)
	})
}

// appendExplained appends a packet with the reason string why, but without it to a client that asked for none (MQTT-3.1.2-29) or takes
// no packet as large (MQTT-3.4.2-2, MQTT-3.5.2-2, MQTT-3.9.2-1, MQTT-3.11.2-1, MQTT-3.14.2-3).
func (l *limits) appendExplained(dst []byte, why string, packet func(dst []byte, why string) []byte) []byte {
	if !l.problemInfo {
		why = ""
	}
	start := len(dst)
	if dst = packet(dst, why); why != "" && len(dst)-start > l.maxPacket {
		dst = packet(dst[:start], "")
	}
	return dst
}
