package mirror

import (
	"fmt"
	"sync"
	"testing"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// memLog is a log in memory.
type memLog struct {
	mu       sync.Mutex
	topics   []Topic
	watchers map[chan<- struct{}]struct{}

	correct func(timestamp int64) (ms int64, known bool) // nil: all is right; under mu
	unclear bool                                         // the clock isn't trusted
}

func newMemLog() *memLog { return &memLog{watchers: map[chan<- struct{}]struct{}{}} }

func (l *memLog) topic(name string, partitions int) []*memPartition {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := Topic{Name: name}
	var ps []*memPartition
	for i := range partitions {
		p := &memPartition{log: l, name: fmt.Sprintf("%s-%d", name, i), cursors: map[string]memCursor{}}
		ps = append(ps, p)
		t.Partitions = append(t.Partitions, p)
	}
	l.topics = append(l.topics, t)
	return ps
}

func (l *memLog) Correction(timestamp int64) (ms int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.correct == nil {
		return 0, true
	}
	return l.correct(timestamp)
}

func (l *memLog) ClockTrusted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.unclear
}

func (l *memLog) Topics() []Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Topic(nil), l.topics...)
}

func (l *memLog) Watch(ch chan<- struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[ch] = struct{}{}
}

func (l *memLog) Unwatch(ch chan<- struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watchers, ch)
}

func (l *memLog) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ch := range l.watchers {
		signal(ch)
	}
}

type memCursor struct {
	next int64
	data []byte
}

type memPartition struct {
	log  *memLog
	name string

	mu      sync.Mutex
	batches []record.Batch
	start   int64
	end     int64
	cursors map[string]memCursor
	reads   int
	broken  error                // what Read returns
	damage  *segment.DamageError // what Read returns for these offsets
}

func (p *memPartition) HighWatermark() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

func (p *memPartition) StartOffset() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.start
}

func (p *memPartition) Read(dst []byte, offset int64, maxBytes int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	if p.broken != nil {
		return dst, p.broken
	}
	if offset < p.start || offset > p.end {
		return dst, fmt.Errorf("offset %d is not in %d to %d", offset, p.start, p.end)
	}
	d := p.damage
	if d != nil && offset < p.end && offset >= d.Offset && offset < d.Resume {
		return dst, d
	}
	n := len(dst)
	for _, b := range p.batches {
		if b.LastOffset() < offset {
			continue
		}
		if len(dst) > n && (len(dst)-n+len(b) > maxBytes || d != nil && b.BaseOffset() == d.Offset) {
			break
		}
		dst = append(dst, b...)
	}
	return dst, nil
}

func (p *memPartition) SetCursor(owner string, next int64, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next < p.cursors[owner].next {
		panic(fmt.Sprintf("cursor of %s moved down from %d to %d", p.name, p.cursors[owner].next, next))
	}
	p.cursors[owner] = memCursor{next, append([]byte(nil), data...)}
}

func (p *memPartition) Cursor(owner string) (int64, []byte, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.cursors[owner]
	return c.next, c.data, ok, nil
}

// store appends one batch of records with the given values, compressed by codec.
func (p *memPartition) store(codec record.Codec, values ...string) {
	p.mu.Lock()
	var b record.Builder
	for _, v := range values {
		b.Append(&record.Record{
			Timestamp: 1_700_000_000_000 + p.end, Key: []byte(p.name), Value: []byte(v),
			Headers: []record.Header{{Key: "h", Value: []byte("x")}},
		})
	}
	out, err := record.NewEncoder().Compress(nil, b.Seal(p.end), codec)
	if err != nil {
		panic(err)
	}
	p.batches = append(p.batches, out)
	p.end += int64(len(values))
	p.mu.Unlock()
	p.log.wake()
}

// hole leaves n offsets out.
func (p *memPartition) hole(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end += n
}

// merged replaces all batches by one, as a log does when it moves them to a segment.
func (p *memPartition) merged(t *testing.T, codec record.Codec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := record.NewEncoder().Merge(nil, p.batches, codec)
	if err != nil {
		t.Fatal(err)
	}
	p.batches = []record.Batch{out}
}

// values are what is stored, by partition.
func (p *memPartition) values() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	d := record.NewDecoder(0)
	for _, b := range p.batches {
		if err := d.Records(b, func(r *record.Record) error {
			all = append(all, string(r.Value))
			return nil
		}); err != nil {
			panic(err)
		}
	}
	return all
}
