package files

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const all = int64(math.MaxInt64)

// makeBatch is a batch of n records of about size bytes in all.
func makeBatch(base int64, n, size int, timestamp int64) record.Batch {
	var b record.Builder
	rnd := rand.New(rand.NewPCG(uint64(base), uint64(size)))
	for i := range n {
		value := make([]byte, size/n)
		for j := range value {
			value[j] = byte(rnd.Uint32())
		}
		b.Append(&record.Record{Timestamp: timestamp + int64(i), Key: fmt.Appendf(nil, "k%d", i), Value: value})
	}
	return b.Seal(base)
}

// series is count batches that follow each other, of sizes and record counts that vary.
func series(base int64, count int, seed uint64) []record.Batch {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var list []record.Batch
	for i := range count {
		n := 1 + rnd.IntN(4)
		list = append(list, makeBatch(base, n, 60+rnd.IntN(900), 1000+int64(i)*10+int64(rnd.IntN(50))))
		base += int64(n)
	}
	return list
}

func joined(list []record.Batch) []byte {
	var p []byte
	for _, b := range list {
		p = append(p, b...)
	}
	return p
}

// lazy is the real file system but for syncs, which do nothing: nobody pulls the plug here.
type lazy struct{ vfs.FS }

type lazyFile struct{ vfs.File }

func (lazyFile) Sync() error      { return nil }
func (lazy) SyncDir(string) error { return nil }
func (l lazy) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := l.FS.OpenFile(name, flag, perm)
	return lazyFile{f}, err
}

var diskFS vfs.FS = lazy{vfs.OS}

type bench struct {
	testing.TB
	o Options
}

func newBench(t testing.TB) *bench {
	return &bench{t, Options{FS: diskFS, Dir: filepath.Join(t.TempDir(), "topic-0"), SegmentBytes: 8 << 10, IndexIntervalBytes: 512}}
}

func (b *bench) open(end int64) (*Chain, Recovery) {
	b.Helper()
	c, r, err := Open(b.o, end)
	if err != nil {
		b.Fatalf("open: %v", err)
	}
	b.Cleanup(func() { c.Close() })
	return c, r
}

func (b *bench) append(c *Chain, list []record.Batch) {
	b.Helper()
	for _, x := range list {
		if err := c.Append(x); err != nil {
			b.Fatalf("append at %d: %v", x.BaseOffset(), err)
		}
	}
}

func (b *bench) sync(c *Chain) {
	b.Helper()
	if err := c.Sync(); err != nil {
		b.Fatalf("sync: %v", err)
	}
}

// filled makes a chain of the batches, synced and closed.
func (b *bench) filled(list []record.Batch) {
	b.Helper()
	c, _ := b.open(0)
	b.append(c, list)
	b.sync(c)
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
}

// readAll reads from an offset to the end and gives up at the first error.
func readAll(c *Chain, from int64, maxBytes int) ([]byte, error) {
	var all []byte
	for from < c.NextOffset() {
		p, err := c.Read(nil, from, maxBytes, math.MaxInt64)
		if err != nil {
			return all, err
		}
		if len(p) == 0 {
			return all, fmt.Errorf("nothing at offset %d below %d", from, c.NextOffset())
		}
		all = append(all, p...)
		for len(p) > 0 {
			var x record.Batch
			if x, p, err = record.Next(p); err != nil {
				return all, err
			}
			from = x.NextOffset()
		}
	}
	return all, nil
}

func (b *bench) wantContent(c *Chain, want []record.Batch) {
	b.Helper()
	for _, maxBytes := range []int{1500, 1 << 20} {
		got, err := readAll(c, c.StartOffset(), maxBytes)
		if err != nil {
			b.Fatalf("read: %v", err)
		}
		if !bytes.Equal(got, joined(want)) {
			b.Fatalf("read %d bytes from offset %d, want %d others", len(got), c.StartOffset(), len(joined(want)))
		}
	}
}

// wantBytes checks that a chain counts what is in its directory, and nothing else but index entries that wait in memory.
func (b *bench) wantBytes(c *Chain) {
	b.Helper()
	waiting := int64(0)
	for _, s := range c.segments {
		waiting += int64(len(s.pending)) * (indexEntryBytes + timeEntryBytes)
	}
	if got, want := c.Bytes(), b.diskBytes(); got < want || got > want+waiting {
		b.Errorf("%d bytes are counted, the files have %d and %d wait", got, want, waiting)
	}
}

// lastFile is the path of the newest segment's file with the suffix.
func (b *bench) lastFile(suffix string) string {
	b.Helper()
	list, err := List(vfs.OS, b.o.Dir)
	if err != nil || len(list) == 0 {
		b.Fatalf("no segments: %v", err)
	}
	return stem(b.o.Dir, list[len(list)-1].Base) + suffix
}

func (b *bench) edit(path string, fn func(p []byte) []byte) {
	b.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, fn(p), 0o600); err != nil {
		b.Fatal(err)
	}
}

// verify does what Kafka's DumpLogSegments does to all files in the directory, and more: every entry must match, logs
// must hold batches in order to the last byte.
func (b *bench) verify() {
	b.Helper()
	list, err := List(vfs.OS, b.o.Dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, seg := range list {
		if err := verifySegment(seg); err != nil {
			b.Errorf("%s: %v", seg.Path, err)
		}
	}
}

func verifySegment(seg SegmentInfo) error {
	name := seg.Path[:len(seg.Path)-len(logSuffix)]
	log, err := os.ReadFile(seg.Path)
	if err != nil {
		return err
	}
	type at struct {
		b   record.Batch
		pos int64
	}
	byLast := map[int64]at{}
	for p := log; len(p) > 0; {
		x, rest, err := record.Next(p)
		if err == nil {
			err = x.Verify()
		}
		if err != nil {
			return fmt.Errorf("at %d of %d: %w", len(log)-len(p), len(log), err)
		}
		a := at{x, int64(len(log) - len(p))}
		byLast[x.LastOffset()] = a
		p = rest
	}
	index, err1 := os.ReadFile(name + indexSuffix)
	times, err2 := os.ReadFile(name + timeSuffix)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if len(index)%indexEntryBytes != 0 || len(times)%timeEntryBytes != 0 {
		return fmt.Errorf("index of %d bytes, time index of %d", len(index), len(times))
	}
	x := indexFile{bytes.NewReader(index), seg.Base, make([]byte, timeEntryBytes)}
	prev := int64(-1)
	for i := range int64(len(index) / indexEntryBytes) {
		last, pos, err := x.entry(i)
		if a, ok := byLast[last]; err != nil || !ok || a.pos != pos || last <= prev {
			return fmt.Errorf("index entry %d: offset %d at %d after %d: %v", i, last, pos, prev, err)
		}
		prev = last
	}
	x.r = bytes.NewReader(times)
	prevTime, prevAt := int64(-1), int64(-1)
	for i := range int64(len(times) / timeEntryBytes) {
		ts, last, err := x.timeEntry(i)
		if a, ok := byLast[last]; err != nil || !ok || a.b.MaxTimestamp() != ts || ts <= prevTime || last <= prevAt {
			return fmt.Errorf("time index entry %d: %d at offset %d after %d at %d: %v", i, ts, last, prevTime, prevAt, err)
		}
		prevTime, prevAt = ts, last
	}
	return nil
}
