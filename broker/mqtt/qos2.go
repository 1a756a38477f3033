package mqtt

import (
	"context"
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// Received QoS 2 packet ids in state: what a client has published and not released (MQTT 5 §4.3.3). Ids that are
// in use lie close together, so 256 of them share a value.
//
//	key    "q2/" client id "/" byte, the id's upper 8 bits
//	value  32 bytes, a bitmap: id & 0xFF is bit (id & 63) of the big-endian uint64 number (id >> 6 & 3)
//
// A chunk without a bit has no key. A chunk changes in the commit group of the records that its messages became.

const (
	receivedPrefix = "q2/"
	forgetPatience = 5 * time.Second
)

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

// forget deletes all chunks, between Begin and End of w.
func (r *receivedIDs) forget(w *segment.Writer, clientID string) {
	for i := range r.chunks {
		r.chunks[i].bits = [4]uint64{}
	}
	r.save(w, clientID, nil)
}

// forgetReceived deletes what sessions of an earlier run left: no session outlives its connection, let alone the process.
// A disk that refuses or hangs must not keep the broker from starting.
func forgetReceived(l *segment.Log) error {
	ctx, cancel := context.WithTimeout(context.Background(), forgetPatience)
	defer cancel()
	for {
		var keys [][]byte
		err := l.Range([]byte(receivedPrefix), func(key, _ []byte) bool {
			keys = append(keys, slices.Clone(key))
			return len(keys) < 256
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		var t segment.Ticket
		for _, key := range keys {
			if t, err = l.Delete(key); err != nil {
				return err
			}
		}
		if err := t.Wait(ctx); err != nil {
			return err
		}
	}
}
