package mqtt

import (
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// publishWill stores the will like any message of the client, behind its last one. A will delay is at most the
// session's expiry, which is 0, so none is waited for (MQTT 5 §3.1.3.2.2).
func (c *conn) publishWill(will *wire.Will) {
	w := c.srv.workspaces.get()
	defer c.srv.workspaces.put(w)
	w.now = time.Now()
	w.source = append([]byte(will.Topic), will.Payload...)
	w.messages = append(w.messages, message{
		topic:   place{0, uint32(len(will.Topic))},
		payload: place{uint32(len(will.Topic)), uint32(len(will.Payload))},
		props:   w.keep(will.Raw),
		expiry:  will.Expiry, hasExpiry: will.HasExpiry, qos: will.QoS,
	})
	m := &w.messages[0]
	c.locate(w, m, w.source[:len(will.Topic)])
	if m.partition != nil {
		if c.writer == nil {
			c.writer = c.srv.log.NewWriter(c)
		}
		err := c.writer.Begin()
		if err == nil {
			if err = m.partition.Topic().Refused(); err != nil {
				c.writer.End()
			}
		}
		if err != nil {
			c.srv.drops.Count(m.partition.Topic().Name(), refusalName(err), 1)
			c.srv.warn(warnWill, "will is not stored", "client", c.name(), "cause", err)
			return
		}
		w.record.Timestamp = c.writer.Stamp(w.now)
		c.fill(w, m)
		c.writer.Append(m.partition, &w.record)
		c.writer.End()
	}
	if c.srv.tree.Len() > 0 {
		c.handOn(w)
	}
}
