package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluicemq/sluice/segment/journal"
)

// Shares of the disk.
const (
	defaultJournalBytes = 16 << 20
	minSegmentBytes     = 1 << 20 // of a topic that doesn't say otherwise
	maxSegmentBytes     = 64 << 20
	minStateBytes       = 512 << 10 // what both state files take at the very least
	segmentsEach        = 2         // that each partition has room for: one that fills and one to evict
)

// Plan is how the disk budget is shared out. Records are refused at LimitBytes and evicted from SoftBytes on. What can
// still arrive once they are refused fits into HeadroomBytes, and the reserve is beyond that, so the budget holds at any
// moment:
//
//	0 … SoftBytes … LimitBytes … +HeadroomBytes … +ReserveBytes = BudgetBytes
type Plan struct {
	BudgetBytes   int64
	ReserveBytes  int64
	JournalBytes  int64 // of each of journal.Files files
	HeadroomBytes int64
	LimitBytes    int64
	SoftBytes     int64
}

// leastJournal is the size of a journal file that 8 of the largest groups fit into.
func (o Options) leastJournal() int64 { return 8 * o.largestGroup() }

// largestGroup is what a commit group may hold: MaxBytes, and what the writer that went beyond adds in one go.
func (o Options) largestGroup() int64 { return int64(o.MaxBytes) + 2*int64(o.MaxRecordBytes) }

// Plan shares out the budget on a file system of that many bytes, 0 if unknown. The options must be valid otherwise. An error
// says that no room is left for records, and what to change.
func (o Options) Plan(fileSystemBytes int64) (Plan, error) {
	p := Plan{BudgetBytes: o.BudgetBytes, ReserveBytes: o.ReserveBytes, JournalBytes: o.JournalBytes}
	if p.BudgetBytes == 0 {
		p.BudgetBytes = fileSystemBytes / 10 * 7
	}
	if p.ReserveBytes == 0 {
		p.ReserveBytes = min(p.BudgetBytes/8, 64<<20)
	}
	if p.JournalBytes == 0 {
		of := fileSystemBytes
		if o.BudgetBytes > 0 && (of == 0 || o.BudgetBytes < of) {
			of = o.BudgetBytes
		}
		p.JournalBytes = min(of/8/journal.Files, defaultJournalBytes) &^ 4095
		p.JournalBytes = max(p.JournalBytes, (o.leastJournal()+4095)&^4095)
	}
	// Two groups are on their way when the limit is found to be reached: one that is written and one that fills. What is
	// in memory is counted as used. Its index takes a part in 200 beside it, and 64 KiB are for names and headers. All that
	// is below a sixteenth of the journal, which is within the budget, so it can't use a small budget up.
	p.HeadroomBytes = 2*o.largestGroup() + int64(o.MemoryBytes)/64 + 64<<10
	p.LimitBytes = p.BudgetBytes - p.ReserveBytes - p.HeadroomBytes
	p.SoftBytes = p.LimitBytes - p.BudgetBytes/16
	if p.recordBytes() > 0 {
		return p, nil
	}
	lower := "lower commit.journal_bytes"
	if o.JournalBytes == 0 {
		lower = "lower commit.max_bytes and mqtt.max_packet_bytes, of which a journal file holds eight"
	}
	return p, fmt.Errorf("%w: %d bytes leave no room for records beside %d files of journal with %d bytes, a reserve of %d, and %d for what is under way: raise data.budget, or %s",
		ErrBudget, p.BudgetBytes, journal.Files, p.JournalBytes, p.ReserveBytes, p.HeadroomBytes, lower)
}

// recordBytes is what segments may take before they are evicted.
func (p Plan) recordBytes() int64 { return p.SoftBytes - journal.Files*p.JournalBytes - minStateBytes }

// segmentBytes is the size of the topic's segments among so many partitions of all topics.
func (p Plan) segmentBytes(o TopicOptions, partitions int) int64 {
	if o.SegmentBytes != 0 {
		return o.SegmentBytes
	}
	n := int64(max(partitions, 1))
	size := min(p.BudgetBytes/(8*n), p.recordBytes()/(2*segmentsEach*n)) // the second where the journal is most of the budget
	if o.RetentionBytes > 0 {
		size = min(size, o.RetentionBytes/int64(4*o.Partitions))
	}
	return min(max(size, minSegmentBytes), maxSegmentBytes)
}

