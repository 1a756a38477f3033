package segment

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

var (
	randomSeed = flag.Uint64("random.seed", 0, "seed of TestRandom; 0: a new one for each run")
	randomFor  = flag.Duration("random.for", 3*time.Second, "how long TestRandom begins new runs")
)

// TestRandom lets writers, single faults, clean stops, kills and power cuts loose on a log with small files, and compares
// what is stored with a model. Goroutines interleave as they like, so a seed repeats the plan of a run only.
func TestRandom(t *testing.T) {
	for end := time.Now().Add(*randomFor); time.Now().Before(end); {
		seed := *randomSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		if !t.Run(fmt.Sprintf("random.seed=%d", seed), func(t *testing.T) { newTrial(t, seed).run() }) {
			return
		}
	}
}

// trial is one run: a data directory through several lives, and the model of it.
type trial struct {
	t    *testing.T
	rng  *rand.Rand
	disk *disk
	o    Options
	log  *Log

	writers []*scribe
	mu      sync.Mutex
	state   map[string]string // what was committed
	clean   bool              // how the last life ended
}

func newTrial(t *testing.T, seed uint64) *trial {
	r := &trial{t: t, rng: rand.New(rand.NewPCG(seed, 1)), state: map[string]string{}}
	r.disk = &disk{FS: vfs.OS, rng: rand.New(rand.NewPCG(seed, 2)), files: map[string]*unsynced{}}
	r.o = testOptions(filepath.Join(t.TempDir(), "data"))
	if r.rng.IntN(2) == 0 { // else only a full journal asks for checkpoints
		r.o.CheckpointInterval = time.Duration(20+r.rng.IntN(200)) * time.Millisecond
	}
	r.o.AppendBytes = 1 << (10 + r.rng.IntN(4))
	r.o.MaxDelay = time.Millisecond
	if rand.New(rand.NewPCG(seed, 3)).IntN(2) == 0 { // compressed in the journal; the delays are short, the budget is exceeded
		r.o.WearBudget, r.o.MaxDelayCeiling = MinWearBudget, 2*time.Millisecond
	}
	r.o.FS = r.disk
	for i := range 3 {
		r.writers = append(r.writers, &scribe{id: i, trial: r, rng: rand.New(rand.NewPCG(seed, uint64(10+i))), wrote: map[string]int{}})
	}
	return r
}

func (r *trial) run() {
	for life := range 4 {
		r.log = openLog(r.t, r.o)
		if life > 0 {
			r.check()
			r.checkLazy()
			if d := r.log.Recovered().Damages; len(d) > 0 {
				r.t.Fatalf("damages %q", d)
			}
		}
		topics := []*Topic{createTopic(r.t, r.log, "a", 2, record.Zstd), createTopic(r.t, r.log, "b", 1, record.None)}
		if life > 1 {
			topics = append(topics, createTopic(r.t, r.log, "c", 3, record.Snappy))
		}
		for range 2 {
			r.write(topics)
			r.check()
		}
		r.end()
	}
	r.log = openLog(r.t, r.o)
	r.check()
	r.log.Close()
}

// write lets all writers work for a while, with faults.
func (r *trial) write(topics []*Topic) {
	var parts []*Partition
	for _, topic := range topics {
		parts = append(parts, topic.Partitions()...)
	}
	stop := make(chan struct{})
	var faults, writers sync.WaitGroup
	faults.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.rng.IntN(8)) * time.Millisecond):
				r.disk.arm()
			}
		}
	})
	for _, p := range parts {
		faults.Go(func() { r.follow(p, stop) })
	}
	faults.Go(func() { r.look(parts, stop) })
	for _, w := range r.writers {
		w.begin(r.log)
		writers.Go(func() { w.work(parts) })
	}
	writers.Wait()
	close(stop)
	faults.Wait()
	r.disk.disarm()
	for _, w := range r.writers {
		eventually(r.t, "all acknowledged", func() bool { return w.open.Load() == 0 })
		if n := w.failed.Load(); n > 0 {
			r.t.Fatalf("writer %d: %d groups failed", w.id, n)
		}
	}
	eventually(r.t, "the log to come to rest", func() bool {
		return r.log.Status().Refusing == nil && r.log.fullest() == nil && r.log.checkpoints.idle() &&
			(r.o.CheckpointInterval > time.Second || !r.log.stale())
	})
}

