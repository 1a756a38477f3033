package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is how a batch's records are compressed, with Kafka's numbers.
type Codec uint8

// Kafka's codecs, as in the low three bits of a batch's attributes.
const (
	None   Codec = 0
	Gzip   Codec = 1
	Snappy Codec = 2
	LZ4    Codec = 3
	Zstd   Codec = 4
)

var codecNames = [...]string{None: "none", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

// String is the name that Kafka's compression.type uses.
func (c Codec) String() string {
	if int(c) < len(codecNames) {
		return codecNames[c]
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// ParseCodec is the inverse of String: none, gzip, snappy, lz4 or zstd.
func ParseCodec(name string) (Codec, error) {
	if i := slices.Index(codecNames[:], name); i >= 0 {
		return Codec(i), nil
	}
	return None, fmt.Errorf("unknown compression %q: use none, gzip, snappy, lz4 or zstd", name)
}

var (
	// ErrTooLarge says that a batch decompresses to more than the decoder allows.
	ErrTooLarge = errors.New("decompresses to more than allowed")

	errUnknownCodec = malformed("unknown codec")
	errSnappyFrame  = malformed("snappy blocks don't fill the batch")
	errLZ4Frame     = malformed("not an LZ4 frame that Kafka reads")
)

// Kafka's snappy is the stream of Java's snappy library (SnappyOutputStream), not Google's framing: a header, then
// blocks that each stand alone:
//
//	 0  byte[8]  0x82 "SNAPPY" 0x00
//	 8  int32    version, 1
//	12  int32    oldest version that can read it, 1
//	16           blocks: int32 length, and a raw snappy block of that length
//
// Kafka's Java reader takes a raw block without any header too, as some clients write it (SnappyInputStream falls back
// to it), and so do we; but we write the framed form, the one every reader streams in bounded memory.
var snappyHeader = []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")

const (
	snappyMagicBytes = 8
	snappyBlockBytes = 32 << 10 // as Java writes it; readers need a buffer of this size
)

// An LZ4 frame as Kafka reads it (Lz4BlockInputStream.java; LZ4 Frame Format 1.6.1), little endian:
//
//	0  uint32  magic 0x184d2204
//	4  byte    FLG: bits 6-7 version 1, 5 blocks stand alone (must be set), 4 block checksums, 3 content size present,
//	           2 content checksum, 0 dictionary id
//	5  byte    BD: bits 4-6 greatest block size: 4 = 64 KiB, 5 = 256 KiB, 6 = 1 MiB, 7 = 4 MiB
//	6          [uint64 content size] and one byte of the header's xxHash
//	           blocks: uint32 length, top bit set when the block is stored uncompressed; the block; [uint32 checksum]
//	           uint32 0, and [uint32 content checksum]
//
// Checksums are neither written nor read: the batch's CRC covers the same bytes.
var lz4Header = []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82} // 64 KiB blocks that stand alone; 0x82 is the xxHash byte

const (
	lz4BlockBytes      = 64 << 10
	lz4Stored          = 1 << 31
	lz4FlgVersion      = 0x40
	lz4FlgIndependent  = 0x20
	lz4FlgBlockHash    = 0x10
	lz4FlgContentSize  = 0x08
	lz4FlgVersionMask  = 0xc0
	lz4FlgNotSupported = 0x03 // reserved bit, dictionary id
	lz4MaxRatio        = 255  // one byte of an LZ4 block stands for at most so many
)

// compressors holds what writing needs; each is set up when first used, and none starts a goroutine.
type compressors struct {
	zstd *zstd.Encoder
	gzip *gzip.Writer
	lz4  *lz4.Compressor
}

// compress appends src, compressed with c, to dst. Errors don't happen with the codecs that exist.
func (k *compressors) compress(dst, src []byte, c Codec) ([]byte, error) {
	switch c {
	case None:
		return append(dst, src...), nil
	case Gzip:
		return k.compressGzip(dst, src)
	case Snappy:
		return compressSnappy(dst, src), nil
	case LZ4:
		return k.compressLZ4(dst, src)
	case Zstd:
		if k.zstd == nil {
			enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
				zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(64<<10), zstd.WithEncoderCRC(false))
			if err != nil {
				return dst, fmt.Errorf("set up zstd: %w", err)
			}
			k.zstd = enc
		}
		return k.zstd.EncodeAll(src, dst), nil
	default:
		return dst, errUnknownCodec
	}
}

func (k *compressors) compressGzip(dst, src []byte) ([]byte, error) {
	out := bytes.NewBuffer(dst)
	if k.gzip == nil {
		k.gzip = gzip.NewWriter(out)
	} else {
		k.gzip.Reset(out)
	}
	if _, err := k.gzip.Write(src); err != nil {
		return dst, fmt.Errorf("gzip: %w", err)
	}
	if err := k.gzip.Close(); err != nil {
		return dst, fmt.Errorf("gzip: %w", err)
	}
	k.gzip.Reset(nil) // don't keep dst alive
	return out.Bytes(), nil
}

func compressSnappy(dst, src []byte) []byte {
	dst = append(dst, snappyHeader...)
	for len(src) > 0 {
		n := min(len(src), snappyBlockBytes)
		room := snappy.MaxEncodedLen(n)
		dst = slices.Grow(dst, 4+room)
		at := len(dst) + 4
		block := snappy.Encode(dst[at:at+room], src[:n]) // in place: it has the room that it asks for
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(block)))
		dst = dst[:at+len(block)]
		src = src[n:]
	}
	return dst
}

