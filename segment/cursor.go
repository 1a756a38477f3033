package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
)

// A cursor says how far a reader of a partition has come: the offset of the next record that it needs. It is kept in
// the state under "cursor/<topic>/<partition>/<owner>": the offset, 8 bytes, and whatever the owner adds.
const cursorPrefix = "cursor/"

func cursorKey(p *Partition, owner string) []byte {
	return fmt.Appendf(nil, "%s%s/%d/%s", cursorPrefix, p.topic.name, p.id, owner)
}

// SetCursor keeps a reader's place with the next group or checkpoint; it causes no sync of its own. owner has no slash.
// The partition's next offset never falls below a cursor, not even when a crash took the records in between: offsets
// that a region has seen are not given to other records.
func (l *Log) SetCursor(p *Partition, owner string, offset int64, data []byte) {
	value := binary.BigEndian.AppendUint64(nil, uint64(offset))
	l.PutLazy(cursorKey(p, owner), append(value, data...))
}

// Cursor is a reader's place as it was last made durable.
func (l *Log) Cursor(p *Partition, owner string) (offset int64, data []byte, ok bool, err error) {
	value, ok, err := l.Get(cursorKey(p, owner))
	if err != nil || !ok {
		return 0, nil, false, err
	}
	if len(value) < 8 {
		return 0, nil, false, fmt.Errorf("cursor %s of %s has %d bytes", owner, p, len(value))
	}
	return int64(binary.BigEndian.Uint64(value)), value[8:], true, nil
}

// raiseToCursors makes each partition's next offset at least that of every cursor in it (recovery only).
func (l *Log) raiseToCursors() error {
	return l.Range([]byte(cursorPrefix), func(key, value []byte) bool {
		parts := bytes.Split(key[len(cursorPrefix):], []byte("/"))
		if len(parts) < 3 || len(value) < 8 {
			return true
		}
		t := l.Topic(string(parts[0]))
		id, err := strconv.Atoi(string(parts[1]))
		if t == nil || err != nil || id < 0 || id >= len(t.partitions) {
			return true
		}
		p := t.partitions[id]
		if offset := int64(binary.BigEndian.Uint64(value)); offset > p.next {
			l.log.Warn("records that a reader has seen are gone; going on behind them", "partition", p.String(),
				"owner", string(parts[2]), "from", p.next, "to", offset)
			l.recovered.Notes = append(l.recovered.Notes, fmt.Sprintf("%s: offsets %d to %d are gone, a reader has seen them", p, p.next, offset-1))
			p.next = offset
			p.high.Store(offset)
		}
		return true
	})
}
