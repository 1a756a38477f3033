package segment

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
	"github.com/sluicemq/sluice/segment/state"
)

// A hole in a partition's offsets that recovery has reported, or left on purpose so that offsets are not given twice, is kept
// in the state under "hole/<topic>-<partition>/<offset behind it>": it is reported once, not at each start.
const holePrefix = "hole/"

func holeKey(partition string, to int64) []byte {
	return fmt.Appendf(nil, "%s%s/%d", holePrefix, partition, to)
}

// judgeState says what is lost of the state and of the journal as a whole. unknown: a part of the journal is lost that nobody
// knows the end of.
func (l *Log) judgeState(point state.Point, r journal.Report) (unknown bool) {
	if point.LSN == 0 && !point.Clean && !point.Followed {
		return l.judgeLostState(r)
	}
	if r.Files > 0 && r.FirstLSN > point.LSN+1 {
		l.damaged("state: its files are of an older checkpoint than the journal: what the frames %d to %d changed is lost, but for the records that segments hold",
			point.LSN+1, r.FirstLSN-1)
	}
	if point.Followed && (r.Files == 0 || r.PrevLSN < point.LSN) {
		l.damaged("journal: the file that was begun behind frame %d is missing, or can't be recognised: what was acknowledged since the last checkpoint is lost, but for the records that segments hold",
			point.LSN)
		return true
	}
	return r.Cut && !point.Clean
}

// judgeLostState is judgeState without any state file.
func (l *Log) judgeLostState(r journal.Report) (unknown bool) {
	switch {
	case r.Files == 0 && len(l.dirs) == 0: // a new directory
	case r.Files > 0 && r.FirstLSN == 1 && len(r.Damages) == 0:
		l.note("no state file is usable; the journal still had everything from its first frame on and has brought it again")
	case r.Files > 0:
		l.damaged("state: no file is usable: sessions, retained messages, cursors and topic settings are lost, but for what the journal holds from frame %d on; topics are taken from their directories and the journal",
			r.FirstLSN)
	default:
		l.damaged("state: no file is usable and the journal is gone: sessions, retained messages, cursors, topic settings and what was acknowledged since the last checkpoint are lost; topics are taken from their directories")
		return true
	}
	return false
}

// refill brings back what segments lack of what a checkpoint knows, as far as the journal happens to have it still: files that
// may be used anew keep their frames until they are.
func (l *Log) refill(point state.Point) error {
	lacking := map[*Partition]bool{}
	for _, p := range l.allPartitions() {
		if p.next < point.Ends[p.String()] {
			lacking[p] = true
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	_, err := l.journal.Replay(0, func(lsn uint64, e *journal.Entry) error {
		if lsn > point.LSN || e.Kind != journal.KindBatch || e.Salvaged || !lacking[l.salvagePartition(e)] {
			return nil
		}
		return l.replayBatch(e)
	})
	return err
}

// changedByRecovery says whether recovery did something that a checkpoint has to keep, beside replaying the journal.
func (l *Log) changedByRecovery() bool {
	return l.recovered.Records > 0 || l.overlay.pendingBytes() > 0
}

// leastRecordBytes is the shortest that a record can be.
const leastRecordBytes = 7

// raiseBeyondLost makes all partitions go on behind any offset that a lost journal file can have given.
func (l *Log) raiseBeyondLost() error {
	most := cmp.Or(l.o.lostBytes, l.o.JournalBytes) / leastRecordBytes
	for _, p := range l.allPartitions() {
		if err := l.raise(p, p.next+most, "the lost part of the journal may have given them away"); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) note(format string, args ...any) {
	l.recovered.Notes = append(l.recovered.Notes, fmt.Sprintf(format, args...))
}

// markFollowed keeps in the state that a journal file was begun behind the recovery point. Without that the loss of the whole
// file would pass for a stop with nothing to replay. It isn't worth refusing to start.
func (l *Log) markFollowed() {
	point := l.store.Point()
	point.Followed, point.Clean = l.journal.Follows(point.LSN), false
	if err := l.store.Checkpoint(nil, point); err != nil {
		l.log.Warn("can't keep in the state that a journal file was begun", "error", err)
	}
}

// foundHole is a stretch of offsets that no segment has, but for what the journal may say about it.
type foundHole struct {
	p *Partition
	files.Damage
}

// reportHoles reports the offsets that no segment has, but once, and not those below the log's start: after an eviction a
// power cut may bring back some of the removed segments and not others. Only after replay is the start known.
func (l *Log) reportHoles() {
	for _, h := range l.holes {
		key, start := holeKey(h.p.String(), h.To), l.storedStart(h.p)
		if _, known, _ := l.Get(key); known || h.To <= start {
			continue
		}
		l.damaged("%s: offsets %d to %d are in no segment: the file behind %s is missing", h.p, max(h.From, start), h.To-1, h.Path)
		l.overlay.put(string(key), nil)
	}
	l.holes = nil
}

// forgetHoles drops the notes of holes that lie below the log's start by now.
func (l *Log) forgetHoles() {
	var gone []string
	_ = l.Range([]byte(holePrefix), func(key, _ []byte) bool { // what can't be read is only kept longer
		name, digits, _ := strings.Cut(string(key[len(holePrefix):]), "/")
		to, err := strconv.ParseInt(digits, 10, 64)
		if p := l.partitionNamed(name); p != nil && err == nil && to <= p.StartOffset() {
			gone = append(gone, string(key))
		}
		return true
	})
	for _, key := range gone {
		l.overlay.applyEntry(&journal.Entry{Kind: journal.KindDelete, Key: []byte(key)})
	}
}

// partition finds one, or nil.
func (l *Log) partition(topic string, id int32) *Partition {
	t := l.Topic(topic)
	if t == nil || id < 0 || int(id) >= len(t.partitions) {
		return nil
	}
	return t.partitions[id]
}

// partitionNamed finds one by its full name, or nil.
func (l *Log) partitionNamed(name string) *Partition {
	topic, id, ok := splitPartition(name)
	if !ok {
		return nil
	}
	return l.partition(topic, id)
}

// salvageBatch takes in what a damaged frame of the journal still holds: a batch that is whole and follows is kept. Of one
// that isn't the offsets are left out, so that they are not given to other records.
func (l *Log) salvageBatch(e *journal.Entry) error {
	b, _, err := record.Next(e.Batch)
	p := l.salvagePartition(e)
	if err != nil || p == nil || b.BaseOffset() != p.next || b.LastOffset() < p.next {
		return nil // where it is missing, the next batch of its partition shows it
	}
	if b.Verify() == nil {
		record.SetFrame(b, b.BaseOffset(), 0) // the checksum leaves the leader epoch out
		l.note("%s: offsets %d to %d were saved from a damaged frame of the journal", p, b.BaseOffset(), b.LastOffset())
		return l.takeBatch(p, b)
	}
	if n := b.LastOffset() - b.BaseOffset() + 1; int64(b.Count()) != n { // two fields that agree
		return nil
	}
	l.damaged("%s: offsets %d to %d are lost: their batch in the journal is damaged", p, b.BaseOffset(), b.LastOffset())
	l.gaps[p] = true
	return l.raise(p, b.NextOffset(), "their batch in the journal is damaged")
}

// salvagePartition is the partition that an entry names, if there is such a one for sure.
func (l *Log) salvagePartition(e *journal.Entry) *Partition {
	p := l.partition(string(e.Topic), e.Partition)
	if p == nil || p.topic.id != e.TopicID {
		return nil
	}
	return p
}
