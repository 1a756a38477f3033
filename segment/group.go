package segment

import (
	"context"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

// group is a commit group: what one journal frame makes durable. Two take turns: while one is synced, the other
// fills. All fields are under Log.mu while it fills, and the committer's from sealing until it is emptied.
type group struct {
	seq     uint64
	first   time.Time      // when the first thing was added
	parts   []*Partition   // that have records in it, in their builder of the group's parity
	batches []record.Batch // of parts, once sealed; they alias the builders
	records int
	bytes   int       // of records and changes
	changes []byte    // encoded state changes, in order
	count   int       // of changes
	members int       // writers in it
	wake    []*Writer // members that want to be told
	urgent  bool      // don't wait for more
	outcome *outcome  // made for the first ticket
}

func (g *group) empty() bool { return g.records == 0 && g.count == 0 }

// clear makes it ready to be group seq.
func (g *group) clear(seq uint64, keepBytes int) {
	changes := g.changes
	if cap(changes) > keepBytes {
		changes = nil
	}
	clear(g.parts)
	clear(g.batches)
	clear(g.wake)
	*g = group{seq: seq, parts: g.parts[:0], batches: g.batches[:0], wake: g.wake[:0], changes: changes[:0]}
}

// outcome is what the tickets of one group wait for.
type outcome struct {
	done  chan struct{}
	err   error
	bases map[*Partition]int64 // offset of the first record of each partition
}

// Ticket is one write's place in its commit group.
type Ticket struct {
	outcome *outcome
	part    *Partition
	index   int64 // among the group's records of the partition
}

// Wait returns once the write is durable (nil), is finally not stored (its error), or ctx has ended (ctx's error;
// the write goes on).
func (t Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.outcome.done:
		return t.outcome.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Offset is the record's offset once Wait has returned nil.
func (t Ticket) Offset() int64 { return t.outcome.bases[t.part] + t.index }

// activity estimates how many writers publish, so that a group waits for those and no longer.
type activity struct {
	epoch   uint64 // number of the present epoch
	since   time.Time
	last    int // distinct writers of the epoch before
	present int // distinct writers of this epoch so far
}

// minEpoch is the shortest time over which distinct writers are counted. An epoch also holds at least four syncs.
const minEpoch = 50 * time.Millisecond

// turn begins a new epoch when the present one is over.
func (a *activity) turn(now time.Time, sync time.Duration) {
	length := max(minEpoch, 4*sync)
	age := now.Sub(a.since)
	if age < length {
		return
	}
	a.last = a.present
	if age >= 2*length {
		a.last = 0 // nobody sealed a group for a whole epoch
	}
	a.epoch++
	a.present, a.since = 0, now
}

// enough is the number of members at which a group is as full as it is going to be: 95 % of the active writers.
func (a *activity) enough() int { return max(1, (max(a.last, a.present)*95+99)/100) }
