package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
	"github.com/sluicemq/sluice/segment/state"
)

// Recovery tells what Open had to do. Empty lists after a clean stop.
type Recovery struct {
	Clean    bool // the last stop was clean
	Frames   int  // of the journal, replayed
	Records  int64
	Torn     bool     // the journal ended in a frame that was being written
	CutBytes int64    // of torn segment tails, which the journal has brought again as far as they were acknowledged
	Damages  []string // what is lost, and where it was set aside
	Notes    []string
	Took     time.Duration
}

// Open opens a data directory, making it if missing, and brings it into the state of the last acknowledgement.
// Damage is set aside and reported, never a reason to refuse.
// Errors: ErrLocked, ErrNewerFormat, and those of the file system.
func Open(o Options) (*Log, error) {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	begin := time.Now()
	l := newLog(o)
	err := l.open()
	if files.NoSpace(err) && giveUpReserve(o) {
		l = newLog(o)
		err = l.open()
	}
	if err != nil {
		return nil, markFormat(err)
	}
	l.recovered.Took = time.Since(begin)
	l.openClock()
	for _, p := range l.allPartitions() {
		p.after = p.next
	}
	go l.clockLoop()
	go l.commitLoop()
	go l.appendLoop()
	go l.checkpointLoop()
	l.startRetention()
	return l, nil
}

func newLog(o Options) *Log {
	l := &Log{
		o:              o,
		log:            o.Logger,
		handles:        files.NewHandles(8),
		groups:         [2]*group{{seq: 2}, {seq: 1}},
		activity:       activity{epoch: 1},
		lazy:           map[string][]byte{},
		gaps:           map[*Partition]bool{},
		timer:          time.NewTimer(time.Hour),
		encoder:        record.NewEncoder(),
		wear:           newWear(o.WearBudget, time.Now()),
		disk:           stuckWrite{start: time.Now()},
		overlay:        newOverlay(),
		memory:         newGate(o.MemoryBytes),
		free:           buffers{limit: 2 * o.MemoryBytes},
		checkpoints:    newCheckpoints(),
		wake:           make(chan struct{}, 1),
		appendWake:     make(chan struct{}, 1),
		stop:           make(chan struct{}),
		commitDone:     make(chan struct{}),
		appendDone:     make(chan struct{}),
		checkpointDone: make(chan struct{}),
		clockStop:      make(chan struct{}),
		clockDone:      make(chan struct{}),
	}
	l.retention.wake, l.retention.done = make(chan struct{}, 1), make(chan struct{})
	close(l.retention.done)
	l.active = l.groups[1]
	l.room = sync.NewCond(&l.mu)
	l.topics.Store(&map[string]*Topic{})
	l.list.Store(&[]*Partition{})
	return l
}

func (l *Log) open() (err error) {
	o := &l.o
	if err := l.makeDirs(); err != nil {
		return err
	}
	l.lock, err = o.FS.Lock(filepath.Join(o.Dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%s: %w", o.Dir, ErrLocked)
	} else if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.release()
		}
	}()
	if err := l.setPlan(); err != nil {
		return err
	}
	if err := l.setEndurance(); err != nil {
		return err
	}
	if err := l.openState(); err != nil {
		return err
	}
	if l.journal, err = journal.Open(journal.Options{FS: &metered{o.FS, l.wear, wearJournal}, Dir: journal.Dir(o.Dir), FileBytes: o.JournalBytes, Logger: l.log}); err != nil {
		return err
	}
	if err := l.openTopics(); err != nil {
		return err
	}
	return l.replay()
}

