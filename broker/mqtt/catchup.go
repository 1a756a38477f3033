package mqtt

import (
	"errors"
	"slices"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// Sessions that are behind are caught up with in stretches of a partition. A stretch begins at the place of the session whose
// turn it is, and every other one whose place lies in it takes part from there: those that come back together share the
// reading. One that has no room for a message stays at it, and takes its turn again once it has.

// Reasons that messages are counted under when a session that was away doesn't get them.
const (
	dropEvicted   = "evicted before the session came back"
	dropUnread    = "not readable when the session came back"
	dropTooMany   = "more than a session keeps while its client is away"
	dropTooOld    = "older than a session keeps it"
	dropUnstored  = "in flight and not stored when the client left"
	dropForgotten = "in flight and evicted before the client came back"
)

// catchUp makes one turn: it resends what a session had in flight, or reads one stretch for it. It says whether there was any.
func (f *fanout) catchUp() bool {
	for range len(f.catching) {
		if f.turn >= len(f.catching) {
			f.turn = 0
		}
		ss := f.catching[f.turn]
		at, from, what := f.wants(ss)
		switch what {
		case wantsNothing:
			f.unfollow(ss) // the next one has its index now
			continue
		case wantsRoom:
			f.turn++
			continue
		case wantsResend:
			f.turn++
			f.resend(ss)
			return true
		case wantsRetained:
			f.turn++
			f.walk(ss)
			return true
		case wantsGivingBack:
			f.turn++
			f.giveBack(ss)
			return true
		}
		f.turn++
		f.stretch(f.readers[at], from)
		return true
	}
	return false
}

type wanting int

const (
	wantsNothing wanting = iota
	wantsRoom
	wantsResend
	wantsRetained
	wantsGivingBack
	wantsRecords
)

// wants says what the session needs next. Places that have come up to the fan-out's become live.
func (f *fanout) wants(ss *session) (at int, from int64, what wanting) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case !ss.here():
		return 0, 0, wantsNothing
	case ss.blocked.is():
		return 0, 0, wantsRoom
	case ss.out.unsent() > 0:
		return 0, 0, wantsResend
	case len(ss.out.walks) > 0 && ss.conn.waitsLocked(&ss.out.walks[0]):
		return 0, 0, wantsRoom
	case len(ss.out.walks) > 0:
		return 0, 0, wantsRetained
	case ss.share != nil && len(ss.share.returned) > 0:
		return 0, 0, wantsGivingBack
	}
	now := f.srv.clock()
	waits := false
	for i := range ss.cursors {
		p := &ss.cursors[i]
		if !p.behind {
			continue
		}
		r := f.readers[i]
		switch {
		case p.next >= r.next.Load():
			p.behind = false
		case r.again > now:
			waits = true
		case what == wantsNothing || i == ss.out.lastRead+1: // not the same one each time
			at, from, what = i, p.next, wantsRecords
		}
	}
	if what == wantsRecords {
		ss.out.lastRead = at
	} else if waits {
		what = wantsRoom
	}
	return at, from, what
}

// stretch reads some of a partition from an offset on for all sessions whose places are in it.
func (f *fanout) stretch(r *reader, from int64) {
	buf, err := r.partition.Read(f.buf[:0], from, fanoutReadBytes)
	f.buf = buf
	end := min(r.partition.HighWatermark(), r.next.Load())
	if err != nil || len(buf) == 0 {
		f.passOver(r, from, end, err)
		return
	}
	f.reading = r
	to, bad := from, error(nil)
	for rest := buf; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			bad = err
			break
		}
		end := b.LastOffset() + 1
		if f.takePart(r, to, end); f.parts == 0 {
			return
		}
		if err := f.decoder.Records(b, f.caughtUp); err != nil && err != errEnough {
			f.srv.drops.Count(r.partition.Topic().Name(), dropUnread, end-to)
		}
		f.move(r, end)
		to = end
	}
	if bad != nil && to == from {
		f.passOver(r, from, end, bad)
	}
}

