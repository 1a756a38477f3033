package segment

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

const testBudget = 2 << 30 // a day: 24,855 bytes a second

var dawn = time.Unix(1_000_000, 0)

func TestGovernorBucket(t *testing.T) {
	g, now := newGovernor(testBudget), dawn
	if w := g.wait(now); w != 0 {
		t.Fatalf("a full bucket lets wait %v", w)
	}
	g.take(now, int64(g.full)-1, false)
	if w := g.wait(now); w != 0 {
		t.Fatalf("with a byte left: %v", w)
	}
	// One block beyond takes as long as it takes to flow in, at 92 % of the budget's rate.
	g.take(now, 4096+1, false)
	want := 4096 / (0.92 * testBudget / 86400)
	if w := g.wait(now).Seconds(); w < want || w > want+0.002 {
		t.Fatalf("waits %v s, want %v", w, want)
	}
	now = now.Add(g.wait(now))
	if w := g.wait(now); w != 0 {
		t.Fatalf("having waited: %v more", w)
	}
	g.take(now.Add(time.Hour), 0, false)
	if g.balance != g.full {
		t.Fatalf("%v bytes after an hour, the bucket holds %v", g.balance, g.full)
	}
	g.take(now.Add(time.Hour-time.Minute), 0, false) // from another goroutine, a little late
	if g.balance != g.full {
		t.Fatalf("%v bytes after a step back", g.balance)
	}
	// What is beyond an hour's debt is forgotten.
	g.take(now.Add(time.Hour), 1<<40, false)
	if w := g.wait(now.Add(time.Hour)); w < time.Hour-time.Second || w > time.Hour+time.Second {
		t.Fatalf("waits %v for a huge debt", w)
	}
}

// A lump delays a little for a while, and is taken in full.
func TestLumpsAreSpread(t *testing.T) {
	g, now := newGovernor(testBudget), dawn
	g.take(now, int64(g.full), false)
	g.take(now, 200_000, true)
	if w := g.wait(now); w > 2*time.Millisecond {
		t.Fatalf("a lump lets wait %v at once", w)
	}
	slowest := time.Duration(0)
	spent := 0
	for end := now.Add(5 * time.Minute); now.Before(end); {
		g.take(now, wearBlock, false)
		spent += wearBlock
		begin := now
		for w := g.wait(now); w > 0; w = g.wait(now) {
			now = now.Add(w)
		}
		slowest = max(slowest, now.Sub(begin))
	}
	if slowest < 180*time.Millisecond || slowest > time.Second {
		t.Errorf("the slowest group of a block waited %v", slowest)
	}
	if want := 300*g.perSecond - 200_000; math.Abs(float64(spent)-want) > 2*wearBlock {
		t.Errorf("%d bytes of groups beside the lump, want %.0f", spent, want)
	}
}

func TestNoBudgetGovernsNothing(t *testing.T) {
	g := newGovernor(0)
	g.take(dawn, 1<<50, false)
	if w := g.wait(dawn); w != 0 {
		t.Fatalf("waits %v", w)
	}
	if g := new(governor); g.wait(dawn) != 0 {
		t.Fatal("the zero value governs")
	}
}

func TestSmallestBudgetHasRoomForACommit(t *testing.T) {
	if g := newGovernor(MinWearBudget); g.full < 2*wearBlock {
		t.Fatalf("a full bucket holds %v bytes", g.full)
	}
}

