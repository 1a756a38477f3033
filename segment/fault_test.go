package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// hooked is the real file system with a function ahead of each operation that a test can change.
func hooked() (vfs.FS, *atomic.Pointer[func(op vfs.Op, name string) error]) {
	hook := new(atomic.Pointer[func(op vfs.Op, name string) error])
	return &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if f := hook.Load(); f != nil {
			return 0, (*f)(op, name)
		}
		return 0, nil
	}}, hook
}

// addAll adds n values and waits until all are acknowledged.
func (f *filler) addAll(t testing.TB, n int) {
	t.Helper()
	for end := f.next + n; f.next < end; {
		if err := f.add(min(20, end-f.next)); err != nil {
			t.Fatal(err)
		}
	}
	f.wait(t)
}

func (f *filler) wait(t testing.TB) {
	t.Helper()
	eventually(t, "all acknowledged", func() bool { return f.acked.Load() == int64(f.next) })
}

// A rewrite of a failed segment that fails in the middle is continued, whatever wants to be appended meanwhile.
func TestInterruptedRewriteLeavesNoHole(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.JournalBytes = 4 << 20
	o.FS = fsys
	l, p := openOne(t, o)
	fill := newFiller(l, p)
	fill.addAll(t, 5000)
	eventually(t, "most are in segments", func() bool { return l.memory.used() < o.AppendBytes })
	var syncs, writes atomic.Int64
	fail := func(op vfs.Op, name string) error {
		switch {
		case !strings.HasSuffix(name, ".log"):
		case op == vfs.OpSync && syncs.Add(1) == 1:
			return syscall.EIO
		case op == vfs.OpWrite && syncs.Load() > 0:
			if n := writes.Add(1); n == 2 || n == 3 || n == 5 {
				return syscall.ENOSPC
			}
		}
		return nil
	}
	hook.Store(&fail)
	before := l.Status().Checkpoints
	l.askForRoll()
	eventually(t, "a checkpoint", func() bool { return l.Status().Checkpoints > before })
	if writes.Load() < 5 {
		t.Fatalf("%d writes", writes.Load())
	}
	equal(t, values(t, p, 0, 1<<20), numbered(0, fill.next))
	eventually(t, "the reserve is there again", func() bool { return l.Status().Refusing == nil })
	fill.addAll(t, 500)
	equal(t, values(t, p, 0, 1<<20), numbered(0, fill.next))
	if used := l.used.Load(); used != p.chain.Bytes() {
		t.Errorf("%d bytes counted, %d in the segments", used, p.chain.Bytes())
	}
	l.Close()
	o.FS = nil
	equal(t, values(t, openLog(t, o).Topic("t").Partitions()[0], 0, 1<<20), numbered(0, fill.next))
}

// Whoever reads while a segment is rewritten waits for that: the offsets are valid all the time.
func TestReadDuringARewrite(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.JournalBytes = 4 << 20
	o.FS = fsys
	l, p := openOne(t, o)
	fill := newFiller(l, p)
	fill.addAll(t, 2000)
	eventually(t, "most are in segments", func() bool { return l.memory.used() < o.AppendBytes })
	var synced, read atomic.Bool
	got := make(chan error, 1)
	fail := func(op vfs.Op, name string) error {
		switch {
		case op == vfs.OpSync && strings.HasSuffix(name, ".log") && synced.CompareAndSwap(false, true):
			return syscall.EIO
		case op == vfs.OpRead && strings.Contains(name, "journal") && synced.Load() && read.CompareAndSwap(false, true):
			go func() {
				b, err := p.Read(nil, 0, 100)
				if err == nil && len(b) == 0 {
					err = errors.New("nothing")
				}
				got <- err
			}()
			time.Sleep(50 * time.Millisecond) //lint:sleep gives the reader time to come by
		}
		return nil
	}
	hook.Store(&fail)
	l.askForRoll()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A reader at the end finds what is there, also in the moment when the batch it needs is merged with newer ones. Empty
// hands would mean that there is nothing.
func TestReadAtTheEndIsNeverEmpty(t *testing.T) {
	o := testOptions(t.TempDir())
	o.AppendBytes = 1
	o.FS = nosync{vfs.OS}
	l, p := openOne(t, o)
	fill := newFiller(l, p)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var buf []byte
			for !stop.Load() {
				high := p.HighWatermark()
				if high == 0 {
					continue
				}
				var err error
				buf, err = p.Read(buf[:0], high-1, 100)
				if err != nil || len(buf) == 0 {
					t.Errorf("read at %d: %d bytes, %v", high-1, len(buf), err)
					return
				}
			}
		})
	}
	for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
		if err := fill.add(1); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// While appends fail nobody can write, so nothing but the appender itself can find out that they would succeed again.
