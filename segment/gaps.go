package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// A gap is kept in the state under "gap/<topic>/<partition>/<first offset, 20 digits>":
//
//	 0  1  format version, 1
//	 1  8  last offset
//	 9  8  first time, ms
//	17  8  last time, ms
//	25  8  number of records
//	33  1  reason
//
// "start/<topic>/<partition>" is a partition's log start offset, 8 bytes. Both change in one commit group, before anything
// is removed.
const (
	gapPrefix   = "gap/"
	startPrefix = "start/"
	gapVersion  = 1
	gapBytes    = 34
	// maxGaps of one partition are told apart. Then the two oldest become one, with what lies between them.
	maxGaps = 64
)

// Reason is why records were evicted.
type Reason byte

// The reasons. Several is for a gap that was made of others with different ones.
const (
	Several Reason = iota
	Age
	Bytes
	Budget
)

func (r Reason) String() string {
	switch r {
	case Age:
		return "age"
	case Bytes:
		return "bytes"
	case Budget:
		return "budget"
	}
	return "several"
}

// Gap is a stretch of a partition that was evicted before every follower had it.
type Gap struct {
	First, Last         int64 // offsets, both lost
	FirstTime, LastTime int64 // ms of the oldest and the newest record, files.NoTime if unknown
	Records             int64 // that were lost; fewer than the offsets when some between the two were not
	Reason              Reason
}

func (g Gap) encode() []byte {
	b := []byte{gapVersion}
	for _, n := range []int64{g.Last, g.FirstTime, g.LastTime, g.Records} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, byte(g.Reason))
}

