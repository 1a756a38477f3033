package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
	"github.com/sluicemq/sluice/segment/state"
)

// Log is an open data directory. All methods are safe for concurrent use.
type Log struct {
	// immutable after Open
	o         Options
	log       *slog.Logger
	lock      io.Closer
	journal   *journal.Journal
	store     store
	handles   *files.Handles
	budget    int64
	recovered Recovery
	cuts      []cutTail        // during Open
	agreement *agreement       // during Open
	raised    bool             // during Open: some partition goes on behind offsets that are gone
	dirs      map[string]int32 // topics that have directories, with their number of partitions, at Open

	mu         sync.Mutex // taken once for each read of a connection
	room       *sync.Cond // the group in hand takes more again, or a refusal began
	groups     [2]*group
	active     *group // the one that fills
	activity   activity
	committer  int // busy, awaitingFirst, awaitingMore
	closing    bool
	rollWanted bool
	lazy       map[string][]byte // state values that wait for the next group
	causes     [causes]*refusal
	refused    *refusal // the gravest of causes; nil: writers are welcome

	topicsMu sync.Mutex // held while a topic is made; before mu
	topics   atomic.Pointer[map[string]*Topic]
	list     atomic.Pointer[[]*Partition]

	// the committer's
	frame journal.Frame
	timer *time.Timer

	syncNanos atomic.Int64 // moving average of one journal write and sync

	encoding sync.Mutex // guards the next three
	encoder  *record.Encoder
	scratch  []byte
	batches  []record.Batch

	overlay     *overlay
	memory      *gate
	free        buffers
	watchers    watchers
	checkpoints *checkpoints
	used        atomic.Int64 // bytes of segments and indexes
	failing     atomic.Int32 // partitions that can't be appended to
	counters    counters
	clock       *Clock // made at the end of Open

	wake           chan struct{} // to the committer, capacity 1
	appendWake     chan struct{} // to the appender, capacity 1
	stop           chan struct{} // closed: give up waiting for the disk
	commitDone     chan struct{}
	appendDone     chan struct{}
	checkpointDone chan struct{}
	clockStop      chan struct{} // closed: end clockLoop
	clockDone      chan struct{}
	closeOnce      sync.Once
	closeErr       error
}

// store is where state is kept between checkpoints. *state.Store is the real one; tests of crashes have another.
type store interface {
	Point() state.Point
	OldestLSN() uint64
	Get(key []byte) ([]byte, bool, error)
	Range(prefix []byte, fn func(key, value []byte) bool) error
	Checkpoint(changes []state.Change, p state.Point) error
	UsedBytes() int64
	Close() error
}

type counters struct {
	journalFailures atomic.Int64
	segmentRestarts atomic.Int64
	checkpoints     atomic.Int64
}

// Why writers may be refused, the gravest first.
const (
	causeClosed = iota
	causeJournal
	causeSegments
	causeBudget
	causes
)

// refuse begins or (r nil) ends a refusal. It logs the change, not the repetition.
func (l *Log) refuse(cause int, r *refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.causes[cause]
	if r == nil && before == nil {
		return
	}
	l.causes[cause] = r
	l.refused = nil
	for _, c := range l.causes {
		if c != nil {
			l.refused = c
			break
		}
	}
	l.room.Broadcast()
	switch {
	case before == nil && cause != causeClosed:
		l.log.Error("refusing writes", "error", r)
	case r == nil && l.refused == nil:
		l.log.Info("accepting writes again")
	}
}

// checkBudget refuses records while the disk budget is used up.
func (l *Log) checkBudget() {
	used := l.UsedBytes()
	limit := l.budget - l.o.ReserveBytes
	if used < limit {
		l.refuse(causeBudget, nil)
		return
	}
	l.refuse(causeBudget, &refusal{ErrFull, fmt.Errorf("%s holds %d of %d bytes (%d kept in reserve): raise data.budget or remove topics",
		l.o.Dir, used, l.budget, l.o.ReserveBytes)})
}

// UsedBytes is what the data directory holds: segments, indexes, journal, state, and the batches that are about to be
// appended.
func (l *Log) UsedBytes() int64 {
	onDisk, _ := l.journal.Bytes()
	return l.used.Load() + onDisk + l.store.UsedBytes() + int64(l.memory.used())
}

// Status is what an operator wants to know.
type Status struct {
	Refusing        error // why writes are refused; nil: they are not
	BudgetBytes     int64
	UsedBytes       int64
	Commits         uint64 // groups made durable, or begun, since the start
	JournalBytes    int64  // written to the journal since the start
	JournalFailures int64  // journal files given up after a failed write or sync
	SegmentRestarts int64  // segments rewritten from the journal after one
	Checkpoints     int64
	SyncTime        time.Duration // moving average of one journal write and sync
	ClockTrusted    bool          // the wall clock is taken for the true time
	ClockSteps      int64         // of the wall clock, by more than a second, since the start
	ClockStep       time.Duration // the last of them, negative for back
}

