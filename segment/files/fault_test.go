package files

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

var errIO = syscall.EIO

// faults makes operation number at of one kind fail, and watches that no file is synced after a sync of it failed.
type faults struct {
	op    vfs.Op
	at    int
	err   error
	short int // bytes that a failing write writes first

	mu       sync.Mutex
	seen     int
	hit      string
	poisoned map[string]bool
	again    []string
}

func (f *faults) fs() vfs.FS {
	f.poisoned = map[string]bool{}
	return &vfs.Faulty{FS: diskFS, Before: f.before}
}

func (f *faults) before(op vfs.Op, name string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op == vfs.OpSync && f.poisoned[name] {
		f.again = append(f.again, name)
	}
	if op == vfs.OpRemove {
		delete(f.poisoned, name)
	}
	if op != f.op {
		return 0, nil
	}
	if f.seen++; f.seen != f.at {
		return 0, nil
	}
	f.hit = name
	if op == vfs.OpSync {
		f.poisoned[name] = true
	}
	return f.short, fmt.Errorf("%s %s: %w", op, name, f.err)
}

// owner uses a chain as the log does: what it appended it holds until it is synced.
type owner struct {
	t    *testing.T
	c    *Chain
	held []record.Batch // everything, as the journal would from the last checkpoint on
	errs int
}

func (o *owner) mustRestart() {
	for range 3 {
		if o.c.Poisoned() == nil {
			break
		}
		if err := o.c.Restart(); err != nil {
			o.errs++
			if o.c.Poisoned() == nil {
				o.t.Fatalf("restart failed (%v) but the chain isn't poisoned", err)
			}
		}
	}
	if err := o.c.Poisoned(); err != nil {
		o.t.Fatalf("still poisoned: %v", err)
	}
	if o.c.NextOffset() != o.c.SyncedOffset() {
		o.t.Fatalf("after a restart: next %d, synced %d", o.c.NextOffset(), o.c.SyncedOffset())
	}
}

// catchUp appends what the chain lacks of the held batches, up to and including number n.
func (o *owner) catchUp(n int) {
	for tries := 0; ; tries++ {
		if tries > 5 {
			o.t.Fatal("one fault, but append keeps failing")
		}
		if o.appendUpTo(n) {
			return
		}
		o.errs++
		if o.c.Poisoned() != nil {
			o.mustRestart()
		}
	}
}

func (o *owner) appendUpTo(n int) bool {
	for _, x := range o.held[:n+1] {
		if x.BaseOffset() < o.c.NextOffset() {
			continue
		}
		if o.c.Append(x) != nil {
			return false
		}
	}
	return true
}

func (o *owner) sync(n int) {
	for range 3 {
		err := o.c.Sync()
		if err == nil {
			return
		}
		o.errs++
		if o.c.Poisoned() == nil {
			o.t.Fatalf("sync failed (%v) but the chain isn't poisoned", err)
		}
		if err := o.c.Append(o.held[n]); err == nil {
			o.t.Fatal("append after a failed sync")
		}
		o.mustRestart()
		o.catchUp(n)
	}
	o.t.Fatal("one fault, but sync keeps failing")
}

func (o *owner) read(want []record.Batch) {
	got, err := readAll(o.c, 0, 2000)
	if err != nil {
		o.errs++
		if de := (*DamageError)(nil); errors.As(err, &de) {
			o.t.Fatalf("a fault passed for damage: %v", err)
		}
		got, err = readAll(o.c, 0, 2000)
	}
	if err != nil || !bytes.Equal(got, joined(want)) {
		o.t.Fatalf("read %d bytes, %v, want %d", len(got), err, len(joined(want)))
	}
}

