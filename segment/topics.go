package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// A topic is kept in the state under "topic/<name>":
//
//	 0   1  format version, 1 or 2
//	 1   4  topic id
//	 5   4  partitions
//	 9   1  compression, as in a RecordBatch
//	10   8  segment bytes, 0 for the default
//	        from here on version 2 only
//	18   8  retention bytes, 0 for none
//	26   8  retention age in milliseconds, 0 for none
//	34   1  priority
//	35   1  what happens when it is full
//
// Version 1 stands for a topic without retention, of normal priority, that drops the oldest; it is still written for one,
// so that an earlier release can read it.
//
// "meta/topic-id" holds the last id given, 4 bytes.
const (
	topicPrefix    = "topic/"
	topicVersion   = 2
	topicBytes     = 36
	topicBytes1    = 18 // of version 1
	lastTopicIDKey = "meta/topic-id"
)

func topicKey(name string) []byte { return []byte(topicPrefix + name) }

func encodeTopic(id uint32, o TopicOptions) []byte {
	b := []byte{topicVersion}
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(o.Partitions))
	b = append(b, byte(o.Compression))
	b = binary.BigEndian.AppendUint64(b, uint64(o.SegmentBytes))
	if o.RetentionBytes == 0 && o.RetentionAge == 0 && o.Priority == Normal && o.OnFull == DropOldest {
		b[0] = 1
		return b
	}
	b = binary.BigEndian.AppendUint64(b, uint64(o.RetentionBytes))
	b = binary.BigEndian.AppendUint64(b, uint64(o.RetentionAge.Milliseconds()))
	return append(b, byte(o.Priority), byte(o.OnFull))
}

func decodeTopic(name string, b []byte) (id uint32, o TopicOptions, err error) {
	v1 := len(b) == topicBytes1 && b[0] == 1
	if !v1 && (len(b) != topicBytes || b[0] != topicVersion) {
		return 0, o, fmt.Errorf("topic %s is stored in an unknown form", name)
	}
	o = TopicOptions{
		Name:         name,
		Partitions:   int32(binary.BigEndian.Uint32(b[5:])),
		Compression:  record.Codec(b[9]),
		SegmentBytes: int64(binary.BigEndian.Uint64(b[10:])),
	}
	if !v1 {
		o.RetentionBytes = int64(binary.BigEndian.Uint64(b[18:]))
		o.RetentionAge = time.Duration(min(binary.BigEndian.Uint64(b[26:]), uint64(maxRetentionAge.Milliseconds()))) * time.Millisecond
		o.Priority, o.OnFull = Priority(b[34]), OnFull(b[35])
	}
	if err := o.Validate(); err != nil {
		return 0, o, fmt.Errorf("topic %s is stored wrongly: %w", name, err)
	}
	return binary.BigEndian.Uint32(b[1:]), o, nil
}

// nextTopicID is one beyond the last, and beyond that of any topic there is.
func (l *Log) nextTopicID() (uint32, error) {
	last := uint32(0)
	value, ok, err := l.Get([]byte(lastTopicIDKey))
	if err != nil {
		return 0, fmt.Errorf("read the last topic id: %w", err)
	}
	if ok && len(value) == 4 {
		last = binary.BigEndian.Uint32(value)
	}
	for _, t := range *l.topics.Load() {
		last = max(last, t.id)
	}
	if last == math.MaxUint32 {
		return 0, fmt.Errorf("no topic id is left")
	}
	return last + 1, nil
}

// openTopic opens the chains of a topic. ends are the offsets up to which its segments were synced, by partition
// name, and other is that of the partitions that are not among them: 0 when the journal has all of them.
func (l *Log) openTopic(o TopicOptions, id uint32, ends map[string]int64, other int64) (*Topic, []files.Recovery, error) {
	t := &Topic{name: o.Name, id: id, log: l, followers: l.followers(o.Name)}
	t.options.Store(&o)
	segmentBytes := l.plan.segmentBytes(o, l.partitionCount(o))
	var recoveries []files.Recovery
	for i := range o.Partitions {
		p := &Partition{topic: t, id: i}
		end, ok := ends[p.String()]
		if !ok {
			end = other
		}
		chainOptions := files.Options{
			FS:           &metered{l.o.FS, l.wear, wearSegments},
			Dir:          filepath.Join(topicsDir(l.o.Dir), p.String()),
			SegmentBytes: segmentBytes,
			// A group may hold no more than that, of one partition.
			MaxBatchBytes: max(files.DefaultMaxBatchBytes, l.o.MaxBytes+2*l.o.MaxRecordBytes),
			Handles:       l.handles,
			Start:         l.storedStart(p),
		}
		if l.o.tuneChain != nil {
			l.o.tuneChain(&chainOptions)
		}
		chain, r, err := l.openChain(chainOptions, end)
		if err != nil {
			l.closeTopic(t)
			return nil, nil, fmt.Errorf("open %s: %w", p, err)
		}
		p.covered.newer.Store(ends[p.String()])
		p.covered.both.Store(l.retention.older[p.String()])
		p.chain = chain
		p.next = chain.NextOffset()
		p.after = p.next
		p.high.Store(p.next)
		p.start.Store(chain.StartOffset())
		l.countLocked(p)
		t.partitions = append(t.partitions, p)
		recoveries = append(recoveries, r)
	}
	return t, recoveries, nil
}

// openChain opens a partition's segments. A directory that can't be used however often one tries, and not for want of
// rights or resources, is set aside: the other partitions must not wait for it.
func (l *Log) openChain(o files.Options, end int64) (chain *files.Chain, r files.Recovery, err error) {
	for range 3 {
		if chain, r, err = files.Open(o, end); err == nil || !isDamage(err) {
			return chain, r, err
		}
	}
	aside, look := vfs.Unused(l.o.FS, o.Dir+".damaged") // not a partition's name
	if look != nil || l.o.FS.Rename(o.Dir, aside) != nil {
		return nil, r, err
	}
	l.log.Error("partition can't be read, set aside", "as", aside, "error", err)
	cause := err
	chain, r, err = files.Open(o, end)
	r.Damaged = append(r.Damaged, files.Damage{Path: o.Dir, To: max(end, 0), Cause: cause, SideFile: aside})
	return chain, r, err
}

func isDamage(err error) bool {
	for _, e := range []error{syscall.EIO, syscall.EUCLEAN, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// closeTopic takes back what openTopic did.
func (l *Log) closeTopic(t *Topic) {
	for _, p := range t.partitions {
		p.chain.Close()
		l.used.Add(-p.counted.Load())
	}
}

// addTopic makes a topic visible.
func (l *Log) addTopic(t *Topic) {
	topics := maps.Clone(*l.topics.Load())
	topics[t.name] = t
	list := append(append([]*Partition{}, l.allPartitions()...), t.partitions...)
	l.topics.Store(&topics)
	l.list.Store(&list)
}
