package record

import "encoding/binary"

// SetFrame writes all that the CRC doesn't cover, in place: base offset, the length that b has, leader epoch and magic.
func SetFrame(b Batch, baseOffset int64, leaderEpoch int32) {
	SetBaseOffset(b, baseOffset)
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-logOverhead))
	binary.BigEndian.PutUint32(b[posLeaderEpoch:], uint32(leaderEpoch))
	b[posMagic] = magicV2
}
