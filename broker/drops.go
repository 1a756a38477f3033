package broker

import (
	"log/slog"
	"time"

	"github.com/sluicemq/sluice/broker/admission"
)

// dropsInterval is the time between two reports of what was dropped.
const dropsInterval = time.Minute

// dropReport tells what was dropped since it was last asked: nothing is lost silently.
type dropReport struct {
	seen map[admission.Drop]int64 // by topic and reason, Messages 0
}

// log writes a line for each topic and reason that has grown.
func (r *dropReport) log(lg *slog.Logger, drops []admission.Drop) {
	if r.seen == nil {
		r.seen = make(map[admission.Drop]int64)
	}
	for _, d := range drops {
		pair := admission.Drop{Topic: d.Topic, Reason: d.Reason}
		if more := d.Messages - r.seen[pair]; more > 0 {
			lg.Warn("messages dropped", "topic", d.Topic, "reason", d.Reason, "messages", more, "since_start", d.Messages)
			r.seen[pair] = d.Messages
		}
	}
}

// dropped is what was refused or not delivered, what was evicted before every region had it, and what a region will not get
// because it is damaged in the log: counted once for each region.
func (b *Broker) dropped() []admission.Drop {
	drops := b.drops.Snapshot()
	for _, e := range b.log.Status().Evicted {
		if e.Unmirrored > 0 {
			drops = append(drops, admission.Drop{Topic: e.Topic, Reason: "evicted unmirrored by " + e.Reason, Messages: e.Unmirrored})
		}
	}
	damaged := map[string]int64{}
	for _, m := range b.mirrors {
		for _, l := range m.Status().Lanes {
			damaged[l.Topic] += l.Damaged
		}
	}
	for topic, n := range damaged {
		if n > 0 {
			drops = append(drops, admission.Drop{Topic: topic, Reason: "damaged", Messages: n})
		}
	}
	return drops
}
