package mirror

import (
	"log/slog"

	"github.com/sluicemq/sluice/segment"
)

// New makes a mirror of the log to the region that o describes. It fails only for options that can't work, and connects
// to nothing before Start: the region may be away.
func New(o Options, log *segment.Log, lg *slog.Logger) (*Mirror, error) {
	return newMirror(o, logSource{log}, lg)
}

// logSource is the log on flash as a Source.
type logSource struct{ *segment.Log }

func (s logSource) Correction(timestamp int64) (ms int64, known bool) {
	return s.Clock().Correction(timestamp)
}

func (s logSource) ClockTrusted() bool { return s.Clock().Trusted() }

func (s logSource) Topics() []Topic {
	var topics []Topic
	for _, t := range s.Log.Topics() {
		out := Topic{Name: t.Name()}
		for _, p := range t.Partitions() {
			out.Partitions = append(out.Partitions, logPartition{p, s.Log})
		}
		topics = append(topics, out)
	}
	return topics
}

// logPartition is a partition with the log that keeps its cursors.
type logPartition struct {
	*segment.Partition
	log *segment.Log
}

func (p logPartition) SetCursor(owner string, next int64, data []byte) {
	p.log.SetCursor(p.Partition, owner, next, data)
}

func (p logPartition) Cursor(owner string) (next int64, data []byte, ok bool, err error) {
	return p.log.Cursor(p.Partition, owner)
}
