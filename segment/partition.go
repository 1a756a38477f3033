package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// Topic is a named set of partitions.
type Topic struct {
	name       string // immutable, as all fields but options, refused and checked
	id         uint32
	log        *Log
	options    atomic.Pointer[TopicOptions]
	partitions []*Partition
	followers  []string                // owners of the cursors that count; the others may be of mirrors that are no more
	refused    atomic.Pointer[refusal] // why this topic takes no records, nil: it does. Changed under Log.mu
	checked    uint64                  // the last group after which its size was looked at; the committer's
}

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// ID is the topic's number in this data directory. Numbers are never used again.
func (t *Topic) ID() uint32 { return t.id }

// Partitions are the topic's partitions, by number. The caller must not change the slice.
func (t *Topic) Partitions() []*Partition { return t.partitions }

// Compression is how the topic's batches are compressed in segments.
func (t *Topic) Compression() record.Codec { return t.options.Load().Compression }

// Partition is one ordered log. All exported methods are safe for concurrent use.
type Partition struct {
	topic *Topic // immutable
	id    int32  // immutable

	// Records of the group that fills (under Log.mu) and of the one that is synced (the committer's), by parity.
	builders [2]record.Builder
	next     int64 // next offset to give; the committer's
	after    int64 // offset behind all that was appended, the group that fills included; under Log.mu

	high    atomic.Int64 // high watermark
	waiting atomic.Int64 // bytes in filling
	failing atomic.Bool  // the last attempt to append what is in memory failed

	mu       sync.Mutex // before this: chainMu
	filling  tail       // durable batches that are not in a segment yet
	flushing tail       // those that are being appended to the segment now

	rewriting atomic.Bool // the chain was restarted and doesn't have everything again that lies before flushing; set under chainMu

	chainMu sync.Mutex // held by whoever appends or restarts
	chain   *files.Chain
	counted atomic.Int64 // bytes of the chain that are in Log.used; changed under chainMu

	start   atomic.Int64 // log start offset: durable, and never lower than it was
	covered coverage     // by the state files
	passed  passed       // by the followers
	stuck   bool         // evicted segments could not be removed; of whoever evicts
}

func partitionName(topic string, id int32) string { return fmt.Sprintf("%s-%d", topic, id) }

func topicsDir(dataDir string) string { return filepath.Join(dataDir, "topics") }

// Topic is the partition's topic.
func (p *Partition) Topic() *Topic { return p.topic }

// ID is the partition's number within its topic.
func (p *Partition) ID() int32 { return p.id }

// String is <topic>-<partition>.
func (p *Partition) String() string { return partitionName(p.topic.name, p.id) }

// HighWatermark is the offset behind the last record that is durable: the next one to become readable.
func (p *Partition) HighWatermark() int64 { return p.high.Load() }

// StartOffset is the lowest offset that is still kept. It never falls, restarts included.
func (p *Partition) StartOffset() int64 { return max(p.start.Load(), p.firstOffset()) }

// firstOffset is the lowest offset that there is.
func (p *Partition) firstOffset() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.chain.NextOffset() == p.chain.StartOffset() {
		if base, ok := p.flushing.base(); ok {
			return base
		}
		if base, ok := p.filling.base(); ok {
			return base
		}
		return p.HighWatermark()
	}
	return p.chain.StartOffset()
}

// Read appends whole batches to dst: the one that holds offset (or the next one, if offset lies in a hole), and those
// that follow it, up to about maxBytes but at least one. The first batch may begin below offset. It returns dst as it
// was when offset is the high watermark. Errors: ErrOffsetOutOfRange; ErrUnavailable while a failed segment is rewritten
// and the journal can't be read either: to be tried again; *DamageError, behind whose Resume reading goes on; those of the file
// system.
func (p *Partition) Read(dst []byte, offset int64, maxBytes int) ([]byte, error) {
	p.mu.Lock()
	high := p.HighWatermark()
	if offset >= high || offset < p.start.Load() {
		p.mu.Unlock()
		if offset == high {
			return dst, nil
		}
		return dst, ErrOffsetOutOfRange
	}
	// What isn't in memory now is in the segments: it is appended there before it leaves memory. There it may be part of a
	// merged batch, which ends at or below the high watermark of now, but not of before.
	if base, ok := p.flushing.base(); ok && offset >= base && !p.filling.holds(offset) {
		defer p.mu.Unlock()
		return p.flushing.read(dst, offset, maxBytes), nil
	}
	if base, ok := p.filling.base(); ok && offset >= base {
		defer p.mu.Unlock()
		return p.filling.read(dst, offset, maxBytes), nil
	}
	p.mu.Unlock()
	return p.readChain(dst, offset, maxBytes, high)
}