// takePart has every session take part in the next batch whose place lies from from on and below to.
func (f *fanout) takePart(r *reader, from, to int64) {
	f.chunk++
	f.parts, f.least = 0, to
	for _, ss := range f.catching {
		ss.mu.Lock()
		if p := ss.cursorAt(r.index); ss.here() && p != nil && p.behind && p.next >= from && p.next < to &&
			!ss.blocked.is() && ss.out.unsent() == 0 && len(ss.out.walks) == 0 {
			ss.chunk = f.chunk
			f.parts++
			f.least = min(f.least, p.next)
		}
		ss.mu.Unlock()
	}
}

// move lets those that took part to the end go on at to.
func (f *fanout) move(r *reader, to int64) {
	for _, ss := range f.catching {
		if ss.chunk != f.chunk {
			continue
		}
		ss.mu.Lock()
		if p := ss.cursorAt(r.index); p != nil && p.behind && p.next < to {
			p.next = to
		}
		f.noteLocked(ss)
		ss.mu.Unlock()
	}
}

func (ss *session) cursorAt(at int) *cursor {
	if at >= len(ss.cursors) {
		return nil
	}
	return &ss.cursors[at]
}

// caughtUp hands one record to the sessions that take part.
func (f *fanout) caughtUp(rec *record.Record) error {
	if f.parts == 0 {
		return errEnough
	}
	if rec.Offset < f.least {
		return nil
	}
	if in, ok := f.message(rec, f.reading); ok {
		f.srv.deliverBehind(&f.delivery, &in)
	}
	return nil
}

// passOver has the sessions whose place can't be read wait, or go on behind what can't be read.
func (f *fanout) passOver(r *reader, from, end int64, err error) {
	next, final, reason := end, err == nil, dropUnread
	var bad *segment.DamageError
	switch start := r.partition.StartOffset(); {
	case start > from:
		next, final, reason = start, true, dropEvicted
	case errors.As(err, &bad):
		next, final = max(bad.Resume, from+1), !bad.Unreadable()
	}
	now := f.srv.clock()
	if !final {
		if r.unread == 0 || r.stuck != from {
			r.stuck, r.unread = from, now
		}
		if errors.Is(err, segment.ErrUnavailable) || now-r.unread < int64(fanoutPatience) {
			r.again = now + int64(fanoutRetry)
			f.srv.warn(warnFanout, "stored messages can't be read for sessions now; tried again", "topic", r.partition.Topic().Name(),
				"partition", r.partition.ID(), "offset", from, "cause", err)
			return
		}
		r.unread, r.again = 0, 0
	}
	topic := r.partition.Topic().Name()
	for _, ss := range f.catching {
		ss.mu.Lock()
		if p := ss.cursorAt(r.index); p != nil && p.behind && p.next >= from && p.next < next {
			f.srv.drops.Count(topic, reason, next-p.next)
			p.next = next
		}
		ss.mu.Unlock()
	}
}

// deliverBehind gives a message to the sessions that take part in the stretch and want it at QoS 1 or 2: what they get at QoS 0 they
// got when it was live.
func (s *Server) deliverBehind(d *delivery, in *incoming) {
	s.match(d, in, s.fanout.taking)
	for from := 0; from < len(d.hits); {
		to := d.sameSession(from)
		ss := d.hits[from].Subscriber
		if d.merge(in, d.hits[from:to]) && d.out.QoS > 0 {
			s.giveBehind(ss, d, in)
		}
		from = to
	}
	clear(d.hits)
}