// Whoever commits whenever the bucket lets, and has lumps as checkpoints are, stays within the budget in any ten minutes.
func TestGovernorKeepsAnyTenMinutes(t *testing.T) {
	g, now := newGovernor(testBudget), dawn
	rng := rand.New(rand.NewPCG(1, 1))
	type spent struct {
		at    time.Time
		bytes int64
	}
	var all []spent
	take := func(n int64, lump bool) {
		g.take(now, n, lump)
		all = append(all, spent{now, n})
	}
	for now.Before(dawn.Add(time.Hour)) {
		switch rng.IntN(2000) {
		case 0: // a rest
			now = now.Add(time.Duration(rng.IntN(120)) * time.Second)
		case 1: // a checkpoint, at most a burst
			take(rng.Int64N(int64(g.full)-2*wearBlock), true)
			now = now.Add(30 * time.Second)
		}
		if w := g.wait(now); w > 0 {
			now = now.Add(w)
		}
		take(wearBlock*int64(1+rng.IntN(2)), false)
		now = now.Add(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
	most, sum := int64(0), int64(0)
	for from, to := 0, 0; to < len(all); to++ {
		sum += all[to].bytes
		for all[to].at.Sub(all[from].at) > 10*time.Minute {
			sum -= all[from].bytes
			from++
		}
		most = max(most, sum)
	}
	if limit := int64(testBudget / 144); most > limit || most < limit*9/10 {
		t.Fatalf("%d bytes in ten minutes, the budget has %d for them", most, limit)
	}
}

func TestGovernorCountsWhatExceeds(t *testing.T) {
	g := newGovernor(testBudget)
	g.take(dawn, int64(g.full+g.below)-1, false) // as far below zero as may be, nearly
	g.force(dawn, time.Second)
	if d := g.overBudget(); d != 0 {
		t.Fatalf("%v over budget within what ten minutes can be off by", d)
	}
	g.take(dawn, 2, false)
	g.force(dawn, time.Second)
	g.force(dawn, 500*time.Millisecond)
	if d := g.overBudget(); d != 1500*time.Millisecond {
		t.Fatalf("%v over budget, want 1.5 s", d)
	}
}

// governedLog is a log with a budget, inside a bubble in which the disk takes no time.
func governedLog(t *testing.T) (*Log, *Partition) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.WearBudget, o.MaxBytes, o.JournalBytes = testBudget, 1<<20, 12<<20
	l := openLog(t, o)
	return l, createTopic(t, l, "a", 1, record.Zstd).Partitions()[0]
}

// publisher adds one message at a time and notes how long it took until it was durable.
type publisher struct {
	w     *Writer
	p     *Partition
	since []time.Time
	took  []time.Duration
}

func newPublisher(l *Log, p *Partition) *publisher {
	s := &publisher{p: p}
	s.w = l.NewWriter(s)
	return s
}

// Committed may come for all that was added before: one writer's groups end in order.
func (s *publisher) Committed(group uint64, err error) {
	s.w.log.mu.Lock()
	defer s.w.log.mu.Unlock()
	open := 0 // the group that fills is this writer's alone
	if s.w.group > group {
		open = s.w.log.active.records
	}
	for len(s.since) > open {
		s.took = append(s.took, time.Since(s.since[0]))
		s.since = s.since[1:]
	}
}

func (s *publisher) publish(t *testing.T, size int) {
	if err := s.w.Begin(); err != nil {
		t.Error(err)
		return
	}
	s.w.Append(s.p, &record.Record{Timestamp: 1000, Value: bytes.Repeat([]byte("v"), size)})
	s.since = append(s.since, time.Now())
	s.w.End()
}

// result is how many messages are durable, how long the slowest took, and how many are not.
func (s *publisher) result() (durable int, slowest time.Duration, open int) {
	s.w.log.mu.Lock()
	defer s.w.log.mu.Unlock()
	for _, d := range s.took {
		slowest = max(slowest, d)
	}
	return len(s.took), slowest, len(s.since)
}

// empty leaves the bucket with a debt of that many seconds.
func (l *Log) emptyBucket(debt float64) {
	g := l.wear.governor
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at, g.balance, g.owed = time.Now(), -debt*g.perSecond, 0
}

func (l *Log) journalOnDisk() int64 {
	bytes, _ := l.journal.Bytes()
	return bytes
}

func TestLoneMessagesAreNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := governedLog(t)
		s := newPublisher(l, p)
		for range 100 {
			s.publish(t, 100)
			time.Sleep(time.Second)
		}
		if n, d, _ := s.result(); n != 100 || d != 0 {
			t.Fatalf("%d of 100 lone messages, the slowest took %v", n, d)
		}
		if over := l.Wear().OverBudget; over != 0 {
			t.Fatalf("%v over budget", over)
		}
		l.Close()
	})
}

