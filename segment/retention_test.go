package segment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

var discard = slog.New(slog.DiscardHandler)

// openQuiet opens a log whose retention runs only when the test calls it.
func openQuiet(t testing.TB, o Options) *Log {
	t.Helper()
	o.FS = orOS(o.FS)
	if o.Logger == nil {
		o.Logger = discard
	}
	l := newLog(o)
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	l.openClock()
	go l.clockLoop()
	go l.commitLoop()
	go l.appendLoop()
	go l.checkpointLoop()
	t.Cleanup(func() { l.Close() })
	return l
}

func orOS(f vfs.FS) vfs.FS {
	if f == nil {
		return vfs.OS
	}
	return f
}

// cannotRemove is a hook under which all files stay.
var cannotRemove = func(op vfs.Op, name string) error {
	if op == vfs.OpRemove {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.EIO}
	}
	return nil
}

func topicWith(t testing.TB, l *Log, o TopicOptions) *Partition {
	t.Helper()
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 10
	}
	o.Partitions = max(o.Partitions, 1)
	topic, err := l.CreateTopic(o)
	if err != nil {
		t.Fatal(err)
	}
	return topic.Partitions()[0]
}

// fillSegments appends 1 KiB records, ms apart from at on, until the partition has n closed segments.
func fillSegments(t testing.TB, l *Log, p *Partition, n int, at, ms int64) {
	t.Helper()
	w := l.NewWriter(nil)
	closed := func() int {
		spans := p.chain.Spans()
		return len(slices.DeleteFunc(spans, func(s files.Span) bool { return s.Active }))
	}
	for closed() < n {
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			w.Append(p, &record.Record{Timestamp: at, Value: make([]byte, 1024)})
			at += ms
		}
		ticket := l.endWithTicket(w, nil, 0)
		if err := ticket.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := l.appendPartition(p); err != nil {
			t.Fatal(err)
		}
	}
}

// coverAll makes both state files know all that there is.
func coverAll(t testing.TB, l *Log) {
	t.Helper()
	var list []victim
	for _, p := range l.allPartitions() {
		list = append(list, victim{p: p, span: files.Span{End: p.HighWatermark()}})
	}
	if ok, err := l.cover(list); !ok || err != nil {
		t.Fatalf("cover: %v, %v", ok, err)
	}
}