func TestAppendIsTriedAgainWithoutNewRecords(t *testing.T) {
	for _, count := range []int64{1, 3} {
		f := &fault{op: vfs.OpWrite, part: ".log", err: syscall.ENOSPC}
		o := testOptions(t.TempDir())
		o.FS = f.fs()
		l, p := openOne(t, o)
		w := l.NewWriter(nil)
		f.count.Store(count)
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			w.Append(p, &record.Record{Value: make([]byte, o.AppendBytes/2)})
		}
		w.End()
		eventually(t, "the fault", func() bool { return f.count.Load() < count })
		eventually(t, "writers are welcome", func() bool { return l.Status().Refusing == nil && l.memory.used() == 0 })
	}
}

// A partition that works does not hide that another one doesn't.
func TestRefusalLastsUntilAllPartitionsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fault{op: vfs.OpWrite, part: "t-0", err: syscall.ENOSPC}
		o := testOptions(t.TempDir())
		o.FS = f.fs()
		l := openLog(t, o)
		parts := createTopic(t, l, "t", 2, record.None).Partitions()
		f.count.Store(1 << 40)
		w := l.NewWriter(nil)
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			w.Append(p, &record.Record{Value: make([]byte, o.AppendBytes)})
		}
		w.End()
		eventually(t, "one is appended, the other not", func() bool {
			return parts[1].chain.NextOffset() == 1 && parts[0].failing.Load()
		})
		for range 50 {
			if !errors.Is(l.Status().Refusing, ErrUnavailable) {
				t.Fatal("not refused")
			}
			time.Sleep(5 * time.Millisecond)
		}
		f.count.Store(0)
		eventually(t, "writers are welcome", func() bool { return l.Status().Refusing == nil })
	})
}

// A journal that can't grow waits for space, not by one checkpoint after the other.
func TestJournalThatCannotGrowDoesNotWearTheFlashOut(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.FS = fsys
	l, p := openOne(t, o)
	known, _ := filepath.Glob(filepath.Join(journal.Dir(o.Dir), "*"))
	var failed atomic.Bool
	fail := func(op vfs.Op, name string) error {
		switch {
		case !strings.HasSuffix(name, ".journal"):
		case op == vfs.OpSync && failed.CompareAndSwap(false, true):
			return syscall.EIO
		case op == vfs.OpOpen && !strings.Contains(fmt.Sprint(known), name):
			return syscall.ENOSPC
		}
		return nil
	}
	hook.Store(&fail)
	fill := newFiller(l, p)
	var err error
	for err == nil || errors.Is(err, ErrFull) { // full while the reserve is in use
		err = fill.add(20)
	}
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "too few files") {
		t.Fatalf("writing: %v", err)
	}
	if n := l.Status().Checkpoints; n > 12 {
		t.Fatalf("%d checkpoints", n)
	}
	hook.Store(nil)
	fill.wait(t)
	eventually(t, "writers are welcome", func() bool { return l.Status().Refusing == nil })
	fill.addAll(t, 1000)
	equal(t, values(t, p, 0, 1<<20), numbered(0, fill.next))
}

// What is newer stays: a lazy value neither comes after what replaced it nor is it lost to what it replaced.
func TestLazyValuesKeepTheirPlace(t *testing.T) {
	fsys, hook := hooked()
	o := testOptions(t.TempDir())
	o.FS = fsys
	l, p := openOne(t, o)
	key := []byte("x/key")
	expect := func(l *Log, want string) {
		t.Helper()
		if got, ok, err := l.Get(key); string(got) != want || ok != (want != "") || err != nil {
			t.Fatalf("%q, %v, %v, want %q", got, ok, err, want)
		}
	}
	l.PutLazy(key, []byte("lazy"))
	ticket, err := l.Put(key, []byte("put"))
	wait(t, ticket, err)
	expect(l, "put")
	l.PutLazy(key, []byte("lazy"))
	ticket, err = l.Delete(key)
	wait(t, ticket, err)
	expect(l, "")

	// A lazy value that comes while a group with an older one waits for a roll of the journal.
	var rolled atomic.Bool
	in := func(op vfs.Op, name string) error {
		if op == vfs.OpWrite && strings.HasSuffix(name, ".journal") && name != currentJournal(l) && !rolled.Swap(true) {
			l.PutLazy(key, []byte("newer"))
		}
		return nil
	}
	hook.Store(&in)
	fill := newFiller(l, p)
	for !rolled.Load() {
		l.PutLazy(key, []byte("older"))
		fill.addAll(t, 20)
	}
	fill.addAll(t, 1)
	expect(l, "newer")
	expect(crash(t, o), "newer")
	l.PutLazy(key, []byte("last"))
	l.Close()
	o.FS = nil
	expect(openLog(t, o), "last")
}

