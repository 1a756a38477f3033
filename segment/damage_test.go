package segment

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// damagedDir is a cleanly closed data directory with 1000 records in t-0 and t-1, all in segments.
func damagedDir(t *testing.T) Options {
	t.Helper()
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	for _, p := range createTopic(t, l, "t", 2, record.None).Partitions() {
		newFiller(l, p).addAll(t, 1000)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return o
}

// What isn't even a file keeps the broker from starting as little: TestDamageTable has the rest. What is lost is reported, and
// offsets that were given are not given again.
func TestDamageDoesNotKeepFromStarting(t *testing.T) {
	const all = 1000
	remove := func(pattern string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			names, _ := filepath.Glob(filepath.Join(dir, pattern))
			if len(names) == 0 {
				t.Fatalf("no %s", pattern)
			}
			for _, name := range names {
				if err := os.RemoveAll(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	replace := func(pattern string, with func(name string) error) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			names, _ := filepath.Glob(filepath.Join(dir, pattern))
			remove(pattern)(t, dir)
			for _, name := range names {
				if err := with(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	aFile := func(name string) error { return os.WriteFile(name, []byte("not what it was"), 0o600) }
	aDir := func(name string) error { return os.Mkdir(name, 0o700) }
	for _, c := range []struct {
		name     string
		harm     func(t *testing.T, dir string)
		lost     bool // the records of t-0
		reported bool
	}{
		{"partition is a file", replace("topics/t-0", aFile), true, true},
		{"indexes are directories", replace("topics/t-0/*index", aDir), false, true},
		{"journal files are directories", replace("journal/*", aDir), false, true},
		{"other things in the directory", func(t *testing.T, dir string) {
			for _, name := range []string{"topics/t-00", "topics/x", "topics/t-+1", "topics/-1", "journal/x"} {
				if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := damagedDir(t)
			c.harm(t, o.Dir)
			l := openLog(t, o)
			if r := l.Recovered(); (len(r.Damages)+len(r.Notes) > 0) != c.reported { // the journal may have had all of it
				t.Errorf("damages %q, notes %q", r.Damages, r.Notes)
			}
			parts := l.Topic("t").Partitions()
			if len(parts) != 2 {
				t.Fatalf("%d partitions", len(parts))
			}
			equal(t, values(t, parts[1], 0, 1<<20), numbered(0, all))
			if !c.lost {
				equal(t, values(t, parts[0], 0, 1<<20), numbered(0, all))
			}
			l.Close()
			l = openLog(t, o) // nothing was written; the hole must not be forgotten
			if offset := put(t, l, l.Topic("t").Partitions()[0], "next"); offset != all {
				t.Fatalf("next offset %d, want %d", offset, all)
			}
			if b, err := l.Topic("t").Partitions()[0].Read(nil, all, 100); err != nil || record.Batch(b).BaseOffset() != all {
				t.Fatalf("read: %v", err)
			}
		})
	}
}

// One unreadable file may be anywhere.
func TestUnreadableFileDoesNotKeepFromStarting(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpRead} {
		for _, bad := range []string{"t-0/00000000000000000000.log", "t-0/00000000000000000000.index", "t-0/00000000000000000000.timeindex", "00000001.journal"} {
			t.Run(fmt.Sprintf("%s %s", op, bad), func(t *testing.T) {
				o := damagedDir(t)
				o.FS = &vfs.Faulty{FS: vfs.OS, Before: func(is vfs.Op, name string) (int, error) {
					if is == op && strings.HasSuffix(name, bad) {
						return 0, syscall.EIO
					}
					return 0, nil
				}}
				l := openLog(t, o)
				parts := l.Topic("t").Partitions()
				equal(t, values(t, parts[1], 0, 1<<20), numbered(0, 1000))
				if offset := put(t, l, parts[0], "next"); offset != 1000 {
					t.Fatalf("next offset %d", offset)
				}
			})
		}
	}
}

// Nothing that the journal may hold keeps the broker from starting, and what follows it counts.
func TestOddJournalEntries(t *testing.T) {
	o := damagedDir(t)
	j, err := journal.Open(journal.Options{FS: vfs.OS, Dir: journal.Dir(o.Dir), FileBytes: o.JournalBytes})
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Replay(0, func(uint64, *journal.Entry) error { return nil })
	if err == nil {
		err = j.Start(r.LastLSN, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	batch := func(offset int64) []byte {
		var b record.Builder
		b.Append(&record.Record{Value: []byte("v")})
		return b.Seal(offset)
	}
	broken := batch(1000)
	broken[len(broken)-1] ^= 1
	for _, add := range []func(f *journal.Frame){
		func(f *journal.Frame) { f.AddBatch("t", 1, 2, batch(0)) },
		func(f *journal.Frame) { f.AddBatch("t", 1, -1, batch(0)) },
		func(f *journal.Frame) { f.AddBatch("no/topic", 1, 0, batch(0)) },
		func(f *journal.Frame) { f.AddBatch("t", 1, 0, broken) },
		func(f *journal.Frame) { f.AddBatch("t", 1, 0, []byte("short")) },
		func(f *journal.Frame) { f.AddBatch("t", 1, 0, append(batch(1000), 0)) },
		func(f *journal.Frame) { f.AddBatch("u", 9, 1, batch(7)) },
		func(f *journal.Frame) { f.AddBatch("u", 9, 3, batch(0)) },
		func(f *journal.Frame) {
			f.AddChanges(journal.AppendPut(nil, []byte("topic/v"), []byte("no description")), 1)
		},
		func(f *journal.Frame) { f.AddChanges(journal.AppendPut(nil, []byte("cursor/t/9/x"), []byte("no")), 1) },
		func(f *journal.Frame) { f.AddChanges(journal.AppendPut(nil, []byte("meta/topic-id"), []byte("no")), 1) },
		func(f *journal.Frame) { f.AddBatch("t", 1, 0, batch(1000)) },
	} {
		var f journal.Frame
		add(&f)
		if _, err := j.Append(&f); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, o)
	if got, want := values(t, l.Topic("t").Partitions()[0], 0, 1<<20), append(numbered(0, 1000), "v"); !slices.Equal(got, want) {
		t.Fatalf("%d values, the last %q", len(got), got[len(got)-1])
	}
	if u := l.Topic("u"); u == nil || len(u.Partitions()) != 4 || u.Partitions()[1].HighWatermark() != 8 {
		t.Fatalf("topic u: %v", u)
	}
	if d := l.Recovered().Damages; len(d) < 7 {
		t.Fatalf("damages %q", d)
	}
	createTopic(t, l, "v", 1, record.None)
}

// A stop is clean only if nothing was written since the checkpoint that said so.
func TestCrashIsNotClean(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	put(t, l, createTopic(t, l, "t", 1, record.None).Partitions()[0], "a")
	if crash(t, o).Recovered().Clean {
		t.Fatal("a crash was clean")
	}
	l.Close()
	if l = openLog(t, o); !l.Recovered().Clean {
		t.Fatal("a clean stop was not")
	}
}

// After a power cut any page may be missing of what was appended since the last checkpoint. That is no damage: the journal
// has it, for whoever only looks, too. Nothing piles up in the directory.
func TestPowerCutIsNoDamage(t *testing.T) {
	o := testOptions(t.TempDir())
	o.JournalBytes = 4 << 20
	l, p := openOne(t, o)
	fill := newFiller(l, p)
	fill.addAll(t, 10000)
	eventually(t, "most are in segments", func() bool { return l.memory.used() < o.AppendBytes })
	logs, _ := filepath.Glob(filepath.Join(o.Dir, "topics", "t-0", "*.log"))
	if len(logs) < 3 {
		t.Fatalf("segments %q", logs)
	}
	f, err := os.OpenFile(logs[1], os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(make([]byte, 4096), 8192)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	view, err := OpenView(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	damages, d := 0, record.NewDecoder(1<<20)
	err = view.Batches(ViewPartition{"t", 0}, 0, func(b record.Batch, _ Place) error {
		return d.Records(b, func(r *record.Record) error { got = append(got, string(r.Value)); return nil })
	}, func(*DamageError) error { damages++; return nil })
	if err != nil || damages != 1 {
		t.Fatalf("%d damages, %v", damages, err)
	}
	equal(t, got, numbered(0, fill.next))

	crashed := crash(t, o)
	equal(t, values(t, crashed.Topic("t").Partitions()[0], 0, 1<<20), numbered(0, fill.next))
	r := crashed.Recovered()
	if len(r.Damages) > 0 || r.CutBytes == 0 || len(r.Notes) == 0 {
		t.Fatalf("recovery %+v", r)
	}
	for _, pattern := range []string{"*.damaged*", "*.aside*"} {
		if left, _ := filepath.Glob(filepath.Join(crashed.o.Dir, "topics", "t-0", pattern)); len(left) > 0 {
			t.Errorf("left over: %q", left)
		}
	}
}