// makeDirs makes the directories and their entries durable: what a journal file holds is lost with the entry of any directory
// above it. The directories above are synced even if they were there: an earlier start may have made them and ended before
// it had synced them. Of those, the ones that we may not read are left alone.
func (l *Log) makeDirs() error {
	dir := filepath.Clean(l.o.Dir)
	made := map[string]bool{}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := l.o.FS.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made[d] = true
	}
	for _, d := range []string{dir, topicsDir(dir), journal.Dir(dir)} {
		if err := l.o.FS.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	if err := l.o.FS.SyncDir(dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if err := l.o.FS.SyncDir(filepath.Dir(d)); err != nil && made[d] {
			return fmt.Errorf("sync directory %s: %w", filepath.Dir(d), err)
		}
	}
	return nil
}

// openState opens the two state files. bbolt needs real ones.
func (l *Log) openState() (err error) {
	if l.o.openStore != nil {
		l.store, err = l.o.openStore()
		return err
	}
	s, report, err := state.Open(state.Options{Dir: l.o.Dir, MaxSize: l.o.StateBytes, Logger: l.log})
	if err != nil {
		return err
	}
	l.store = s
	for _, path := range report.SetAside {
		l.damaged("state file was damaged, set aside as %s", path)
	}
	if len(report.SetAside) > 0 && report.Newest != "" {
		l.note("nothing is lost with that state file: %s and the journal have all of it", report.Newest)
	}
	l.recovered.Notes = append(l.recovered.Notes, report.Notes...)
	return nil
}

// openTopics opens the topics that the state knows, and those that only have directories: their state is lost.
func (l *Log) openTopics() error {
	ends := l.store.Point().Ends
	if s, ok := l.store.(interface{ OldestEnds() map[string]int64 }); ok {
		l.retention.older = s.OldestEnds()
	}
	type known struct {
		id uint32
		o  TopicOptions
	}
	topics := map[string]known{}
	err := l.store.Range([]byte(topicPrefix), func(key, value []byte) bool {
		name := string(key[len(topicPrefix):])
		if id, o, err := decodeTopic(name, value); err != nil {
			l.damaged("in the state: %v", err)
		} else {
			topics[name] = known{id, o}
		}
		return true
	})
	if err != nil {
		l.damaged("topics in the state: %v", err)
	}
	for _, k := range topics {
		l.retention.partitions += int(k.o.Partitions)
	}
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		if err := l.recoverTopic(topics[name].o, topics[name].id, ends, 0); err != nil {
			return err
		}
	}
	l.dirs, err = l.topicDirs()
	return err
}

