package segment

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

func putAll(t testing.TB, l *Log, p *Partition, values ...string) {
	t.Helper()
	for _, v := range values {
		put(t, l, p, v)
	}
}

// TestEvictionIsNotRepeated: what was evicted and could not be removed yet is no victim again, and is removed by one of the
// next passes, after a crash as well.
func TestEvictionIsNotRepeated(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash %v", crashes), func(t *testing.T) {
			fsys, hook := hooked()
			o := testOptions(t.TempDir())
			o.FS = fsys
			o.Followers = func(string) []string { return []string{"region"} }
			l := openQuiet(t, o)
			p := topicWith(t, l, TopicOptions{Name: "t"})
			putAll(t, l, p, "a", "b")
			if err := l.appendPartition(p); err != nil {
				t.Fatal(err)
			}
			coverAll(t, l)
			noFile := func(op vfs.Op, name string) error {
				if op == vfs.OpOpen && strings.Contains(name, p.String()) {
					return &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
				}
				return nil
			}
			if err := l.seal([]*Partition{p}); err != nil {
				t.Fatal(err)
			}
			hook.Store(&noFile) // the one segment stays, since none can take its place
			evictAll(t, l, 0, 1)
			if got := l.Status().Evicted; p.StartOffset() != 2 || len(got) != 1 || got[0].Records != 2 || got[0].Unmirrored != 2 {
				t.Fatalf("start %d, evicted %+v", p.StartOffset(), got)
			}
			if len(logFiles(t, o.Dir, p)) != 1 {
				t.Fatal("the segment is gone")
			}
			if crashes {
				l = crash(t, o)
				p = l.Topic("t").Partitions()[0]
			} else {
				hook.Store(nil)
				evictAll(t, l, never, 1)
			}
			if spans := p.chain.Spans(); len(spans) != 1 || spans[0].Base != 2 || spans[0].End != 2 {
				t.Fatalf("%+v", spans)
			}
			put(t, l, p, "c")
			gaps, err := l.Gaps(p)
			if err != nil || len(gaps) != 1 || gaps[0].Records != 2 || gaps[0].Last != 1 || l.Status().Gaps != 1 {
				t.Fatalf("gaps %+v, %v", gaps, err)
			}
			if got := values(t, p, 2, 1<<20); !slices.Equal(got, []string{"c"}) {
				t.Fatalf("%q", got)
			}
		})
	}
}

// TestGapBehindTheStart: of a segment that the log starts in, only what lies behind the start is lost by its eviction.
func TestGapBehindTheStart(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(string) []string { return []string{"region"} }
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	putAll(t, l, p, "a", "b", "c")
	coverAll(t, l)
	if err := l.seal([]*Partition{p}); err != nil {
		t.Fatal(err)
	}
	p.start.Store(1)
	evictAll(t, l, 0, 1)
	gaps, err := l.Gaps(p)
	if err != nil || len(gaps) != 1 || gaps[0].First != 1 || gaps[0].Last != 2 || gaps[0].Records != 2 {
		t.Fatalf("gaps %+v, %v", gaps, err)
	}
	if got := l.Status().Evicted; len(got) != 1 || got[0].Records != 2 {
		t.Fatalf("evicted %+v", got)
	}
}

// TestHoleIsNoGap: offsets that a cursor left out at the log's end are no lost records.
func TestHoleIsNoGap(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(string) []string { return []string{"region"} }
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	put(t, l, p, "a")
	if err := l.appendPartition(p); err != nil {
		t.Fatal(err)
	}
	p.chainMu.Lock()
	err := p.chain.SkipTo(5)
	p.next = 5
	p.high.Store(5)
	p.chainMu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	l.SetCursor(p, "region", 1, nil)
	v := &victim{p: p, from: 1, reason: Budget, span: files.Span{Base: 0, End: 5, MinTime: files.NoTime, MaxTime: files.NoTime}}
	if g, lost := l.gapOf(v); lost {
		t.Fatalf("%+v", g)
	}
}

// TestEvictionTakesCursorsAlong: the cursor because of which records were no gap is as durable as the eviction, even if it
// was on its way into the state already, outside of the journal.
func TestEvictionTakesCursorsAlong(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(string) []string { return []string{"region"} }
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	putAll(t, l, p, "a", "b")
	coverAll(t, l)
	l.SetCursor(p, "region", 2, []byte("more"))
	l.storeLazy() // by a checkpoint that the crash cuts short
	evictAll(t, l, 0, 1)
	if p.StartOffset() != 2 {
		t.Fatalf("start %d", p.StartOffset())
	}
	l = crash(t, o)
	p = l.Topic("t").Partitions()[0]
	offset, data, ok, err := l.Cursor(p, "region")
	if offset != 2 || string(data) != "more" || !ok || err != nil || p.StartOffset() != 2 {
		t.Fatalf("cursor %d %q %v %v, start %d", offset, data, ok, err, p.StartOffset())
	}
}

// TestPowerCutBetweenUnlinks: of several removed segments a power cut may bring back any, and leave out others.
func TestPowerCutBetweenUnlinks(t *testing.T) {
	fill := func(l *Log, p *Partition) {
		for range 12 {
			w := l.NewWriter(nil)
			if err := w.Begin(); err != nil {
				t.Fatal(err)
			}
			for range 8 {
				w.Append(p, &record.Record{Timestamp: 1, Value: make([]byte, 1024)})
			}
			if err := l.endWithTicket(w, nil, 0).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := l.appendPartition(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for seed := range uint64(30) {
		mem := vfs.NewMem(vfs.MemOptions{})
		o := testOptions("/data")
		o.FS = mem
		states := &memStore{rng: rand.New(rand.NewPCG(seed, 1)), newest: -1, begin: func() bool { return false }}
		o.openStore = func() (store, error) { return states, nil }
		o.tuneChain = func(c *files.Options) { c.SegmentBytes = 16 << 10 }
		l := openQuiet(t, o)
		p := topicWith(t, l, TopicOptions{Name: "t"})
		fill(l, p)
		coverAll(t, l)
		evictAll(t, l, 0, never)
		start, high := p.StartOffset(), p.HighWatermark()
		mem.PowerCut(rand.New(rand.NewPCG(seed, 2)), 4096)
		again := openQuiet(t, o)
		q := again.Topic("t").Partitions()[0]
		if r := again.Recovered(); len(r.Damages) > 0 || q.StartOffset() != start || q.HighWatermark() != high {
			t.Fatalf("seed %d: %d to %d, want %d to %d, damages %q", seed, q.StartOffset(), q.HighWatermark(), start, high, r.Damages)
		}
		if n := len(q.chain.Spans()); n > 2 {
			t.Errorf("seed %d: %d segments in %s", seed, n, filepath.Join(o.Dir, q.String()))
		}
		again.Close()
	}
}
