package record

import "math/bits"

// Variable-length integers as in Kafka's ByteUtils: zigzag, then seven bits a byte from the lowest, the top bit set on all
// bytes but the last. Lengths, counts and offset deltas are int32 (at most 5 bytes), timestamp deltas int64 (at most 10).

const (
	maxVarintBytes  = 5
	maxVarlongBytes = 10
)

// sizeVarint is the number of bytes that appendVarint writes for v, the same for int32 and int64.
func sizeVarint(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	// (9n+64)/64 is ceil(n/7) for every n from 1 to 64, without the division.
	return (bits.Len64(u|1)*9 + 64) / 64
}

// putVarint writes v at p[i:], which must have room, and returns the index after it.
func putVarint(p []byte, i int, v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	for u >= 0x80 {
		p[i] = byte(u) | 0x80
		u >>= 7
		i++
	}
	p[i] = byte(u)
	return i + 1
}

// varint reads an int32 at p[i:] and returns it with the index after it. Malformed input, and an i that is already
// negative, give index -1: a caller may read several in a row and look at the index once, before using a length.
// One and two bytes, nearly all there are, take the short way.
func varint(p []byte, i int) (int, int) {
	if uint(i) < uint(len(p)) {
		u := int(p[i])
		if u < 0x80 {
			return u>>1 ^ -(u & 1), i + 1
		}
		if i+1 < len(p) && p[i+1] < 0x80 {
			u = u&0x7f | int(p[i+1])<<7
			return u>>1 ^ -(u & 1), i + 2
		}
	}
	v, next := varintSlow(p, i, maxVarintBytes)
	return int(int32(v)), next
}

// varlong is varint for an int64.
func varlong(p []byte, i int) (int64, int) {
	if uint(i) < uint(len(p)) {
		u := int64(p[i])
		if u < 0x80 {
			return u>>1 ^ -(u & 1), i + 1
		}
		if i+1 < len(p) && p[i+1] < 0x80 {
			u = u&0x7f | int64(p[i+1])<<7
			return u>>1 ^ -(u & 1), i + 2
		}
	}
	return varintSlow(p, i, maxVarlongBytes)
}

// varintSlow reads a number of at most limit bytes; what doesn't fit into 32 bits (limit 5) or 64 bits (limit 10) is malformed.
func varintSlow(p []byte, i, limit int) (int64, int) {
	if i < 0 {
		return 0, -1
	}
	lastByteMax := byte(0x01) // the 64th bit
	if limit == maxVarintBytes {
		lastByteMax = 0x0f // bits 29 to 32
	}
	var u uint64
	for n := range limit {
		if i+n >= len(p) {
			return 0, -1
		}
		c := p[i+n]
		if c < 0x80 {
			if n == limit-1 && c > lastByteMax {
				return 0, -1
			}
			u |= uint64(c) << (7 * n)
			return int64(u>>1) ^ -int64(u&1), i + n + 1
		}
		u |= uint64(c&0x7f) << (7 * n)
	}
	return 0, -1
}
