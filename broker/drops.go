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
