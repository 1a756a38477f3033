package segment

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// What TestCrash found once, each case by itself.

// memOptions are for a log on a file system in memory.
func memOptions(mem *vfs.Mem, dir string) (Options, *memStore) {
	o := testOptions(dir)
	o.FS = mem
	s := &memStore{newest: -1, begin: func() bool { return false }}
	o.openStore = func() (store, error) { return s, nil }
	return o, s
}

// An earlier start may have made the data directory and ended before it had synced the directories above.
func TestDirectoriesAboveAreSynced(t *testing.T) {
	for seed := range uint64(30) {
		mem := vfs.NewMem(vfs.MemOptions{})
		if err := mem.MkdirAll("/var/lib/gateway", 0o750); err != nil {
			t.Fatal(err)
		}
		o, _ := memOptions(mem, "/var/lib/gateway/data")
		if seed%2 == 0 {
			if err := mem.MkdirAll(o.Dir, 0o750); err != nil {
				t.Fatal(err)
			}
		}
		l := openLog(t, o)
		put(t, l, createTopic(t, l, "a", 1, record.None).Partitions()[0], "acknowledged")
		mem.PowerCut(rand.New(rand.NewPCG(seed, 0)), 4096)
		l.Close()
		if _, err := mem.Stat(o.Dir); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		equal(t, values(t, openLog(t, o).Topic("a").Partitions()[0], 0, 1000), []string{"acknowledged"})
	}
}

// A crash in the middle of making a topic leaves the directories of any of its partitions. That is no topic.
func TestDirectoriesOfAnUnfinishedTopic(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	openLog(t, o).Close()
	if err := os.Mkdir(filepath.Join(topicsDir(o.Dir), "a-1"), 0o750); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, o)
	if l.Topic("a") != nil {
		t.Error("a topic that was never made is there")
	}
	createTopic(t, l, "a", 3, record.None)
}

// A cursor beyond the end leaves a hole. What follows it in memory is read from any offset in the hole.
func TestReadInAHoleBeforeMemory(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	l := openLog(t, o)
	p := createTopic(t, l, "a", 1, record.None).Partitions()[0]
	put(t, l, p, "before")
	l.SetCursor(p, "region", 5, nil)
	l.Close()
	l = openLog(t, o)
	p = l.Topic("a").Partitions()[0]
	if offset := put(t, l, p, "after"); offset != 5 {
		t.Fatalf("offset %d", offset)
	}
	for offset := int64(1); offset <= 5; offset++ {
		b, err := p.Read(nil, offset, 1000)
		if err != nil || len(b) == 0 || record.Batch(b).BaseOffset() != 5 {
			t.Errorf("read at %d: %d bytes, %v", offset, len(b), err)
		}
	}
}

// Offsets that a recovery leaves out are not forgotten with one state file.
func TestHoleIsInBothStateFiles(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	o, s := memOptions(mem, "/data")
	l := openLog(t, o)
	p := createTopic(t, l, "a", 1, record.None).Partitions()[0]
	put(t, l, p, "before")
	l.SetCursor(p, "region", 5, nil)
	l.Close()
	openLog(t, o)
	for _, f := range s.files {
		if end := f.point.Ends["a-0"]; end != 5 {
			t.Errorf("a state file has the end %d", end)
		}
	}
}

// A clean stop stores values that have no LSN of their own. They are in both state files then, or will be after the next start.
func TestLastValuesAreInBothStateFiles(t *testing.T) {
	for checkpointed := range 2 {
		mem := vfs.NewMem(vfs.MemOptions{})
		o, s := memOptions(mem, "/data")
		l := openLog(t, o)
		wait(t, must(t)(l.Put([]byte("k"), []byte("v"))), nil)
		for range checkpointed {
			l.Close()
			l = openLog(t, o)
		}
		for n := range 3 {
			l.PutLazy([]byte("lazy"), fmt.Append(nil, n))
			l.Close()
			l = openLog(t, o)
			for _, f := range s.files {
				if got := f.values["lazy"]; got != fmt.Sprint(n) {
					t.Errorf("a state file has %q after stop %d", got, n)
				}
			}
		}
	}
}

func must(t *testing.T) func(Ticket, error) Ticket {
	return func(ticket Ticket, err error) Ticket {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
}

// twoPartitions is a log that was killed after records were appended to segments and before a checkpoint. Both partitions
// have the same offsets.
func twoPartitions(t *testing.T) (o Options, logs [2]string) {
	o = testOptions(filepath.Join(t.TempDir(), "data"))
	o.AppendBytes = 1
	l := openLog(t, o)
	for i, p := range createTopic(t, l, "a", 2, record.None).Partitions() {
		for n := range 4 {
			put(t, l, p, fmt.Sprintf("%d of %d", n, i))
			if err := l.appendPartition(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "killed")
	if err := os.CopyFS(dir, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	o.Dir = dir
	for i := range logs {
		list, err := files.List(vfs.OS, filepath.Join(topicsDir(dir), partitionName("a", int32(i))))
		if err != nil || len(list) != 1 || list[0].Bytes == 0 {
			t.Fatalf("segments %v, %v", list, err)
		}
		logs[i] = list[0].Path
	}
	return o, logs
}

// A block that was never synced may have what another partition's segment had there.
func TestBatchesOfAnotherPartition(t *testing.T) {
	for bytes := 0; bytes < 4; bytes++ {
		o, logs := twoPartitions(t)
		foreign, err := os.ReadFile(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		foreign = foreign[:len(foreign)/4*(bytes+1)]
		if err := os.WriteFile(logs[1], foreign, 0o640); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, o)
		if d := l.Recovered().Damages; len(d) > 0 {
			t.Errorf("damages %q", d)
		}
		for i, p := range l.Topic("a").Partitions() {
			equal(t, values(t, p, 0, 1000), []string{fmt.Sprintf("0 of %d", i), fmt.Sprintf("1 of %d", i), fmt.Sprintf("2 of %d", i), fmt.Sprintf("3 of %d", i)})
		}
		if offset := put(t, l, l.Topic("a").Partitions()[1], "next"); offset != 4 {
			t.Errorf("offset %d", offset)
		}
	}
}

// What lies behind the journal's end is kept: a disk that lied about a sync may have lost the frame.
func TestBatchesBehindTheJournal(t *testing.T) {
	o, logs := twoPartitions(t)
	log, err := os.ReadFile(logs[1])
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := record.Next(log)
	if err != nil {
		t.Fatal(err)
	}
	extra := append(record.Batch(nil), b...)
	record.SetBaseOffset(extra, 4)
	if err := os.WriteFile(logs[1], append(log, extra...), 0o640); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, o)
	p := l.Topic("a").Partitions()[1]
	equal(t, values(t, p, 0, 1000), []string{"0 of 1", "1 of 1", "2 of 1", "3 of 1", "0 of 1"})
	if r := l.Recovered(); len(r.Damages) > 0 {
		t.Errorf("damages %q, notes %q", r.Damages, r.Notes)
	}
}
