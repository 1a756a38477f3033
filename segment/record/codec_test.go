package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/snappy/xerial"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

func TestParseCodec(t *testing.T) {
	for c := None; c <= Zstd; c++ {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%s: %v, %v", c, got, err)
		}
	}
	for _, name := range []string{"", "ZSTD", "brotli", "codec 5"} {
		if c, err := ParseCodec(name); err == nil || !strings.Contains(err.Error(), "zstd") {
			t.Errorf("%q: %v, %v", name, c, err)
		}
	}
	if s := Codec(7).String(); s != "codec 7" {
		t.Error(s)
	}
}

// payloads are contents that codecs treat differently: empty, incompressible, highly compressible, at block borders.
func payloads() map[string][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 200_000)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	var json []byte
	for i := range 3000 {
		json = append(json, telemetry(i)...)
	}
	p := map[string][]byte{"empty": {}, "one byte": {7}, "random": random, "zeros": make([]byte, 300_000), "json": json}
	for _, n := range []int{32<<10 - 1, 32 << 10, 32<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1} {
		p[fmt.Sprint("json ", n)] = json[:n]
		p[fmt.Sprint("random ", n)] = random[:n]
	}
	return p
}

func TestCodecsRoundTrip(t *testing.T) {
	var k compressors
	d := decompressors{maxBytes: 1 << 20}
	prefix := []byte("what was there")
	for name, p := range payloads() {
		for c := Gzip; c <= Zstd; c++ {
			packed, err := k.compress(slices.Clone(prefix), p, c)
			if err != nil || !bytes.HasPrefix(packed, prefix) {
				t.Fatalf("%s, %s: %v", name, c, err)
			}
			got, err := d.decompress(slices.Clone(prefix), packed[len(prefix):], c)
			if err != nil || !bytes.HasPrefix(got, prefix) || !bytes.Equal(got[len(prefix):], p) {
				t.Fatalf("%s, %s: %d bytes, want %d, error %v", name, c, len(got)-len(prefix), len(p), err)
			}
		}
	}
}

// TestCodecLimits: exactly the limit passes, one byte more is refused by name, whatever the codec.
func TestCodecLimits(t *testing.T) {
	var k compressors
	for _, n := range []int{1, 1000, 70_000, 300_000} {
		p := payloads()["zeros"][:n]
		for c := Gzip; c <= Zstd; c++ {
			packed, err := k.compress(nil, p, c)
			if err != nil {
				t.Fatal(err)
			}
			d := decompressors{maxBytes: n}
			if got, err := d.decompress(nil, packed, c); err != nil || len(got) != n {
				t.Errorf("%s, %d bytes: got %d, error %v", c, n, len(got), err)
			}
			d = decompressors{maxBytes: n - 1}
			if _, err := d.decompress(nil, packed, c); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s, %d bytes with a limit of %d: error %v", c, n, n-1, err)
			}
		}
	}
}

// TestBombs: small input that claims or makes much output is refused without much memory.
func TestBombs(t *testing.T) {
	var k compressors
	const limit = 1 << 20
	zeros := make([]byte, 32<<20)
	bombs := map[string]struct {
		c Codec
		p []byte
	}{
		"snappy block claims 4 GiB":        {Snappy, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}},
		"snappy frame, block claims 2 GiB": {Snappy, slices.Concat(snappyHeader, []byte{0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff, 0x07, 0})},
		"zstd frame claims 1 TiB":          {Zstd, zstdClaim(1 << 40)},
		"lz4, 64 blocks of 4 MiB":          {LZ4, lz4Bomb()},
	}
	for c := Gzip; c <= Zstd; c++ {
		p, err := k.compress(nil, zeros, c)
		if err != nil {
			t.Fatal(err)
		}
		bombs[fmt.Sprintf("32 MiB of zeros in %d bytes of %s", len(p), c)] = struct {
			c Codec
			p []byte
		}{c, p}
	}
	for name, bomb := range bombs {
		d := decompressors{maxBytes: limit}
		out, err := d.decompress(nil, bomb.p, bomb.c)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if cap(out) > 4*limit {
			t.Errorf("%s: %d bytes of buffer", name, cap(out))
		}
	}
}

// zstdClaim is the start of a frame that claims a content of n bytes in a single segment.
func zstdClaim(n uint64) []byte {
	p := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}
	return append(binary.LittleEndian.AppendUint64(p, n), 0x01, 0x00, 0x00)
}

func lz4Bomb() []byte {
	block := make([]byte, lz4.CompressBlockBound(4<<20))
	var c lz4.Compressor
	n, err := c.CompressBlock(make([]byte, 4<<20), block)
	if err != nil {
		panic(err)
	}
	p := []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73}
	for range 64 {
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
		p = append(p, block[:n]...)
	}
	return append(p, 0, 0, 0, 0)
}

