package mqtt

import (
	"sync"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

const (
	readBytes    = 16 << 10 // what one read takes at most, unless a packet is larger
	readMessages = 64       // messages of a read that go to the log under one lock
)

// workspace is everything that working off one read needs. A connection has one only while it has something in hand.
type workspace struct {
	data [readBytes]byte

	now      time.Time
	publish  wire.Publish
	messages []message // parsed, not yet stored
	bytes    int       // of the packets that the messages came in
	source   []byte    // what the messages' topics and payloads are in
	at       int       // where in source the body of the packet in hand begins
	arena    []byte    // keys and properties of messages
	credit   int       // QoS 1 and 2 messages the client may still send

	replies  []byte // acknowledgements of the messages, in order
	direct   []byte // answers that wait for nothing
	releases []byte // PUBRELs that wait until it is durable that they are due
	codes    []byte // of a SUBACK or UNSUBACK

	record   record.Record
	headers  [2]record.Header
	envelope []byte
	changes  []*retained.Change // that messages with RETAIN make
	key      []byte             // of a retained message in the state
	value    []byte             // the same

	delivery delivery
}

// message is a PUBLISH or PUBREL between parsing and storing. It has places in the workspace's source and arena instead of
// slices of them: those would cost a write barrier each while garbage is collected, a good part of what a message costs.
type message struct {
	partition *segment.Partition // nil: not stored
	topic     place              // in the source, or in the arena if aliased
	payload   place              // in the source
	key       place              // in the arena, if bareKey; the topic otherwise
	props     place              // in the arena
	expiry    uint32
	change    int32 // its change of what is retained is at change-1; 0: none
	id        uint16
	qos       byte
	refused   refusal // why it isn't stored, though it should have been
	hasExpiry bool
	retain    bool
	aliased   bool // the topic isn't in the packet
	bareKey   bool // the key is not the topic, so that a header must name it
	release   bool // a PUBREL: only id counts
	known     bool // QoS 2: the id was in use, so the message is a repeat, or the release has something to release
	denied    bool // the client may not publish to its topic
	local     bool // has no place in the log, so that subscribers get it at once
	unrouted  bool // local, and not because a route says so
}

// place is where some bytes are in a buffer. A buffer is at most a packet, so 32 bits do.
type place struct{ at, size uint32 }

func (p place) in(b []byte) []byte { return b[p.at : p.at+p.size : p.at+p.size] }

// topic is the topic of a message of the workspace.
func (w *workspace) topic(m *message) []byte {
	if m.aliased {
		return m.topic.in(w.arena)
	}
	return m.topic.in(w.source)
}

// delivery is what handing messages to subscribers needs.
type delivery struct {
	hits    []topics.Hit[*session]
	touched []*conn    // that were given something to send
	fell    []*session // that were live and had no room
	ids     []uint32
	out     wire.Outgoing
}

func newWorkspace() *workspace {
	w := &workspace{messages: make([]message, 0, readMessages)}
	w.headers = [2]record.Header{{Key: record.EnvelopeKey}, {Key: record.TopicKey}}
	return w
}

// keep copies b into the arena.
func (w *workspace) keep(b []byte) place {
	at := len(w.arena)
	w.arena = append(w.arena, b...)
	return place{uint32(at), uint32(len(b))}
}

// forget empties the list of messages.
func (w *workspace) forget() {
	w.messages, w.bytes, w.arena = w.messages[:0], 0, w.arena[:0]
	if len(w.changes) > 0 {
		clear(w.changes)
		w.changes = w.changes[:0]
	}
}

// reset drops references into buffers that are not the workspace's own, and buffers that grew beyond the usual.
func (w *workspace) reset() {
	w.forget()
	w.source, w.arena = nil, trim(w.arena)
	w.replies, w.direct, w.codes, w.releases = trim(w.replies), trim(w.direct), trim(w.codes), trim(w.releases)
	w.envelope, w.publish.Scratch = trim(w.envelope), trim(w.publish.Scratch)
	w.key, w.value = trim(w.key), trim(w.value)
	w.record, w.headers[0].Value, w.headers[1].Value = record.Record{}, nil, nil
	w.publish = wire.Publish{Scratch: w.publish.Scratch}
}

func trim(b []byte) []byte {
	if cap(b) > readBytes {
		return nil
	}
	return b[:0]
}

// workspaces hands out at most limit workspaces: with the log at a standstill every publisher holds one, and their
// number must not be that of the connections.
type workspaces struct {
	pool    sync.Pool
	mu      sync.Mutex
	free    sync.Cond // on mu
	left    int       // under mu
	waiting int       // under mu: callers in get
}

func newWorkspaces(limit int) *workspaces {
	ws := &workspaces{left: limit}
	ws.free.L = &ws.mu
	ws.pool.New = func() any { return newWorkspace() }
	return ws
}

// get waits for a workspace.
func (ws *workspaces) get() *workspace {
	ws.mu.Lock()
	ws.waiting++
	for ws.left == 0 {
		ws.free.Wait()
	}
	ws.waiting--
	ws.left--
	ws.mu.Unlock()
	return ws.pool.Get().(*workspace)
}

// tryGet returns a workspace if there is one.
func (ws *workspaces) tryGet() (w *workspace, ok bool) {
	ws.mu.Lock()
	ok = ws.left > 0
	if ok {
		ws.left--
	}
	ws.mu.Unlock()
	if !ok {
		return nil, false
	}
	return ws.pool.Get().(*workspace), true
}

// short says whether somebody waits for a workspace in vain.
func (ws *workspaces) short() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.waiting > 0 && ws.left == 0
}

// put gives a workspace back.
func (ws *workspaces) put(w *workspace) {
	w.reset()
	ws.pool.Put(w)
	ws.mu.Lock()
	ws.left++
	ws.free.Signal()
	ws.mu.Unlock()
}
