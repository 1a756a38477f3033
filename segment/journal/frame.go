package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A frame is one commit group. It starts on a block of 4 KiB and is padded with zeros to the next one, so that a
// torn write can't hurt a frame before it.
//
//	 0   4  magic "SLJF"
//	 4   4  CRC-32C of byte 8 to the end of the entries
//	 8   8  LSN
//	16   8  epoch of the file's use
//	24   4  bytes of entries
//	28   4  number of entries
//	32      entries
//
// An entry is one of
//
//	 0   1  kind 1, a batch
//	 1   1  bytes of the topic's name
//	 2   4  topic id
//	 6   4  partition
//	10   4  bytes of the RecordBatch
//	14      name, RecordBatch
//
//	 0   1  kind 2, put a state value      0   1  kind 3, delete a state value
//	 1   2  bytes of the key               1   2  bytes of the key
//	 3   4  bytes of the value             3      key
//	 7      key, value
//
// All integers are big-endian.
const (
	blockBytes       = 4096
	frameHeaderBytes = 32
	batchEntryBytes  = 14
	putEntryBytes    = 7
	deleteEntryBytes = 3
	frameMagic       = 0x534c4a46
)

// MaxKeyBytes is the longest key of a state value.
const MaxKeyBytes = 1<<16 - 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kind says what an Entry does.
type Kind uint8

// The kinds of entry.
const (
	KindBatch  Kind = 1
	KindPut    Kind = 2
	KindDelete Kind = 3
)

// Entry is one change of a commit group. Its slices alias the frame that it was read from.
type Entry struct {
	Kind Kind
	// Salvaged says that the frame is damaged: this is a batch that nothing but its own checksum vouches for.
	Salvaged bool

	// of a batch
	Topic     []byte
	TopicID   uint32
	Partition int32
	Batch     []byte

	// of a state change
	Key, Value []byte
}

// Frame collects the entries of one commit group in one buffer. The zero value is empty and ready.
type Frame struct {
	buf     []byte
	entries uint32
}

// Reset empties the frame. It gives the buffer back to the collector when it has grown beyond keepBytes.
func (f *Frame) Reset(keepBytes int) {
	f.entries = 0
	if cap(f.buf) > keepBytes {
		f.buf = nil
		return
	}
	f.buf = f.buf[:0]
}

// Len is the number of bytes that the frame takes in a file so far, padding included.
func (f *Frame) Len() int { return padded(max(len(f.buf), frameHeaderBytes)) }

func (f *Frame) head() {
	if len(f.buf) == 0 {
		f.buf = append(f.buf, make([]byte, frameHeaderBytes)...)
	}
	f.entries++
}

// AddBatch adds a RecordBatch of a partition. The topic's name is at most 255 bytes long.
func (f *Frame) AddBatch(topic string, topicID uint32, partition int32, batch []byte) {
	f.head()
	b := append(f.buf, byte(KindBatch), byte(len(topic)))
	b = binary.BigEndian.AppendUint32(b, topicID)
	b = binary.BigEndian.AppendUint32(b, uint32(partition))
	b = binary.BigEndian.AppendUint32(b, uint32(len(batch)))
	b = append(b, topic...)
	f.buf = append(b, batch...)
}

// AddChanges adds state changes that AppendPut and AppendDelete have encoded.
func (f *Frame) AddChanges(encoded []byte, count int) {
	if count == 0 {
		return
	}
	f.head()
	f.entries += uint32(count) - 1
	f.buf = append(f.buf, encoded...)
}

// AppendPut appends the entry that stores value under key. The key is at most MaxKeyBytes long.
func AppendPut(dst, key, value []byte) []byte {
	dst = append(dst, byte(KindPut))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(key)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	dst = append(dst, key...)
	return append(dst, value...)
}

// AppendDelete appends the entry that removes key.
func AppendDelete(dst, key []byte) []byte {
	dst = append(dst, byte(KindDelete))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(key)))
	return append(dst, key...)
}