// readChain reads what is in the segments, or, where these lack it or it can't be read there, in the journal.
func (p *Partition) readChain(dst []byte, offset int64, maxBytes int, high int64) ([]byte, error) {
	if offset < p.chain.StartOffset() {
		return dst, ErrOffsetOutOfRange
	}
	out, err := p.chain.Read(dst, offset, maxBytes, high)
	if err == nil && len(out) > len(dst) {
		return out, nil
	}
	if p.rewriting.Load() || p.unsynced(offset) {
		if b, ok := p.topic.log.readJournal(dst, p, offset, maxBytes, high); ok {
			return b, nil
		}
	}
	if err != nil && !errors.Is(err, files.ErrOffsetOutOfRange) && !p.rewriting.Load() {
		return dst, err // of what is rewritten it isn't the last word
	}
	p.chainMu.Lock() // once the attempt to rewrite has ended
	defer p.chainMu.Unlock()
	if p.rewriting.Load() {
		return dst, fmt.Errorf("read %s at offset %d: %w: a segment is being rewritten", p, offset, ErrUnavailable)
	}
	// What was rewritten may be merged in another way and reach beyond the high watermark of before.
	if out, err = p.chain.Read(dst, offset, maxBytes, p.HighWatermark()); err != nil || len(out) > len(dst) {
		return out, err
	}
	// A hole with nothing behind it in the segments: the next batch is in memory, where it stays while chainMu is held.
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flushing.spans) > 0 {
		return p.flushing.read(dst, offset, maxBytes), nil
	}
	return p.filling.read(dst, offset, maxBytes), nil
}

// unsynced says whether the journal has to have the offset: until a checkpoint has synced its segment, nothing is recycled.
func (p *Partition) unsynced(offset int64) bool { return offset >= p.chain.SyncedOffset() }

// bytes is what the partition takes: in its segments, and in memory on its way there.
func (p *Partition) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counted.Load() + int64(p.filling.bytes()+p.flushing.bytes())
}

// publish makes a durable batch readable and moves the high watermark. By the committer only. A tail that was empty
// begins in one of the free buffers.
func (p *Partition) publish(b record.Batch, free *buffers) {
	p.mu.Lock()
	if p.filling.buf == nil {
		p.filling.buf = free.get()
	}
	p.filling.add(b)
	p.waiting.Store(int64(p.filling.bytes()))
	p.next = b.NextOffset()
	p.high.Store(p.next)
	p.mu.Unlock()
}

// tail is a run of batches in memory, one behind the other in one buffer.
type tail struct {
	buf   []byte
	spans []span
}

type span struct {
	base, last int64 // offsets
	pos, end   int   // bytes in buf
}

func (t *tail) bytes() int { return len(t.buf) }

func (t *tail) base() (offset int64, ok bool) {
	if len(t.spans) == 0 {
		return 0, false
	}
	return t.spans[0].base, true
}

func (t *tail) holds(offset int64) bool {
	base, ok := t.base()
	return ok && offset >= base
}

func (t *tail) add(b record.Batch) {
	t.spans = append(t.spans, span{b.BaseOffset(), b.LastOffset(), len(t.buf), len(t.buf) + len(b)})
	t.buf = append(t.buf, b...)
}

// read appends the batches from the first that ends at or behind offset, up to maxBytes but at least one.
func (t *tail) read(dst []byte, offset int64, maxBytes int) []byte {
	lo, hi := 0, len(t.spans)
	for lo < hi {
		if mid := (lo + hi) / 2; t.spans[mid].last < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(t.spans) {
		return dst
	}
	from, end := t.spans[lo].pos, t.spans[lo].end
	for _, s := range t.spans[lo+1:] {
		if s.end-from > maxBytes {
			break
		}
		end = s.end
	}
	return append(dst, t.buf[from:end]...)
}

// batch is the bytes of one span.
func (t *tail) batch(s span) record.Batch { return record.Batch(t.buf[s.pos:s.end]) }

// empty gives the tail's buffer to free.
func (t *tail) empty(free *buffers) {
	free.put(t.buf)
	t.buf, t.spans = nil, t.spans[:0]
	if cap(t.spans) > 1024 {
		t.spans = nil
	}
}