// openNew opens the topics that were made since the last checkpoint and hold no record yet.
func (l *Log) openNew() error {
	made := l.overlay.collect([]byte(topicPrefix))
	for _, key := range slices.Sorted(maps.Keys(made)) {
		name, c := key[len(topicPrefix):], made[key]
		if c.deleted || l.Topic(name) != nil {
			continue
		}
		id, o, err := decodeTopic(name, c.value)
		if err != nil {
			l.damaged("in the journal: %v", err)
			continue
		}
		if err := l.recoverTopic(o, id, nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// openOrphans opens the topics that have records on disk, but are neither in the state nor in the journal. Empty
// directories are what a crash in the middle of making a topic leaves; the next attempt uses them.
func (l *Log) openOrphans() error {
	for _, name := range slices.Sorted(maps.Keys(l.dirs)) {
		partitions := l.dirs[name]
		o := TopicOptions{Name: name, Partitions: partitions}
		if l.Topic(name) != nil || o.Validate() != nil {
			continue
		}
		used := false
		for i := range partitions {
			list, err := files.List(l.o.FS, filepath.Join(topicsDir(l.o.Dir), partitionName(name, i)))
			if errors.Is(err, fs.ErrNotExist) {
				continue // a crash left the directories of some partitions only
			}
			used = used || err != nil || len(list) > 1 || (len(list) == 1 && list[0].Bytes > 0)
		}
		if !used {
			continue
		}
		id, err := l.nextTopicID()
		if err != nil {
			l.damaged("topic %s was not in the state and can't be opened: %v", name, err)
			continue
		}
		if err := l.adoptTopic(o, id); err != nil {
			return err
		}
	}
	return nil
}

// topicDirs are the topics that have directories, with their number of partitions.
func (l *Log) topicDirs() (map[string]int32, error) {
	entries, err := l.o.FS.ReadDir(topicsDir(l.o.Dir))
	if err != nil {
		return nil, err
	}
	topics := map[string]int32{}
	for _, e := range entries {
		name, id, ok := splitPartition(e.Name())
		if ok && e.IsDir() {
			topics[name] = max(topics[name], id+1)
		}
	}
	return topics, nil
}

func splitPartition(dir string) (topic string, id int32, ok bool) {
	i := strings.LastIndexByte(dir, '-')
	if i < 1 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(dir[i+1:], 10, 32)
	topic, id = dir[:i], int32(n)
	return topic, id, err == nil && n >= 0 && n < MaxPartitions && partitionName(topic, id) == dir
}

// damaged notes what is lost or set aside.
func (l *Log) damaged(format string, args ...any) {
	l.recovered.Damages = append(l.recovered.Damages, fmt.Sprintf(format, args...))
}

// adoptTopic takes in a topic that the state doesn't know. It is stored with the checkpoint that ends recovery.
// o.Partitions is what its directories tell.
func (l *Log) adoptTopic(o TopicOptions, id uint32) error {
	ends, partitions, err := l.journalStarts(o.Name)
	if err != nil {
		return err
	}
	o.Partitions = max(o.Partitions, partitions)
	l.recovered.Notes = append(l.recovered.Notes,
		fmt.Sprintf("topic %s was not in the state, taken with %d partitions from its directories and the journal", o.Name, o.Partitions))
	l.overlay.put(string(topicKey(o.Name)), encodeTopic(id, o))
	return l.recoverTopic(o, id, ends, files.NoRecoveryPoint)
}

// journalStarts are the offsets from which on the journal has the topic's partitions: what lies below can only be in
// the segments, and from there on the journal knows better. partitions is how many there are at least.
func (l *Log) journalStarts(topic string) (starts map[string]int64, partitions int32, err error) {
	starts = map[string]int64{}
	_, err = l.journal.Replay(0, func(_ uint64, e *journal.Entry) error {
		if e.Kind != journal.KindBatch || e.Salvaged || string(e.Topic) != topic || e.Partition < 0 || e.Partition >= MaxPartitions {
			return nil
		}
		name := partitionName(topic, e.Partition)
		if _, ok := starts[name]; ok {
			return nil
		}
		if b, _, err := record.Next(e.Batch); err == nil {
			starts[name], partitions = b.BaseOffset(), max(partitions, e.Partition+1)
		}
		return nil
	})
	return starts, partitions, err
}

func (l *Log) recoverTopic(o TopicOptions, id uint32, ends map[string]int64, other int64) error {
	t, recoveries, err := l.openTopic(o, id, ends, other)
	if err != nil {
		return err
	}
	for i, r := range recoveries {
		p := t.partitions[i]
		end, ok := ends[p.String()]
		if !ok {
			end = other
		}
		beyond := func(offset int64) bool { return end >= 0 && offset >= end }
		l.recovered.CutBytes += r.Cut
		for _, d := range r.Damaged {
			what := fmt.Sprintf("%s at byte %d: offsets %d to %d: %v", d.Path, d.Position, d.From, d.To-1, d.Cause)
			l.cuts = append(l.cuts, cutTail{p: p, end: d.From >= p.next, beyond: beyond(d.From), to: d.To, bytes: d.Bytes, what: what, side: d.SideFile})
		}
		for _, d := range r.Missing {
			what := fmt.Sprintf("%s is missing: offsets %d to %d", d.Path, d.From, d.To-1)
			l.cuts = append(l.cuts, cutTail{p: p, to: d.To, what: what, gone: true})
		}
		for _, path := range r.SetAside {
			what := path + ": segment beyond the end of its log"
			l.cuts = append(l.cuts, cutTail{p: p, end: true, beyond: beyond(segmentBase(path)), to: segmentBase(path) + 1, what: what, side: path})
		}
		for _, h := range r.Holes {
			l.holes = append(l.holes, foundHole{p, h})
		}
		for _, path := range r.RebuiltIndexes {
			l.note("%s: its indexes were missing or not what they should be, made anew", path)
		}
	}
	l.addTopic(t)
	return nil
}

// replay brings in what only the journal holds, makes all of it durable in segments and state, and begins a new
// journal file. Only then may anybody read or write: what was just read back may have been in the page cache only.
func (l *Log) replay() error {
	point := l.store.Point()
	if err := l.journal.SyncFound(); err != nil {
		l.log.Warn("journal can't be synced, going on with what can be read of it", "error", err)
	}
	l.agreement = newAgreement()
	defer func() { l.agreement = nil }()
	if err := l.refill(point); err != nil {
		return err
	}
	report, err := l.journal.Replay(point.LSN, func(_ uint64, e *journal.Entry) error {
		switch {
		case e.Salvaged:
			return l.salvageBatch(e)
		case e.Kind == journal.KindBatch:
			return l.replayBatch(e)
		}
		l.overlay.applyEntry(e)
		return nil
	})
	if err != nil {
		return err
	}
	unknown := l.judgeState(point, report)
	l.recovered.Notes = append(l.recovered.Notes, report.Notes...)
	l.recovered.Frames, l.recovered.Torn = report.Frames, report.Torn
	l.recovered.Clean = point.Clean && report.Frames == 0 && !report.Torn // the point may be from the last start
	for _, d := range report.Damages {
		l.damaged("%v", d)
	}
	if err := l.openNew(); err != nil {
		return err
	}
	if err := l.openOrphans(); err != nil {
		return err
	}
	whole := report.Files > 0 && len(report.Damages) == 0
	useless := l.judgeCuts(whole)
	l.reportHoles()
	if unknown {
		if err := l.raiseBeyondLost(); err != nil {
			return err
		}
	}
	if err := l.raiseToEnds(point.Ends); err != nil {
		return err
	}
	if err := l.raiseToCursors(); err != nil {
		return err
	}
	if err := l.raiseToStarts(); err != nil {
		return err
	}
	l.forgetHoles()
	for _, d := range l.recovered.Damages {
		l.log.Error("damage found", "what", d)
	}
	return l.finishReplay(point, report, useless)
}

// finishReplay makes what replay did durable, and only then removes what is of no use any more.
func (l *Log) finishReplay(point state.Point, report journal.Report, useless []cutTail) error {
	// Twice: once for each state file, so that the whole journal is free again, and that what was found out just now is not
	// forgotten with one of them.
	asStored := report.Frames == 0 && point.Clean && !l.raised && l.overlay.pendingBytes() == 0 && !l.changedByRecovery()
	for range 2 {
		if asStored && l.store.OldestLSN() == point.LSN {
			break
		}
		if err := l.checkpointNow(report.LastLSN); err != nil {
			return fmt.Errorf("finish recovery: %w", err)
		}
	}
	l.dropBelowStarts()
	for _, c := range useless {
		if _, err := c.p.chain.RemoveSide(c.side); err != nil {
			l.log.Warn("can't remove a file that is not needed any more", "file", c.side, "error", err)
		}
		c.p.chainMu.Lock()
		l.countLocked(c.p)
		c.p.chainMu.Unlock()
	}
	if err := l.journal.Start(report.LastLSN, l.store.OldestLSN()); err != nil {
		return err
	}
	l.markFollowed()
	return l.openRoom()
}

// replayBatch adds a batch of the journal to its partition unless the segments have it already. What can't be a batch of
// ours is passed over: no content of a file keeps the broker from starting.
func (l *Log) replayBatch(e *journal.Entry) error {
	b, err := wholeBatch(e)
	if err != nil {
		l.damaged("journal: batch of %s: %v", partitionName(string(e.Topic), e.Partition), err)
		return nil
	}
	p, err := l.replayPartition(e)
	if p == nil || err != nil {
		return err
	}
	l.compare(p, b)
	if b.LastOffset() < p.next {
		return nil
	}
	switch base := b.BaseOffset(); {
	case base < p.next:
		l.damaged("%s: the journal has other records for offsets %d to %d, left out", p, base, b.LastOffset())
		return nil
	case base > p.next:
		l.damaged("%s: offsets %d to %d are lost: the journal goes on behind them", p, p.next, base-1)
		l.overlay.put(string(holeKey(p.String(), base)), nil)
		l.gaps[p] = true
	}
	return l.takeBatch(p, b)
}

// wholeBatch is the batch of a journal entry, which has to be valid and all that is in it.
func wholeBatch(e *journal.Entry) (record.Batch, error) {
	b, rest, err := record.Next(e.Batch)
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, fmt.Errorf("%d bytes behind the batch", len(rest))
	}
	return b, b.Verify()
}

// takeBatch adds a batch to its partition.
func (l *Log) takeBatch(p *Partition, b record.Batch) error {
	l.recovered.Records += int64(b.Count())
	p.publish(b, &l.free)
	l.memory.add(len(b))
	if p.waiting.Load() >= int64(l.o.AppendBytes) || l.memory.used() >= l.o.MemoryBytes {
		return l.appendPartition(p)
	}
	return nil
}

// replayPartition finds the partition of a journal entry, nil if there can't be such a one. If its topic is not open
// yet, it was made since the last checkpoint, or the state that named it is lost.
func (l *Log) replayPartition(e *journal.Entry) (*Partition, error) {
	name := string(e.Topic)
	if l.Topic(name) == nil {
		if err := l.replayTopic(name, e); err != nil {
			return nil, err
		}
	}
	p := l.partition(name, e.Partition)
	if p == nil {
		l.damaged("journal: records of %s, which there isn't", partitionName(name, e.Partition))
	}
	return p, nil
}

// replayTopic opens the topic that the journal tells of, unless it can't be one.
func (l *Log) replayTopic(name string, e *journal.Entry) error {
	if c, known := l.overlay.get(topicKey(name)); known && !c.deleted {
		if id, o, err := decodeTopic(name, c.value); err == nil {
			return l.recoverTopic(o, id, nil, 0)
		}
	}
	o := TopicOptions{Name: name, Partitions: max(l.dirs[name], e.Partition+1)}
	if o.Validate() != nil {
		return nil
	}
	return l.adoptTopic(o, e.TopicID)
}

// raiseToEnds makes each partition's next offset at least the one that the recovery point names: records that were
// acknowledged up to there are lost, but a region may have them.
func (l *Log) raiseToEnds(ends map[string]int64) error {
	for _, p := range l.allPartitions() {
		if err := l.raise(p, ends[p.String()], "a checkpoint knows of them"); err != nil {
			return err
		}
	}
	return nil
}

// raise makes the partition's next offset at least offset. A new segment keeps the hole in its name: after the next
// checkpoint nothing else may tell of it.
func (l *Log) raise(p *Partition, offset int64, why string) error {
	if offset <= p.next {
		return nil
	}
	note := fmt.Sprintf("%s: offsets %d to %d are gone, %s", p, p.next, offset-1, why)
	l.log.Warn("going on behind records that are gone", "what", note)
	l.recovered.Notes = append(l.recovered.Notes, note)
	l.raised = true
	l.overlay.put(string(holeKey(p.String(), offset)), nil)
	if err := l.appendPartition(p); err != nil {
		return err
	}
	if err := p.chain.SkipTo(offset); err != nil {
		return fmt.Errorf("skip offsets of %s: %w", p, err)
	}
	p.next = offset
	p.high.Store(offset)
	return nil
}
