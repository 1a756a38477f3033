package mqtt

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// A shared subscription, $share/group/filter (MQTT 5 §4.8.2), is a session of its own in the topic tree: it has cursors like any
// other, and no connection. Each message is leased to one of its members, which has it in flight. QoS 1 leases return when the
// member's session ends and go to another one; a QoS 2 message stays with its member. While no member has room, or all are away, the cursors
// stand.
//
// Its state is under "share/" and the whole filter: byte version, 1; places (see session_state.go); n leases that go to somebody again: topic id,
// partition, offset.
const sharePrefix = "share/"

// share is what makes a session a shared subscription. All of it is under the session's mu, which comes before those of its members.
type share struct {
	members  []member
	turn     int     // whose turn it is
	returned []lease // of members that are gone, to be given away before anything else
}

type member struct {
	ss  *session
	sub topics.Subscription
}

// lease is the place of a message in the log.
type lease struct {
	reader int
	offset int64
}

// joinShare makes the session a member of a shared subscription, which begins if there is none yet. Between Begin and End of w.
func (s *Server) joinShare(ss *session, filter string, sub topics.Subscription, w *segment.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.shares[filter]
	if g == nil {
		g = s.newShare(filter)
		s.fanout.begin(g, w)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.IndexFunc(g.share.members, func(m member) bool { return m.ss == ss }); i >= 0 {
		g.share.members[i].sub = sub
	} else {
		g.share.members = append(g.share.members, member{ss, sub})
		s.shared++
	}
	ss.addGroup(g)
	g.blocked.clear()
}

// newShare makes a shared subscription without members. s.mu is held.
func (s *Server) newShare(filter string) *session {
	s.numbers++
	g := &session{id: filter, number: s.numbers, share: new(share)}
	s.fanout.behindAll(g)
	s.shares[filter] = g
	_, rest, _ := topics.SharedGroup(filter)
	s.tree.Subscribe(rest, g, topics.Subscription{QoS: 2})
	return g
}

// leaveShare ends a membership. The last one takes the shared subscription along. w is nil, or a writer between Begin and End.
func (s *Server) leaveShare(ss *session, filter string, w *segment.Writer) {
	g, last := s.endMembership(ss, filter)
	switch {
	case g == nil:
	case !last:
		g.blocked.clear()
		s.fanout.comeBack(g)
	case g.stored && w != nil:
		w.DeleteLazy(stateKey(sharePrefix, filter))
	case g.stored:
		w = s.log.NewWriter(nil)
		w.Look()
		w.DeleteLazy(stateKey(sharePrefix, filter))
		w.End()
	}
}

// endMembership takes the session out of a shared subscription, which gets its QoS 1 leases back.
func (s *Server) endMembership(ss *session, filter string) (g *session, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g = s.shares[filter]; g == nil {
		return nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.share.members = slices.DeleteFunc(g.share.members, func(m member) bool { return m.ss == ss })
	s.shared--
	last = len(g.share.members) == 0
	ss.removeGroup(g)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for i := range ss.out.flights {
		if fl := &ss.out.flights[i]; fl.share == g {
			if fl.share = nil; fl.qos == 1 && fl.reader >= 0 {
				g.share.returned = append(g.share.returned, lease{fl.reader, fl.offset})
			}
		}
	}
	if last {
		_, rest, _ := topics.SharedGroup(filter)
		s.tree.Unsubscribe(rest, g)
		delete(s.shares, filter)
	}
	return g, last
}

// awake says whether a member is connected. g.mu is held.
func (g *session) awake() bool {
	for _, m := range g.share.members {
		m.ss.mu.Lock()
		here := m.ss.conn != nil
		m.ss.mu.Unlock()
		if here {
			return true
		}
	}
	return false
}

// memberLasts says whether a member outlives its connection, and so the shared subscription the process. g.mu is held.
func (g *session) memberLasts() bool {
	return slices.ContainsFunc(g.share.members, func(m member) bool {
		m.ss.mu.Lock()
		defer m.ss.mu.Unlock()
		return m.ss.lasting
	})
}

// lend gives d.out to the next member that has room for it, and says whether there was one. A member that subscribed at QoS 0 gets it at
// QoS 0. g.mu is held.
func (s *Server) lend(g *session, d *delivery, in *incoming) bool {
	sh := g.share
	out := d.out
	for n := range len(sh.members) {
		m := &sh.members[(sh.turn+n)%len(sh.members)]
		d.out = out
		d.out.QoS = min(in.qos, m.sub.QoS)
		d.ids = d.ids[:0]
		if m.sub.ID != 0 {
			d.ids = append(d.ids, m.sub.ID)
		}
		d.out.SubscriptionIDs = d.ids
		if s.lendTo(g, m.ss, d, in) {
			sh.turn = (sh.turn + n + 1) % len(sh.members)
			return true
		}
	}
	return g.nobodyMay(in.topic)
}

// nobodyMay says whether members are connected and none of those may have a message of a topic: it is passed over then, as it would
// hold up what they may have. g.mu is held.
func (g *session) nobodyMay(topic []byte) bool {
	somebody := false
	for _, m := range g.share.members {
		m.ss.mu.Lock()
		here := m.ss.conn != nil
		may := here && m.ss.mayReceive(topic)
		m.ss.mu.Unlock()
		if may {
			return false
		}
		somebody = somebody || here
	}
	return somebody
}

func (s *Server) lendTo(g, ss *session, d *delivery, in *incoming) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.conn == nil || !ss.mayReceive(in.topic) {
		return false
	}
	before := len(ss.out.flights)
	if !ss.conn.offerLocked(d, in, false) {
		return false
	}
	if n := len(ss.out.flights); n > before {
		ss.out.flights[n-1].share = g
		s.fanout.noteLocked(ss)
	}
	return true
}

// shareIDs appends the identifier of the session's subscription to g.
func (ss *session) shareIDs(g *session, ids []uint32) []uint32 {
	for i := range ss.subs {
		if sub := &ss.subs[i]; sub.filter == g.id && sub.sub.ID != 0 {
			ids = append(ids, sub.sub.ID)
		}
	}
	return ids
}

// leased says whether a member has the message in flight. g.mu is held.
func (g *session) leased(reader int, offset int64) bool {
	for _, m := range g.share.members {
		m.ss.mu.Lock()
		has := m.ss.out.has(reader, offset)
		m.ss.mu.Unlock()
		if has {
			return true
		}
	}
	return false
}

// giveShared is give for a shared subscription.
func (s *Server) giveShared(g *session, d *delivery, in *incoming) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in.offset == noOffset {
		if !s.lend(g, d, in) && g.awake() {
			s.countDrop(in.from, dropSlow)
		}
		return
	}
	c := &g.cursors[in.reader]
	switch {
	case c.behind || in.offset < c.next:
	case len(g.share.returned) == 0 && s.lendBlocking(g, d, in):
		c.next = in.offset + 1
		s.fanout.noteLocked(g)
	default:
		*c = cursor{next: in.offset, behind: true}
		d.fell = append(d.fell, g)
	}
}