// follow reads a partition as it grows. A disk that lost something may refuse for a while; what is read is right.
func (r *trial) follow(p *Partition, stop chan struct{}) {
	var buf []byte
	for offset := max(0, p.HighWatermark()-100); ; {
		high := p.HighWatermark()
		if offset == high {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				continue
			}
		}
		var err error
		buf, err = p.Read(buf[:0], offset, 2000)
		if err == nil && len(buf) == 0 {
			r.t.Errorf("%s: nothing at offset %d below %d", p, offset, high)
			return
		}
		if errors.Is(err, ErrOffsetOutOfRange) {
			r.t.Errorf("%s: offset %d below %d: %v", p, offset, high, err)
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) //lint:sleep somebody else mends it
			continue
		}
		for rest := buf; len(rest) > 0; {
			b, more, err := record.Next(rest)
			if err == nil {
				err = b.Verify()
			}
			if err != nil || b.BaseOffset() > offset || b.NextOffset() <= offset {
				r.t.Errorf("%s: at offset %d: %v", p, offset, err)
				return
			}
			rest, offset = more, b.NextOffset()
		}
	}
}

// look views partitions as another process does. It may find damage before the log does, but no hole.
func (r *trial) look(parts []*Partition, stop chan struct{}) {
	view, err := OpenView(r.o.Dir)
	if err != nil {
		r.t.Error(err)
		return
	}
	for {
		for _, p := range parts {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			high, next, damaged := p.HighWatermark(), int64(0), false
			err := view.Batches(ViewPartition{p.topic.name, p.id}, 0, func(b record.Batch, at Place) error {
				if b.BaseOffset() != next && !damaged {
					return fmt.Errorf("batch of offset %d at %d, in %v", b.BaseOffset(), next, at)
				}
				next = b.NextOffset()
				return nil
			}, func(*DamageError) error { damaged = true; return nil })
			if err != nil || (next < high && !damaged) {
				r.t.Errorf("view of %s ends at %d, want at least %d: %v", p, next, high, err)
				return
			}
		}
	}
}

