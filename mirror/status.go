package mirror

import (
	"fmt"
	"time"
)

// State is how a region is reached.
type State int

// The states of a region.
const (
	Connecting  State = iota // not reached yet
	Unreachable              // tried in vain
	Up
)

func (s State) String() string {
	switch s {
	case Connecting:
		return "connecting"
	case Unreachable:
		return "unreachable"
	case Up:
		return "up"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Totals count what happened since Start.
type Totals struct {
	Records            int64 // acknowledged by the region
	Bytes              int64 // of their batches as they were sent, once each
	Requests           int64 // produce requests
	Retries            int64 // batches sent again
	PossibleDuplicates int64 // records that may have arrived twice
	Lost               int64 // records that the region will not get: they left the log before it had them, or are damaged
	Damaged            int64 // those of them that are damaged
	Untrusted          int64 // records acknowledged whose timestamps are those of a clock that wasn't trusted
}

// Status is a mirror at one moment.
type Status struct {
	Region, Alias string
	State         State
	Since         time.Time // of State
	Problem       string    // why the region is unreachable
	Cluster       string    // the region's cluster id, "" until known
	LagRecords    int64     // of all lanes
	Totals        Totals
	Lanes         []LaneStatus
}

// LaneStatus is one lane at one moment.
type LaneStatus struct {
	Topic, RemoteTopic string
	Partition          int32
	Leader             int32 // broker, -1 while none is known
	Cursor             int64 // next offset to send
	HighWatermark      int64
	LagRecords         int64
	Damaged            int64  // records passed over since Start because they are damaged in the log
	Problem            string // why it isn't going on, "" when it is
}

// Status tells how the mirror stands.
func (m *Mirror) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := Status{
		Region: m.opts.Region, Alias: m.opts.Alias, State: m.state, Since: m.since, Problem: m.problem,
		Cluster: m.cluster, Totals: m.totals, Lanes: make([]LaneStatus, 0, m.lanes),
	}
	for _, t := range m.topics {
		for _, l := range t.lanes {
			ls := LaneStatus{
				Topic: t.name, RemoteTopic: t.remote, Partition: l.id, Leader: l.leader,
				Cursor: l.next, HighWatermark: l.part.HighWatermark(), Damaged: l.damaged, Problem: l.problem,
			}
			ls.LagRecords = max(ls.HighWatermark-ls.Cursor, 0)
			if ls.Problem == "" && l.leader < 0 {
				ls.Problem = t.trouble
			}
			st.LagRecords += ls.LagRecords
			st.Lanes = append(st.Lanes, ls)
		}
	}
	return st
}

// setState notes how the region is reached, and logs a line when that changes.
func (m *Mirror) setState(s State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem = ""
	if err != nil {
		m.problem = unreachable(err, m.brokers != nil)
	}
	if s == m.state {
		return
	}
	m.state, m.since = s, time.Now()
	if s == Up {
		m.lg.Info("mirror: region up", "cluster", m.cluster, "lanes", m.lanes)
		for _, s := range m.senders {
			signal(s.again)
		}
		return
	}
	m.lg.Warn("mirror: region unreachable, records are kept and sent later", "brokers", m.opts.Brokers, "reason", m.problem)
}
