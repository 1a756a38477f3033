package mqtt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
)

// Sessions in the log's state. Numbers are uvarints unless they say otherwise.
//
//	session/<client id>   what CONNECT and SUBSCRIBE settled
//	  byte    version, 1
//	  uint32  expiry in seconds
//	  int64   stamp, in ms, of when the client left; 0: it is connected, or the process ended with it
//	  n       subscriptions, each: text filter; byte QoS | no local << 2 | retain as published << 3 | retain handling << 4; identifier; places
//
//	progress/<client id>  how far it has come
//	  byte    version, 1
//	  uint16  the last packet id given
//	  places  the next offset of each partition
//	  n       messages in flight, oldest first, each: uint16 packet id; byte what it awaits | QoS << 4 | leased << 6; topic id; partition;
//	          offset + 1, or 0 for none; if it is leased, text filter of the shared subscription
//
//	will/<client id>      a will that is not published yet
//	  byte    version, 1
//	  int64   stamp, in ms, of when the client left; 0: as above
//	  uint32  delay in seconds; uint32 expiry in seconds
//	  byte    QoS | retain << 2 | has an expiry << 3 | UTF-8 << 4 | has a user << 5 | the password file had the user << 6
//	  text    topic; text properties; text payload; text user
//
// Places are: n, and n times topic id, partition, offset. A text is its length and its bytes. Received QoS 2 ids: see qos2.go.
const (
	sessionPrefix  = "session/"
	progressPrefix = "progress/"
	willPrefix     = "will/"
	stateVersion   = 1
)

var errSessionState = errors.New("malformed session state")

func stateKey(prefix, id string) []byte { return append([]byte(prefix), id...) }

