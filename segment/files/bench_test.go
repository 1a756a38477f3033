package files

import (
	"path/filepath"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func openBenchmark(b *testing.B) *Chain {
	b.Helper()
	c, _, err := Open(Options{FS: vfs.OS, Dir: filepath.Join(b.TempDir(), "topic-0")}, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkAppend appends batches of 64 KiB, without syncs.
func BenchmarkAppend(b *testing.B) {
	c := openBenchmark(b)
	x := makeBatch(0, 64, 64<<10, 1)
	b.SetBytes(int64(len(x)))
	b.ReportAllocs()
	for b.Loop() {
		record.SetBaseOffset(x, c.NextOffset())
		if err := c.Append(x); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkRead(b *testing.B, batches, batchBytes, maxBytes int, sequential bool) {
	c := openBenchmark(b)
	x := makeBatch(0, 64, batchBytes, 1)
	for range batches {
		record.SetBaseOffset(x, c.NextOffset())
		if err := c.Append(x); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Sync(); err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, maxBytes+2*batchBytes+8192)
	b.ReportAllocs()
	offset, total := int64(0), int64(0)
	for b.Loop() {
		p, err := c.Read(dst, offset, maxBytes, all)
		if err != nil {
			b.Fatal(err)
		}
		total += int64(len(p))
		for sequential && len(p) > 0 {
			y, rest, _ := record.Next(p)
			offset, p = y.NextOffset(), rest
		}
		if !sequential {
			offset += 64 * 7919
		}
		offset %= c.NextOffset()
	}
	b.SetBytes(total / int64(b.N))
}

func BenchmarkReadSequential64KiB(b *testing.B) { benchmarkRead(b, 2000, 64<<10, 64<<10, true) }
func BenchmarkReadSequential4KiB(b *testing.B)  { benchmarkRead(b, 16000, 4<<10, 64<<10, true) }
func BenchmarkReadRandom64KiB(b *testing.B)     { benchmarkRead(b, 2000, 64<<10, 64<<10, false) }
func BenchmarkReadRandom4KiB(b *testing.B)      { benchmarkRead(b, 16000, 4<<10, 4<<10, false) }
