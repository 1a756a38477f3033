package segment

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// Batches that are smaller than this are merged with their neighbours before they are compressed and appended:
// batches of a few records hardly compress.
const mergeBytes = 64 << 10

// keepScratchBytes is how large the one buffer that batches are compressed into may be and stay.
const keepScratchBytes = 1 << 20

// appendLoop moves durable batches from memory to segments, the fullest partition first, until the log closes.
func (l *Log) appendLoop() {
	defer close(l.appendDone)
	retry := minRetry
	for {
		p := l.fullest()
		if p == nil {
			select {
			case <-l.appendWake:
				continue
			case <-l.stop:
				return
			}
		}
		if err := l.appendPartition(p); err == nil {
			retry = minRetry
			continue
		}
		select {
		case <-time.After(retry):
			retry = min(2*retry, maxRetry)
		case <-l.stop:
			return
		}
	}
}

func (l *Log) kickAppender() {
	wake(l.appendWake)
}

// fullest is the partition to append next, or nil if none has enough to be worth it. One that failed is tried again after
// the others: while it fails no writer can add to it, and nothing else would remind us of it.
func (l *Log) fullest() *Partition {
	var best, failed *Partition
	most := int64(0)
	for _, p := range l.allPartitions() {
		if p.failing.Load() {
			failed = p
		} else if n := p.waiting.Load(); n > most {
			best, most = p, n
		}
	}
	if most >= int64(l.o.AppendBytes) || (l.memory.used() > l.o.MemoryBytes/2 && most > 0) {
		return best
	}
	return failed
}

// appendPartition appends everything that the partition has in memory to its segment. On an error it stays readable
// in memory and the journal is not recycled; writers are refused until it succeeds.
func (l *Log) appendPartition(p *Partition) error {
	p.chainMu.Lock()
	defer p.chainMu.Unlock()
	err := l.appendLocked(p)
	if files.NoSpace(err) && l.useReserve(err) {
		err = l.appendLocked(p)
	}
	l.countLocked(p)
	if err != nil {
		if !p.failing.Swap(true) {
			l.failing.Add(1)
		}
		l.refuse(causeSegments, &refusal{ErrUnavailable, err})
		return err
	}
	if p.failing.Swap(false) {
		l.failing.Add(-1)
	}
	if l.failing.Load() == 0 {
		l.refuse(causeSegments, nil)
	}
	return nil
}

// countLocked brings the bytes of all segments up to date. p.chainMu is held.
func (l *Log) countLocked(p *Partition) {
	bytes := p.chain.Bytes()
	l.used.Add(bytes - p.counted.Swap(bytes))
}

// appendLocked is appendPartition with p.chainMu held.
func (l *Log) appendLocked(p *Partition) error {
	for {
		if p.rewriting.Load() || p.chain.Poisoned() != nil {
			if err := l.restartChain(p); err != nil {
				return err
			}
		}
		p.mu.Lock()
		if len(p.flushing.spans) == 0 { // else an attempt failed before
			p.filling, p.flushing = p.flushing, p.filling
			p.waiting.Store(0)
		}
		done := len(p.flushing.spans) == 0
		p.mu.Unlock()
		if done {
			return nil
		}
		if err := l.appendTail(p); err != nil {
			return err
		}
	}
}

// appendTail appends p.flushing, which nobody else changes while chainMu is held, and empties it.
func (l *Log) appendTail(p *Partition) error {
	err := l.appendSpans(p, &p.flushing)
	if err != nil && p.chain.Poisoned() != nil {
		if err = l.restartChain(p); err == nil {
			err = l.appendSpans(p, &p.flushing)
		}
	}
	if err != nil {
		return err
	}
	p.mu.Lock() // for Partition.bytes
	n := p.flushing.bytes()
	p.flushing.empty(&l.free)
	l.countLocked(p)
	p.mu.Unlock()
	l.memory.add(-n) // after countLocked: never counted is worse than counted twice
	return nil
}