// Status is the present state of the log.
func (l *Log) Status() Status {
	_, written := l.journal.Bytes()
	used := l.UsedBytes() // asks the file system, so before the lock
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		BudgetBytes:     l.budget,
		UsedBytes:       used,
		Commits:         l.active.seq - 1,
		JournalBytes:    written,
		JournalFailures: l.counters.journalFailures.Load(),
		SegmentRestarts: l.counters.segmentRestarts.Load(),
		Checkpoints:     l.counters.checkpoints.Load(),
		SyncTime:        time.Duration(l.syncNanos.Load()),
	}
	l.clock.status(&s)
	if l.refused != nil {
		s.Refusing = l.refused
	}
	return s
}

// Recovered tells what Open had to do.
func (l *Log) Recovered() Recovery { return l.recovered }

// Topic is the topic of that name, or nil.
func (l *Log) Topic(name string) *Topic { return (*l.topics.Load())[name] }

// Topics are all topics, by name.
func (l *Log) Topics() []*Topic {
	byName := *l.topics.Load()
	topics := make([]*Topic, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		topics = append(topics, byName[name])
	}
	return topics
}

// keepBytes is how much of a builder's buffer is kept for the next group. There are two a partition: together they stay
// below 4 MiB, however many partitions there are.
func (l *Log) keepBytes() int {
	return min((2<<20)/max(1, len(l.allPartitions())), 512<<10)
}

func (l *Log) allPartitions() []*Partition { return *l.list.Load() }

// CreateTopic makes a topic, or finds it: then the compression is the one given now, and the segment size is from the next
// Open on, but another number of partitions is an error. A new topic is durable when it returns.
func (l *Log) CreateTopic(o TopicOptions) (*Topic, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l.topicsMu.Lock()
	defer l.topicsMu.Unlock()
	if t := l.Topic(o.Name); t != nil {
		if int32(len(t.partitions)) != o.Partitions {
			return nil, fmt.Errorf("topic %s has %d partitions and is configured with %d: the number can't change without breaking the order per key; set it back to %d",
				o.Name, len(t.partitions), o.Partitions, len(t.partitions))
		}
		if *t.options.Load() != o {
			t.options.Store(&o)
			l.PutLazy(topicKey(o.Name), encodeTopic(t.id, o)) // not worth a wait for the disk
		}
		return t, nil
	}
	id, err := l.nextTopicID()
	if err != nil {
		return nil, err
	}
	t, _, err := l.openTopic(o, id, nil, 0)
	if err != nil {
		return nil, err
	}
	if err := l.storeTopic(o, id); err != nil {
		l.closeTopic(t)
		return nil, fmt.Errorf("make topic %s: %w", o.Name, err)
	}
	l.addTopic(t)
	return t, nil
}

// storeTopic returns when a new topic is durable.
func (l *Log) storeTopic(o TopicOptions, id uint32) error {
	w := l.NewWriter(nil)
	if err := w.BeginState(); err != nil {
		return err
	}
	w.Put(topicKey(o.Name), encodeTopic(id, o))
	w.Put([]byte(lastTopicIDKey), binary.BigEndian.AppendUint32(nil, id))
	ticket := l.endWithTicket(w, nil, 0)
	l.o.wait()
	return ticket.Wait(context.Background())
}

// Close stops the log cleanly: what was added is committed, segments and state are brought up to date, so that the
// next Open has nothing to do. While the disk refuses, it gives up and leaves the rest to recovery. Writers get
// ErrClosed.
func (l *Log) Close() error {
	l.closeOnce.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

// closeWait is how long Close lets the disk finish what was added before.
const closeWait = 30 * time.Second

func (l *Log) close() error {
	l.refuse(causeClosed, &refusal{kind: ErrClosed})
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	l.stopClock()
	giveUp := time.AfterFunc(closeWait, func() { close(l.stop) })
	<-l.commitDone
	var err error
	if giveUp.Stop() {
		close(l.stop)
	}
	<-l.appendDone
	<-l.checkpointDone
	l.PutLazy([]byte(clockKey), l.clock.keep(0))
	if err = l.lastCheckpoint(); err != nil {
		err = fmt.Errorf("last checkpoint, left to recovery: %w", err)
	}
	return errors.Join(err, l.release())
}

// lastCheckpoint stores what is left. The next start sees by its LSN whether a state file lacks anything. If the newer one
// has the last LSN already, what is stored now has none of its own, so it goes to both: one bad file loses nothing.
func (l *Log) lastCheckpoint() error {
	lsn := l.journal.LastLSN()
	l.storeLazy()
	twice := l.store.Point().LSN == lsn && l.overlay.pendingBytes() > 0
	err := l.checkpointNow(lsn)
	if err == nil && twice {
		err = l.checkpointNow(lsn)
	}
	return err
}

// release closes all files.
func (l *Log) release() error {
	var errs []error
	for _, p := range l.allPartitions() {
		errs = append(errs, p.chain.Close())
	}
	l.handles.Close()
	if l.journal != nil {
		errs = append(errs, l.journal.Close())
	}
	if l.store != nil {
		errs = append(errs, l.store.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}