func decodeGap(key, b []byte) (Gap, error) {
	first := int64(0)
	digits := key[max(len(key)-20, 0):]
	if _, err := fmt.Sscanf(string(digits), "%020d", &first); err != nil || len(b) != gapBytes || b[0] != gapVersion {
		return Gap{}, fmt.Errorf("gap %q is stored in an unknown form", key)
	}
	n := func(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
	return Gap{first, n(1), n(9), n(17), n(25), Reason(b[33])}, nil
}

func gapsPrefix(p *Partition) []byte {
	return fmt.Appendf(nil, "%s%s/%d/", gapPrefix, p.topic.name, p.id)
}

func gapKey(p *Partition, first int64) []byte { return fmt.Appendf(gapsPrefix(p), "%020d", first) }

func startKey(p *Partition) []byte {
	return fmt.Appendf(nil, "%s%s/%d", startPrefix, p.topic.name, p.id)
}

// storedStart is the log start offset that the state has, 0 for none.
func (l *Log) storedStart(p *Partition) int64 {
	value, ok, err := l.Get(startKey(p))
	if err != nil || !ok || len(value) != 8 {
		return 0
	}
	return max(int64(binary.BigEndian.Uint64(value)), 0)
}

// Gaps are the stretches of the partition that were evicted before every follower had them, the oldest first.
func (l *Log) Gaps(p *Partition) ([]Gap, error) {
	var gaps []Gap
	var wrong error
	err := l.Range(gapsPrefix(p), func(key, value []byte) bool {
		g, err := decodeGap(key, value)
		if err != nil {
			wrong = err // it is reported, and hides no other
			return true
		}
		gaps = append(gaps, g)
		return true
	})
	slices.SortFunc(gaps, func(a, b Gap) int { return int(min(max(a.First-b.First, -1), 1)) })
	if err == nil {
		err = wrong
	}
	return gaps, err
}

// ForgetGap takes a gap, as Gaps gave it, out of the state, once the followers know of it. What the gap has grown by since
// remains. It is durable when it returns.
func (l *Log) ForgetGap(p *Partition, g Gap) error {
	l.retention.changing.Lock()
	defer l.retention.changing.Unlock()
	gaps, err := l.Gaps(p)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(gaps, func(have Gap) bool { return have.First <= g.First && have.Last >= g.Last })
	if i < 0 {
		return nil
	}
	have := gaps[i]
	return l.commitState(func(w *Writer) {
		w.Delete(gapKey(p, have.First))
		rest := Gap{g.Last + 1, have.Last, g.LastTime, have.LastTime, have.Records - g.Records, have.Reason}
		if rest.First <= rest.Last && rest.Records > 0 {
			w.Put(gapKey(p, rest.First), rest.encode())
		} else {
			l.retention.gaps.Add(-1)
		}
	})
}

// commitState makes changes of state durable, in a commit group that doesn't wait for others.
func (l *Log) commitState(change func(w *Writer)) error {
	w := l.NewWriter(nil)
	if err := w.begin(ofRetention); err != nil {
		return err
	}
	change(w)
	ticket := l.endWithTicket(w, nil, 0)
	l.o.wait()
	return ticket.Wait(context.Background())
}

// gapChange is what the state needs to learn of a new gap.
type gapChange struct {
	delete []int64 // first offsets
	put    []Gap
	more   int64 // number of gaps, after less before
}

// addGap adds g, which lies behind all others, to the partition's gaps: to the last one, if it follows that directly and
// has its reason, or as one of its own.
func addGap(gaps []Gap, g Gap) (c gapChange) {
	if n := len(gaps); n > 0 && gaps[n-1].Last+1 == g.First && gaps[n-1].Reason == g.Reason {
		c.put = append(c.put, gaps[n-1].join(g))
		return c
	}
	c.put, c.more = append(c.put, g), 1
	for len(gaps)+1 > maxGaps {
		c.delete = append(c.delete, gaps[1].First)
		gaps = append([]Gap{gaps[0].join(gaps[1])}, gaps[2:]...)
		c.more--
	}
	if len(c.delete) > 0 {
		c.put = append(c.put, gaps[0])
	}
	return c
}

// join is g and the later one h as one, with the exact number of records.
func (g Gap) join(h Gap) Gap {
	g.Last, g.Records = h.Last, g.Records+h.Records
	if g.FirstTime == files.NoTime {
		g.FirstTime = h.FirstTime
	}
	if h.LastTime != files.NoTime {
		g.LastTime = h.LastTime
	}
	if g.Reason != h.Reason {
		g.Reason = Several
	}
	return g
}

// countGaps counts the gaps in the state at the start.
func (l *Log) countGaps() {
	_ = l.Range([]byte(gapPrefix), func(_, _ []byte) bool {
		l.retention.gaps.Add(1)
		return true
	})
}

// gapOf is what of a victim some follower has not passed. ok is false if all have it all.
func (l *Log) gapOf(v *victim) (g Gap, ok bool) {
	p, first := v.p, v.from
	passed, followed := p.passed.least(p.topic.followers)
	if !followed || passed >= v.span.End {
		return g, false
	}
	g = Gap{First: first, Last: v.span.End - 1, FirstTime: v.span.MinTime, LastTime: v.span.MaxTime, Reason: v.reason}
	g.First = max(first, passed)
	inside := g.First > v.span.Base
	if inside {
		g.FirstTime = files.NoTime
	}
	g.Records = g.Last - g.First + 1
	b, err := p.batchAt(g.First)
	switch {
	case errors.Is(err, errNoBatch):
		return g, false // nothing but a hole, and nothing behind it
	case err != nil:
		return g, true // it can't be read, but it is gone all the same
	case b.BaseOffset() >= v.span.End:
		return g, false // nothing but a hole
	case inside:
		g.FirstTime = b.BaseTimestamp()
	}
	if b, err := p.batchAt(g.Last); err != nil || b.BaseOffset() >= v.span.End {
		g.Records = l.countRecords(p, g.First, v.span.End) // a crash left a hole at the segment's end
	}
	return g, true
}

var errNoBatch = errors.New("no batch follows")

// batchAt is the header of the batch that holds offset, or of the next one. It is errNoBatch if there is none.
func (p *Partition) batchAt(offset int64) (record.Batch, error) {
	buf, err := p.Read(nil, offset, 1)
	if err == nil && len(buf) == 0 {
		err = errNoBatch
	}
	if err != nil {
		return nil, err
	}
	b, _, err := record.Next(buf)
	return b, err
}

// countRecords counts the records from offset first to below end.
func (l *Log) countRecords(p *Partition, first, end int64) (n int64) {
	var buf []byte
	for offset := first; offset < end; {
		var err error
		if buf, err = p.Read(buf[:0], offset, 256<<10); err != nil || len(buf) == 0 {
			return n
		}
		for rest := buf; len(rest) > 0 && offset < end; {
			b, more, err := record.Next(rest)
			if err != nil {
				return n
			}
			if rest = more; b.BaseOffset() >= end {
				return n
			}
			n += min(b.NextOffset(), end) - max(b.BaseOffset(), first)
			offset = b.NextOffset()
		}
	}
	return n
}

// raiseToStarts makes each partition's next offset at least its log start (recovery only).
func (l *Log) raiseToStarts() error {
	for _, p := range l.sortedPartitions() {
		if err := l.raise(p, l.storedStart(p), "the log starts behind them"); err != nil {
			return err
		}
	}
	return nil
}

// dropBelowStarts removes what an eviction before the crash had still to remove: the journal told of it only now.
func (l *Log) dropBelowStarts() {
	for _, p := range l.sortedPartitions() {
		start := l.storedStart(p)
		if spans := p.chain.Spans(); start > p.chain.StartOffset() || len(spans) > 0 && spans[0].End <= start {
			// All records may be gone, and the crash have left the last segment: it must not be written to any more.
			if n := len(spans); n > 0 && spans[n-1].End <= start && spans[n-1].Active {
				if err := p.chain.Seal(); err != nil {
					l.log.Warn("can't close an evicted segment yet", "partition", p.String(), "error", err)
				}
			}
			l.dropBelow(p, start)
		}
		p.start.Store(max(start, p.chain.StartOffset()))
	}
}

// age is how old a record with that timestamp is, on the log's clock.
func (l *Log) age(ms int64) time.Duration {
	if l.retention.ageOf != nil {
		return l.retention.ageOf(ms)
	}
	return l.clock.Age(ms)
}