// giveSharedBehind is giveBehind for a shared subscription.
func (s *Server) giveSharedBehind(g *session, d *delivery, in *incoming) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.cursorAt(in.reader)
	if c == nil || !c.behind || in.offset < c.next || g.leased(in.reader, in.offset) {
		return
	}
	if reason := s.outlived(g, d, in); reason != "" {
		s.countDrop(in.from, reason)
		return
	}
	if !s.lendBlocking(g, d, in) {
		s.fanout.stay(g, c, in.offset)
	}
}

// lendBlocking is lend that blocks the subscription if no member has room. Whoever makes room meanwhile comes before or after.
func (s *Server) lendBlocking(g *session, d *delivery, in *incoming) bool {
	g.blocked.set(blockedMembers)
	if s.lend(g, d, in) {
		g.blocked.clear()
		return true
	}
	return false
}

// giveBack lends out again what members that are gone had in flight.
func (f *fanout) giveBack(g *session) {
	g.mu.Lock()
	if len(g.share.returned) == 0 {
		g.mu.Unlock()
		return
	}
	l := g.share.returned[0]
	g.mu.Unlock()
	given, found := f.readOne(f.readers[l.reader], l.offset, func(in *incoming) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		f.delivery.ids = f.delivery.ids[:0]
		f.delivery.out = in.outgoing()
		return f.srv.lendBlocking(g, &f.delivery, in)
	})
	if found && !given {
		return
	}
	if !found {
		f.srv.countDrop(f.readers[l.reader].partition, dropForgotten)
	}
	g.mu.Lock()
	g.share.returned = slices.DeleteFunc(g.share.returned, func(o lease) bool { return o == l })
	f.noteLocked(g)
	g.mu.Unlock()
}