func TestSingleFaults(t *testing.T) {
	list := series(0, 60, 101)
	type kind struct {
		op    vfs.Op
		err   error
		short int
	}
	for _, k := range []kind{
		{vfs.OpOpen, errIO, 0}, {vfs.OpRead, errIO, 0}, {vfs.OpWrite, errIO, 0}, {vfs.OpWrite, errIO, 100},
		{vfs.OpWrite, syscall.ENOSPC, 0}, {vfs.OpWrite, syscall.ENOSPC, 100}, {vfs.OpSync, errIO, 0}, {vfs.OpSync, syscall.ENOSPC, 0},
		{vfs.OpSyncDir, errIO, 0}, {vfs.OpTruncate, errIO, 0}, {vfs.OpMkdir, errIO, 0}, {vfs.OpRemove, errIO, 0},
	} {
		t.Run(fmt.Sprintf("%s %v %d", k.op, k.err, k.short), func(t *testing.T) {
			for at := 1; ; at += 1 + at/20 {
				if testing.Short() {
					at += at / 3
				}
				f := &faults{op: k.op, at: at, err: k.err, short: k.short}
				if !singleFault(t, f, list) {
					if at < 2 && k.op != vfs.OpRemove {
						t.Error("the scenario has no such operation")
					}
					return
				}
			}
		})
	}
}

// singleFault runs the scenario with the fault; false if it never came to it.
func singleFault(t *testing.T, f *faults, list []record.Batch) bool {
	b := newBench(t)
	b.o.FS = f.fs()
	c, _, err := Open(b.o, 0)
	if err != nil {
		if f.hit == "" {
			t.Fatal(err)
		}
		if c, _, err = Open(b.o, 0); err != nil {
			t.Fatal(err)
		}
	}
	o := &owner{t: t, c: c, held: list}
	for i := range list {
		o.catchUp(i)
		if i%13 == 12 {
			o.sync(i)
		}
		if i%20 == 19 {
			o.read(list[:i+1])
		}
	}
	o.sync(len(list) - 1)
	o.read(list)
	b.wantBytes(c)
	if f.hit != "" && o.errs == 0 && (f.op == vfs.OpSync || f.op == vfs.OpSyncDir) {
		t.Errorf("%s %d (%s) failed and nobody heard of it", f.op, f.at, f.hit)
	}
	if len(f.again) > 0 {
		t.Errorf("%s %d: synced again after a failure: %v", f.op, f.at, f.again)
	}
	b.verify()
	c.Close()
	b.o.FS = diskFS
	c, r := b.open(c.SyncedOffset())
	if len(r.Damaged)+len(r.SetAside) != 0 || r.Cut != 0 {
		t.Errorf("%s %d: reopened: %+v", f.op, f.at, r)
	}
	b.wantContent(c, list)
	c.Close()
	return f.hit != "" && !t.Failed()
}

// TestFaultInRestart is a sync that fails and then an operation of the Restart.
func TestFaultInRestart(t *testing.T) {
	list := series(0, 60, 102)
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpTruncate, vfs.OpRemove, vfs.OpSyncDir} {
		for at := 1; ; at++ {
			b := newBench(t)
			first := &faults{op: vfs.OpSync, at: 10, err: errIO}
			second := &faults{op: op, at: -1, err: errIO}
			first.fs()
			second.fs()
			b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
				if n, err := second.before(op, name); err != nil {
					return n, err
				}
				n, err := first.before(op, name)
				if err != nil {
					second.mu.Lock()
					second.seen, second.at = 0, at
					second.mu.Unlock()
				}
				return n, err
			}}
			c, _ := b.open(0)
			o := &owner{t: t, c: c, held: list}
			for i := range list {
				o.catchUp(i)
				if i%13 == 12 {
					o.sync(i)
				}
			}
			o.sync(len(list) - 1)
			o.read(list)
			b.wantBytes(c)
			if first.hit == "" {
				t.Fatal("no sync failed")
			}
			c.Close()
			b.o.FS = diskFS
			c, r := b.open(c.SyncedOffset())
			if len(r.Damaged)+len(r.SetAside) != 0 || r.Cut != 0 {
				t.Errorf("%s %d: reopened: %+v", op, at, r)
			}
			b.wantContent(c, list)
			c.Close()
			if second.hit == "" || t.Failed() {
				break
			}
		}
	}
}