// Fit says whether the topics have room beside each other: two segments for each partition, so that there is always one to
// evict while the other fills.
func (p Plan) Fit(topics []TopicOptions) error {
	partitions := 0
	for _, t := range topics {
		partitions += int(t.Partitions)
	}
	need := int64(0)
	for _, t := range topics {
		need += segmentsEach * int64(t.Partitions) * p.segmentBytes(t, partitions)
	}
	if need <= p.recordBytes() {
		return nil
	}
	return fmt.Errorf("%w: %d partitions of %d topics need %d bytes for %d segments each, and of %d bytes %d are left beside journal, reserve and state: raise data.budget, or lower topics[].partitions or topics[].segment_bytes",
		ErrBudget, partitions, len(topics), need, segmentsEach, p.BudgetBytes, p.recordBytes())
}

// partitionCount is how many partitions there will be with those of o.
func (l *Log) partitionCount(o TopicOptions) int {
	n := max(l.retention.partitions, len(l.allPartitions()))
	if l.Topic(o.Name) == nil && n == len(l.allPartitions()) {
		n += int(o.Partitions)
	}
	return max(n, l.o.Partitions)
}

// fits says whether the topic has room beside those that there are. Log.topicsMu is held.
func (l *Log) fits(o TopicOptions) error {
	topics := []TopicOptions{o}
	for name, t := range *l.topics.Load() {
		if name != o.Name {
			topics = append(topics, *t.options.Load())
		}
	}
	return l.plan.Fit(topics)
}

// setPlan shares out the disk as it is now.
func (l *Log) setPlan() error {
	total, free, err := l.o.FS.Space(l.o.Dir)
	if err != nil {
		return err
	}
	l.space.free.Store(free)
	if l.plan, err = l.o.Plan(total); err != nil {
		return err
	}
	l.o.JournalBytes, l.o.ReserveBytes = l.plan.JournalBytes, l.plan.ReserveBytes
	return nil
}

// space is what is known of the room on disk.
type space struct {
	free    atomic.Int64            // bytes of the file system, when last looked at
	state   atomic.Int64            // bytes of the state files
	changes atomic.Int64            // bytes that the last checkpoint stored
	others  atomic.Int64            // bytes of files in Dir that nobody else counts
	full    atomic.Pointer[refusal] // why no topic takes records, of causeState and following
	asides  []aside                 // files among others that may go, in order; retention's
}

// aside is a file or directory that was set aside for damage.
type aside struct {
	path  string
	bytes int64
}

// UsedBytes is what the data directory holds: segments, indexes, journal, state, the reserve, what was set aside, and the
// batches that are about to be appended. The journal counts as if it had all its files.
func (l *Log) UsedBytes() int64 { return l.usedBytes() + l.reserve.held.Load() }

// usedBytes is UsedBytes without the reserve, which the limits leave room for.
func (l *Log) usedBytes() int64 {
	return l.used.Load() + l.journalBytes() + l.space.state.Load() + l.space.others.Load() + int64(l.memory.used())
}

func (l *Log) journalBytes() int64 {
	onDisk, _ := l.journal.Bytes()
	return max(onDisk, journal.Files*l.plan.JournalBytes)
}

// checkRoom is called after each commit and checkpoint: it has segments evicted in time, and where that isn't enough writers wait or are refused.
func (l *Log) checkRoom() {
	used := l.usedBytes()
	if used > l.plan.SoftBytes {
		l.kickRetention()
	}
	if used >= l.plan.LimitBytes {
		l.drain(used)
	}
	l.checkState()
}

// checkTopic refuses records of a topic that is as large as it may be and rejects what is more.
func (l *Log) checkTopic(t *Topic) {
	o := t.options.Load()
	before := t.refused.Load()
	if o.OnFull != Reject || o.RetentionBytes == 0 {
		if before != nil {
			l.refuseTopic(t, nil)
		}
		return
	}
	switch bytes := t.bytes(); {
	case bytes >= o.RetentionBytes && before == nil:
		l.kickRetention()
		l.refuseTopic(t, &refusal{ErrFull, fmt.Errorf("topic %s holds %d of its retention.bytes %d and rejects more (on_full): raise retention.bytes, or let what follows it catch up",
			t.name, bytes, o.RetentionBytes)})
	case bytes > o.softBytes() && before == nil:
		l.kickRetention()
	case bytes <= o.softBytes() && before != nil:
		l.refuseTopic(t, nil)
	}
}