func (k *compressors) compressLZ4(dst, src []byte) ([]byte, error) {
	if k.lz4 == nil {
		k.lz4 = new(lz4.Compressor)
	}
	dst = append(dst, lz4Header...)
	for len(src) > 0 {
		n := min(len(src), lz4BlockBytes)
		dst = slices.Grow(dst, 4+n)
		at := len(dst) + 4
		// Room for less than n bytes: a block that doesn't shrink gives 0 or an error, and is stored.
		size, err := k.lz4.CompressBlock(src[:n], dst[at:at+n-1])
		if err != nil || size == 0 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(n)|lz4Stored)
			dst = append(dst, src[:n]...)
		} else {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
			dst = dst[:at+size]
		}
		src = src[n:]
	}
	return append(dst, 0, 0, 0, 0), nil
}

// decompressors holds what reading needs; each is set up when first used, and none starts a goroutine.
type decompressors struct {
	maxBytes int
	zstd     *zstd.Decoder
	gzip     *gzip.Reader
	gzipSrc  bytes.Reader
}

// decompress appends src's content to dst, at most maxBytes of it. src comes from anywhere.
func (k *decompressors) decompress(dst, src []byte, c Codec) ([]byte, error) {
	switch c {
	case Gzip:
		return k.decompressGzip(dst, src)
	case Snappy:
		return decompressSnappy(dst, src, k.maxBytes)
	case LZ4:
		return decompressLZ4(dst, src, k.maxBytes)
	case Zstd:
		return k.decompressZstd(dst, src)
	default:
		return dst, errUnknownCodec
	}
}

// zstdWindowBytes is the window that any reader must be able to handle (RFC 8878, section 3.1.1.1.2). The library
// counts it against its limit of memory, and encoders that stream declare windows greater than their content.
const zstdWindowBytes = 8 << 20

func (k *decompressors) decompressZstd(dst, src []byte) ([]byte, error) {
	if k.zstd == nil {
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(uint64(max(k.maxBytes, zstdWindowBytes))))
		if err != nil {
			return dst, fmt.Errorf("set up zstd: %w", err)
		}
		k.zstd = dec
	}
	start := len(dst)
	out, err := k.zstd.DecodeAll(src, dst)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) || len(out)-start > k.maxBytes {
		return dst, ErrTooLarge
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}