// TestWriteFailsInTheMiddle checks that a torn write leaves no trace in the file.
func TestWriteFailsInTheMiddle(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, errIO} {
		b := newBench(t)
		f := &faults{op: vfs.OpWrite, at: 3, err: err, short: 50}
		b.o.FS = f.fs()
		c, _ := b.open(0)
		list := series(0, 3, 1)
		b.append(c, list[:2])
		if e := c.Append(list[2]); !errors.Is(e, err) {
			t.Fatalf("append: %v", e)
		}
		if p, _ := os.ReadFile(b.lastFile(logSuffix)); !bytes.Equal(p, joined(list[:2])) {
			t.Errorf("%v: the file has %d bytes", err, len(p))
		}
		if poisoned := c.Poisoned() != nil; poisoned == NoSpace(err) {
			t.Errorf("%v: poisoned %v", err, poisoned)
		}
		b.wantContent(c, list[:2]) // what was appended is readable all the same
	}
}

// TestFullDiskAtIndex: the log becomes durable although its index can't be written.
func TestFullDiskAtIndex(t *testing.T) {
	b := newBench(t)
	full := true
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		if full && op == vfs.OpWrite && !strings.HasSuffix(name, logSuffix) {
			return 0, syscall.ENOSPC
		}
		return 0, nil
	}}
	b.o.SegmentBytes = 1 << 20
	c, _ := b.open(0)
	list := series(0, 50, 1)
	b.append(c, list)
	b.sync(c)
	if c.SyncedOffset() != c.NextOffset() {
		t.Errorf("synced %d of %d", c.SyncedOffset(), c.NextOffset())
	}
	b.wantContent(c, list)
	full = false
	b.append(c, series(c.NextOffset(), 1, 2))
	b.sync(c)
	if p, _ := os.ReadFile(b.lastFile(indexSuffix)); len(p) == 0 {
		t.Error("the index was never written")
	}
	b.verify()
}

// TestFaultsInRecovery opens a directory with a torn tail, damage, and a segment beyond, with one operation failing.
func TestFaultsInRecovery(t *testing.T) {
	list := series(0, 60, 103)
	end := list[40].BaseOffset()
	prepare := func() (*bench, *Chain) {
		b := newBench(t)
		b.filled(list)
		segs, _ := List(vfs.OS, b.o.Dir)
		last := segs[len(segs)-1]
		b.edit(last.Path, func(p []byte) []byte { p[len(list[0])+70] ^= 1; return append(p, 1, 2, 3) })
		b.edit(segs[len(segs)-2].Path, func(p []byte) []byte { return append(p, 1, 2, 3) })
		if err := os.WriteFile(stem(b.o.Dir, last.Base+5000)+logSuffix, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(stem(b.o.Dir, segs[0].Base) + indexSuffix); err != nil {
			t.Fatal(err)
		}
		return b, nil
	}
	b, _ := prepare()
	c, r := b.open(end)
	if len(r.Damaged) != 1 || len(r.SetAside) != 1 || len(r.RebuiltIndexes) != 1 {
		t.Fatalf("%+v", r)
	}
	next := c.NextOffset()
	n := 0
	for list[n].BaseOffset() < next {
		n++
	}
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpRead, vfs.OpWrite, vfs.OpTruncate, vfs.OpSync, vfs.OpSyncDir, vfs.OpRename, vfs.OpRemove, vfs.OpMkdir} {
		for at := 1; ; at++ {
			b, _ := prepare()
			f := &faults{op: op, at: at, err: errIO}
			b.o.FS = f.fs()
			c, _, err := Open(b.o, end)
			if err != nil { // then nothing is lost: it works the next time
				b.o.FS = diskFS
				c, _ = b.open(end)
			}
			if f.hit == "" {
				c.Close()
				break
			}
			if c.NextOffset() != next {
				t.Fatalf("%s %d (%s): next %d, want %d (open: %v)", op, at, f.hit, c.NextOffset(), next, err)
			}
			b.wantContent(c, list[:n])
			if len(f.again) > 0 {
				t.Errorf("%s %d: synced again after a failure: %v", op, at, f.again)
			}
			o := &owner{t: t, c: c, held: list[:n]}
			if c.Poisoned() != nil { // by a sync that failed: the journal has what wasn't synced
				if op != vfs.OpSync {
					t.Fatalf("%s %d (%s): %v", op, at, f.hit, c.Poisoned())
				}
				o.mustRestart()
				o.catchUp(n - 1)
			}
			more := series(next, 5, 5)
			b.append(c, more)
			b.sync(c)
			b.wantContent(c, append(list[:n:n], more...))
			end := c.NextOffset()
			c.Close()
			b.o.FS = diskFS
			c, _ = b.open(end)
			b.wantContent(c, append(list[:n:n], more...))
			c.Close()
		}
	}
}