// softBytes is where a topic that rejects begins to make room, if it may, and takes records again.
func (o *TopicOptions) softBytes() int64 { return o.RetentionBytes - o.RetentionBytes/16 }

// bytes is what the topic's partitions take, with what is in memory.
func (t *Topic) bytes() (n int64) {
	for _, p := range t.partitions {
		n += p.bytes()
	}
	return n
}

// refuseTopic begins or (r nil) ends the refusal of one topic. It logs the change.
func (l *Log) refuseTopic(t *Topic, r *refusal) {
	l.mu.Lock()
	before := t.refused.Swap(r)
	l.mu.Unlock()
	switch {
	case before == nil && r != nil:
		l.log.Warn("refusing records of a topic", "topic", t.name, "error", r)
	case before != nil && r == nil:
		l.log.Info("accepting records of the topic again", "topic", t.name)
	}
}

// Refused is why the topic takes no records now, an ErrFull; nil: it does. Between Writer.Begin and End the answer doesn't
// change from nil to an error. It costs two loads.
func (t *Topic) Refused() error {
	if r := t.refused.Load(); r != nil {
		return r
	}
	if r := t.log.space.full.Load(); r != nil {
		return r
	}
	return nil
}

// RefusedTopic is a topic that takes no records, with the cause.
type RefusedTopic struct {
	Topic string
	Cause error
}

// refusedTopics are the topics that take no records, by name.
func (l *Log) refusedTopics() (list []RefusedTopic) {
	for _, t := range l.Topics() {
		if err := t.Refused(); err != nil {
			list = append(list, RefusedTopic{t.name, err})
		}
	}
	return list
}

// fullRefusal is for when nothing may be evicted.
func (l *Log) fullRefusal(used int64, why string) *refusal {
	return &refusal{ErrFull, fmt.Errorf("%s holds %d bytes, and beyond %d of the budget of %d records are refused; %s: raise data.budget",
		l.o.Dir, used, l.plan.LimitBytes, l.plan.BudgetBytes, why)}
}

// openRoom counts, when everything is open, what nobody else does, and takes the reserve.
func (l *Log) openRoom() error {
	l.space.state.Store(l.store.UsedBytes())
	if err := l.countOthers(); err != nil {
		return err
	}
	return l.openReserve()
}

// countOthers looks for files in the data directory that are not of a partition, the journal, the state or the reserve:
// mostly what was set aside.
func (l *Log) countOthers() error {
	known := []string{lockName, reserveName, "journal", "topics", "state-a.db", "state-b.db"}
	entries, err := l.o.FS.ReadDir(l.o.Dir)
	if err != nil {
		return err
	}
	var others []aside
	note := func(dir string, e fs.DirEntry, mayGo bool) error {
		path := filepath.Join(dir, e.Name())
		bytes, err := l.sizeOf(path, e)
		if err != nil {
			return err
		}
		l.space.others.Add(bytes)
		if mayGo {
			others = append(others, aside{path, bytes})
		}
		return nil
	}
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			if err := note(l.o.Dir, e, strings.HasPrefix(e.Name(), "state-") && strings.Contains(e.Name(), ".damaged-")); err != nil {
				return err
			}
		}
	}
	open := map[string]bool{}
	for _, p := range l.allPartitions() {
		open[p.String()] = true
	}
	if entries, err = l.o.FS.ReadDir(topicsDir(l.o.Dir)); err != nil {
		return err
	}
	for _, e := range entries {
		if !open[e.Name()] {
			if err := note(topicsDir(l.o.Dir), e, strings.Contains(e.Name(), ".damaged")); err != nil {
				return err
			}
		}
	}
	l.space.asides = others
	return nil
}

// sizeOf is the size of a file, or of all files in a directory.
func (l *Log) sizeOf(path string, e fs.DirEntry) (int64, error) {
	if !e.IsDir() {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	entries, err := l.o.FS.ReadDir(path)
	if err != nil {
		return 0, nil // what can't be read is why it was set aside
	}
	n := int64(0)
	for _, e := range entries {
		bytes, err := l.sizeOf(filepath.Join(path, e.Name()), e)
		if err != nil {
			return 0, err
		}
		n += bytes
	}
	return n, nil
}

// sortedPartitions are all partitions in an order that doesn't change.
func (l *Log) sortedPartitions() []*Partition {
	byName := *l.topics.Load()
	var list []*Partition
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name].partitions...)
	}
	return list
}