// end ends a life: cleanly, by a kill, or by a power cut.
func (r *trial) end() {
	for _, w := range r.writers {
		w.lazySeen = w.storedLazy(r.t, r.log)
	}
	how := r.rng.IntN(3)
	if r.clean = how == 0; r.clean {
		if err := r.log.Close(); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	dir := filepath.Join(r.t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(r.o.Dir)); err != nil {
		r.t.Fatal(err)
	}
	r.disk.move(r.o.Dir, dir)
	r.log.Close()
	r.o.Dir = dir
	if how == 2 {
		r.disk.cutPower(r.t)
	}
}

// check compares all that is stored with the model.
func (r *trial) check() {
	r.t.Helper()
	view, err := OpenView(r.o.Dir)
	if err != nil {
		r.t.Fatal(err)
	}
	found := map[string]int{}
	for _, topic := range r.log.Topics() {
		for _, p := range topic.Partitions() {
			got := values(r.t, p, 0, 1+r.rng.IntN(1<<16))
			if high := p.HighWatermark(); int64(len(got)) != high {
				r.t.Fatalf("%s has %d records and a high watermark of %d", p, len(got), high)
			}
			for i, v := range got {
				var writer, n int
				fmt.Sscanf(v, "%d:%d:", &writer, &n)
				key := fmt.Sprintf("%d %s", writer, p)
				if n != found[key] {
					r.t.Fatalf("%s at offset %d: record %d of writer %d, want %d", p, i, n, writer, found[key])
				}
				found[key]++
			}
			equal(r.t, viewed(r.t, view, ViewPartition{topic.Name(), p.ID()}), got)
		}
	}
	wrote := map[string]int{}
	for _, w := range r.writers {
		maps.Copy(wrote, w.wrote)
	}
	if !maps.Equal(found, wrote) {
		r.t.Fatalf("found %v, wrote %v", found, wrote)
	}
	eventually(r.t, "the bytes in segments are counted", func() bool {
		n := r.log.used.Load()
		for _, p := range r.log.allPartitions() {
			n -= p.chain.Bytes()
		}
		return n == 0
	})
	state := map[string]string{}
	if err := r.log.Range([]byte("s/"), func(k, v []byte) bool { state[string(k)] = string(v); return true }); err != nil {
		r.t.Fatal(err)
	}
	if !maps.Equal(state, r.state) {
		r.t.Fatalf("state %v, want %v", state, r.state)
	}
}

// checkLazy compares the lazy values of a new life with those of the last one.
func (r *trial) checkLazy() {
	r.t.Helper()
	for _, w := range r.writers {
		least := w.lazySeen
		if r.clean {
			least = w.lazy
		}
		if got := w.storedLazy(r.t, r.log); got < least || got > w.lazy {
			r.t.Fatalf("lazy value %d of writer %d, want %d to %d", got, w.id, least, w.lazy)
		}
	}
}

func viewed(t *testing.T, v *View, p ViewPartition) (got []string) {
	t.Helper()
	d := record.NewDecoder(1 << 20)
	err := v.Batches(p, 0, func(b record.Batch, _ Place) error {
		return d.Records(b, func(r *record.Record) error {
			if r.Offset != int64(len(got)) {
				return fmt.Errorf("offset %d at %d", r.Offset, len(got))
			}
			got = append(got, string(r.Value))
			return nil
		})
	}, func(d *DamageError) error { return d })
	if err != nil {
		t.Fatalf("view %s: %v", p, err)
	}
	return got
}

// scribe is a writer with records and keys of its own.
type scribe struct {
	id    int
	trial *trial
	rng   *rand.Rand
	w     *Writer
	wrote map[string]int // records by "<id> <partition>"

	lazy, lazySeen int // the last value given, and what was stored of it at the end of a life

	group        uint64       // the last one joined
	open, failed atomic.Int64 // groups
	told         uint64       // the last one heard of
}

func (s *scribe) begin(l *Log) {
	s.w, s.group, s.told = l.NewWriter(s), 0, 0
}

func (s *scribe) Committed(group uint64, err error) {
	if err != nil || group <= s.told {
		s.failed.Add(1)
	}
	s.told = group
	s.open.Add(-1)
}

func (s *scribe) work(parts []*Partition) {
	for range 20 + s.rng.IntN(150) {
		for s.w.Begin() != nil {
			time.Sleep(time.Millisecond) //lint:sleep a connection would stall
		}
		for range s.rng.IntN(12) {
			p := parts[s.rng.IntN(len(parts))]
			key := fmt.Sprintf("%d %s", s.id, p)
			value := fmt.Sprintf("%d:%d:%s", s.id, s.wrote[key], strings.Repeat("abcdefgh", s.rng.IntN(60)))
			s.w.Append(p, &record.Record{Timestamp: int64(s.wrote[key]), Value: []byte(value)})
			s.wrote[key]++
		}
		for range s.rng.IntN(3) {
			s.change()
		}
		if group := s.w.End(); group != 0 && group != s.group {
			s.group = group
			s.open.Add(1)
		}
		if s.rng.IntN(4) == 0 {
			s.lazy++
			s.trial.log.PutLazy(s.lazyKey(), fmt.Append(nil, s.lazy))
		}
	}
}

// change puts or deletes one of the writer's keys.
func (s *scribe) change() {
	key := fmt.Sprintf("s/%d/%d", s.id, s.rng.IntN(40))
	s.trial.mu.Lock()
	defer s.trial.mu.Unlock()
	if s.rng.IntN(3) == 0 {
		s.w.Delete([]byte(key))
		delete(s.trial.state, key)
		return
	}
	value := fmt.Sprint(s.rng.Uint64(), strings.Repeat("x", s.rng.IntN(300)))
	s.w.Put([]byte(key), []byte(value))
	s.trial.state[key] = value
}

func (s *scribe) lazyKey() []byte { return fmt.Appendf(nil, "z/%d", s.id) }

func (s *scribe) storedLazy(t *testing.T, l *Log) (n int) {
	t.Helper()
	value, _, err := l.Get(s.lazyKey())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(string(value), &n)
	return n
}
