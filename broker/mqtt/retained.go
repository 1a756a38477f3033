package mqtt

import (
	"errors"
	"sync"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/segment"
)

// keeper keeps the retained messages: in memory in its store, and in the log's state, where each changes in the commit group of its
// message's record. A message without a route to a record changes the state alone, and is acknowledged once that is durable.
//
// What is handed on at once (QoS 0, and what has no record) is retained at once, too. All else is from its commit on. A
// subscription begins in one step with the retained messages that it is to get: under the log's lock, which orders it among
// all that is stored, and under handing, which orders it among all that is handed on at once.
type keeper struct {
	srv   *Server
	store *retained.Store
	codec retained.Codec
	told  *segment.Writer // joins each group with a change, to be told its fate

	// handing comes before Server.mu, session.mu and conn.mu: held while a retained message becomes visible and is handed on at
	// once, and while subscriptions begin.
	handing sync.Mutex
}

// dropRetainedFull counts messages that aren't retained because there is no room. To a version 5 client those of QoS 1 and 2 are
// refused; all others are published all the same.
const dropRetainedFull = "retained store full"

func newKeeper(s *Server) *keeper {
	k := &keeper{
		srv:   s,
		store: retained.New(retained.Limits{Messages: s.options.MaxRetainedMessages, Bytes: s.options.MaxRetainedBytes}),
		codec: retained.Codec{MaxKeyBytes: segment.MaxKeyBytes},
	}
	k.told = s.log.NewWriter(k)
	return k
}

// load reads what is retained from the log's state. What doesn't decode stays there: a newer release may have stored it.
func (k *keeper) load() error {
	bad := 0
	var cause error
	err := k.srv.log.Range([]byte(retained.KeyPrefix), func(key, value []byte) bool {
		m, err := k.codec.Decode(key, value)
		if err != nil {
			bad, cause = bad+1, err
			return true
		}
		k.store.Load(m)
		return true
	})
	if bad > 0 {
		k.srv.logger.Warn("retained messages in the state can't be read and are left out", "messages", bad, "cause", cause)
	}
	return err
}

// stage makes the message the retained one of its topic, or clears the topic if its payload is empty, as part of the group that wr
// adds to: between Begin and End of wr. at is the message's timestamp. It returns false when there is no room.
func (k *keeper) stage(w *workspace, wr *segment.Writer, m *message, publisher string, at int64) bool {
	topic := string(w.topic(m))
	var msg *retained.Message
	if m.payload.size > 0 {
		msg = retained.NewMessage(retained.Message{
			Topic: topic, Payload: m.payload.in(w.source), Properties: m.props.in(w.arena), Publisher: publisher,
			Stamp: at, Expiry: m.expiry, HasExpiry: m.hasExpiry, QoS: m.qos,
		})
	}
	change, ok := k.store.Stage(wr.Group(), topic, msg, m.atOnce())
	if !ok {
		k.srv.countDrop(m.partition, dropRetainedFull)
		return false
	}
	wr.Enlist(k.told)
	w.changes = append(w.changes, change)
	m.change = int32(len(w.changes))
	w.key = k.codec.AppendKey(w.key[:0], topic)
	if msg == nil {
		wr.Delete(w.key)
		return true
	}
	w.value = k.codec.AppendValue(w.value[:0], msg, k.srv.options.Incarnation)
	wr.Put(w.key, w.value)
	return true
}

// atOnce says whether the message is handed on before its group is durable.
func (m *message) atOnce() bool { return m.qos == 0 || m.partition == nil }

// Committed implements segment.Waiter for the groups that retained messages are in.
func (k *keeper) Committed(group uint64, err error) {
	if err == nil {
		k.store.Settle(group)
	} else if errs := k.store.Undo(group, k.durable); len(errs) > 0 && !errors.Is(err, segment.ErrClosed) {
		k.srv.logger.Error("retained messages of a group that was not stored can't be taken back", "messages", len(errs), "cause", errs[0])
	}
	k.srv.fanout.walksGoOn()
}

// durable reads what the state has for a topic.
func (k *keeper) durable(topic string) (*retained.Message, error) {
	key := k.codec.AppendKey(nil, topic)
	value, ok, err := k.srv.log.Get(key)
	if err != nil || !ok {
		return nil, err
	}
	return k.codec.Decode(key, value)
}

// hand makes a retained message visible and gives it to its subscribers, both in one step for a subscription that begins.
func (k *keeper) hand(d *delivery, c *retained.Change, in *incoming) {
	k.handing.Lock()
	defer k.handing.Unlock()
	k.store.Show(c)
	k.srv.deliver(d, in)
}

// age is how long ago something was stored that has that stamp, by the log's clock: a step of the wall clock makes nothing older.
func (k *keeper) age(stamp int64) time.Duration { return k.srv.log.Clock().Age(stamp) }

// expireBatch is how many expired messages are removed under one lock of the log.
const expireBatch = 256

// expire removes expired messages for good. Walks leave them out before that.
func (k *keeper) expire(w *segment.Writer) {
	for {
		topics := k.store.Expired(expireBatch, k.age)
		if len(topics) == 0 || w.BeginState() != nil {
			return // the state takes nothing now: later
		}
		removed := 0
		for _, t := range topics {
			if k.store.Expire(w.Group(), t, k.age) {
				w.Enlist(k.told)
				w.Delete(k.codec.AppendKey(nil, t))
				removed++
			}
		}
		w.End()
		if removed < expireBatch {
			return
		}
	}
}