func (k *decompressors) decompressGzip(dst, src []byte) ([]byte, error) {
	k.gzipSrc.Reset(src)
	defer k.gzipSrc.Reset(nil) // don't keep src alive
	if k.gzip == nil {
		k.gzip = new(gzip.Reader)
	}
	if err := k.gzip.Reset(&k.gzipSrc); err != nil {
		return dst, err
	}
	start := len(dst)
	for {
		dst = slices.Grow(dst, 512)
		n, err := k.gzip.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst)-start > k.maxBytes {
			return dst, ErrTooLarge
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func decompressSnappy(dst, src []byte, maxBytes int) ([]byte, error) {
	if !bytes.HasPrefix(src, snappyHeader[:snappyMagicBytes]) {
		return appendSnappyBlock(dst, src, maxBytes)
	}
	if len(src) < len(snappyHeader) {
		return dst, errSnappyFrame
	}
	src = src[len(snappyHeader):]
	start := len(dst)
	for len(src) > 0 {
		if len(src) < 4 {
			return dst, errSnappyFrame
		}
		n := int64(binary.BigEndian.Uint32(src))
		src = src[4:]
		if n > int64(len(src)) {
			return dst, errSnappyFrame
		}
		var err error
		if dst, err = appendSnappyBlock(dst, src[:n], maxBytes-(len(dst)-start)); err != nil {
			return dst, err
		}
		src = src[n:]
	}
	return dst, nil
}

// appendSnappyBlock appends a raw block's content, at most maxBytes.
func appendSnappyBlock(dst, block []byte, maxBytes int) ([]byte, error) {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return dst, err
	}
	if n > maxBytes {
		return dst, ErrTooLarge
	}
	dst = slices.Grow(dst, n)
	if _, err := snappy.Decode(dst[len(dst):len(dst)+n], block); err != nil { // in place: it has the room
		return dst, err
	}
	return dst[:len(dst)+n], nil
}

func decompressLZ4(dst, src []byte, maxBytes int) ([]byte, error) {
	flg, blockBytes, src, err := lz4FrameHeader(src)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	for {
		if len(src) < 4 {
			return dst, errLZ4Frame
		}
		word := binary.LittleEndian.Uint32(src)
		src = src[4:]
		if word == 0 { // what may follow is the content checksum
			return dst, nil
		}
		n := int64(word &^ lz4Stored)
		if n > int64(blockBytes) || n > int64(len(src)) {
			return dst, errLZ4Frame
		}
		block := src[:n]
		src = src[n:]
		if dst, err = appendLZ4Block(dst, block, word&lz4Stored != 0, blockBytes, maxBytes-(len(dst)-start)); err != nil {
			return dst, err
		}
		if flg&lz4FlgBlockHash != 0 {
			if len(src) < 4 {
				return dst, errLZ4Frame
			}
			src = src[4:]
		}
	}
}

// lz4FrameHeader checks a frame's header and returns what follows it.
func lz4FrameHeader(src []byte) (flg byte, blockBytes int, rest []byte, err error) {
	if len(src) < len(lz4Header) || !bytes.HasPrefix(src, lz4Header[:4]) {
		return 0, 0, nil, errLZ4Frame
	}
	flg = src[4]
	bd := src[5]
	if flg&lz4FlgVersionMask != lz4FlgVersion || flg&lz4FlgIndependent == 0 || flg&lz4FlgNotSupported != 0 || bd>>4 < 4 || bd>>4 > 7 {
		return 0, 0, nil, errLZ4Frame
	}
	size := len(lz4Header)
	if flg&lz4FlgContentSize != 0 {
		size += 8
	}
	if len(src) < size {
		return 0, 0, nil, errLZ4Frame
	}
	return flg, 1 << (8 + 2*(bd>>4)), src[size:], nil
}

// appendLZ4Block appends one block's content, at most blockBytes and maxBytes.
func appendLZ4Block(dst, block []byte, stored bool, blockBytes, maxBytes int) ([]byte, error) {
	if stored {
		if len(block) > maxBytes {
			return dst, ErrTooLarge
		}
		return append(dst, block...), nil
	}
	room := min(blockBytes, lz4MaxRatio*len(block)+64)
	limited := room > maxBytes
	room = min(room, maxBytes)
	dst = slices.Grow(dst, room)
	n, err := lz4.UncompressBlock(block, dst[len(dst):len(dst)+room])
	if err != nil {
		if limited { // the library says the same of a damaged block and of too little room
			return dst, fmt.Errorf("%w, or %w", ErrTooLarge, err)
		}
		return dst, err
	}
	return dst[:len(dst)+n], nil
}