func (s *Server) giveBehind(ss *session, d *delivery, in *incoming) {
	if ss.share != nil {
		s.giveSharedBehind(ss, d, in)
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	p := ss.cursorAt(in.reader)
	c := ss.conn
	if p == nil || !p.behind || in.offset < p.next || ss.out.has(in.reader, in.offset) || !ss.mayReceive(in.topic) {
		return
	}
	if c == nil {
		s.fanout.stay(ss, p, in.offset)
		return
	}
	if reason := s.outlived(ss, d, in); reason != "" {
		s.countDrop(in.from, reason)
		return
	}
	if !c.offerLocked(d, in, true) {
		s.fanout.stay(ss, p, in.offset)
	}
}

// stay ends a session's part in the batch in hand: its place stays at offset. ss.mu is held.
func (f *fanout) stay(ss *session, p *cursor, offset int64) {
	ss.chunk, p.next = 0, offset
	f.parts--
}

// outlived says why a message that comes late isn't delivered any more; empty if it is. What remains of its expiry is set.
func (s *Server) outlived(ss *session, d *delivery, in *incoming) (reason string) {
	o := &s.options
	if !in.hasExpiry && o.SessionMaxAge == 0 && o.SessionMaxMessages == 0 && o.SessionMaxBytes == 0 {
		return ""
	}
	if in.hasExpiry {
		var ok bool
		if d.out.Expiry, ok = s.timeLeft(in.expiry, in.stamp); !ok {
			return dropExpired
		}
	}
	if in.offset >= ss.out.backlog(in.reader) {
		return ""
	}
	size := int64(len(in.topic) + len(in.payload))
	switch {
	case o.SessionMaxAge > 0 && s.log.Clock().Age(in.stamp) > o.SessionMaxAge:
		return dropTooOld
	case o.SessionMaxMessages > 0 && ss.out.late.messages >= o.SessionMaxMessages, o.SessionMaxBytes > 0 && ss.out.late.bytes+size > o.SessionMaxBytes:
		return dropTooMany
	}
	ss.out.late.messages++
	ss.out.late.bytes += size
	return ""
}

// here says whether there is somebody to send to. ss.mu is held.
func (ss *session) here() bool { return ss.conn != nil || ss.share != nil && ss.awake() }

// readOne reads one record of a partition and calls fn with its message. found is false if there is none, or never will be.
func (f *fanout) readOne(r *reader, offset int64, fn func(*incoming) bool) (result, found bool) {
	buf, err := r.partition.Read(f.buf[:0], offset, 1)
	f.buf = buf
	if errors.Is(err, segment.ErrUnavailable) {
		return false, true
	}
	for rest := buf; len(rest) > 0 && err == nil; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			break
		}
		err = f.decoder.Records(b, func(rec *record.Record) error {
			if in, ok := f.message(rec, r); ok && rec.Offset == offset {
				result, found = fn(&in), true
				return errEnough
			}
			return nil
		})
	}
	return result, found
}

// resend sends again what was in flight when the client left, oldest first, before anything new (MQTT 5 §4.4).
func (f *fanout) resend(ss *session) {
	for f.resendOne(ss) {
		fl, ok := ss.nextUnsent()
		if !ok {
			return
		}
		if !f.resendFrom(ss, fl) {
			return
		}
	}
}

// nextUnsent is the first flight that this connection hasn't seen.
func (ss *session) nextUnsent() (flight, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.conn == nil || ss.out.unsent() == 0 {
		return flight{}, false
	}
	return ss.out.flights[ss.out.sent], true
}

// resendOne sends PUBRELs, which need no record, as far as they come first. It returns false when the session is blocked or done.
func (f *fanout) resendOne(ss *session) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for c := ss.conn; c != nil && ss.out.unsent() > 0; {
		fl := &ss.out.flights[ss.out.sent]
		switch {
		case fl.awaits == wire.PUBCOMP:
			if !c.sendSmall(wire.AppendPubrel(nil, c.limits.version, fl.id, wire.Success), &f.delivery) {
				ss.blocked.set(blockedSocket)
				return false
			}
			ss.out.sent++
		case fl.reader < 0 && ss.out.sent >= c.limits.sendWindow:
			ss.blocked.set(blockedWindow)
			return false
		case fl.reader < 0:
			if !c.resendRetained(&f.delivery, ss.out.sent) {
				return false
			}
		default:
			return true
		}
	}
	return false
}