func TestSteadyStreamIsGrouped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := governedLog(t)
		s := newPublisher(l, p)
		const total = 100 * 600
		before, files := l.Wear(), l.journalOnDisk()
		for range total {
			s.publish(t, 100)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		w, commits := l.Wear(), l.Status().Commits
		sum := func(w Wear) int64 { return w.JournalBytes + w.SegmentBytes + w.CheckpointBytes + w.SystemBytes }
		written := sum(w) - sum(before)
		written -= l.journalOnDisk() - files // the fourth file, once in its life
		if n, d, open := s.result(); n+open != total || d <= 10*time.Millisecond || d > 700*time.Millisecond {
			t.Errorf("%d messages are durable and %d not, the slowest took %v", n, open, d)
		}
		if commits < 600 || commits > total/10 {
			t.Errorf("%d commits for %d messages", commits, total)
		}
		if limit := int64(testBudget / 144); written > limit || written < limit/2 {
			t.Errorf("%d bytes in ten minutes, the budget has %d for them", written, limit)
		}
		if w.OverBudget != 0 {
			t.Errorf("%v over budget", w.OverBudget)
		}
		if w.Delay <= 0 || w.Delay > time.Second {
			t.Errorf("commit delay %v", w.Delay)
		}
		l.Close()
	})
}

func TestCeilingAndOverBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := governedLog(t)
		l.emptyBucket(1800)
		s := newPublisher(l, p)
		for range 100 {
			s.publish(t, 100)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if _, d, _ := s.result(); d != l.o.MaxDelayCeiling {
			t.Errorf("the slowest took %v, the ceiling is %v", d, l.o.MaxDelayCeiling)
		}
		if over := l.Wear().OverBudget; over < 9*time.Second || over > 11*time.Second {
			t.Errorf("%v over budget in 10 s", over)
		}
		l.Close()
	})
}

func TestWhatDoesNotWaitForTheBudget(t *testing.T) {
	for name, add := range map[string]func(*testing.T, *Log, *Partition, *publisher){
		"a large group": func(t *testing.T, _ *Log, _ *Partition, s *publisher) {
			for range 7 {
				s.publish(t, 10_000)
			}
		},
		"a ticket": func(t *testing.T, l *Log, p *Partition, s *publisher) {
			put(t, l, p, "now")
		},
		"a ticket later": func(t *testing.T, l *Log, _ *Partition, s *publisher) {
			s.publish(t, 100)
			synctest.Wait()
			ticket, err := l.Put([]byte("k"), []byte("v"))
			wait(t, ticket, err)
		},
		"a new topic": func(t *testing.T, l *Log, _ *Partition, s *publisher) {
			s.publish(t, 100)
			createTopic(t, l, "b", 1, record.None)
		},
		"the end": func(t *testing.T, l *Log, _ *Partition, s *publisher) {
			s.publish(t, 100)
			synctest.Wait()
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p := governedLog(t)
				l.emptyBucket(1800)
				s, begin := newPublisher(l, p), time.Now()
				add(t, l, p, s)
				synctest.Wait()
				if d := time.Since(begin); d > 2*l.o.MaxDelay {
					t.Errorf("took %v", d)
				}
				if _, _, open := s.result(); open > 0 {
					t.Errorf("%d messages still wait", open)
				}
				l.Close()
			})
		})
	}
}

func TestTokenThatComesEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := governedLog(t)
		l.emptyBucket(0.3)
		s := newPublisher(l, p)
		s.publish(t, 100)
		time.Sleep(time.Second)
		if _, d, _ := s.result(); d < 290*time.Millisecond || d > 310*time.Millisecond {
			t.Errorf("a debt of 0.3 s delayed a message by %v", d)
		}
		l.Close()
	})
}

