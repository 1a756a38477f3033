package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// crashFS is a file system in memory that forgets at a crash what was not synced, or not: any part of it may have
// reached the disk, in pieces of a block. A sync that fails drops such parts for good, and the next one succeeds.
type crashFS struct {
	vfs.FS
	rnd   *rand.Rand
	block int

	mu       sync.Mutex
	names    map[string]*node // current
	durable  map[string]*node
	dirs     map[string]bool // value: durable
	journal  []nameOp        // since the last sync of that directory
	failSync bool            // the next Sync of a file fails
}

type node struct {
	data    []byte // as seen by processes
	flash   []byte
	pending []writeOp
}

type writeOp struct {
	at   int64 // -1: truncate to size
	data []byte
	size int64
}

type nameOp struct {
	dir   string
	apply func(map[string]*node)
}

func newCrashFS(seed uint64, block int) *crashFS {
	return &crashFS{
		rnd: rand.New(rand.NewPCG(seed, 3)), block: block,
		names: map[string]*node{}, durable: map[string]*node{}, dirs: map[string]bool{"/": true},
	}
}

func (op writeOp) on(p []byte) []byte {
	if op.at < 0 {
		if int64(len(p)) > op.size {
			return p[:op.size:op.size]
		}
		return append(p, make([]byte, op.size-int64(len(p)))...)
	}
	if need := op.at + int64(len(op.data)); int64(len(p)) < need {
		p = append(p, make([]byte, need-int64(len(p)))...)
	}
	copy(p[op.at:], op.data)
	return p
}

// pieces splits a write at block boundaries.
func (op writeOp) pieces(block int) (list []writeOp) {
	if op.at < 0 {
		return []writeOp{op}
	}
	for at, p := op.at, op.data; len(p) > 0; {
		n := min(len(p), block-int(at%int64(block)))
		list = append(list, writeOp{at: at, data: p[:n]})
		at, p = at+int64(n), p[n:]
	}
	return list
}

// settle lets a random part of what is pending reach the flash and forgets the rest.
func (c *crashFS) settle(n *node) {
	chance := c.rnd.IntN(5) // of 4: nothing, some, all
	for _, op := range n.pending {
		for _, piece := range op.pieces(c.block) {
			if c.rnd.IntN(4) < chance {
				n.flash = piece.on(bytes.Clone(n.flash))
			}
		}
	}
	n.pending = nil
}

// crash is a power cut. All files are closed by it.
func (c *crashFS) crash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range c.journal[:c.rnd.IntN(len(c.journal)+1)] {
		op.apply(c.durable)
	}
	c.journal = nil
	c.names = map[string]*node{}
	for _, dir := range slices.Sorted(maps.Keys(c.dirs)) { // sorted, so that a seed always does the same
		if !c.dirs[dir] && c.rnd.IntN(2) == 0 {
			delete(c.dirs, dir)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.durable)) {
		n := c.durable[name]
		if _, ok := c.dirs[filepath.Dir(name)]; !ok {
			continue
		}
		c.settle(n)
		c.names[name] = &node{data: bytes.Clone(n.flash), flash: n.flash}
	}
	c.durable = maps.Clone(c.names)
}

func (c *crashFS) do(dir string, apply func(map[string]*node)) {
	apply(c.names)
	c.journal = append(c.journal, nameOp{dir, apply})
}

func notExist(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (c *crashFS) OpenFile(name string, flag int, _ fs.FileMode) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.names[name]
	if n == nil {
		if flag&os.O_CREATE == 0 {
			return nil, notExist("open", name)
		}
		n = &node{}
		c.do(filepath.Dir(name), func(m map[string]*node) { m[name] = n })
	}
	f := &crashFile{c, n, name}
	if flag&os.O_TRUNC != 0 {
		f.write(writeOp{at: -1})
	}
	return f, nil
}