// resendFrom reads the record of a flight, and sends it and those that follow it in the same stretch.
func (f *fanout) resendFrom(ss *session, first flight) bool {
	r := f.readers[first.reader]
	buf, err := r.partition.Read(f.buf[:0], first.offset, fanoutReadBytes)
	f.buf = buf
	if errors.Is(err, segment.ErrUnavailable) {
		f.srv.warn(warnFanout, "messages in flight can't be read now; tried again", "client", ss.id, "cause", err)
		r.again = f.srv.clock() + int64(fanoutRetry)
		return false
	}
	f.reading = r
	sent := 0
	for rest := buf; len(rest) > 0 && err == nil; {
		var b record.Batch
		if b, rest, err = record.Next(rest); err != nil {
			break
		}
		err = f.decoder.Records(b, func(rec *record.Record) error {
			n, ok := f.resendRecord(ss, rec)
			sent += n
			if !ok {
				return errEnough
			}
			return nil
		})
	}
	if sent > 0 || errors.Is(err, errEnough) && f.moved(ss, first) {
		return !ss.blocked.is()
	}
	if ss.blocked.is() {
		return false
	}
	ss.mu.Lock() // the record is gone
	defer ss.mu.Unlock()
	if ss.out.unsent() > 0 && ss.out.flights[ss.out.sent].id == first.id {
		f.srv.countDrop(r.partition, dropForgotten)
		ss.abandonLocked(ss.out.sent)
	}
	return true
}

// moved says whether first isn't the next flight to be sent any more.
func (f *fanout) moved(ss *session, first flight) bool {
	fl, ok := ss.nextUnsent()
	return !ok || fl.id != first.id
}

var errEnough = errors.New("enough")

// resendRecord sends rec if it is the next flight's. ok is false when another stretch has to be read.
func (f *fanout) resendRecord(ss *session, rec *record.Record) (sent int, ok bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	c := ss.conn
	if c == nil || ss.out.unsent() == 0 {
		return 0, false
	}
	fl := &ss.out.flights[ss.out.sent]
	switch {
	case fl.reader != f.reading.index || fl.awaits == wire.PUBCOMP || fl.offset < rec.Offset:
		return 0, false
	case fl.offset > rec.Offset:
		return 0, true
	}
	in, isMessage := f.message(rec, f.reading)
	if !isMessage {
		return 0, false
	}
	if !ss.mayReceive(in.topic) {
		ss.abandonLocked(ss.out.sent)
		return 1, true
	}
	d := &f.delivery
	f.srv.match(d, &in, func(other *session) bool { return other == ss })
	defer clear(d.hits)
	d.merge(&in, d.hits) // its identifiers; the message goes even if nothing matches any more
	if fl.share != nil {
		d.out.SubscriptionIDs = ss.shareIDs(fl.share, d.ids[:0])
	}
	d.out.QoS, d.out.PacketID, d.out.Dup = fl.qos, fl.id, fl.tried
	if reason := f.srv.outlived(ss, d, &in); reason == dropExpired && fl.qos == 1 {
		f.srv.countDrop(in.from, reason)
		ss.abandonLocked(ss.out.sent)
		return 1, true
	}
	size := wire.PublishSize(c.limits.version, &d.out)
	if size > c.limits.maxPacket {
		f.srv.countDrop(in.from, dropTooLarge)
		ss.abandonLocked(ss.out.sent)
		return 1, true
	}
	if ss.out.sent >= c.limits.sendWindow {
		ss.blocked.set(blockedWindow)
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.closed || !c.roomLocked(size) {
		ss.blocked.set(blockedSocket)
		return 0, false
	}
	fl.tried = true
	ss.out.sent++
	c.appendPublishLocked(&d.out)
	c.touchLocked(d)
	return 1, true
}

// abandonLocked gives up a flight whose message can't be sent again. A QoS 2 id is finished by PUBREL, so that it isn't used for another
// message while the client may still have it.
func (ss *session) abandonLocked(i int) {
	fl := &ss.out.flights[i]
	if fl.qos == 2 {
		fl.awaits, fl.reader = wire.PUBCOMP, -1
		return
	}
	ss.out.flights = slices.Delete(ss.out.flights, i, i+1)
}
