package mqtt

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"

	"github.com/sluicemq/sluice/segment"
)

// Received QoS 2 packet ids in state: what a client has published and not released (MQTT 5 §4.3.3). Ids that are
// in use lie close together, so 256 of them share a value.
//
//	key    "q2/" client id "/" byte, the id's upper 8 bits
//	value  32 bytes, a bitmap: id & 0xFF is bit (id & 63) of the big-endian uint64 number (id >> 6 & 3)
//
// A chunk without a bit has no key. A chunk changes in the commit group of the records that its messages became. Sessions that end with
// their connection keep theirs in memory only, and so are those of messages that leave nothing behind: neither a record nor a retained
// message. These are a set of their own, since an id that one put into the state must leave it before PUBCOMP.

const receivedPrefix = "q2/"

// hasReceived says whether a QoS 2 message of that id was received and not released.
func (ss *session) hasReceived(id uint16) bool { return ss.received.has(id) || ss.passing.has(id) }

// receive takes note of a QoS 2 message's id, which is free, in the state if it is to be kept.
func (ss *session) receive(id uint16, kept bool) {
	ids := &ss.passing
	if kept {
		ids = &ss.received
	}
	if *ids == nil {
		*ids = new(receivedIDs)
	}
	(*ids).add(id)
}

// receivedIDs is the set of one session. It includes what isn't durable yet: a repeat of such a message is a repeat.
// Not safe for concurrent use.
type receivedIDs struct {
	chunks  []chunk // sorted by number; only those with a bit or a change
	changed bool    // since the last save
}

type chunk struct {
	number  byte
	changed bool // since the last save
	bits    [4]uint64
}

func (r *receivedIDs) find(number byte) (at int, ok bool) {
	for i := range r.chunks {
		if r.chunks[i].number >= number {
			return i, r.chunks[i].number == number
		}
	}
	return len(r.chunks), false
}

// has says whether id is in use.
func (r *receivedIDs) has(id uint16) bool {
	if r == nil {
		return false
	}
	at, ok := r.find(byte(id >> 8))
	return ok && r.chunks[at].bits[id>>6&3]&(1<<(id&63)) != 0
}

// add takes id into use and says whether it was free.
func (r *receivedIDs) add(id uint16) bool {
	at, ok := r.find(byte(id >> 8))
	if !ok {
		r.chunks = slices.Insert(r.chunks, at, chunk{number: byte(id >> 8)})
	}
	c := &r.chunks[at]
	word, bit := &c.bits[id>>6&3], uint64(1)<<(id&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	c.changed, r.changed = true, true
	return true
}

// remove frees id and says whether it was in use.
func (r *receivedIDs) remove(id uint16) bool {
	if !r.has(id) {
		return false
	}
	at, _ := r.find(byte(id >> 8))
	c := &r.chunks[at]
	c.bits[id>>6&3] &^= 1 << (id & 63)
	c.changed, r.changed = true, true
	return true
}

// len is the number of ids in use.
func (r *receivedIDs) len() int {
	n := 0
	if r != nil {
		for i := range r.chunks {
			for _, w := range r.chunks[i].bits {
				n += bits.OnesCount64(w)
			}
		}
	}
	return n
}

// save writes the changed chunks, between Begin and End of w. key is scratch space for as long as it is called.
func (r *receivedIDs) save(w *segment.Writer, clientID string, key []byte) []byte {
	key = append(append(append(key[:0], receivedPrefix...), clientID...), '/', 0)
	keep := r.chunks[:0]
	for _, c := range r.chunks {
		key[len(key)-1] = c.number
		if c.bits == [4]uint64{} {
			w.Delete(key)
			continue
		}
		if c.changed {
			var value [32]byte
			for i, word := range c.bits {
				binary.BigEndian.PutUint64(value[8*i:], word)
			}
			w.Put(key, value[:])
			c.changed = false
		}
		keep = append(keep, c)
	}
	r.chunks, r.changed = keep, false
	return key
}

// settle forgets what save would write.
func (r *receivedIDs) settle() {
	if r == nil || !r.changed {
		return
	}
	r.chunks = slices.DeleteFunc(r.chunks, func(c chunk) bool { return c.bits == [4]uint64{} })
	r.changed = false
}

// forget deletes all chunks, between Begin and End of w.
func (r *receivedIDs) forget(w *segment.Writer, clientID string) {
	for i := range r.chunks {
		r.chunks[i].bits = [4]uint64{}
	}
	r.save(w, clientID, nil)
}

// receivedOwner is the client id of a chunk's key.
func receivedOwner(key []byte) string { return string(key[len(receivedPrefix) : len(key)-2]) }

// loadReceived brings back the ids of the sessions that there are.
func (s *Server) loadReceived() error {
	return s.log.Range([]byte(receivedPrefix), func(key, value []byte) bool {
		if len(key) < len(receivedPrefix)+2 || len(value) != 32 {
			s.warn(warnState, "received QoS 2 ids in the state can't be read", "key", strconv.Quote(string(key)))
			return true
		}
		ss := s.sessions[receivedOwner(key)]
		if ss == nil {
			return true
		}
		if ss.received == nil {
			ss.received = new(receivedIDs)
		}
		c := chunk{number: key[len(key)-1]}
		for i := range c.bits {
			c.bits[i] = binary.BigEndian.Uint64(value[8*i:])
		}
		at, _ := ss.received.find(c.number)
		ss.received.chunks = slices.Insert(ss.received.chunks, at, c)
		return true
	})
}