// encode is the session's value. since is the stamp of when the client left, 0 while it is here.
func (ss *session) encode(f *fanout, since int64) []byte {
	b := binary.BigEndian.AppendUint32([]byte{stateVersion}, ss.expiry)
	b = binary.BigEndian.AppendUint64(b, uint64(since))
	b = binary.AppendUvarint(b, uint64(len(ss.subs)))
	for i := range ss.subs {
		sub := &ss.subs[i].sub
		b = appendText(b, ss.subs[i].filter)
		b = append(b, sub.QoS|flag(sub.NoLocal)<<2|flag(sub.RetainAsPublished)<<3|sub.RetainHandling<<4)
		b = binary.AppendUvarint(b, uint64(sub.ID))
		if sub.Starts == nil {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(*sub.Starts)))
		for at, offset := range *sub.Starts {
			b = f.appendPlace(b, at, offset)
		}
	}
	return b
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func appendText[T ~string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// appendPlace appends an offset in the partition of reader at.
func (f *fanout) appendPlace(b []byte, at int, offset int64) []byte {
	p := f.readers[at].partition
	b = binary.AppendUvarint(b, uint64(p.Topic().ID()))
	b = binary.AppendUvarint(b, uint64(p.ID()))
	return binary.AppendUvarint(b, uint64(offset))
}

// encodeProgress is the value of how far the session has come, appended to b. ss.mu is held.
func (ss *session) encodeProgress(b []byte, f *fanout) []byte {
	b = binary.BigEndian.AppendUint16(append(b, stateVersion), ss.out.lastID)
	b = f.appendPlaces(b, ss)
	b = binary.AppendUvarint(b, uint64(len(ss.out.flights)))
	for i := range ss.out.flights {
		fl := &ss.out.flights[i]
		b = binary.BigEndian.AppendUint16(b, fl.id)
		b = append(b, byte(fl.awaits)|fl.qos<<4|flag(fl.share != nil)<<6)
		if fl.reader < 0 {
			b = append(b, 0, 0, 0)
		} else {
			b = f.appendPlace(b, fl.reader, fl.offset+1)
		}
		if fl.share != nil {
			b = appendText(b, fl.share.id)
		}
	}
	return b
}

// appendPlaces appends how far the session has come in each partition. ss.mu is held.
func (f *fanout) appendPlaces(b []byte, ss *session) []byte {
	b = binary.AppendUvarint(b, uint64(len(ss.cursors)))
	for at := range ss.cursors {
		b = f.appendPlace(b, at, f.progress(ss, at))
	}
	return b
}

// stateReader takes values apart. After an error everything it gives is zero.
type stateReader struct {
	b   []byte
	bad bool
}

func (r *stateReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *stateReader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *stateReader) uint16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *stateReader) uint32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *stateReader) int64() int64 {
	if v := r.take(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (r *stateReader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count is a number of things of at least size bytes each.
func (r *stateReader) count(size int) int {
	n := r.number()
	if n > uint64(len(r.b)/size) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *stateReader) text() string { return string(r.take(r.number())) }

// offset is one number that fits an offset.
func (r *stateReader) offset() int64 {
	n := r.number()
	if n > 1<<62 {
		r.bad, r.b = true, nil
		return 0
	}
	return int64(n)
}

// place is a partition's reader, -1 for a partition that there is not any more, and an offset.
func (r *stateReader) place(f *fanout) (at int, offset int64) {
	topic, partition, offset := r.number(), r.number(), r.offset()
	return f.find(topic, partition), offset
}

// places sets the session's cursors.
func (r *stateReader) places(ss *session, f *fanout) {
	for range r.count(3) {
		if at, offset := r.place(f); at >= 0 && !r.bad {
			ss.cursors[at].next = offset
		}
	}
}

// decode makes ss what encode wrote of it. since is the stamp of when the client left.
func (ss *session) decode(value []byte, f *fanout) (since int64, err error) {
	r := stateReader{b: value}
	if v := r.byte(); v != stateVersion {
		return 0, fmt.Errorf("session state of version %d: %w", v, errSessionState)
	}
	ss.expiry, since = r.uint32(), r.int64()
	for range r.count(4) {
		s := subscription{filter: r.text()}
		o := r.byte()
		s.sub = topics.Subscription{QoS: o & 3, NoLocal: o&4 != 0, RetainAsPublished: o&8 != 0, RetainHandling: o >> 4 & 3, ID: uint32(r.number())}
		if n := r.count(3); n > 0 {
			starts := make(topics.Starts, len(f.readers))
			for range n {
				if at, offset := r.place(f); at >= 0 {
					starts[at] = offset
				}
			}
			s.sub.Starts = &starts
		}
		if r.bad || o&3 > 2 || topics.ValidFilter(s.filter) != nil {
			return 0, errSessionState
		}
		ss.subs = append(ss.subs, s)
	}
	if r.bad || len(r.b) > 0 {
		return 0, errSessionState
	}
	return since, nil
}

// decodeProgress makes ss's places and flights those that encodeProgress wrote.
func (ss *session) decodeProgress(value []byte, f *fanout) error {
	r := stateReader{b: value}
	if v := r.byte(); v != stateVersion {
		return fmt.Errorf("session progress of version %d: %w", v, errSessionState)
	}
	ss.out.lastID = r.uint16()
	r.places(ss, f)
	for range r.count(6) {
		fl := flight{id: r.uint16()}
		kind := r.byte()
		fl.awaits, fl.qos, fl.tried = wire.Type(kind&15), kind>>4&3, true
		fl.reader, fl.offset = r.place(f)
		if fl.offset--; fl.offset < 0 {
			fl.reader = -1
		}
		if kind&64 != 0 {
			fl.share = f.srv.shares[r.text()] // nil if the session has left it since
		}
		if r.bad || fl.id == 0 || fl.qos == 0 || fl.awaits != wire.PUBACK && fl.awaits != wire.PUBREC && fl.awaits != wire.PUBCOMP {
			return errSessionState
		}
		ss.out.flights = append(ss.out.flights, fl)
	}
	if r.bad || len(r.b) > 0 {
		return errSessionState
	}
	return nil
}

func encodeWill(w *wire.Will, u auth.User, since int64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{stateVersion}, uint64(since))
	b = binary.BigEndian.AppendUint32(b, w.Delay)
	b = binary.BigEndian.AppendUint32(b, w.Expiry)
	b = append(b, w.QoS|flag(w.Retain)<<2|flag(w.HasExpiry)<<3|flag(w.UTF8)<<4|flag(u.Named)<<5|flag(u.Checked)<<6)
	return appendText(appendText(appendText(appendText(b, w.Topic), w.Raw), w.Payload), u.Name)
}

// user is who the session's client was found to be.
func (ss *session) user() (u auth.User) {
	if client := ss.client.Load(); client != nil {
		u = client.User()
	}
	return u
}

func decodeWill(value []byte) (w *wire.Will, u auth.User, since int64, err error) {
	r := stateReader{b: value}
	if v := r.byte(); v != stateVersion {
		return nil, u, 0, fmt.Errorf("will of version %d: %w", v, errSessionState)
	}
	since = r.int64()
	w = &wire.Will{Delay: r.uint32(), Expiry: r.uint32()}
	o := r.byte()
	w.QoS, w.Retain, w.HasExpiry, w.UTF8 = o&3, o&4 != 0, o&8 != 0, o&16 != 0
	u.Named, u.Checked = o&32 != 0, o&64 != 0
	w.Topic, w.Raw, w.Payload = r.text(), []byte(r.text()), []byte(r.text())
	u.Name = r.text()
	if r.bad || len(r.b) > 0 || w.QoS > 2 || topics.ValidTopic(w.Topic) != nil {
		return nil, auth.User{}, 0, errSessionState
	}
	return w, u, since, nil
}

// crashGrace is how long a client whose connection ended with the process may take to come back before its will is published.
const crashGrace = 30 * time.Second

// load brings back the sessions, wills and received ids that an earlier run left. What can't be read is reported, and that session begins anew.
func (s *Server) load() error {
	now := s.clock()
	err := s.log.Range([]byte(sessionPrefix), func(key, value []byte) bool {
		id := strings.Clone(string(key[len(sessionPrefix):]))
		ss := s.restored(id)
		since, err := ss.decode(value, s.fanout)
		if err != nil {
			s.warn(warnState, "a session in the state can't be read and begins anew", "client", id, "cause", err)
			delete(s.sessions, id)
			return true
		}
		ss.away, ss.stored = now-s.ageOf(since), true
		ss.lasting = ss.expiry > 0
		s.fanout.behindAll(ss)
		return true
	})
	if err != nil {
		return err
	}
	if err := s.loadShares(); err != nil {
		return err
	}
	err = s.log.Range([]byte(progressPrefix), func(key, value []byte) bool {
		if ss := s.sessions[string(key[len(progressPrefix):])]; ss != nil {
			if err := ss.decodeProgress(value, s.fanout); err != nil {
				s.warn(warnState, "a session's place in the log can't be read: it goes on at the end", "client", ss.id, "cause", err)
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if err := s.loadWills(now); err != nil {
		return err
	}
	if err := s.loadReceived(); err != nil {
		return err
	}
	for _, ss := range s.sessions {
		s.filters.Add(ss.filterBytes())
		for i := range ss.subs {
			if sub := &ss.subs[i]; !topics.IsShared(sub.filter) {
				s.tree.Subscribe(sub.filter, ss, sub.sub)
			}
		}
		ss.out.skipIDs()
	}
	return s.sweepState()
}

// restored makes a session of an earlier run.
func (s *Server) restored(id string) *session {
	s.numbers++
	ss := &session{id: id, idBytes: []byte(id), number: s.numbers}
	s.sessions[id] = ss
	return ss
}

// ageOf is how long ago the stamp since was given, in ns; 0 for none.
func (s *Server) ageOf(since int64) int64 {
	if since == 0 {
		return 0
	}
	return int64(s.log.Clock().Age(since))
}

func (s *Server) loadWills(now int64) error {
	return s.log.Range([]byte(willPrefix), func(key, value []byte) bool {
		id := string(key[len(willPrefix):])
		will, user, since, err := decodeWill(value)
		if err != nil {
			s.warn(warnState, "a will in the state can't be read and is not published", "client", id, "cause", err)
			return true
		}
		ss := s.sessions[id]
		if ss == nil { // it had none that outlives a connection
			ss = s.restored(id)
			ss.away, ss.stored = now, true
		}
		if access := s.options.Access; access != nil { // what it may publish is asked when the will is due
			ss.client.Store(access.Client(user, id))
		}
		delay := int64(crashGrace)
		if d := int64(min(will.Delay, ss.expiry)) * 1e9; since != 0 || d > delay {
			delay = d - s.ageOf(since)
		}
		ss.will, ss.willAt = will, max(now+delay, 1)
		s.wills.Add(willBytes(will))
		return true
	})
}

// storeConnected puts what CONNECT settled into the state, and removes what was left of an earlier session. It returns the
// group whose commit CONNACK waits for, 0 for none.
func (c *conn) storeConnected(fresh bool) (group uint64, err error) {
	ss := c.session
	if ss.expiry == 0 && !ss.stored && ss.will == nil {
		return 0, nil
	}
	c.openWriter()
	w := c.writer
	if err := w.BeginState(); err != nil {
		return 0, err
	}
	if fresh && ss.stored {
		ss.erase(w)
	}
	durable := ss.expiry > 0
	if durable {
		w.Put(stateKey(sessionPrefix, ss.id), ss.encode(c.srv.fanout, 0))
	}
	switch {
	case ss.will == nil && ss.stored && !fresh:
		w.Delete(stateKey(willPrefix, ss.id))
	case ss.will == nil:
	case durable:
		w.Put(stateKey(willPrefix, ss.id), encodeWill(ss.will, ss.user(), 0))
	default:
		w.PutLazy(stateKey(willPrefix, ss.id), encodeWill(ss.will, ss.user(), 0)) // a sync at each connect would be too much for what a crash alone needs
	}
	ss.stored = durable || ss.will != nil
	return w.End(), nil
}

// erase removes everything of the session from the state, between Begin and End of w.
func (ss *session) erase(w *segment.Writer) {
	w.Delete(stateKey(sessionPrefix, ss.id))
	w.Delete(stateKey(progressPrefix, ss.id))
	w.Delete(stateKey(willPrefix, ss.id))
	if ss.received != nil {
		ss.received.forget(w, ss.id)
		ss.received = nil
	}
	ss.stored = false
}

// eraseSession removes a session that is over from the state. What a disk that takes nothing leaves there, the next start removes.
func (s *Server) eraseSession(ss *session) {
	if !ss.stored && (ss.received == nil || len(ss.received.chunks) == 0) {
		return
	}
	w := s.log.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		s.warn(warnState, "a session that is over is still in the state", "client", ss.id, "cause", err)
		return
	}
	if ss.stored || len(ss.received.chunks) > 0 {
		ss.erase(w)
	}
	w.End()
}

// storeAway puts a session that its client has left into the state.
func (s *Server) storeAway(ss *session) {
	w := s.log.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		s.warn(warnState, "a session is in the state as it was a moment ago only", "client", ss.id, "cause", err)
		return
	}
	since := w.Stamp(time.Now())
	w.Put(stateKey(sessionPrefix, ss.id), ss.encode(s.fanout, since))
	if ss.will != nil {
		w.Put(stateKey(willPrefix, ss.id), encodeWill(ss.will, ss.user(), since))
	}
	s.fanout.putAll(w, ss)
	w.End()
	ss.stored = true
}

// sweepState removes what belongs to no session: a crash may have come between a session's end and its removal.
func (s *Server) sweepState() error {
	var keys [][]byte
	for _, prefix := range []string{sessionPrefix, progressPrefix, willPrefix, receivedPrefix, sharePrefix} {
		err := s.log.Range([]byte(prefix), func(key, _ []byte) bool {
			id := string(key[len(prefix):])
			if prefix == receivedPrefix {
				id = receivedOwner(key)
			}
			if s.sessions[id] == nil && s.shares[id] == nil {
				keys = append(keys, append([]byte(nil), key...))
			}
			return len(keys) < sweepKeys
		})
		if err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return nil
	}
	w := s.log.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		return nil // the next start does it
	}
	for _, key := range keys {
		w.Delete(key)
	}
	w.End()
	return nil
}

// sweepKeys bounds what one start removes.
const sweepKeys = 1000