// currentJournal is the file that the last frame went to: the newest of the directory.
func currentJournal(l *Log) string {
	var newest string
	var at time.Time
	names, _ := filepath.Glob(filepath.Join(journal.Dir(l.o.Dir), "*"))
	for _, name := range names {
		if info, err := vfs.OS.Stat(name); err == nil && info.ModTime().After(at) {
			newest, at = name, info.ModTime()
		}
	}
	return newest
}

// A key that no checkpoint can store must not get as far as the journal.
func TestKeysAreChecked(t *testing.T) {
	o := testOptions(t.TempDir())
	o.JournalBytes = 2 << 20
	o.MaxBytes = 128 << 10
	l := openLog(t, o)
	for _, key := range []string{"", strings.Repeat("k", MaxKeyBytes+1), strings.Repeat("k", 1<<16)} {
		if _, err := l.Put([]byte(key), nil); err == nil {
			t.Errorf("a key of %d bytes was taken", len(key))
		}
		if _, err := l.Delete([]byte(key)); err == nil {
			t.Errorf("a key of %d bytes was taken", len(key))
		}
	}
	longest := []byte(strings.Repeat("k", MaxKeyBytes))
	ticket, err := l.Put(longest, []byte("v"))
	wait(t, ticket, err)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := openLog(t, o).Get(longest); string(v) != "v" || !ok || err != nil {
		t.Fatalf("%q, %v, %v", v, ok, err)
	}
}

// A group that fits into no journal file fails, alone.
func TestGroupThatNeverFits(t *testing.T) {
	o := testOptions(t.TempDir())
	l, p := openOne(t, o)
	w := l.NewWriter(nil)
	if err := w.Begin(); err != nil {
		t.Fatal(err)
	}
	w.Append(p, &record.Record{Value: make([]byte, o.JournalBytes)})
	w.End()
	if offset := put(t, l, p, "fits"); offset != 0 {
		t.Fatalf("offset %d", offset)
	}
}

// The largest group that the options allow gets into a segment.
func TestLargestGroup(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	o.MaxRecordBytes = 6 << 20
	o.JournalBytes = 8 * 24 << 20
	o.BudgetBytes = 4 << 30
	o.FS = nosync{vfs.OS}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	o.JournalBytes = 32 << 20 // enough here
	l := newLog(o)
	if err := l.openState(); err != nil {
		t.Fatal(err)
	}
	defer l.store.Close()
	topic, _, err := l.openTopic(TopicOptions{Name: "t", Partitions: 1}, 1, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b record.Builder
	for range 3 {
		b.Append(&record.Record{Value: make([]byte, o.MaxRecordBytes)})
	}
	if err := topic.partitions[0].chain.Append(b.Seal(0)); err != nil {
		t.Fatal(err)
	}
	l.closeTopic(topic)
}

// The compression of a topic that exists is the one that is configured now.
func TestTopicIsChanged(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	createTopic(t, l, "t", 1, record.None)
	if topic := createTopic(t, l, "t", 1, record.Zstd); topic.Compression() != record.Zstd {
		t.Fatalf("compression %v", topic.Compression())
	}
	l.Close()
	if topic := openLog(t, o).Topic("t"); topic.Compression() != record.Zstd {
		t.Fatalf("compression %v", topic.Compression())
	}
	if _, err := l.CreateTopic(TopicOptions{Name: "u", Partitions: 1, Compression: 9}); err == nil {
		t.Fatal("compression 9 was taken")
	}
}

// A topic that can't be made leaves nothing open.
func TestTopicThatCannotBeMade(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	l.refuse(causeJournal, &refusal{ErrUnavailable, fs.ErrInvalid})
	if _, err := l.CreateTopic(TopicOptions{Name: "t", Partitions: 1}); !errors.Is(err, ErrUnavailable) || l.Topic("t") != nil {
		t.Fatalf("create: %v", err)
	}
	l.refuse(causeJournal, nil)
	put(t, l, createTopic(t, l, "t", 1, record.None).Partitions()[0], "a")
}

// After a failed journal file only the spare may be left. Checkpoints are made all the same, and bring a new one.
func TestCheckpointWithoutAFreeJournalFile(t *testing.T) {
	f := &fault{op: vfs.OpSync, part: ".journal", err: syscall.EIO}
	o := testOptions(t.TempDir())
	o.CheckpointInterval = 20 * time.Millisecond
	o.FS = f.fs()
	l, p := openOne(t, o)
	f.count.Store(1)
	for i := range 3 {
		put(t, l, p, "a")
		eventually(t, "a checkpoint", func() bool { return !l.stale() })
		if i == 0 && l.Status().JournalFailures != 1 {
			t.Fatal("no failure")
		}
	}
}