// TestTailCannotBeCopied: without room for a side file the damage stays where it is, and a new segment goes on.
func TestTailCannotBeCopied(t *testing.T) {
	list := series(0, 20, 104)
	for _, bad := range []int{0, 5} {
		b := newBench(t)
		b.o.SegmentBytes = 1 << 20
		b.filled(list)
		flip(b, list[bad], 65)
		b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
			if op == vfs.OpWrite && strings.Contains(name, damagedInfix) {
				return 0, syscall.ENOSPC
			}
			return 0, nil
		}}
		c, r := b.open(0)
		if len(r.Damaged) != 1 || (r.Damaged[0].SideFile == "") != (bad > 0) {
			t.Fatalf("%+v", r)
		}
		if bad > 0 {
			if p, _ := os.ReadFile(r.Damaged[0].Path); len(p) != len(joined(list)) {
				t.Errorf("%d of %d bytes are left", len(p), len(joined(list)))
			}
		} else if p, _ := os.ReadFile(r.Damaged[0].SideFile); len(p) != len(joined(list)) {
			t.Errorf("%d of %d bytes are left", len(p), len(joined(list)))
		}
		b.wantContent(c, list[:bad])
		more := series(c.NextOffset(), 30, 6)
		b.append(c, more)
		b.sync(c)
		b.wantBytes(c)
		b.wantContent(c, append(list[:bad:bad], more...))
		c.Close()
		for _, end := range []int64{0, list[bad].BaseOffset(), NoRecoveryPoint} {
			c, r = b.open(end)
			if len(r.Damaged)+len(r.SetAside) != 0 {
				t.Fatalf("reopened from %d: %+v", end, r)
			}
			b.wantContent(c, append(list[:bad:bad], more...))
			c.Close()
		}
	}
}

// TestRestartBeforeFirstSync: what Open found below the recovery point survives a Restart.
func TestRestartBeforeFirstSync(t *testing.T) {
	list := series(0, 60, 105)
	for _, n := range []int{0, 1, 20, 41, 59, 60} {
		b := newBench(t)
		b.filled(list)
		end := int64(0)
		if n > 0 {
			end = list[n-1].NextOffset()
		}
		f := &faults{op: vfs.OpSync, at: -1, err: errIO}
		b.o.FS = f.fs()
		c, _ := b.open(end)
		f.at, f.seen = 1, 0
		if err := c.Sync(); (err == nil) != (n == len(list)) { // then there is nothing to sync
			t.Fatalf("sync after opening at %d: %v", end, err)
		}
		if err := c.Restart(); err != nil {
			t.Fatal(err)
		}
		if c.NextOffset() != end || c.SyncedOffset() != end {
			t.Fatalf("next %d, synced %d, want %d", c.NextOffset(), c.SyncedOffset(), end)
		}
		b.wantContent(c, list[:n])
		var size int64
		segs, _ := os.ReadDir(b.o.Dir)
		for _, e := range segs {
			info, _ := e.Info()
			size += info.Size()
		}
		if c.Bytes() != size {
			t.Errorf("Bytes %d, on disk %d", c.Bytes(), size)
		}
		b.append(c, list[n:])
		b.sync(c)
		b.wantContent(c, list)
		b.verify()
		c.Close()
		c, _ = b.open(end)
		b.wantContent(c, list)
		c.Close()
	}
}