// EachChange calls fn for each of count state changes that AppendPut and AppendDelete have encoded.
func EachChange(encoded []byte, count int, fn func(*Entry)) error {
	return eachEntry(encoded, uint32(count), func(e *Entry) error { fn(e); return nil })
}

// seal fills in the header and the padding, and returns what is to be written.
func (f *Frame) seal(lsn, epoch uint64) []byte {
	f.entries--
	f.head() // an empty frame gets its header, too
	n := len(f.buf)
	b := f.buf
	binary.BigEndian.PutUint32(b[0:], frameMagic)
	binary.BigEndian.PutUint64(b[8:], lsn)
	binary.BigEndian.PutUint64(b[16:], epoch)
	binary.BigEndian.PutUint32(b[24:], uint32(n-frameHeaderBytes))
	binary.BigEndian.PutUint32(b[28:], f.entries)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:n], castagnoli))
	for len(b) < padded(n) {
		b = append(b, zeros[:min(len(zeros), padded(n)-len(b))]...)
	}
	f.buf = b[:n]
	return b
}

var zeros [512]byte

func padded(n int) int { return (n + blockBytes - 1) &^ (blockBytes - 1) }

type frameHeader struct {
	crc     uint32
	lsn     uint64
	epoch   uint64
	bytes   uint32
	entries uint32
}

func parseFrameHeader(b []byte) (frameHeader, bool) {
	if len(b) < frameHeaderBytes || binary.BigEndian.Uint32(b) != frameMagic {
		return frameHeader{}, false
	}
	return frameHeader{
		crc:     binary.BigEndian.Uint32(b[4:]),
		lsn:     binary.BigEndian.Uint64(b[8:]),
		epoch:   binary.BigEndian.Uint64(b[16:]),
		bytes:   binary.BigEndian.Uint32(b[24:]),
		entries: binary.BigEndian.Uint32(b[28:]),
	}, true
}

// eachEntry calls fn for the entries of a frame whose checksum was right.
func eachEntry(b []byte, count uint32, fn func(*Entry) error) error {
	var e Entry
	for i := range count {
		rest, err := parseEntry(b, &e)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		b = rest
		if err := fn(&e); err != nil {
			return err
		}
	}
	if len(b) != 0 {
		return fmt.Errorf("%d bytes after the last entry", len(b))
	}
	return nil
}

func parseEntry(b []byte, e *Entry) (rest []byte, err error) {
	short := fmt.Errorf("cut short")
	if len(b) == 0 {
		return nil, short
	}
	*e = Entry{Kind: Kind(b[0])}
	switch e.Kind {
	case KindBatch:
		if len(b) < batchEntryBytes {
			return nil, short
		}
		name, size := int64(b[1]), int64(binary.BigEndian.Uint32(b[10:]))
		if int64(len(b)) < batchEntryBytes+name+size {
			return nil, short
		}
		e.TopicID = binary.BigEndian.Uint32(b[2:])
		e.Partition = int32(binary.BigEndian.Uint32(b[6:]))
		b = b[batchEntryBytes:]
		e.Topic, e.Batch = b[:name], b[name:name+size:name+size]
		return b[name+size:], nil
	case KindPut:
		if len(b) < putEntryBytes {
			return nil, short
		}
		key, value := int64(binary.BigEndian.Uint16(b[1:])), int64(binary.BigEndian.Uint32(b[3:]))
		if int64(len(b)) < putEntryBytes+key+value {
			return nil, short
		}
		b = b[putEntryBytes:]
		e.Key, e.Value = b[:key], b[key:key+value]
		return b[key+value:], nil
	case KindDelete:
		if len(b) < deleteEntryBytes {
			return nil, short
		}
		key := int(binary.BigEndian.Uint16(b[1:]))
		if len(b) < deleteEntryBytes+key {
			return nil, short
		}
		e.Key = b[deleteEntryBytes : deleteEntryBytes+key]
		return b[deleteEntryBytes+key:], nil
	}
	return nil, fmt.Errorf("unknown kind %d", b[0])
}
