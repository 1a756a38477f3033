package mqtt

import (
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// publishWill stores the session's will like any message of its client, behind its last one, and takes it out of the state in the same
// group: it is published once. By whoever has the session.
func (s *Server) publishWill(ss *session) {
	will := ss.will
	s.setWill(ss, nil)
	c := &conn{srv: s, session: ss, writer: s.log.NewWriter(nil)} // without a socket
	w := s.workspaces.get()
	defer s.workspaces.put(w)
	w.now = time.Now()
	w.source = append([]byte(will.Topic), will.Payload...)
	w.messages = append(w.messages, message{
		topic:   place{0, uint32(len(will.Topic))},
		payload: place{uint32(len(will.Topic)), uint32(len(will.Payload))},
		props:   w.keep(will.Raw),
		expiry:  will.Expiry, hasExpiry: will.HasExpiry, qos: will.QoS, retain: will.Retain && will.Topic[0] != '$',
	})
	m := &w.messages[0]
	c.locate(w, m, w.source[:len(will.Topic)])
	if m.denied {
		s.countDrop(m.partition, dropDenied)
		s.forgetWill(ss)
		return
	}
	if m.unrouted {
		s.countDrop(nil, dropUnrouted)
	}
	if m.partition == nil && !m.retain {
		s.forgetWill(ss)
	} else if err := c.storeWill(w, m); err != nil {
		s.countDrop(m.partition, refusalName(err))
		s.warn(warnWill, "will is not stored", "client", c.name(), "cause", err)
		s.forgetWill(ss)
		return
	}
	if s.tree.Len() > 0 || len(w.changes) > 0 {
		c.handOn(w)
	}
}

// storeWill puts a will into the log, and makes it the retained message of its topic if it is to be. When there is no room for
// that it is published all the same: nobody is left to tell.
func (c *conn) storeWill(w *workspace, m *message) error {
	begin := c.writer.Begin
	if m.partition == nil {
		begin = c.writer.BeginState
	}
	if err := begin(); err != nil {
		return err
	}
	defer c.writer.End()
	if m.partition != nil {
		if err := m.partition.Topic().Refused(); err != nil {
			return err
		}
	}
	w.record.Timestamp = c.writer.Stamp(w.now)
	if m.retain {
		c.srv.keeper.stage(w, c.writer, m, c.session.id, w.record.Timestamp)
	}
	if m.partition != nil {
		c.fill(w, m)
		c.writer.Append(m.partition, &w.record)
	}
	if c.session.stored {
		c.writer.Delete(stateKey(willPrefix, c.session.id))
	}
	return nil
}

// dropWill forgets a will that is not to be published.
func (s *Server) dropWill(ss *session) {
	s.setWill(ss, nil)
	s.forgetWill(ss)
}

// forgetWill takes the will out of the state, without a sync of its own.
func (s *Server) forgetWill(ss *session) {
	if ss.stored {
		w := s.log.NewWriter(nil)
		w.Look()
		w.DeleteLazy(stateKey(willPrefix, ss.id))
		w.End()
	}
}

// setWill gives the session a will, nil for none, and says whether there was memory for it. One that waited is not published: the client is
// back in time (MQTT 5 §3.1.3.2.2).
func (s *Server) setWill(ss *session, will *wire.Will) bool {
	s.wills.Add(-willBytes(ss.will))
	ss.will, ss.willAt = nil, 0
	if !reserve(&s.wills, willBytes(will), s.options.WillTotalBytes) {
		return false
	}
	ss.will = will
	return true
}

// willBytes is the memory that a will takes, about.
func willBytes(w *wire.Will) int64 {
	if w == nil {
		return 0
	}
	return int64(128 + len(w.Topic) + len(w.Payload) + len(w.Raw))
}

// janitorEvery is how often sessions are looked at whose clients are away.
const janitorEvery = time.Second

// janitor is the goroutine that publishes wills whose delay is over and ends sessions that have expired.
func (s *Server) janitor() {
	t := time.NewTicker(janitorEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		for _, ss := range s.due() {
			if ss.will != nil && ss.willAt <= s.clock() {
				s.publishWill(ss)
			}
			over := ss.expired(s.clock())
			if over {
				s.counters.expired.Add(1)
				s.unsubscribeAll(ss)
				s.eraseSession(ss)
			}
			s.letGo(ss, over)
		}
	}
}

// due takes the sessions in hand that something is to be done with.
func (s *Server) due() (list []*session) {
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		if !ss.held && (ss.expired(now) || ss.will != nil && ss.willAt <= now) {
			ss.held = true
			list = append(list, ss)
		}
	}
	return list
}

// expired says whether a session whose client is away is over. Its will goes first (MQTT 5 §3.1.3.2.2).
func (ss *session) expired(now int64) bool {
	return ss.expiry != neverExpires && now-ss.away >= int64(ss.expiry)*1e9 && (ss.will == nil || ss.willAt <= now)
}