// TestSnappyForms: Java's stream, which we write, and the raw block, which some clients write; both as other libraries have them.
func TestSnappyForms(t *testing.T) {
	d := decompressors{maxBytes: 1 << 20}
	for name, p := range payloads() {
		ours, err := new(compressors).compress(nil, p, Snappy)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := xerial.Decode(ours); len(p) > 0 && (err != nil || !bytes.Equal(got, p)) {
			t.Errorf("%s: another reader of Java's stream: %d bytes, error %v", name, len(got), err)
		}
		for form, packed := range map[string][]byte{"raw": snappy.Encode(nil, p), "framed": xerial.Encode(nil, p)} {
			if got, err := d.decompress(nil, packed, Snappy); err != nil || !bytes.Equal(got, p) {
				t.Errorf("%s, %s: %d bytes, want %d, error %v", name, form, len(got), len(p), err)
			}
		}
	}
	// Cut and lying frames.
	packed := compressSnappy(nil, payloads()["json"][:70_000])
	for n := range len(packed) {
		got, err := d.decompress(nil, packed[:n], Snappy)
		// A cut between blocks can't be seen here; the records' count shows it.
		if err == nil && len(got)%snappyBlockBytes != 0 {
			t.Fatalf("cut at %d of %d: %d bytes without an error", n, len(packed), len(got))
		}
	}
	for _, size := range []uint32{0, uint32(len(packed)), 1 << 31, 1<<32 - 1} {
		p := slices.Clone(packed)
		binary.BigEndian.PutUint32(p[len(snappyHeader):], size)
		if _, err := d.decompress(nil, p, Snappy); err == nil {
			t.Errorf("block length %d: no error", size)
		}
	}
}

// TestLZ4Forms: frames of the library in all forms that Kafka reads, ours read by the library, and those that Kafka refuses.
func TestLZ4Forms(t *testing.T) {
	d := decompressors{maxBytes: 1 << 20}
	for name, p := range payloads() {
		ours, err := new(compressors).compress(nil, p, LZ4)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(lz4.NewReader(bytes.NewReader(ours))); err != nil || !bytes.Equal(got.Bytes(), p) {
			t.Errorf("%s: the library reads %d bytes, want %d, error %v", name, got.Len(), len(p), err)
		}
		for _, size := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb, lz4.Block4Mb} {
			for _, sums := range []bool{false, true} {
				var packed bytes.Buffer
				w := lz4.NewWriter(&packed)
				if err := w.Apply(lz4.BlockSizeOption(size), lz4.ChecksumOption(sums), lz4.BlockChecksumOption(sums), lz4.SizeOption(uint64(len(p)))); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(p); err != nil {
					t.Fatal(err)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if got, err := d.decompress(nil, packed.Bytes(), LZ4); err != nil || !bytes.Equal(got, p) {
					t.Errorf("%s, blocks of %v, checksums %v: %d bytes, want %d, error %v", name, size, sums, len(got), len(p), err)
				}
			}
		}
	}
	packed, err := new(compressors).compress(nil, payloads()["json"][:70_000], LZ4)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(packed) {
		if _, err := d.decompress(nil, packed[:n], LZ4); err == nil {
			t.Fatalf("cut at %d of %d: no error", n, len(packed))
		}
	}
	for name, damage := range map[string]func(p []byte){
		"magic":            func(p []byte) { p[0]++ },
		"version 2":        func(p []byte) { p[4] = 0xa0 },
		"dependent blocks": func(p []byte) { p[4] = 0x40 },
		"dictionary":       func(p []byte) { p[4] = 0x61 },
		"block size 3":     func(p []byte) { p[5] = 0x30 },
		"block size 8":     func(p []byte) { p[5] = 0x80 },
		"block too long":   func(p []byte) { binary.LittleEndian.PutUint32(p[7:], 65537) },
		"stored too long":  func(p []byte) { binary.LittleEndian.PutUint32(p[7:], 65537|lz4Stored) },
	} {
		p := slices.Clone(packed)
		damage(p)
		if _, err := d.decompress(nil, p, LZ4); !errors.Is(err, errLZ4Frame) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestZstdWindows: a stream of small content that declares the windows of high levels is read with a small limit.
func TestZstdWindows(t *testing.T) {
	d := decompressors{maxBytes: 64 << 10}
	p := payloads()["json"][:60_000]
	for _, window := range []int{64 << 10, 2 << 20, 8 << 20} {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil { // so that the size is unknown when the frame header is written
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := d.decompress(nil, packed.Bytes(), Zstd); err != nil || !bytes.Equal(got, p) {
			t.Errorf("window of %d: %d bytes, error %v", window, len(got), err)
		}
	}
}

// TestZstdFrame pins what we write: no checksum (the batch has one) and no window above 64 KiB, so any reader needs little memory.
func TestZstdFrame(t *testing.T) {
	var k compressors
	for _, n := range []int{1, 1000, 64 << 10, 200_000} {
		packed, err := k.compress(nil, payloads()["json"][:n], Zstd)
		if err != nil {
			t.Fatal(err)
		}
		var h zstd.Header
		if err := h.Decode(packed); err != nil {
			t.Fatal(err)
		}
		if h.HasCheckSum || h.WindowSize > 64<<10 || (h.HasFCS && h.FrameContentSize != uint64(n)) {
			t.Errorf("%d bytes: frame %+v", n, h)
		}
	}
}

// Frames that were written once by this package's codecs, read for ever.
var goldenFrames = map[Codec]string{
	Gzip:   "1f8b08000000000000ff2ace29cd4c4e5518141460007905fe2b8c000000",
	Snappy: "82534e41505059000000000100000001000000138c0118736c7569636520ee0700ee0700320700",
	LZ4:    "04224d186040821b0000007f736c7569636520070062007700c07569636520736c756963652000000000",
	Zstd:   "28b52ffd00007d000038736c7569636520015407032b0205",
}

func TestGoldenFrames(t *testing.T) {
	d := decompressors{maxBytes: 1 << 20}
	want := []byte(strings.Repeat("sluice ", 20))
	for c := Gzip; c <= Zstd; c++ {
		p, err := hex.DecodeString(goldenFrames[c])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.decompress(nil, p, c); err != nil || !bytes.Equal(got, want) {
			packed, _ := new(compressors).compress(nil, want, c)
			t.Errorf("%s: %q, error %v; now written: %x", c, got, err, packed)
		}
	}
}
