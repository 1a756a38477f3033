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

// BenchmarkOpen1000Segments opens a chain of 1,000 segments after a clean stop.
func BenchmarkOpen1000Segments(b *testing.B) {
	d, next := manySegments(b, 1000)
	d.o.FS = vfs.OS
	b.ReportAllocs()
	for b.Loop() {
		c, _, err := Open(d.o, next)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkOffsetForTime looks a time up in a chain of 1,000 segments, whose greatest times are known.
func BenchmarkOffsetForTime(b *testing.B) {
	d, next := manySegments(b, 1000)
	c, _ := d.open(next)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := c.OffsetForTime(1001, all); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// BenchmarkDrop removes one segment of 64 KiB.
func BenchmarkDrop(b *testing.B) {
	c := openBenchmark(b)
	x := makeBatch(0, 64, 64<<10, 1)
	for b.Loop() {
		b.StopTimer()
		record.SetBaseOffset(x, c.NextOffset())
		if err := c.Append(x); err != nil {
			b.Fatal(err)
		}
		if err := c.Seal(); err != nil {
			b.Fatal(err)
		}
		record.SetBaseOffset(x, c.NextOffset())
		if err := c.Append(x); err != nil {
			b.Fatal(err)
		}
		if err := c.Sync(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := c.Drop(c.Spans()[1].Base); err != nil {
			b.Fatal(err)
		}
	}
}