func (c *crashFS) Remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names[name] == nil {
		return notExist("remove", name)
	}
	c.do(filepath.Dir(name), func(m map[string]*node) { delete(m, name) })
	return nil
}

func (c *crashFS) Rename(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.names[from]
	if n == nil {
		return notExist("rename", from)
	}
	c.do(filepath.Dir(from), func(m map[string]*node) { delete(m, from); m[to] = n })
	return nil
}

func (c *crashFS) MkdirAll(name string, _ fs.FileMode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.dirs[name]; !ok {
		c.dirs[name] = false
	}
	return nil
}

func (c *crashFS) SyncDir(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []nameOp
	for _, op := range c.journal {
		if op.dir == dir {
			op.apply(c.durable)
		} else {
			rest = append(rest, op)
		}
	}
	c.journal = rest
	for sub := range c.dirs {
		if filepath.Dir(sub) == dir {
			c.dirs[sub] = true
		}
	}
	return nil
}

func (c *crashFS) ReadDir(dir string) (list []fs.DirEntry, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		if filepath.Dir(name) == dir {
			list = append(list, fs.FileInfoToDirEntry(crashInfo{filepath.Base(name), int64(len(c.names[name].data))}))
		}
	}
	return list, nil
}

type crashInfo struct {
	name string
	size int64
}

func (i crashInfo) Name() string     { return i.name }
func (i crashInfo) Size() int64      { return i.size }
func (crashInfo) Mode() fs.FileMode  { return 0o600 }
func (crashInfo) ModTime() time.Time { return time.Time{} }
func (crashInfo) IsDir() bool        { return false }
func (crashInfo) Sys() any           { return nil }

type crashFile struct {
	c    *crashFS
	n    *node
	name string
}

func (f *crashFile) write(op writeOp) {
	f.n.data = op.on(f.n.data)
	f.n.pending = append(f.n.pending, op)
}

func (f *crashFile) ReadAt(p []byte, at int64) (int, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if at >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *crashFile) WriteAt(p []byte, at int64) (int, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.write(writeOp{at: at, data: bytes.Clone(p)})
	return len(p), nil
}

func (f *crashFile) Truncate(size int64) error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.write(writeOp{at: -1, size: size})
	return nil
}

func (f *crashFile) Allocate(size int64) error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if size > int64(len(f.n.data)) {
		f.write(writeOp{at: -1, size: size})
	}
	return nil
}

func (f *crashFile) Sync() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.c.failSync {
		f.c.failSync = false
		f.c.settle(f.n)
		return errIO
	}
	for _, op := range f.n.pending {
		f.n.flash = op.on(bytes.Clone(f.n.flash))
	}
	f.n.pending = nil
	return nil
}

func (f *crashFile) Size() (int64, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *crashFile) Close() error { return nil }
func (f *crashFile) Name() string { return f.name }

// TestCrashes runs a chain through power cuts, kills and failed syncs, while its beginning is dropped. What was synced is there after each, whole and right;
// beyond it is nothing but what was appended.
func TestCrashes(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { crashRun(t, seed) }) {
			return
		}
	}
}

