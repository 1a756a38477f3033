package mirror

import (
	"encoding/binary"
	"errors"
)

// What is kept beside a lane's next offset, so that a later run can find what of it landed:
//
//	byte 0        version, 1
//	uvarint n     length of the cluster id, at most 255; n bytes
//	16 bytes      topic id in the region, zero if the region has none
//	int64 BE      producer id
//	int16 BE      producer epoch
//	int32 BE      sequence of the record at the cursor
const (
	cursorVersion     = 1
	maxClusterIDBytes = 255
)

var errCursor = errors.New("mirror: cursor data of an unknown form")

// producer is an idempotent producer of one lane. It is good for one cluster and one topic id: sequences that another
// cluster, or a topic created anew under the name, has never seen mean nothing there.
type producer struct {
	id      int64
	epoch   int16
	cluster string
	topic   [16]byte
}

func appendCursor(dst []byte, p producer, sequence int32) []byte {
	cluster := p.cluster
	if len(cluster) > maxClusterIDBytes {
		cluster = cluster[:maxClusterIDBytes]
	}
	dst = append(dst, cursorVersion)
	dst = binary.AppendUvarint(dst, uint64(len(cluster)))
	dst = append(dst, cluster...)
	dst = append(dst, p.topic[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.id))
	dst = binary.BigEndian.AppendUint16(dst, uint16(p.epoch))
	return binary.BigEndian.AppendUint32(dst, uint32(sequence))
}

func parseCursor(b []byte) (p producer, sequence int32, err error) {
	if len(b) < 2 || b[0] != cursorVersion {
		return producer{}, 0, errCursor
	}
	n, size := binary.Uvarint(b[1:])
	if size <= 0 || n > maxClusterIDBytes || uint64(len(b)-1-size) != n+16+8+2+4 {
		return producer{}, 0, errCursor
	}
	b = b[1+size:]
	p.cluster, b = string(b[:n]), b[n:]
	b = b[copy(p.topic[:], b):]
	p.id = int64(binary.BigEndian.Uint64(b))
	p.epoch = int16(binary.BigEndian.Uint16(b[8:]))
	return p, int32(binary.BigEndian.Uint32(b[10:])), nil
}

// sequenceAfter advances a sequence by n records. Sequences wrap from 2^31-1 to 0 (DefaultRecordBatch.incrementSequence).
func sequenceAfter(sequence int32, n int64) int32 {
	return int32((int64(sequence) + n) & 0x7fffffff)
}
