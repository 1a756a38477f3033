package record

import (
	"hash/crc32"
	"testing"
)

// benchRecord is what a sensor's message becomes: 100 bytes of payload, the topic as key, a 16-byte envelope.
func benchRecord() *Record {
	return &Record{
		Timestamp: 1_700_000_000_000,
		Key:       []byte("plant/line-4/motor-17/temp"),
		Value:     telemetry(1)[:100],
		Headers:   []Header{{Key: EnvelopeKey, Value: []byte("\x01abcd\x0asensor-017")}},
	}
}

// benchBatch is a batch of telemetry of about size bytes.
func benchBatch(size int) Batch {
	var b Builder
	r := benchRecord()
	for i := 0; b.Len() < size; i++ {
		r.Value = telemetry(i)
		r.Timestamp++
		b.Append(r)
	}
	return b.Seal(0)
}

func BenchmarkBuilderAppend(b *testing.B) {
	r := benchRecord()
	var builder Builder
	b.ReportAllocs()
	b.SetBytes(int64(len(r.Value)))
	for b.Loop() {
		if builder.Len() > 60<<10 {
			builder.Reset(1 << 20)
		}
		builder.Append(r)
	}
}

func BenchmarkBuilderSeal64KiB(b *testing.B) {
	r := benchRecord()
	var builder Builder
	for builder.Len() < 64<<10 {
		builder.Append(r)
	}
	b.SetBytes(int64(builder.Len()))
	for b.Loop() {
		builder.Seal(42)
	}
}

func BenchmarkDecoderRecords(b *testing.B) {
	batch := benchBatch(64 << 10)
	for _, c := range []Codec{None, Snappy, LZ4, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			in, err := NewEncoder().Compress(nil, batch, c)
			if err != nil {
				b.Fatal(err)
			}
			d := NewDecoder(0)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Records(in, func(r *Record) error { n += len(r.Value); return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch.Count()), "ns/record")
		})
	}
}

func BenchmarkCompress64KiB(b *testing.B) {
	batch := benchBatch(64 << 10)
	for _, c := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			e := NewEncoder()
			var out []byte
			b.ReportAllocs()
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				var err error
				if out, err = e.Compress(out[:0], batch, c); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(batch))/float64(len(out)), "ratio")
		})
	}
}

// BenchmarkMerge64KiB merges 16 batches of 4 KiB, as a checkpoint or a mirror lane does.
func BenchmarkMerge64KiB(b *testing.B) {
	var parts []Batch
	total, next := 0, int64(0)
	for range 16 {
		p := benchBatch(4 << 10)
		SetBaseOffset(p, next)
		next = p.NextOffset()
		parts = append(parts, p)
		total += len(p)
	}
	for _, c := range []Codec{None, Zstd} {
		b.Run(c.String(), func(b *testing.B) {
			e := NewEncoder()
			var out []byte
			b.ReportAllocs()
			b.SetBytes(int64(total))
			for b.Loop() {
				var err error
				if out, err = e.Merge(out[:0], parts, c); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(next), "ns/record")
		})
	}
}

func BenchmarkCRC64KiB(b *testing.B) {
	p := make([]byte, 64<<10)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		crc32.Checksum(p, castagnoli)
	}
}

func BenchmarkParseEnvelope(b *testing.B) {
	p := []byte("\x01abcd\x0asensor-017")
	for b.Loop() {
		if _, err := ParseEnvelope(p); err != nil {
			b.Fatal(err)
		}
	}
}