// appendSpans appends the batches of t that the segment doesn't have yet, small ones merged.
func (l *Log) appendSpans(p *Partition, t *tail) error {
	l.encoding.Lock()
	defer l.encoding.Unlock()
	spans := t.spans
	for len(spans) > 0 {
		if spans[0].last < p.chain.NextOffset() {
			spans = spans[1:] // appended by an attempt that failed later
			continue
		}
		n := t.run(spans)
		l.batches = l.batches[:0]
		for _, s := range spans[:n] {
			l.batches = append(l.batches, t.batch(s))
		}
		err := l.appendMerged(p, l.batches)
		for n > 1 && errors.Is(err, record.ErrTooLarge) { // compressed ones that shrank enormously
			n /= 2
			err = l.appendMerged(p, l.batches[:n])
		}
		if err != nil {
			return err
		}
		spans = spans[n:]
	}
	return nil
}

// packedFactor is about what a batch of the journal that is compressed has shrunk by.
const packedFactor = 4

// run is how many of the spans make one batch of about mergeBytes, uncompressed: at least one, none behind a hole.
func (t *tail) run(spans []span) (n int) {
	for size := 0; n < len(spans); n++ {
		b := t.batch(spans[n])
		if size += len(b); b.Codec() != record.None {
			size += (packedFactor - 1) * len(b)
		}
		if n > 0 && (size > mergeBytes || spans[n].base != spans[n-1].last+1) {
			break
		}
	}
	return n
}

// appendMerged appends consecutive batches as one. Log.encoding is held.
func (l *Log) appendMerged(p *Partition, batches []record.Batch) error {
	codec := p.topic.Compression()
	out, err := l.scratch[:0], error(nil)
	switch {
	case len(batches) > 1:
		out, err = l.encoder.Merge(out, batches, codec)
	default:
		out, err = l.encoder.Compress(out, batches[0], codec)
	}
	if err != nil {
		return fmt.Errorf("merge batches of %s at offset %d: %w", p, batches[0].BaseOffset(), err)
	}
	if cap(out) <= keepScratchBytes {
		l.scratch = out
	}
	if base, next := record.Batch(out).BaseOffset(), p.chain.NextOffset(); base > next {
		// Recovery has reported what is missing from the journal. Without it this is a journal that can't be read back.
		l.log.Error("records are lost, going on behind them", "partition", p.String(), "from", next, "to", base)
		if err := p.chain.SkipTo(base); err != nil {
			return err
		}
	}
	return p.chain.Append(out)
}

// restartChain goes on in a new segment after a write or sync of the old one failed: what wasn't synced there may be
// gone, so everything from the synced end on comes out of the journal again. Until all of it is there, nothing else may be
// appended: the chain would take it for a hole that has to be. An attempt that failed is continued. p.chainMu is held.
func (l *Log) restartChain(p *Partition) error {
	if err := p.chain.Poisoned(); err != nil {
		l.log.Error("segment write failed, rewriting it from the journal", "partition", p.String(), "error", err)
		l.counters.segmentRestarts.Add(1)
	}
	p.rewriting.Store(true)
	if err := p.chain.Restart(); err != nil {
		return fmt.Errorf("begin a new segment of %s: %w", p, err)
	}
	p.mu.Lock()
	upTo := p.HighWatermark()
	if base, ok := p.flushing.base(); ok {
		upTo = base
	} else if base, ok := p.filling.base(); ok {
		upTo = base
	}
	p.mu.Unlock()
	var t tail
	appendRun := func() error {
		defer t.empty(&l.free)
		return l.appendSpans(p, &t)
	}
	_, err := l.journal.Replay(l.store.OldestLSN(), func(_ uint64, e *journal.Entry) error {
		b := record.Batch(e.Batch)
		if e.Kind != journal.KindBatch || e.TopicID != p.topic.id || e.Partition != p.id ||
			b.LastOffset() < p.chain.NextOffset() || b.BaseOffset() >= upTo {
			return nil
		}
		t.add(b)
		if t.bytes() >= mergeBytes {
			return appendRun()
		}
		return nil
	})
	if err == nil {
		err = appendRun()
	}
	if err != nil {
		return fmt.Errorf("rewrite %s from the journal: %w", p, err)
	}
	if next := p.chain.NextOffset(); next < upTo {
		return fmt.Errorf("rewrite %s from the journal: it ends at offset %d, %d is needed", p, next, upTo)
	}
	p.rewriting.Store(false)
	return nil
}