// evictAll makes passes until nothing is left to do for a budget with that soft limit, and returns what was evicted, in
// order. Active segments are closed if they have worth bytes together.
func evictAll(t testing.TB, l *Log, soft, worth int64) (order []string) {
	t.Helper()
	for range 200 {
		s := l.newPass()
		s.soft, s.worth = soft, worth
		more, err := l.makePass(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range s.victims {
			order = append(order, v.p.String())
		}
		if !more {
			return order
		}
	}
	t.Fatal("retention does not come to an end")
	return nil
}

const never = 1 << 40 // bytes

func TestOrderOfEviction(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(topic string) []string {
		if strings.HasPrefix(topic, "m") {
			return []string{"near", "far"}
		}
		return nil
	}
	l := openQuiet(t, o)
	low := topicWith(t, l, TopicOptions{Name: "low", Priority: Low})
	normal := topicWith(t, l, TopicOptions{Name: "normal"})
	critical := topicWith(t, l, TopicOptions{Name: "critical", Priority: Critical})
	rejecting := topicWith(t, l, TopicOptions{Name: "rejecting", Priority: Low, OnFull: Reject})
	mirrored := topicWith(t, l, TopicOptions{Name: "mirrored", Priority: High})
	half := topicWith(t, l, TopicOptions{Name: "mhalf"})
	mreject := topicWith(t, l, TopicOptions{Name: "mreject", OnFull: Reject})
	for i, p := range []*Partition{critical, low, rejecting, half, mirrored, normal, mreject} {
		fillSegments(t, l, p, 3, int64(i), 1000) // all begin about together, so the order among them is theirs
	}
	for _, p := range []*Partition{mirrored, half, mreject} {
		l.SetCursor(p, "near", p.HighWatermark(), nil)
		l.SetCursor(p, "far", p.HighWatermark(), nil)
	}
	l.SetCursor(half, "far", half.chain.Spans()[0].End, nil)
	l.SetCursor(mreject, "far", mreject.chain.Spans()[1].End+1, nil)
	coverAll(t, l)
	got := evictAll(t, l, 0, never)
	want := []string{
		"mhalf-0", "mirrored-0", "mreject-0", "mirrored-0", "mreject-0", "mirrored-0",
		"low-0", "low-0", "low-0",
		"normal-0", "mhalf-0", "normal-0", "mhalf-0", "normal-0",
		"critical-0", "critical-0", "critical-0",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if rejecting.StartOffset() != 0 || mreject.StartOffset() != mreject.chain.Spans()[0].Base {
		t.Error("a topic that rejects lost what its followers don't have")
	}
	if got := evictAll(t, l, 0, 1<<10); fmt.Sprint(got) != "[mirrored-0 low-0 mhalf-0 normal-0 critical-0]" {
		t.Errorf("active segments went as %v", got)
	}
	for _, p := range []*Partition{low, normal, critical} {
		if p.StartOffset() != p.HighWatermark() {
			t.Errorf("%s begins at %d, its end is %d", p, p.StartOffset(), p.HighWatermark())
		}
		next := p.HighWatermark()
		if offset := put(t, l, p, "more"); offset != next {
			t.Errorf("%s goes on at %d, want %d", p, offset, next)
		}
	}
	if gaps, err := l.Gaps(half); err != nil || len(gaps) != 1 || gaps[0].Last != half.StartOffset()-1 {
		t.Errorf("gaps %+v, %v", gaps, err)
	}
}

// Nothing goes that the older state file doesn't know: it has checkpoints made first.
func TestNothingIsEvictedBeyondTheRecoveryPoint(t *testing.T) {
	o := testOptions(t.TempDir())
	o.JournalBytes = 8 << 20
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	fillSegments(t, l, p, 5, 0, 1)
	if end := p.covered.both.Load(); end != 0 {
		t.Fatalf("covered up to %d already", end)
	}
	before := l.Status().Checkpoints
	evictAll(t, l, 0, never)
	if n := l.Status().Checkpoints - before; n != 2 {
		t.Errorf("%d checkpoints, want 2", n)
	}
	start := p.StartOffset()
	if start == 0 || p.covered.both.Load() < start {
		t.Fatalf("start %d, covered %d", start, p.covered.both.Load())
	}
	next := p.HighWatermark()
	put(t, l, p, "last")
	// The newer state file is lost in the crash.
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	newer := "state-a.db"
	if l.Status().Checkpoints%2 == 0 {
		newer = "state-b.db"
	}
	if err := os.Remove(filepath.Join(dir, newer)); err != nil {
		t.Fatal(err)
	}
	o.Dir = dir
	q := openLog(t, o).Topic("t").Partitions()[0]
	if q.StartOffset() != start || q.HighWatermark() != next+1 {
		t.Fatalf("after losing %s: %d to %d, want %d to %d", newer, q.StartOffset(), q.HighWatermark(), start, next+1)
	}
	if got := values(t, q, start, 1<<20); len(got) != int(next+1-start) {
		t.Fatalf("%d records", len(got))
	}
}

// A crash between the commit of the new start and the removal is finished by the next Open, and a start never falls.
func TestKillBetweenCommitAndRemoval(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		t.Run(fmt.Sprintf("checkpoint %v", checkpoint), func(t *testing.T) {
			fsys, hook := hooked()
			o := testOptions(t.TempDir())
			o.FS = fsys
			o.Followers = func(string) []string { return []string{"region"} }
			l := openQuiet(t, o)
			p := topicWith(t, l, TopicOptions{Name: "t"})
			fillSegments(t, l, p, 6, 0, 1)
			coverAll(t, l)
			hook.Store(&cannotRemove)
			before := logFiles(t, o.Dir, p)
			evictAll(t, l, l.usedBytes()-150<<10, never)
			start := p.StartOffset()
			if start == 0 || len(logFiles(t, o.Dir, p)) != len(before) {
				t.Fatalf("start %d, %d of %d files left", start, len(logFiles(t, o.Dir, p)), len(before))
			}
			if _, err := p.Read(nil, start-1, 1); !errors.Is(err, ErrOffsetOutOfRange) {
				t.Fatalf("read below the start: %v", err)
			}
			if checkpoint {
				coverAll(t, l)
				l.cover([]victim{{p: p, span: files.Span{End: p.HighWatermark() + 1}}})
			}
			again := crash(t, o)
			q := again.Topic("t").Partitions()[0]
			if q.StartOffset() != start || q.HighWatermark() != p.HighWatermark() {
				t.Fatalf("%d to %d, want %d to %d", q.StartOffset(), q.HighWatermark(), start, p.HighWatermark())
			}
			if left := logFiles(t, again.o.Dir, q); len(left) >= len(before) {
				t.Fatalf("%d files are left", len(left))
			}
			gaps, err := again.Gaps(q)
			if err != nil || len(gaps) != 1 || gaps[0] != (Gap{0, start - 1, 0, start - 1, start, Budget}) {
				t.Fatalf("gaps %+v, %v", gaps, err)
			}
			if r := again.Recovered(); len(r.Damages) > 0 {
				t.Fatalf("damages %v", r.Damages)
			}
			if used, real := again.used.Load(), dirBytes(t, filepath.Join(again.o.Dir, "topics")); used != real {
				t.Errorf("%d bytes counted, %d there", used, real)
			}
		})
	}
}

func logFiles(t testing.TB, dir string, p *Partition) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(topicsDir(dir), p.String(), "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// dirBytes is the size of all files in the directory. A file that is just being removed counts or not.
func dirBytes(t testing.TB, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestGapsOfFollowers(t *testing.T) {
	for _, c := range []struct {
		name    string
		cursors map[string]func(p *Partition) int64
		want    func(start int64) []Gap
	}{
		{"nobody follows", nil, func(int64) []Gap { return nil }},
		{"no cursor yet", map[string]func(*Partition) int64{"a": nil},
			func(start int64) []Gap { return []Gap{{0, start - 1, 0, start - 1, start, Budget}} }},
		{"one behind", map[string]func(*Partition) int64{"a": (*Partition).HighWatermark, "b": func(*Partition) int64 { return 10 }},
			func(start int64) []Gap { return []Gap{{10, start - 1, 8, start - 1, start - 10, Budget}} }},
		{"all ahead", map[string]func(*Partition) int64{"a": (*Partition).HighWatermark}, func(int64) []Gap { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(t.TempDir())
			o.Followers = func(string) (list []string) {
				for owner := range c.cursors {
					list = append(list, owner)
				}
				return list
			}
			l := openQuiet(t, o)
			p := topicWith(t, l, TopicOptions{Name: "t"})
			fillSegments(t, l, p, 4, 0, 1)
			for owner, at := range c.cursors {
				if at != nil {
					l.SetCursor(p, owner, at(p), nil)
				}
			}
			coverAll(t, l)
			evictAll(t, l, l.usedBytes()-100<<10, never)
			start := p.StartOffset()
			got, err := l.Gaps(p)
			want := c.want(start)
			if start == 0 || err != nil || !slices.Equal(got, want) {
				t.Fatalf("start %d, gaps %+v (%v), want %+v", start, got, err, want)
			}
			e := l.Status().Evicted
			lost := int64(0)
			if len(want) > 0 {
				lost = want[0].Records
			}
			if len(e) != 1 || e[0].Topic != "t" || e[0].Reason != "budget" || e[0].Records != start || e[0].Unmirrored != lost || l.Status().Gaps != len(want) {
				t.Errorf("status %+v, %d gaps", e, l.Status().Gaps)
			}
			if len(want) > 0 {
				if err := l.ForgetGap(p, got[0]); err != nil {
					t.Fatal(err)
				}
				if got, err := l.Gaps(p); len(got) != 0 || err != nil || l.Status().Gaps != 0 {
					t.Errorf("after forgetting: %+v, %v", got, err)
				}
			}
		})
	}
}

// What a gap has grown by since it was announced stays.
// A gap is forgotten at once while an eviction waits for a checkpoint, or removes files: that may take long.
func TestForgetGapDuringAPass(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.FS = fsys
	o.Followers = func(string) []string { return []string{"region"} }
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	fillSegments(t, l, p, 3, 0, 1)
	forgotten := 0
	forget := func(op vfs.Op, name string) error {
		if op == vfs.OpRemove && strings.HasSuffix(name, ".log") {
			gaps, err := l.Gaps(p)
			if err != nil || len(gaps) != 1 {
				return fmt.Errorf("gaps %+v, %w", gaps, err)
			}
			forgotten++
			return l.ForgetGap(p, gaps[0])
		}
		return nil
	}
	hook.Store(&forget)
	evictAll(t, l, l.usedBytes()-10<<10, never)
	if forgotten == 0 || l.Status().Gaps != 0 {
		t.Fatalf("%d gaps forgotten, %d left", forgotten, l.Status().Gaps)
	}
}

func TestForgottenGapHasGrown(t *testing.T) {
	l := openQuiet(t, testOptions(t.TempDir()))
	p := topicWith(t, l, TopicOptions{Name: "t"})
	add := func(g Gap) {
		t.Helper()
		changes := map[*Partition]gapChange{}
		if err := l.addGapTo(changes, p, g); err != nil {
			t.Fatal(err)
		}
		err := l.commitState(func(w *Writer) {
			for _, g := range changes[p].put {
				w.Put(gapKey(p, g.First), g.encode())
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add(Gap{10, 19, 100, 190, 10, Age})
	told, _ := l.Gaps(p)
	add(Gap{20, 29, 200, 290, 9, Age})
	if err := l.ForgetGap(p, told[0]); err != nil {
		t.Fatal(err)
	}
	got, err := l.Gaps(p)
	if want := []Gap{{20, 29, 190, 290, 9, Age}}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v (%v), want %+v", got, err, want)
	}
	if err := l.ForgetGap(p, told[0]); err != nil {
		t.Fatalf("a second time: %v", err)
	}
}

func TestGapsAreBounded(t *testing.T) {
	var gaps []Gap
	apply := func(c gapChange) {
		before := len(gaps)
		gaps = slices.DeleteFunc(gaps, func(g Gap) bool {
			return slices.Contains(c.delete, g.First) || slices.ContainsFunc(c.put, func(n Gap) bool { return n.First == g.First })
		})
		gaps = append(gaps, c.put...)
		slices.SortFunc(gaps, func(a, b Gap) int { return int(a.First - b.First) })
		if len(gaps)-before != int(c.more) {
			t.Fatalf("%d gaps after %d, said %+d", len(gaps), before, c.more)
		}
	}
	records := int64(0)
	for i := range int64(200) {
		first := i * 100
		apply(addGap(gaps, Gap{first, first + 9, first, first + 9, 10, Reason(1 + i/150)})) // apart
		apply(addGap(gaps, Gap{first + 10, first + 19, first + 10, first + 19, 7, Reason(1 + i/150)}))
		records += 17
		if len(gaps) > maxGaps {
			t.Fatalf("%d gaps", len(gaps))
		}
	}
	sum := int64(0)
	for i, g := range gaps {
		sum += g.Records
		if i > 0 && (g.First <= gaps[i-1].Last || g.Last-g.First != 19) {
			t.Errorf("gap %d is %+v behind %+v", i, g, gaps[i-1])
		}
	}
	if len(gaps) != maxGaps || sum != records || gaps[0].First != 0 || gaps[0].FirstTime != 0 {
		t.Errorf("%d gaps with %d records of %d, the first %+v", len(gaps), sum, records, gaps[0])
	}
}

func TestRetentionByAge(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(string) []string { return []string{"region"} }
	l := openQuiet(t, o)
	var now atomic.Int64
	l.retention.ageOf = func(ms int64) time.Duration { return time.Duration(now.Load()-ms) * time.Millisecond }
	p := topicWith(t, l, TopicOptions{Name: "t", RetentionAge: time.Hour, OnFull: Reject})
	other := topicWith(t, l, TopicOptions{Name: "other"})
	fillSegments(t, l, p, 5, 0, 1000)
	fillSegments(t, l, other, 2, 0, 1000)
	spans := p.chain.Spans()
	hour := time.Hour.Milliseconds()
	for i, c := range []struct{ now, start int64 }{
		{hour, 0},
		{hour + 1000*(spans[1].End-1) - 1, spans[0].End}, // the newest of the second is a little too young
		{hour + 1000*(spans[1].End-1), spans[1].End},
		{1000, spans[1].End}, // the clock goes back: nothing happens
		{hour + 1000*(p.HighWatermark()-1) - 1, spans[4].End},
		{hour + 1000*(p.HighWatermark()-1), p.HighWatermark()}, // the active one, too
	} {
		now.Store(c.now)
		evictAll(t, l, never, never)
		if got := p.StartOffset(); got != c.start {
			t.Fatalf("step %d: start %d, want %d", i, got, c.start)
		}
	}
	if other.StartOffset() != 0 {
		t.Error("the other topic has no age, and lost records")
	}
	gaps, err := l.Gaps(p)
	if last := p.HighWatermark() - 1; err != nil || len(gaps) != 1 || gaps[0] != (Gap{0, last, 0, 1000 * last, last + 1, Age}) {
		t.Errorf("gaps %+v, %v", gaps, err)
	}
	next := p.HighWatermark()
	if offset := put(t, l, p, "more"); offset != next {
		t.Errorf("next offset %d, want %d", offset, next)
	}
	again := crash(t, o).Topic("t").Partitions()[0]
	if again.StartOffset() != next || again.HighWatermark() != next+1 {
		t.Errorf("after a crash %d to %d, want %d to %d", again.StartOffset(), again.HighWatermark(), next, next+1)
	}
}

// Evicted segments that can't be removed are told of, once, and again when they are gone.
func TestSegmentsThatStay(t *testing.T) {
	fsys, hook := hooked()
	r := &slowReader{Handler: slog.DiscardHandler, t: t}
	o := testOptions(t.TempDir())
	o.FS, o.Logger = fsys, slog.New(r)
	l := openQuiet(t, o)
	r.l.Store(l)
	p := topicWith(t, l, TopicOptions{Name: "t"})
	fillSegments(t, l, p, 4, 0, 1)
	coverAll(t, l)
	hook.Store(&cannotRemove)
	start := p.chain.Spans()[2].Base
	l.dropBelow(p, start)
	l.dropBelow(p, start)
	if n := r.count("can't remove evicted segments"); n != 1 {
		t.Errorf("told %d times", n)
	}
	hook.Store(nil)
	l.dropBelow(p, start)
	if n := r.count("removed at last"); n != 1 || len(logFiles(t, o.Dir, p)) != 3 {
		t.Errorf("told %d times, files %v", n, logFiles(t, o.Dir, p))
	}
}

// What is on its way from memory to a segment counts: a full topic takes nothing meanwhile.
func TestTopicStaysFullDuringAnAppend(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.FS = fsys
	o.AppendBytes, o.MemoryBytes, o.JournalBytes = 256<<10, 1<<20, 4<<20 // nothing is appended by itself
	l := openQuiet(t, o)
	p := topicWith(t, l, TopicOptions{Name: "t", RetentionBytes: 128 << 10, OnFull: Reject})
	for p.topic.Refused() == nil {
		ticket, err := l.Append(p, &record.Record{Value: make([]byte, 4000)})
		wait(t, ticket, err)
		l.checkTopic(p.topic)
	}
	appends := 0
	look := func(op vfs.Op, name string) error {
		if op == vfs.OpWrite && strings.HasSuffix(name, ".log") {
			appends++
			if l.checkTopic(p.topic); p.topic.Refused() == nil {
				t.Errorf("records are welcome: %d bytes", p.topic.bytes())
			}
		}
		return nil
	}
	hook.Store(&look)
	if err := l.appendPartition(p); err != nil || appends == 0 {
		t.Fatalf("%d appends, %v", appends, err)
	}
}

// A segment that the disk doesn't give, or that is gone, keeps no other from being evicted, for whichever reason.
func TestUnreadableSegmentIsEvicted(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOENT} {
		for _, by := range []Reason{Age, Bytes, Budget} {
			t.Run(fmt.Sprint(by, " ", cause), func(t *testing.T) {
				fsys, hook := hooked()
				o := testOptions(t.TempDir())
				o.FS = fsys
				l := openQuiet(t, o)
				topic := TopicOptions{Name: "t"}
				soft := int64(never)
				switch by {
				case Age:
					topic.RetentionAge = time.Hour
				case Bytes:
					topic.RetentionBytes = 128 << 10
				default:
					soft = 0
				}
				p := topicWith(t, l, topic)
				healthy := topicWith(t, l, TopicOptions{Name: "healthy"})
				fillSegments(t, l, healthy, 2, 0, 1)
				fillSegments(t, l, p, 5, 1_000_000, 1)
				coverAll(t, l)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l = openQuiet(t, o) // it doesn't know the times of what it didn't write
				l.retention.ageOf = func(int64) time.Duration { return 2 * time.Hour }
				p, healthy = l.Topic("t").Partitions()[0], l.Topic("healthy").Partitions()[0]
				spans := p.chain.Spans()
				first := logFiles(t, o.Dir, p)[0]
				ill := func(op vfs.Op, name string) error {
					if (op == vfs.OpOpen || op == vfs.OpRead) && name == first {
						return &fs.PathError{Op: string(op), Path: name, Err: cause}
					}
					return nil
				}
				hook.Store(&ill)
				order := evictAll(t, l, soft, never)
				if p.StartOffset() < spans[1].End || slices.Contains(logFiles(t, o.Dir, p), first) {
					t.Errorf("start %d, segments %+v", p.StartOffset(), spans)
				}
				if by == Budget && (order[0] != "t-0" || healthy.StartOffset() == 0) {
					t.Errorf("evicted %v", order)
				}
			})
		}
	}
}

func TestRetentionByBytes(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	const most = 600 << 10
	topic, err := l.CreateTopic(TopicOptions{Name: "t", Partitions: 2, SegmentBytes: 64 << 10, RetentionBytes: most})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		fillSegments(t, l, topic.Partitions()[i%2], 3, int64(i*100_000), 1)
	}
	f := newFiller(l, topic.Partitions()[0])
	for range 200 {
		if err := f.add(100); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the topic is within its bound", func() bool { return topic.bytes() <= most })
	if topic.bytes() < most/2 {
		t.Errorf("only %d bytes are left", topic.bytes())
	}
}

// A topic that rejects refuses what is beyond its bound, alone, until what all followers have can go.
func TestRejectingTopic(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Followers = func(string) []string { return []string{"region"} }
	l := openLog(t, o)
	const most = 400 << 10
	p := topicWith(t, l, TopicOptions{Name: "t", RetentionBytes: most, OnFull: Reject})
	q := topicWith(t, l, TopicOptions{Name: "other"})
	fill := func() {
		t.Helper()
		w := l.NewWriter(nil)
		for range 10000 {
			if err := w.Begin(); err != nil {
				t.Fatal(err)
			}
			if p.topic.Refused() != nil {
				w.End()
				return
			}
			w.Append(p, &record.Record{Value: make([]byte, 1024)})
			w.End()
		}
		t.Fatal("never refused")
	}
	fill()
	if err := p.topic.Refused(); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "retention.bytes") {
		t.Fatalf("refused with %v", err)
	}
	if s := l.Status(); s.Refusing != nil || len(s.Refused) != 1 || s.Refused[0].Topic != "t" {
		t.Fatalf("status %+v", s)
	}
	if bytes := p.topic.bytes(); bytes > most+l.plan.HeadroomBytes {
		t.Fatalf("%d bytes", bytes)
	}
	put(t, l, q, "the other topic goes on")
	if _, err := l.Append(p, &record.Record{}); !errors.Is(err, ErrFull) {
		t.Fatalf("append: %v", err)
	}
	if p.StartOffset() != 0 {
		t.Fatal("records that nobody has are gone")
	}
	l.SetCursor(p, "region", p.HighWatermark()/2, nil)
	l.kickRetention()
	eventually(t, "there is room", func() bool { return p.topic.Refused() == nil })
	if start := p.StartOffset(); start == 0 || start > p.HighWatermark()/2 {
		t.Fatalf("start %d", start)
	}
	if gaps, err := l.Gaps(p); len(gaps) > 0 || err != nil {
		t.Fatalf("gaps %v, %v", gaps, err)
	}
	fill()
}

// The disk budget holds at any moment, under load, restarts and kills included.
func TestBudgetHolds(t *testing.T) {
	o := testOptions(t.TempDir())
	o.BudgetBytes = 4 << 20
	o.ReserveBytes = 256 << 10
	watch := func(dir string, stop chan struct{}) (most *atomic.Int64, done chan struct{}) {
		most, done = new(atomic.Int64), make(chan struct{})
		go func() {
			defer close(done)
			for {
				most.Store(max(most.Load(), dirBytes(t, dir)))
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		return most, done
	}
	counts := map[string]int{}
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		stop := make(chan struct{})
		most, done := watch(o.Dir, stop)
		l := openLog(t, o)
		var fillers []*filler
		for i, to := range []TopicOptions{
			{Name: "a", Partitions: 2}, {Name: "b", Partitions: 1, Priority: Low, Compression: record.Zstd}, {Name: "c", Partitions: 1},
		} {
			to.SegmentBytes = 64 << 10
			topic, err := l.CreateTopic(to)
			if err != nil {
				t.Fatal(err)
			}
			f := newFiller(l, topic.Partitions()[i%len(topic.Partitions())])
			f.next = int(f.p.HighWatermark())
			fillers = append(fillers, f)
		}
		for i := range 800 {
			f := fillers[i%len(fillers)]
			if err := f.add(50); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if i%100 == 0 {
				ticket, err := l.Put(fmt.Appendf(nil, "key %d", i), make([]byte, 100))
				wait(t, ticket, err)
			}
		}
		if round%2 == 0 { // killed
			dir := filepath.Join(t.TempDir(), "data")
			copyRunning(t, dir, o.Dir)
			l.Close()
			o.Dir = dir
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		close(stop)
		<-done
		if most.Load() > o.BudgetBytes {
			t.Fatalf("round %d: %d bytes on disk, the budget is %d", round, most.Load(), o.BudgetBytes)
		}
		for _, e := range l.Status().Evicted {
			counts[e.Topic]++
		}
		t.Logf("round %d: at most %d bytes of %d", round, most.Load(), o.BudgetBytes)
	}
	if len(counts) == 0 {
		t.Error("nothing was evicted")
	}
}

// copyRunning copies a directory in use: what is removed meanwhile is left out.
func copyRunning(t testing.TB, to, from string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		if e.IsDir() {
			return os.MkdirAll(target, 0o750)
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o640)
	})
	if err != nil {
		t.Fatal(err)
	}
}