func crashRun(t *testing.T, seed uint64) {
	block := []int{512, 4096, 16384}[seed%3]
	c := newCrashFS(seed, block)
	b := newBench(t)
	b.o.FS, b.o.Dir = c, "/topic-0"
	b.o.SegmentBytes = []int64{3000, 8000, 100_000}[seed/3%3]
	list := series(0, 120, seed)
	recorded, durable, start := int64(0), int64(0), int64(0) // recorded may be of an older checkpoint
	for range 8 {
		end := recorded
		if c.rnd.IntN(6) == 0 {
			end = NoRecoveryPoint
		}
		b.o.Start = start
		if c.rnd.IntN(4) == 0 {
			b.o.Start = 0 // the state lags behind, or is lost
		}
		chain, r, err := Open(b.o, end)
		if err != nil {
			t.Fatal(err)
		}
		next := chain.NextOffset()
		if next < durable {
			t.Fatalf("synced up to %d, after the crash opened from %d there is %d: %+v", durable, end, next, r)
		}
		if chain.StartOffset() < b.o.Start || chain.StartOffset() > start || len(r.Missing) > 0 {
			t.Fatalf("start %d, was %d, %d given: %+v", chain.StartOffset(), start, b.o.Start, r)
		}
		if end == NoRecoveryPoint {
			checkKept(t, chain, list, durable)
			return
		}
		n := checkPrefix(t, chain, list)
		o := &owner{t: t, c: chain, held: list}
		if c.rnd.IntN(4) > 0 {
			syncRecovered(o, n)
			recorded, durable = chain.SyncedOffset(), chain.SyncedOffset()
		}
		for i := n; i < len(list) && c.rnd.IntN(30) > 0; i++ {
			o.catchUp(i)
			if c.rnd.IntN(6) == 0 {
				c.failSync = c.rnd.IntN(4) == 0
				o.sync(i)
				c.failSync = false
				durable = chain.SyncedOffset()
				if c.rnd.IntN(2) == 0 {
					recorded = durable
				}
			}
			if c.rnd.IntN(10) == 0 && chain.Poisoned() == nil {
				if err := chain.Seal(); err != nil {
					t.Fatal(err)
				}
			}
			if c.rnd.IntN(10) == 0 {
				start = max(start, recorded-int64(c.rnd.IntN(20))) // never beyond the recovery point
				if err := chain.Drop(start); err != nil {
					t.Fatal(err)
				}
			}
		}
		checkPrefix(t, chain, list)
		chain.Close()
		if c.rnd.IntN(3) > 0 {
			c.crash()
		} // else only the process dies, and its page cache is what the next one reads
	}
}

// syncRecovered is the checkpoint that recovery ends with.
func syncRecovered(o *owner, n int) {
	if n > 0 {
		o.sync(n - 1)
	} else if err := o.c.Sync(); err != nil {
		o.t.Fatal(err)
	}
}

// checkPrefix checks that the chain holds the first batches of list and returns how many.
func checkPrefix(t *testing.T, c *Chain, list []record.Batch) int {
	t.Helper()
	n := 0
	for n < len(list) && list[n].NextOffset() <= c.NextOffset() {
		n++
	}
	got, err := readAll(c, c.StartOffset(), 3000)
	want := joined(stillThere(list[:n], c.StartOffset()))
	if err != nil && !errors.Is(err, ErrOffsetOutOfRange) || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes in offsets %d to %d, want %d: %v", len(got), c.StartOffset(), c.NextOffset(), len(want), err)
	}
	return n
}

// checkKept checks what is left without a recovery point: all that was synced, and of the rest only what is right.
func checkKept(t *testing.T, c *Chain, list []record.Batch, durable int64) {
	t.Helper()
	known := map[string]bool{}
	var want []byte
	for _, x := range list {
		known[string(x)] = true
		if x.LastOffset() < durable && x.LastOffset() >= c.StartOffset() {
			want = append(want, x...)
		}
	}
	var got []byte
	for from := c.StartOffset(); from < c.NextOffset(); {
		p, err := c.Read(nil, from, 1, all)
		if bad := (*DamageError)(nil); errors.As(err, &bad) && bad.Offset >= durable {
			from = bad.Resume
			continue
		}
		if err == nil && len(p) == 0 && from >= durable {
			break // an empty last segment: the hole before it is kept
		}
		if err != nil || !known[string(p)] {
			t.Fatalf("read at %d, synced up to %d: %d bytes, %v", from, durable, len(p), err)
		}
		got, from = append(got, p...), record.Batch(p).NextOffset()
	}
	if !bytes.HasPrefix(got, want) {
		t.Fatalf("%d bytes, of which the first %d were synced", len(got), len(want))
	}
}
