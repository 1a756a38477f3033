package mqtt

import (
	"slices"
	"sync/atomic"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// maxFilterBytes bounds the filters of one session together: they are one value in the state.
const maxFilterBytes = 32 << 10

// subscribe works off a SUBSCRIBE. What the client published before it is stored before it counts. It takes effect at one place in
// the log: what is appended later is delivered.
func (c *conn) subscribe(w *workspace, h wire.Header, body []byte) error {
	if err := c.flush(w); err != nil {
		return err
	}
	req, err := wire.ParseSubscribe(h, body, c.limits.version)
	if err != nil {
		return err
	}
	if wire.SubackSize(len(req.Filters)) > c.limits.maxPacket {
		return endLargeAnswer
	}
	c.srv.prepareSys(req.Filters)
	w.codes = w.codes[:0]
	group, err := c.changeSubscriptions(func() {
		for i := range req.Filters {
			w.codes = append(w.codes, c.grant(&req.Filters[i], req.SubscriptionID))
		}
	})
	if err != nil {
		c.srv.warn(warnState, "subscriptions can't be stored", "client", c.name(), "cause", err)
		for range req.Filters {
			w.codes = append(w.codes, wire.ImplementationSpecificError)
		}
	}
	w.replies = c.limits.appendExplained(w.replies[:0], whyRefused(w.codes), func(dst []byte, why string) []byte {
		return wire.AppendSuback(dst, c.limits.version, req.PacketID, w.codes, why)
	})
	c.queueAcks(batch{group: group}, w.replies)
	c.beginWalks()
	return nil
}

// whyRefused is the reason string of a SUBACK or UNSUBACK: what the first code that refuses stands for, "" if none does.
func whyRefused(codes []byte) string {
	for _, code := range codes {
		switch code {
		case wire.TopicFilterInvalid:
			return "not a valid topic filter"
		case wire.NotAuthorized:
			return "not allowed by the access rules"
		case wire.QuotaExceeded:
			return "there is no room for more subscriptions"
		case wire.ImplementationSpecificError:
			return "the session can't be stored"
		}
	}
	return ""
}

// changeSubscriptions calls change at one point in the order of all that is published: what came before is what subscriptions get as
// retained, what comes after they get live. It stores the session if it outlives its connection. group is what
// the answer waits for, 0 for nothing. On an error nothing was changed.
func (c *conn) changeSubscriptions(change func()) (group uint64, err error) {
	c.openWriter()
	ss, f := c.session, c.srv.fanout
	if ss.expiry == 0 {
		c.writer.Look()
	} else if err := c.writer.BeginState(); err != nil {
		return 0, err
	}
	had := len(ss.subs) > 0
	c.srv.keeper.handing.Lock()
	change()
	c.srv.keeper.handing.Unlock()
	if ss.expiry > 0 {
		c.writer.Put(stateKey(sessionPrefix, ss.id), ss.encode(f, 0))
		f.putAll(c.writer, ss)
	}
	switch has := len(ss.subs) > 0; {
	case has && !had:
		f.join()
	case had && !has:
		f.leave(ss)
	}
	return c.writer.End(), nil
}

// grant adds one subscription and returns its code for SUBACK.
func (c *conn) grant(f *wire.SubscribeFilter, id uint32) byte {
	if topics.ValidFilter(f.Filter) != nil {
		return wire.TopicFilterInvalid
	}
	ss := c.session
	if !ss.maySubscribe(f.Filter) {
		return wire.NotAuthorized
	}
	sub := topics.Subscription{
		ID: id, QoS: f.QoS, NoLocal: f.NoLocal, RetainAsPublished: f.RetainAsPublished, RetainHandling: f.RetainHandling,
	}
	if at := ss.find(f.Filter); at >= 0 { // it begins where it began
		sub.Starts = ss.subs[at].sub.Starts
		ss.mu.Lock()
		ss.subs[at].sub = sub
		ss.mu.Unlock()
		c.enter(f.Filter, sub)
		c.startWalk(f.Filter, sub, true)
		return f.QoS
	}
	size := int64(len(f.Filter))
	if len(ss.subs) >= c.srv.options.MaxSubscriptions || ss.filterBytes()+size > maxFilterBytes ||
		!reserve(&c.srv.filters, size, c.srv.options.FilterTotalBytes) {
		return wire.QuotaExceeded
	}
	switch {
	case ss.cursors == nil || len(ss.subs) == 0:
		c.srv.fanout.begin(ss, c.writer)
	case !topics.IsShared(f.Filter):
		sub.Starts = c.srv.fanout.starts(ss, c.writer)
	}
	ss.mu.Lock()
	ss.subs = append(ss.subs, subscription{f.Filter, sub})
	ss.mu.Unlock()
	c.enter(f.Filter, sub)
	c.startWalk(f.Filter, sub, false)
	return f.QoS
}

// enter makes a subscription one that messages are matched with.
func (c *conn) enter(filter string, sub topics.Subscription) {
	if topics.IsShared(filter) {
		c.srv.joinShare(c.session, filter, sub, c.writer)
	} else {
		c.srv.tree.Subscribe(filter, c.session, sub)
	}
}

func (ss *session) filterBytes() (n int64) {
	for i := range ss.subs {
		n += int64(len(ss.subs[i].filter))
	}
	return n
}

// reserve adds n to sum unless that would be more than limit.
func reserve(sum *atomic.Int64, n, limit int64) bool {
	if sum.Add(n) > limit {
		sum.Add(-n)
		return false
	}
	return true
}

// unsubscribe works off an UNSUBSCRIBE.
func (c *conn) unsubscribe(w *workspace, h wire.Header, body []byte) error {
	if err := c.flush(w); err != nil {
		return err
	}
	req, err := wire.ParseUnsubscribe(h, body, c.limits.version)
	if err != nil {
		return err
	}
	if wire.SubackSize(len(req.Filters)) > c.limits.maxPacket {
		return endLargeAnswer
	}
	w.codes = w.codes[:0]
	group, err := c.changeSubscriptions(func() {
		for _, f := range req.Filters {
			w.codes = append(w.codes, c.revoke(f))
		}
	})
	if err != nil {
		c.srv.warn(warnState, "subscriptions can't be stored", "client", c.name(), "cause", err)
		for range req.Filters {
			w.codes = append(w.codes, wire.ImplementationSpecificError)
		}
	}
	w.replies = c.limits.appendExplained(w.replies[:0], whyRefused(w.codes), func(dst []byte, why string) []byte {
		return wire.AppendUnsuback(dst, c.limits.version, req.PacketID, w.codes, why)
	})
	c.queueAcks(batch{group: group}, w.replies)
	return nil
}

// revoke ends one subscription and returns its code for UNSUBACK. What is in flight already is still delivered
// (MQTT 5 §3.10.4).
func (c *conn) revoke(filter string) byte {
	ss := c.session
	if topics.ValidFilter(filter) != nil {
		return wire.TopicFilterInvalid
	}
	at := ss.find(filter)
	if at < 0 {
		return wire.NoSubscriptionExisted
	}
	c.endWalk(filter)
	if topics.IsShared(filter) {
		c.srv.leaveShare(ss, filter, c.writer)
	} else {
		c.srv.tree.Unsubscribe(filter, ss)
	}
	ss.mu.Lock()
	ss.subs = slices.Delete(ss.subs, at, at+1)
	ss.mu.Unlock()
	c.srv.filters.Add(-int64(len(filter)))
	return wire.Success
}
