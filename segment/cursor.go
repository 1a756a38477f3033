package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
	value := append(binary.BigEndian.AppendUint64(nil, uint64(offset)), data...)
	p.passed.set(owner, value) // first: an eviction that counts on it puts it into its own group, and that must not be an older one
	l.PutLazy(cursorKey(p, owner), value)
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
func (l *Log) raiseToCursors() (failed error) {
	err := l.Range([]byte(cursorPrefix), func(key, value []byte) bool {
		where, owner, ok := splitKey(string(key[len(cursorPrefix):]))
		p := l.partition(where.Topic, where.ID)
		if !ok || p == nil || len(value) < 8 {
			return true
		}
		p.passed.set(owner, bytes.Clone(value))
		failed = l.raise(p, int64(binary.BigEndian.Uint64(value)), owner+" has seen them")
		return failed == nil
	})
	if err != nil {
		l.damaged("cursors in the state: %v", err)
	}
	return failed
}
