package mqtt

import (
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// subscribe works off a SUBSCRIBE. What the client published before it is stored before it counts.
func (c *conn) subscribe(w *workspace, h wire.Header, body []byte) error {
	if err := c.flush(w); err != nil {
		return err
	}
	req, err := wire.ParseSubscribe(h, body, c.limits.version)
	if err != nil {
		return err
	}
	w.codes = w.codes[:0]
	for i := range req.Filters {
		w.codes = append(w.codes, c.grant(&req.Filters[i], req.SubscriptionID))
	}
	w.replies = wire.AppendSuback(w.replies[:0], c.limits.version, req.PacketID, w.codes)
	c.queueAcks(batch{}, w.replies)
	return nil
}

// grant adds one subscription and returns its code for SUBACK.
func (c *conn) grant(f *wire.SubscribeFilter, id uint32) byte {
	if _, _, shared := topics.SharedGroup(f.Filter); shared {
		return wire.SharedSubsNotSupported
	}
	if topics.ValidFilter(f.Filter) != nil {
		return wire.TopicFilterInvalid
	}
	s := c.session
	if len(s.filters) >= c.srv.options.MaxSubscriptions && !s.subscribed(f.Filter) {
		return wire.QuotaExceeded
	}
	if len(s.filters) == 0 {
		starts := c.srv.fanout.join()
		c.mu.Lock()
		if c.outbound == nil {
			c.outbound = new(outbound)
		}
		c.outbound.starts = starts
		c.mu.Unlock()
	}
	sub := topics.Subscription{
		ID: id, QoS: f.QoS, NoLocal: f.NoLocal, RetainAsPublished: f.RetainAsPublished, RetainHandling: f.RetainHandling,
	}
	if !c.srv.tree.Subscribe(f.Filter, s, sub) {
		s.filters = append(s.filters, f.Filter)
	}
	return f.QoS
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
	w.codes = w.codes[:0]
	for _, f := range req.Filters {
		w.codes = append(w.codes, c.revoke(f))
	}
	w.replies = wire.AppendUnsuback(w.replies[:0], c.limits.version, req.PacketID, w.codes)
	c.queueAcks(batch{}, w.replies)
	return nil
}

// revoke ends one subscription and returns its code for UNSUBACK. Messages that are queued already are still delivered
// (MQTT 5 §3.10.4).
func (c *conn) revoke(filter string) byte {
	s := c.session
	if topics.ValidFilter(filter) != nil {
		return wire.TopicFilterInvalid
	}
	if !s.subscribed(filter) {
		return wire.NoSubscriptionExisted
	}
	c.srv.tree.Unsubscribe(filter, s)
	s.removeFilter(filter)
	if len(s.filters) == 0 {
		c.srv.fanout.leave()
	}
	return wire.Success
}
