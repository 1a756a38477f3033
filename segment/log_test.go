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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testOptions make everything small, so that journals roll and segments fill in a short test.
func testOptions(dir string) Options {
	o := DefaultOptions()
	o.Dir = dir
	o.BudgetBytes = 1 << 30
	o.ReserveBytes = 64 << 10
	o.MaxBytes = 16 << 10
	o.MaxRecordBytes = 4 << 10
	o.JournalBytes = 256 << 10
	o.AppendBytes = 8 << 10
	o.MemoryBytes = 64 << 10
	return o
}

func openLog(t testing.TB, o Options) *Log {
	t.Helper()
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// openOne opens a log and makes a topic of one partition.
func openOne(t testing.TB, o Options) (*Log, *Partition) {
	t.Helper()
	l := openLog(t, o)
	return l, createTopic(t, l, "t", 1, record.None).Partitions()[0]
}

func createTopic(t testing.TB, l *Log, name string, partitions int32, codec record.Codec) *Topic {
	t.Helper()
	topic, err := l.CreateTopic(TopicOptions{Name: name, Partitions: partitions, Compression: codec, SegmentBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func wait(t testing.TB, ticket Ticket, err error) Ticket {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := ticket.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return ticket
}

func put(t testing.TB, l *Log, p *Partition, value string) int64 {
	t.Helper()
	ticket, err := l.Append(p, &record.Record{Timestamp: 1000, Value: []byte(value)})
	return wait(t, ticket, err).Offset()
}

// values reads a partition from offset to its high watermark, and checks that offsets have no hole.
func values(t testing.TB, p *Partition, offset int64, maxBytes int) []string {
	t.Helper()
	var got []string
	d := record.NewDecoder(1 << 20)
	var buf []byte
	for offset < p.HighWatermark() {
		var err error
		buf, err = p.Read(buf[:0], offset, maxBytes)
		if err != nil {
			t.Fatalf("read %s at %d: %v", p, offset, err)
		}
		for rest := buf; len(rest) > 0; {
			b, more, err := record.Next(rest)
			if err == nil {
				err = b.Verify()
			}
			if err != nil {
				t.Fatalf("read %s at %d: %v", p, offset, err)
			}
			rest = more
			err = d.Records(b, func(r *record.Record) error {
				if r.Offset < offset {
					return nil
				}
				if r.Offset != offset {
					return fmt.Errorf("offset %d follows %d", r.Offset, offset-1)
				}
				offset++
				got = append(got, string(r.Value))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return got
}

func numbered(from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, numberedValue(i))
	}
	return list
}

func numberedValue(i int) string { return fmt.Sprintf("%06d %s", i, strings.Repeat("x", i%100)) }

func equal(t testing.TB, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d values, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("value %d is %.40q, want %.40q", i, got[i], want[i])
		}
	}
}

// crash copies the data directory as it is, like a kill -9 would leave it, and opens the copy.
func crash(t testing.TB, o Options) *Log {
	t.Helper()
	o.Dir = crashCopy(t, o.Dir)
	o.FS = nil
	return openLog(t, o)
}

func crashCopy(t testing.TB, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// filler adds numbered values to a partition through a Writer, as a connection does, and counts what is acknowledged.
type filler struct {
	w      *Writer
	p      *Partition
	next   int
	acked  atomic.Int64
	added  [2]int64 // by parity of the group
	failed atomic.Int64
}

func newFiller(l *Log, p *Partition) *filler {
	f := &filler{p: p}
	f.w = l.NewWriter(f)
	return f
}

func (f *filler) Committed(group uint64, err error) {
	if err != nil {
		f.failed.Add(1)
		return
	}
	f.acked.Add(f.added[group&1])
	f.added[group&1] = 0
}

func (f *filler) add(n int) error {
	if err := f.w.Begin(); err != nil {
		return err
	}
	for range n {
		f.w.Append(f.p, &record.Record{Timestamp: int64(f.next), Value: []byte(numberedValue(f.next))})
		f.next++
	}
	f.added[f.w.log.active.seq&1] += int64(n)
	f.w.End()
	return nil
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(time.Millisecond) //lint:sleep polls a real file system
	}
}

func TestWriteReadReopen(t *testing.T) {
	for _, codec := range []record.Codec{record.None, record.Snappy, record.Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			o := testOptions(t.TempDir())
			l := openLog(t, o)
			p := createTopic(t, l, "t", 2, codec).Partitions()[1]
			f := newFiller(l, p)
			const total = 20000 // some 1.2 MB: the journal rolls and segments fill
			for f.next < total {
				if err := f.add(50); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all acknowledged", func() bool { return f.acked.Load() == total })
			if p.HighWatermark() != total {
				t.Fatalf("high watermark %d", p.HighWatermark())
			}
			equal(t, values(t, p, 0, 10000), numbered(0, total))
			equal(t, values(t, p, 12345, 1), numbered(12345, total))

			crashed := crash(t, o)
			equal(t, values(t, crashed.Topic("t").Partitions()[1], 0, 1<<20), numbered(0, total))
			if r := crashed.Recovered(); r.Clean || len(r.Damages) > 0 {
				t.Fatalf("recovery after a crash: %+v", r)
			}

			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			again := openLog(t, o)
			p = again.Topic("t").Partitions()[1]
			if r := again.Recovered(); !r.Clean || r.Frames > 0 || len(r.Damages) > 0 {
				t.Fatalf("recovery after a clean stop: %+v", r)
			}
			equal(t, values(t, p, 0, 1<<20), numbered(0, total))
			if offset := put(t, again, p, "more"); offset != total {
				t.Fatalf("next offset %d, want %d", offset, total)
			}
		})
	}
}

func TestReadBounds(t *testing.T) {
	l := openLog(t, testOptions(t.TempDir()))
	p := createTopic(t, l, "t", 1, record.None).Partitions()[0]
	put(t, l, p, "a")
	for _, c := range []struct {
		offset int64
		want   error
	}{{-1, ErrOffsetOutOfRange}, {2, ErrOffsetOutOfRange}, {1, nil}, {0, nil}} {
		got, err := p.Read(nil, c.offset, 100)
		if !errors.Is(err, c.want) || (c.offset == 1 && len(got) > 0) || (c.offset == 0 && len(got) == 0) {
			t.Errorf("read at %d: %d bytes, %v, want %v", c.offset, len(got), err, c.want)
		}
	}
}

func TestManyWritersEachAcknowledgedOnceInOrder(t *testing.T) {
	l := openLog(t, testOptions(t.TempDir()))
	parts := createTopic(t, l, "t", 4, record.Zstd).Partitions()
	var wg sync.WaitGroup
	fillers := make([]*filler, 16)
	for i := range fillers {
		fillers[i] = newFiller(l, parts[i%len(parts)])
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 100 {
				if err := fillers[i].add(5); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	for _, f := range fillers {
		eventually(t, "all acknowledged", func() bool { return f.acked.Load() == 500 })
	}
	for _, p := range parts {
		if n := len(values(t, p, 0, 1<<20)); n != 2000 {
			t.Fatalf("%s holds %d records", p, n)
		}
	}
}

func TestStateSurvives(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	set := func(key, value string) {
		t.Helper()
		ticket, err := l.Put([]byte(key), []byte(value))
		wait(t, ticket, err)
	}
	set("x/a", "1")
	set("x/b", "2")
	set("x/a", "3")
	set("y/c", "4")
	ticket, err := l.Delete([]byte("x/b"))
	wait(t, ticket, err)
	l.PutLazy([]byte("x/lazy"), []byte("5"))
	if _, ok, _ := l.Get([]byte("x/lazy")); ok {
		t.Fatal("a lazy value is visible before it is durable")
	}
	set("z", "6") // takes the lazy one along
	check := func(l *Log) {
		t.Helper()
		got := map[string]string{}
		if err := l.Range([]byte("x/"), func(k, v []byte) bool { got[string(k)] = string(v); return true }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || got["x/a"] != "3" || got["x/lazy"] != "5" {
			t.Fatalf("state %v", got)
		}
		if _, ok, err := l.Get([]byte("x/b")); ok || err != nil {
			t.Fatalf("deleted key: %v, %v", ok, err)
		}
	}
	check(l)
	check(crash(t, o))
	l.Close()
	l = openLog(t, o)
	check(l)
	check(crash(t, o))
}

func TestLazyValueIsKeptByACleanStop(t *testing.T) {
	o := testOptions(t.TempDir())
	l, p := openOne(t, o)
	put(t, l, p, "a")
	l.SetCursor(p, "eu", 1, []byte("data"))
	l.Close()
	l = openLog(t, o)
	offset, data, ok, err := l.Cursor(l.Topic("t").Partitions()[0], "eu")
	if offset != 1 || string(data) != "data" || !ok || err != nil {
		t.Fatalf("cursor %d, %q, %v, %v", offset, data, ok, err)
	}
}

// Offsets that a region has seen are never given to other records.
func TestNextOffsetIsNeverBelowACursor(t *testing.T) {
	o := testOptions(t.TempDir())
	l, p := openOne(t, o)
	put(t, l, p, "a")
	l.SetCursor(p, "eu", 10, nil)
	l.Close()
	l = openLog(t, o)
	p = l.Topic("t").Partitions()[0]
	if offset := put(t, l, p, "b"); offset != 10 {
		t.Fatalf("offset %d, want 10", offset)
	}
	l.Close()
	l = openLog(t, o)
	p = l.Topic("t").Partitions()[0]
	if p.HighWatermark() != 11 || len(l.Recovered().Damages) > 0 {
		t.Fatalf("high watermark %d, %+v", p.HighWatermark(), l.Recovered())
	}
	b, err := p.Read(nil, 5, 100)
	if batch, _, _ := record.Next(b); err != nil || batch.BaseOffset() != 10 {
		t.Fatalf("read in the hole: %v", err)
	}
}

func TestTopics(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	a := createTopic(t, l, "a", 2, record.None)
	b := createTopic(t, l, "b", 3, record.None)
	if again := createTopic(t, l, "a", 2, record.None); again != a || a.ID() == b.ID() {
		t.Fatalf("ids %d, %d", a.ID(), b.ID())
	}
	if _, err := l.CreateTopic(TopicOptions{Name: "a", Partitions: 3}); err == nil || !strings.Contains(err.Error(), "2 partitions") {
		t.Fatalf("more partitions: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a b", strings.Repeat("x", 250)} {
		if _, err := l.CreateTopic(TopicOptions{Name: name, Partitions: 1}); err == nil {
			t.Errorf("topic name %.20q was taken", name)
		}
	}
	for _, l := range []*Log{l, crash(t, o)} {
		if got := l.Topics(); len(got) != 2 || got[1].Name() != "b" || len(got[1].Partitions()) != 3 || got[1].ID() != b.ID() {
			t.Fatalf("topics %v", got)
		}
	}
}

// A journal file is as durable as the entries of the directories above it.
func TestNewDirectoriesAreSynced(t *testing.T) {
	var synced []string
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.FS = &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpSyncDir {
			synced = append(synced, name)
		}
		return 0, nil
	}}
	l := openLog(t, o)
	l.Close()
	for _, dir := range []string{filepath.Dir(o.Dir), o.Dir, filepath.Join(o.Dir, "journal")} {
		if !slices.Contains(synced, dir) {
			t.Errorf("%s was not synced, only %q", dir, synced)
		}
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	o := testOptions(t.TempDir())
	openLog(t, o)
	if _, err := Open(o); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
}

func TestFullBudgetRefusesRecordsAndNotState(t *testing.T) {
	o := testOptions(t.TempDir())
	o.BudgetBytes = 4<<20 + 512<<10
	o.ReserveBytes = 1 << 20
	l := openLog(t, o)
	topic, err := l.CreateTopic(TopicOptions{Name: "t", Partitions: 1, SegmentBytes: 64 << 10, OnFull: Reject})
	if err != nil {
		t.Fatal(err)
	}
	p := topic.Partitions()[0]
	f := newFiller(l, p)
	for i := 0; i < 100000 && err == nil; i++ {
		err = f.add(20)
	}
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "data.budget") {
		t.Fatalf("filling up: %v", err)
	}
	eventually(t, "all acknowledged", func() bool { return f.acked.Load() == int64(f.next) })
	if used := l.UsedBytes(); used > o.BudgetBytes {
		t.Fatalf("%d bytes used of %d", used, o.BudgetBytes)
	}
	ticket, err := l.Put([]byte("k"), []byte("v"))
	wait(t, ticket, err)
	if s := l.Status(); !errors.Is(s.Refusing, ErrFull) || len(s.Refused) != 1 {
		t.Fatalf("status %+v", s)
	}
	if _, err := l.Append(p, &record.Record{}); !errors.Is(err, ErrFull) || !errors.Is(topic.Refused(), ErrFull) {
		t.Fatalf("append: %v, topic %v", err, topic.Refused())
	}
	l.Close()
	l = openLog(t, o)
	g := newFiller(l, l.Topic("t").Partitions()[0])
	g.next = f.next
	for i := 0; i < 100000; i++ { // what was merged may have left some room
		if err = g.add(1); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after a restart: %v", err)
	}
	eventually(t, "all acknowledged", func() bool { return g.acked.Load() == int64(g.next-f.next) })
	if used := l.UsedBytes(); used > o.BudgetBytes {
		t.Fatalf("%d bytes used of %d after a restart", used, o.BudgetBytes)
	}
	equal(t, values(t, g.p, 0, 1<<20), numbered(0, g.next))
}

func TestClosedLogRefuses(t *testing.T) {
	l := openLog(t, testOptions(t.TempDir()))
	p := createTopic(t, l, "t", 1, record.None).Partitions()[0]
	l.Close()
	if _, err := l.Append(p, &record.Record{}); !errors.Is(err, ErrClosed) {
		t.Fatalf("append: %v", err)
	}
}

// fault makes operations on files whose path contains part fail while it is armed.
type fault struct {
	op    vfs.Op
	part  string
	err   error
	count atomic.Int64 // how many more fail
}

func (f *fault) fs() vfs.FS {
	return &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == f.op && strings.Contains(name, f.part) && f.count.Add(-1) >= 0 {
			return 100, &fs.PathError{Op: string(op), Path: name, Err: f.err}
		}
		return 0, nil
	}}
}

// Any single write or sync may fail while records flow: nothing acknowledged is lost, nothing is stored twice, and the
// log goes on by itself.
func TestFaultsWhileRunning(t *testing.T) {
	for _, c := range []struct {
		op    vfs.Op
		part  string
		err   error
		count int64
	}{
		{vfs.OpWrite, "journal", syscall.EIO, 1},
		{vfs.OpSync, "journal", syscall.EIO, 1},
		{vfs.OpSync, "journal", syscall.EIO, 4},
		{vfs.OpWrite, ".log", syscall.EIO, 1},
		{vfs.OpWrite, ".log", syscall.ENOSPC, 1},
		{vfs.OpWrite, ".log", syscall.ENOSPC, 5},
		{vfs.OpWrite, "index", syscall.EIO, 1},
		{vfs.OpSync, ".log", syscall.EIO, 1},
		{vfs.OpSync, "index", syscall.EIO, 1},
		{vfs.OpSyncDir, "topics", syscall.EIO, 1},
		{vfs.OpOpen, ".log", syscall.EMFILE, 2},
	} {
		t.Run(fmt.Sprintf("%s %s %v %d", c.op, c.part, c.err, c.count), func(t *testing.T) {
			f := &fault{op: c.op, part: c.part, err: c.err}
			o := testOptions(t.TempDir())
			o.FS = f.fs()
			l := openLog(t, o)
			p := createTopic(t, l, "t", 1, record.Zstd).Partitions()[0]
			fill := newFiller(l, p)
			fillMore := func(n int) {
				t.Helper()
				for end := fill.next + n; fill.next < end; {
					if err := fill.add(20); err != nil {
						if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrFull) { // full while the reserve is in use
							t.Fatal(err)
						}
						eventually(t, "writes accepted again", func() bool { return l.Status().Refusing == nil })
					}
				}
				eventually(t, "all acknowledged", func() bool { return fill.acked.Load() == int64(fill.next) })
			}
			fillMore(1000)
			f.count.Store(c.count)
			fillMore(10000)
			eventually(t, "the fault was met", func() bool { return f.count.Load() < c.count })
			if fill.failed.Load() > 0 {
				t.Fatalf("%d groups failed", fill.failed.Load())
			}
			equal(t, values(t, p, 0, 1<<20), numbered(0, fill.next))
			crashed := crash(t, o)
			equal(t, values(t, crashed.Topic("t").Partitions()[0], 0, 1<<20), numbered(0, fill.next))
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			o.FS = nil
			l = openLog(t, o)
			equal(t, values(t, l.Topic("t").Partitions()[0], 0, 1<<20), numbered(0, fill.next))
			if d := l.Recovered().Damages; len(d) > 0 {
				t.Fatalf("damages %v", d)
			}
		})
	}
}

func TestNothingIsAcknowledgedWhileTheJournalFails(t *testing.T) {
	f := &fault{op: vfs.OpSync, part: "journal", err: syscall.EIO}
	o := testOptions(t.TempDir())
	o.FS = f.fs()
	l, p := openOne(t, o)
	fill := newFiller(l, p)
	f.count.Store(1 << 40)
	if err := fill.add(1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes refused", func() bool { return errors.Is(l.NewWriter(nil).tryBegin(), ErrUnavailable) })
	if fill.acked.Load() != 0 || p.HighWatermark() != 0 {
		t.Fatalf("%d acknowledged, high watermark %d", fill.acked.Load(), p.HighWatermark())
	}
	f.count.Store(0)
	eventually(t, "the record that waited is stored", func() bool { return fill.acked.Load() == 1 })
	equal(t, values(t, p, 0, 100), numbered(0, 1))
}

// tryBegin is Begin followed by End.
func (w *Writer) tryBegin() error {
	if err := w.Begin(); err != nil {
		return err
	}
	w.End()
	return nil
}

func TestViewBesideARunningLog(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	p := createTopic(t, l, "t", 1, record.Zstd).Partitions()[0]
	fill := newFiller(l, p)
	for fill.next < 5000 {
		if err := fill.add(10); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all acknowledged", func() bool { return fill.acked.Load() == int64(fill.next) && l.checkpoints.idle() })
	if err := l.appendPartition(p); err != nil {
		t.Fatal(err)
	}
	if err := fill.add(3); err != nil { // too few to be appended: in the journal only
		t.Fatal(err)
	}
	eventually(t, "all acknowledged", func() bool { return fill.acked.Load() == int64(fill.next) })
	v, err := OpenView(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := v.Partitions()
	if err != nil || len(parts) != 1 || parts[0].String() != "t-0" {
		t.Fatalf("partitions %v, %v", parts, err)
	}
	var got []string
	inJournal := 0
	d := record.NewDecoder(1 << 20)
	err = v.Batches(parts[0], 0, func(b record.Batch, at Place) error {
		if at == JournalPlace {
			inJournal++
		}
		return d.Records(b, func(r *record.Record) error { got = append(got, string(r.Value)); return nil })
	}, func(d *DamageError) error { return d })
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, numbered(0, fill.next))
	if inJournal == 0 {
		t.Error("nothing was in the journal only")
	}
}

func TestActivity(t *testing.T) {
	now := time.Unix(1000, 0)
	a := activity{since: now}
	step := func(d time.Duration, sync time.Duration, writers, enough int) {
		t.Helper()
		now = now.Add(d)
		a.turn(now, sync)
		a.present = max(a.present, writers)
		if got := a.enough(); got != enough {
			t.Fatalf("enough is %d, want %d (%+v)", got, enough, a)
		}
	}
	step(0, 0, 1, 1)                                       // alone
	step(10*time.Millisecond, 0, 100, 95)                  // more came within the epoch
	step(50*time.Millisecond, 0, 3, 95)                    // the epoch before counts
	step(50*time.Millisecond, 0, 2, 3)                     // until it is over, too
	step(time.Second, 0, 1, 1)                             // after a pause nobody is waited for
	step(60*time.Millisecond, 20*time.Millisecond, 40, 38) // slow disk: the epoch is four syncs long
	step(60*time.Millisecond, 20*time.Millisecond, 1, 38)
}

// nosync is the real file system without the cost of a sync.
type nosync struct{ vfs.FS }

type nosyncFile struct{ vfs.File }

func (n nosync) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := n.FS.OpenFile(name, flag, perm)
	return nosyncFile{f}, err
}

func (nosyncFile) Sync() error { return nil }

// BenchmarkWriter is one connection's share: 20 records of 100 bytes added in one go, four partitions.
func BenchmarkWriter(b *testing.B) {
	o := DefaultOptions()
	o.Dir = b.TempDir()
	o.FS = nosync{vfs.OS}
	l := openLog(b, o)
	topic, err := l.CreateTopic(TopicOptions{Name: "t", Partitions: 4, Compression: record.Zstd})
	if err != nil {
		b.Fatal(err)
	}
	parts := topic.Partitions()
	w := l.NewWriter(nil)
	r := record.Record{Timestamp: 1, Key: []byte("bench/1"), Value: []byte(strings.Repeat("payload ", 13)[:100]),
		Headers: []record.Header{{Key: record.EnvelopeKey, Value: []byte("0123456789abcdef")}}}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := w.Begin(); err != nil {
			b.Fatal(err)
		}
		for range 20 {
			w.Append(parts[i&3], &r)
		}
		w.End()
		i++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/20, "ns/record")
}
