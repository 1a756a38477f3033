package segment

import (
	"encoding/binary"
	"hash/crc32"
	"path/filepath"

	"github.com/sluicemq/sluice/internal/vfs"
)

// plant is a bug that the crash model must find.
type plant string

const (
	noPlant             plant = ""
	journalNotSynced    plant = "journal-not-synced"
	segmentNotSynced    plant = "segment-not-synced"
	watermarkEarly      plant = "watermark-early"
	ackEarly            plant = "ack-early"
	directoryNotSynced  plant = "directory-not-synced"
	partitionNotSynced  plant = "partition-directory-not-synced"
	topicsNotSynced     plant = "topics-directory-not-synced"
	journalDirNotSynced plant = "journal-directory-not-synced"
	staleFrameAccepted  plant = "stale-frame-accepted"
	groupSplit          plant = "group-split"
	unlinkEarly         plant = "unlink-before-start"
	olderStateLacks     plant = "evict-beyond-older-state"
)

var plants = []plant{
	journalNotSynced, segmentNotSynced, watermarkEarly, ackEarly, directoryNotSynced, partitionNotSynced, topicsNotSynced,
	journalDirNotSynced, staleFrameAccepted, groupSplit, unlinkEarly, olderStateLacks,
}

// leavesOut says whether the bug is that this directory isn't synced.
func (p plant) leavesOut(dir string) bool {
	switch p {
	case directoryNotSynced:
		return true
	case partitionNotSynced:
		return filepath.Base(filepath.Dir(dir)) == "topics"
	case topicsNotSynced:
		return filepath.Base(dir) == "topics"
	case journalDirNotSynced:
		return filepath.Base(dir) == "journal"
	}
	return false
}

// plantedCommit is Log.commit, or a wrong one.
func (d *crashDriver) plantedCommit(g *group) {
	l := d.log
	switch d.plant {
	case watermarkEarly: // visible before it is durable
		l.encode(g)
		l.publish(g)
		d.mustNot(l.persist())
	case ackEarly: // acknowledged before it is durable
		for _, w := range g.wake {
			w.waiter.Committed(g.seq, nil)
		}
		g.wake = nil
		l.commit(g)
		return
	case groupSplit: // in two frames
		changes, count := g.changes, g.count
		g.changes, g.count = nil, 0
		l.encode(g)
		d.mustNot(l.persist())
		l.frame.Reset(0)
		l.frame.AddChanges(changes, count)
		d.mustNot(l.persist())
		g.changes, g.count = changes, count
		l.publish(g)
	default:
		l.commit(g)
		return
	}
	// The rest of Log.commit.
	if o := g.outcome; o != nil {
		close(o.done)
	}
	for _, w := range g.wake {
		w.waiter.Committed(g.seq, nil)
	}
	for _, p := range g.parts {
		p.builders[g.seq&1].Reset(l.keepBytes())
	}
	l.frame.Reset(2 * l.o.MaxBytes)
	l.mu.Lock()
	g.clear(g.seq+2, 64<<10)
	l.mu.Unlock()
}

// makeFrameFit changes what is read of a journal file, at offset at, as if nobody checked a frame's LSN and epoch: the
// frames that follow each other from the first on get those that are expected. See segment/journal/frame.go and file.go
// for the format.
func makeFrameFit(f vfs.File, p []byte, at int64) {
	const block, first = 4096, 2 * 4096
	if at < first || at%block != 0 || len(p) < 32 {
		return
	}
	size, _ := f.Size()
	all := make([]byte, size)
	f.ReadAt(all, 0)
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	epoch, lsn := all[16:24], binary.BigEndian.Uint64(all[24:])
	for pos := int64(first); pos <= at && pos+32 <= size; lsn++ {
		frame := all[pos:]
		n := 32 + int64(binary.BigEndian.Uint32(frame[24:]))
		if string(frame[:4]) != "SLJF" || n > int64(len(frame)) || crc32.Checksum(frame[8:n], castagnoli) != binary.BigEndian.Uint32(frame[4:]) {
			return
		}
		if pos == at {
			binary.BigEndian.PutUint64(frame[8:], lsn)
			copy(frame[16:], epoch)
			binary.BigEndian.PutUint32(frame[4:], crc32.Checksum(frame[8:n], castagnoli))
			copy(p, frame)
		}
		pos += (n + block - 1) / block * block
	}
}