// The shared subscriptions that a session is a member of are changed by whoever has the session, and read by those that make room.
func (ss *session) sharing() []*session {
	if list := ss.groups.Load(); list != nil {
		return *list
	}
	return nil
}

func (ss *session) addGroup(g *session) {
	if list := ss.sharing(); !slices.Contains(list, g) {
		list = append(slices.Clip(list), g)
		ss.groups.Store(&list)
	}
}

func (ss *session) removeGroup(g *session) {
	list := slices.DeleteFunc(slices.Clone(ss.sharing()), func(o *session) bool { return o == g })
	if len(list) == 0 {
		ss.groups.Store(nil)
	} else {
		ss.groups.Store(&list)
	}
}

// madeRoom tells the session's shared subscriptions that it may have room.
func (f *fanout) madeRoom(ss *session) {
	for _, g := range ss.sharing() {
		if g.blocked.end(blockedMembers) {
			f.nudge()
		}
	}
}

// encodeShare is the state of a shared subscription. g.mu is held. Members that end with their connections don't keep their
// leases across a crash, so these go to somebody again.
func (g *session) encodeShare(b []byte, f *fanout) []byte {
	b = append(b, stateVersion)
	b = f.appendPlaces(b, g)
	leases := slices.Clone(g.share.returned)
	for _, m := range g.share.members {
		m.ss.mu.Lock()
		for i := range m.ss.out.flights {
			if fl := &m.ss.out.flights[i]; fl.share == g && fl.reader >= 0 && !m.ss.lasting {
				leases = append(leases, lease{fl.reader, fl.offset})
			}
		}
		m.ss.mu.Unlock()
	}
	b = binary.AppendUvarint(b, uint64(len(leases)))
	for _, l := range leases {
		b = f.appendPlace(b, l.reader, l.offset)
	}
	return b
}

func (g *session) decodeShare(value []byte, f *fanout) error {
	r := stateReader{b: value}
	if v := r.byte(); v != stateVersion {
		return fmt.Errorf("shared subscription of version %d: %w", v, errSessionState)
	}
	r.places(g, f)
	for range r.count(3) {
		if at, offset := r.place(f); at >= 0 && !r.bad {
			g.share.returned = append(g.share.returned, lease{at, offset})
		}
	}
	if r.bad || len(r.b) > 0 {
		return errSessionState
	}
	return nil
}

// loadShares brings back the shared subscriptions that sessions are members of.
func (s *Server) loadShares() error {
	for _, ss := range s.sessions {
		for i := range ss.subs {
			filter := ss.subs[i].filter
			if !topics.IsShared(filter) {
				continue
			}
			g := s.shares[filter]
			if g == nil {
				g = s.newShare(filter)
			}
			g.stored = true
			g.share.members = append(g.share.members, member{ss, ss.subs[i].sub})
			s.shared++
			ss.addGroup(g)
		}
	}
	return s.log.Range([]byte(sharePrefix), func(key, value []byte) bool {
		if g := s.shares[string(key[len(sharePrefix):])]; g != nil {
			if err := g.decodeShare(value, s.fanout); err != nil {
				s.warn(warnState, "a shared subscription's place in the log can't be read: it goes on at the end", "filter", g.id, "cause", err)
			}
		}
		return true
	})
}