func TestJournalIsCompressedWithABudget(t *testing.T) {
	for _, budget := range []int64{0, testBudget} {
		o := testOptions(filepath.Join(t.TempDir(), "data"))
		o.WearBudget, o.MaxDelayCeiling, o.AppendBytes = budget, 20*time.Millisecond, o.MemoryBytes
		l := openLog(t, o)
		p := createTopic(t, l, "a", 1, record.Zstd).Partitions()[0]
		plain := createTopic(t, l, "b", 1, record.None).Partitions()[0]
		f, g := newFiller(l, p), newFiller(l, plain)
		before, rounds := l.Wear().JournalBytes, 3
		for range rounds {
			if err := f.add(120); err != nil {
				t.Fatal(err)
			}
			if err := g.add(10); err != nil {
				t.Fatal(err)
			}
			f.wait(t)
			g.wait(t)
		}
		journal := l.Wear().JournalBytes - before
		want, n := numbered(0, f.next), int64(f.next)
		equal(t, values(t, p, 0, 1<<20), want)
		equal(t, values(t, plain, 0, 1<<20), numbered(0, g.next))
		b, err := p.Read(nil, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c := record.Batch(b).Codec(); (c == record.Zstd) != (budget > 0) {
			t.Errorf("budget %d: a batch of the journal has codec %v", budget, c)
		}
		if raw := int64(rounds) * 2 * 4096; budget > 0 && journal > raw || budget == 0 && journal <= raw {
			t.Errorf("budget %d: %d bytes of journal for %d records", budget, journal, n)
		}
		again := crash(t, o)
		for _, l := range []*Log{l, again} {
			equal(t, values(t, l.Topic("a").Partitions()[0], 0, 1<<20), want)
			equal(t, values(t, l.Topic("b").Partitions()[0], 0, 1<<20), numbered(0, g.next))
		}
		if d := again.Recovered().Damages; len(d) > 0 {
			t.Errorf("damages %q", d)
		}
		again.Close()
		l.Close()
	}
}

// A block that isn't saved is not worth the work: small batches, and those that don't shrink.
func TestJournalIsNotCompressedInVain(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.WearBudget, o.MaxDelayCeiling, o.AppendBytes = testBudget, 20*time.Millisecond, o.MemoryBytes
	l := openLog(t, o)
	p := createTopic(t, l, "a", 1, record.Zstd).Partitions()[0]
	random := make([]byte, 6000)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	for _, value := range []string{strings.Repeat("x", 900), strings.Repeat("x", 3000), string(random)} {
		at := put(t, l, p, value)
		b, err := p.Read(nil, at, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c := record.Batch(b).Codec(); c != record.None {
			t.Errorf("a batch of %d bytes has codec %v", len(b), c)
		}
	}
}

// Batches that shrank by far more than was reckoned with don't fit into one.
func TestEnormouslyCompressedBatchesAreAppended(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.WearBudget, o.MaxBytes, o.MaxRecordBytes, o.JournalBytes = testBudget, 1<<20, 1<<20, 24<<20
	o.AppendBytes, o.MemoryBytes = 1<<20, 4<<20
	l := openLog(t, o)
	p := createTopic(t, l, "a", 1, record.Zstd).Partitions()[0]
	value := strings.Repeat("0", 900<<10)
	var want []string
	for i := range 24 {
		v := fmt.Sprintf("%d %s", i, value)
		put(t, l, p, v)
		want = append(want, v)
	}
	if err := l.appendPartition(p); err != nil {
		t.Fatal(err)
	}
	d := record.NewDecoder(record.MaxUncompressedBytes)
	var got []string
	for offset := int64(0); offset < p.HighWatermark(); {
		b, err := p.Read(nil, offset, 1)
		if err == nil {
			err = d.Records(record.Batch(b), func(r *record.Record) error {
				got = append(got, string(r.Value))
				return nil
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		offset = record.Batch(b).NextOffset()
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%d records read, %d written", len(got), len(want))
	}
}
