package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// checkOptions are those of a chain that was closed at its end.
func (b *bench) checkOptions(end int64) CheckOptions {
	return CheckOptions{FS: b.o.FS, Dir: b.o.Dir, End: end}
}

func (b *bench) check(o CheckOptions) (problems []string, c Checked) {
	b.Helper()
	c, err := Check(o, func(p Problem) {
		s := fmt.Sprintf("%s %s %s", p.Severity, p.Kind, filepath.Base(p.Path))
		if p.From >= 0 {
			s += fmt.Sprintf(" %d-%d", p.From, p.To)
		}
		problems = append(problems, s)
	})
	if err != nil {
		b.Fatal(err)
	}
	return problems, c
}

func (b *bench) wantProblems(o CheckOptions, want ...string) {
	b.Helper()
	if got, _ := b.check(o); strings.Join(got, "\n") != strings.Join(want, "\n") {
		b.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (b *bench) repair(o RepairOptions) (actions []Action) {
	b.Helper()
	o.Say = func(a Action) { actions = append(actions, a) }
	if err := Repair(o); err != nil {
		b.Fatalf("repair: %v", err)
	}
	return actions
}

// seen is what a viewer finds, by base offset.
func seen(b *bench, fsys vfs.FS) map[int64]string {
	b.Helper()
	got := map[int64]string{}
	for from := int64(0); ; {
		v, err := OpenReadOnly(fsys, b.o.Dir)
		if err != nil {
			b.Fatal(err)
		}
		err = v.Batches(from, func(x record.Batch, _ Place) error {
			got[x.BaseOffset()], from = string(x), x.NextOffset()
			return nil
		})
		var bad *DamageError
		if !errors.As(err, &bad) {
			if err != nil {
				b.Fatal(err)
			}
			return got
		}
		if bad.Resume == math.MaxInt64 {
			return got
		}
		from = bad.Resume
	}
}

func TestCheckGood(t *testing.T) {
	b := newBench(t)
	list := series(0, 60, 9)
	b.filled(list)
	end := list[len(list)-1].NextOffset()
	// The index interval is not the usual one, so there are more entries than Check would expect, all of them right.
	b.wantProblems(b.checkOptions(end))
	_, c := b.check(b.checkOptions(end))
	if c.Next != end || c.Batches != 60 || c.Segments < 3 || c.Files != 3*c.Segments || c.Records != end {
		t.Errorf("%+v of %d", c, end)
	}
	// A segment that was to be removed may be damaged, or have no indexes any more.
	logs, err := List(b.o.FS, b.o.Dir)
	if err != nil || os.Remove(stem(b.o.Dir, 0)+indexSuffix) != nil {
		t.Fatal(err)
	}
	b.wantProblems(CheckOptions{FS: b.o.FS, Dir: b.o.Dir, End: end, Start: logs[1].Base}, fmt.Sprintf("note below-start 00000000000000000000.log 0-%d", logs[1].Base))
	// What the state knows to be below the log start isn't missed.
	b.wantProblems(CheckOptions{FS: b.o.FS, Dir: b.o.Dir + "x", End: 100, Start: 100})
	b.wantProblems(CheckOptions{FS: b.o.FS, Dir: b.o.Dir + "x", End: 100, Start: 40}, "damage missing topic-0x 40-100")
}

// A hole, the log start, the journal and the recovery point: who has which offsets.
func TestCheckWhoHasWhat(t *testing.T) {
	b := newBench(t)
	c, _ := b.open(0)
	first := series(0, 4, 1)
	b.append(c, first)
	hole := c.NextOffset()
	if err := c.SkipTo(100); err != nil {
		t.Fatal(err)
	}
	second := series(100, 4, 2)
	b.append(c, second)
	b.sync(c)
	end := c.NextOffset()
	c.Close()
	o := b.checkOptions(end)
	name, last := "00000000000000000000.log", "00000000000000000100.log"
	b.wantProblems(o, fmt.Sprintf("note hole %s %d-100", name, hole))
	o.Journal = Ranges{{50, 60}, {end, end + 5}}
	b.wantProblems(o, fmt.Sprintf("note hole %s %d-50", name, hole), fmt.Sprintf("fault hole %s 50-60", name), fmt.Sprintf("note hole %s 60-100", name),
		fmt.Sprintf("note journal-only %s %d-%d", last, end, end+5))
	o.Journal, o.Start = Ranges{{end + 2, end + 5}}, 100
	b.wantProblems(o, fmt.Sprintf("note below-start %s 0-100", name), fmt.Sprintf("damage missing %s %d-%d", last, end, end+2), fmt.Sprintf("note journal-only %s %d-%d", last, end+2, end+5))
	o.Journal, o.Start, o.End = nil, 0, end+3
	b.wantProblems(o, fmt.Sprintf("note hole %s %d-100", name, hole), fmt.Sprintf("damage missing %s %d-%d", last, end, end+3))
}

// What can't be read is damage as far as it goes, and no further.
func TestCheckUnreadable(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes = 1 << 20
	list := series(0, 60, 9)
	b.filled(list)
	end := list[len(list)-1].NextOffset()
	o := b.checkOptions(end)
	o.FS = badBlock{vfs.OS, 8192}
	got, _ := b.check(o)
	if len(got) != 1 || !strings.HasPrefix(got[0], "damage batch") {
		t.Fatalf("%q", got)
	}
	actions := b.repair(RepairOptions{CheckOptions: o})
	if len(actions) == 0 {
		t.Fatal("nothing done")
	}
	o.FS = vfs.OS
	got, c := b.check(o)
	if len(got) != 2 || !strings.HasPrefix(got[0], "note hole") || !strings.HasPrefix(got[1], "note set-aside") || c.Batches < 40 || c.Next != end {
		t.Errorf("%q, %+v", got, c)
	}
}

// badBlock is a file system with a block of 4 KiB that can't be read in each log file.
type badBlock struct {
	vfs.FS
	at int64
}

type badFile struct {
	vfs.File
	at int64
}

func (f badBlock) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err == nil && strings.HasSuffix(name, "00000.log") {
		return badFile{file, f.at}, nil
	}
	return file, err
}

func (f badFile) ReadAt(p []byte, off int64) (int, error) {
	if off < f.at+4096 && off+int64(len(p)) > f.at {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, off)
}

// spoiltChain is a chain with damage in it, in a file system in memory: what the journal has of it, and how to repair it.
func spoiltChain(t *testing.T) (b *bench, o RepairOptions, m *vfs.Mem) {
	m = vfs.NewMem(vfs.MemOptions{})
	if err := errors.Join(m.MkdirAll("/topics", 0o750), m.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	b = &bench{t, Options{FS: m, Dir: "/topics/t-0", SegmentBytes: 16 << 10, IndexIntervalBytes: 512}}
	list := series(0, 60, 9)
	b.filled(list)
	for _, i := range []int{0, 5, 21, 22, 40} {
		b.spoilIn(m, list[i])
	}
	o = RepairOptions{CheckOptions: b.checkOptions(list[len(list)-1].NextOffset()), Say: func(Action) {}}
	for _, x := range list[20:30] {
		o.Journal = o.Journal.Add(x.BaseOffset(), x.NextOffset())
	}
	o.Fill = func(from, to int64, fn func(record.Batch) error) error {
		for _, x := range list[20:30] {
			if x.BaseOffset() >= from && x.NextOffset() <= to {
				if err := fn(x); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return b, o, m
}

// spoilIn flips a bit of a batch, wherever it is.
func (b *bench) spoilIn(fsys vfs.FS, x record.Batch) {
	b.Helper()
	logs, err := List(fsys, b.o.Dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range logs {
		p, err := vfs.ReadFile(fsys, s.Path, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		at := strings.Index(string(p), string(x))
		if at < 0 {
			continue
		}
		f, err := fsys.OpenFile(s.Path, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteAt([]byte{p[at+record.HeaderBytes+3] ^ 1}, int64(at+record.HeaderBytes+3))
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// A repair that is interrupted anywhere, by an error or by the power, loses nothing that could be read, and the next one ends well.
func TestRepairInterrupted(t *testing.T) {
	for n := 1; ; n++ {
		b, o, m := spoiltChain(t)
		end, before := o.End, seen(b, m)
		count := 0
		o.FS = &vfs.Faulty{FS: m, Before: func(op vfs.Op, _ string) (int, error) {
			if op == vfs.OpRead {
				return 0, nil
			}
			if count++; count >= n {
				return 10, syscall.EIO
			}
			return 0, nil
		}}
		err := Repair(o)
		for try := range 5 {
			after := m.Clone()
			if rng := rand.New(rand.NewPCG(uint64(n), uint64(try))); try > 0 {
				after.PowerCut(rng, []int{4096, 16384}[try%2])
			}
			name := fmt.Sprintf("operation %d, end %d", n, try)
			now := seen(b, after)
			for offset, x := range before {
				if now[offset] != x {
					t.Fatalf("%s: the batch at offset %d is gone", name, offset)
				}
			}
			o := o
			o.FS = after
			b.repair(o)
			got, c := b.check(o.CheckOptions)
			for _, p := range got {
				if !strings.HasPrefix(p, "note hole") && !strings.HasPrefix(p, "note set-aside") {
					t.Errorf("%s: %s", name, p)
				}
			}
			if c.Batches != 57 || c.Next != end {
				t.Fatalf("%s: %+v", name, c)
			}
		}
		if err == nil {
			if n < 20 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
	}
}

// Check holds the same, however much there is to read.
func TestCheckMemory(t *testing.T) {
	b := newBench(t)
	b.o.SegmentBytes = 1 << 20
	b.filled(series(0, 10000, 3))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, c := b.check(b.checkOptions(0))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20*uint64(c.Segments) {
		t.Errorf("%d bytes allocated for %d segments", got, c.Segments)
	}
}

func BenchmarkCheck(b *testing.B) {
	h := newBench(b)
	h.o.SegmentBytes = 64 << 20
	c, _ := h.open(0)
	x := makeBatch(0, 100, 20000, 1)
	for range 256 << 20 / len(x) {
		record.SetBaseOffset(x, c.NextOffset())
		if err := c.Append(x); err != nil {
			b.Fatal(err)
		}
	}
	h.sync(c)
	c.Close()
	for b.Loop() {
		_, c := h.check(h.checkOptions(0))
		b.SetBytes(c.Bytes)
	}
}
