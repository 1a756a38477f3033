package segment

import (
	"errors"
	"fmt"

	"github.com/sluicemq/sluice/segment/record"
)

// OffsetForTime is the first record, in the order of offsets, whose timestamp is ms or later: what Kafka's ListOffsets
// answers for a timestamp. Only records below the high watermark are looked at. ok is false when none is as late; timestamps
// before 1970 count as none. Segments that are damaged are passed over. It reads at most about an index interval of each of
// two segments, and one batch. Errors: ErrUnavailable while a failed segment is rewritten, and those of Read.
func (p *Partition) OffsetForTime(ms int64) (offset, timestamp int64, ok bool, err error) {
	ms = max(ms, 0)
	for {
		inMemory := p.memoryBase()
		base, found, err := p.chain.OffsetForTime(ms, inMemory)
		if err != nil {
			return 0, 0, false, fmt.Errorf("look up a time in %s: %w", p, err)
		}
		if p.rewriting.Load() {
			return 0, 0, false, fmt.Errorf("look up a time in %s: %w: a segment is being rewritten", p, ErrUnavailable)
		}
		if !found {
			if p.memoryBase() != inMemory {
				continue // what was in memory went to the segments meanwhile
			}
			if base, found = p.memoryForTime(ms); !found {
				return 0, 0, false, nil
			}
		}
		return p.recordForTime(base, ms)
	}
}

// memoryBase is the offset from which on the partition's records are in memory only, the high watermark for none.
func (p *Partition) memoryBase() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if base, ok := p.flushing.base(); ok {
		return base
	}
	if base, ok := p.filling.base(); ok {
		return base
	}
	return p.HighWatermark()
}

// memoryForTime is the base offset of the first batch in memory that has a timestamp of ms or later.
func (p *Partition) memoryForTime(ms int64) (base int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range []*tail{&p.flushing, &p.filling} {
		for _, s := range t.spans {
			if t.batch(s).MaxTimestamp() >= ms {
				return s.base, true
			}
		}
	}
	return 0, false
}

var errFound = errors.New("found")

// recordForTime finds the first record from offset on that is as late as ms. It is in the batch there, unless its late
// records lie below the log's start.
func (p *Partition) recordForTime(from, ms int64) (offset, timestamp int64, ok bool, err error) {
	d := record.NewDecoder(0)
	var buf []byte
	for {
		if buf, err = p.Read(buf[:0], from, 1); err != nil || len(buf) == 0 {
			return 0, 0, false, err
		}
		b, _, err := record.Next(buf)
		if err != nil {
			return 0, 0, false, err
		}
		err = d.Records(b, func(r *record.Record) error {
			if r.Offset < from || r.Timestamp < ms {
				return nil
			}
			offset, timestamp, ok = r.Offset, r.Timestamp, true
			return errFound
		})
		if ok || err != nil {
			return offset, timestamp, ok, ignoreFound(err)
		}
		from = b.NextOffset()
	}
}

func ignoreFound(err error) error {
	if errors.Is(err, errFound) {
		return nil
	}
	return err
}
