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
	plan      Plan
	recovered Recovery
	cuts      []cutTail           // during Open
	holes     []foundHole         // during Open
	agreement *agreement          // during Open
	raised    bool                // during Open: some partition goes on behind offsets that are gone
	gaps      map[*Partition]bool // during Open: those whose records the journal doesn't have without a hole
	dirs      map[string]int32    // topics that have directories, with their number of partitions, at Open

	mu         sync.Mutex // taken once for each read of a connection
	room       *sync.Cond // the group in hand takes more again, or a refusal began
	groups     [2]*group
	active     *group // the one that fills
	activity   activity
	committer  int // busy, or what it awaits
	closing    bool
	rollWanted bool
	lazy       map[string][]byte // state values that wait for the next group; nil: a key that is removed then
	causes     [causes]*refusal
	refused    *refusal // the gravest of causes; nil: writers are welcome

	topicsMu sync.Mutex // held while a topic is made; before mu
	topics   atomic.Pointer[map[string]*Topic]
	list     atomic.Pointer[[]*Partition]

	// the committer's
	frame  journal.Frame
	timer  *time.Timer
	packed []byte // batches compressed for the journal

	syncNanos  atomic.Int64 // moving average of one journal write and sync
	delayNanos atomic.Int64 // moving average of the time from a group's first message until it is durable

	encoding sync.Mutex // guards the next three
	encoder  *record.Encoder
	scratch  []byte
	batches  []record.Batch

	disk   stuckWrite
	rescue sync.Mutex // held by whoever reads the journal for want of a segment

	wear        *wear
	overlay     *overlay
	memory      *gate
	free        buffers
	watchers    watchers
	checkpoints *checkpoints
	used        atomic.Int64 // bytes of segments and indexes
	space       space
	reserve     reserve
	retention   retention
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
	causeState // from here on ErrFull; also refuses changes of state, which the others welcome
	causeReserve
	causeSpace
	causeBudget
	causes
)

func gravest(causes []*refusal) *refusal {
	for _, c := range causes {
		if c != nil {
			return c
		}
	}
	return nil
}

// refuse begins or (r nil) ends a refusal. It logs the change, not the repetition.
func (l *Log) refuse(cause int, r *refusal) {
	l.mu.Lock()
	tell := l.refuseLocked(cause, r)
	l.mu.Unlock()
	tell()
}

// nothing is for refuseLocked when there is nothing to tell.
func nothing() {}

// refuseLocked is refuse but for the line in the log: tell writes it, once Log.mu is free. Whoever reads the log may be slow.
func (l *Log) refuseLocked(cause int, r *refusal) (tell func()) {
	before := l.causes[cause]
	if r == nil && before == nil {
		return nothing
	}
	l.causes[cause] = r
	l.refused = gravest(l.causes[:])
	l.space.full.Store(gravest(l.causes[causeState:]))
	l.room.Broadcast()
	switch {
	case before == nil && cause != causeClosed:
		return func() { l.log.Error("refusing writes", "error", r) }
	case r == nil && l.refused == nil:
		return func() { l.log.Info("accepting writes again") }
	}
	return nothing
}

// Status is what an operator wants to know.
type Status struct {
	Refusing        error // why writes to all topics are refused; nil: they are not
	BudgetBytes     int64
	UsedBytes       int64 // of the budget, the reserve included
	FreeBytes       int64 // of the file system, when it was last looked at; at most some seconds old while anything changes
	ReserveBytes    int64 // that are held right now; 0 while the reserve is in use
	Refused         []RefusedTopic
	Evicted         []Eviction // since the start
	Gaps            int        // stretches that some follower has missed and nobody has been told of yet
	Commits         uint64     // groups made durable, or begun, since the start
	JournalFailures int64      // journal files given up after a failed write or sync
	SegmentRestarts int64      // segments rewritten from the journal after one
	Checkpoints     int64
	SyncTime        time.Duration // moving average of one journal write and sync
	ClockTrusted    bool          // the wall clock is taken for the true time
	ClockSteps      int64         // of the wall clock, by more than a second, since the start
	ClockStep       time.Duration // the last of them, negative for back
	Wear
}

// Status is the present state of the log.
func (l *Log) Status() Status {
	used := l.UsedBytes()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		BudgetBytes:     l.plan.BudgetBytes,
		UsedBytes:       used,
		FreeBytes:       l.space.free.Load(),
		ReserveBytes:    l.reserve.held.Load(),
		Refused:         l.refusedTopics(),
		Evicted:         l.retention.evicted.list(),
		Gaps:            int(l.retention.gaps.Load()),
		Commits:         l.active.seq - 1,
		JournalFailures: l.counters.journalFailures.Load(),
		SegmentRestarts: l.counters.segmentRestarts.Load(),
		Checkpoints:     l.counters.checkpoints.Load(),
		SyncTime:        time.Duration(l.syncNanos.Load()),
		Wear:            l.Wear(),
	}
	l.clock.status(&s)
	if l.refused != nil {
		s.Refusing = l.refused
	} else if r := l.stuck(); r != nil {
		s.Refusing = r
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

// CreateTopic makes a topic, or finds it: then compression, retention, priority and OnFull are those given now, and the
// segment size is from the next Open on, but another number of partitions is an error. So is a topic that doesn't fit the
// disk budget beside the others. A new topic is durable when it returns.
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
		if err := l.fits(o); err != nil {
			return nil, err
		}
		if *t.options.Load() != o {
			t.options.Store(&o)
			l.kickRetention()
			l.PutLazy(topicKey(o.Name), encodeTopic(t.id, o)) // not worth a wait for the disk
		}
		return t, nil
	}
	if err := l.fits(o); err != nil {
		return nil, err
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
// next Open has nothing to do. While the disk refuses, it gives up after half a minute and leaves the rest to recovery. Writers
// get ErrClosed, and so do those whose group was given up: it is not acknowledged, but it may be there at the next
// start, as when the power fails. When a write hangs, Close leaves it behind with its files open, and says so.
func (l *Log) Close() error {
	l.closeOnce.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

// closeWait is how long Close lets the disk finish what was added before, and hangWait how long it waits beyond that for a
// single operation that doesn't end.
const (
	closeWait = 30 * time.Second
	hangWait  = 15 * time.Second
)

func (l *Log) close() error {
	l.refuse(causeClosed, &refusal{kind: ErrClosed})
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	wake(l.wake)
	done := make(chan error, 1)
	go func() { done <- l.finish() }()
	hangs := time.NewTimer(closeWait + hangWait)
	defer hangs.Stop()
	select {
	case err := <-done:
		return err
	case <-hangs.C:
		return fmt.Errorf("%w: an operation in %s has not ended for %v: the disk hangs; what was not acknowledged may be lost", ErrUnavailable, l.o.Dir, closeWait+hangWait)
	}
}

// finish is close's part that may hang with the disk.
func (l *Log) finish() error {
	l.stopClock()
	giveUp := time.AfterFunc(closeWait, func() { close(l.stop) })
	<-l.commitDone
	var err error
	if giveUp.Stop() {
		close(l.stop)
	}
	<-l.appendDone
	<-l.checkpointDone
	l.endRetention()
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
	errs = append(errs, l.reserve.close())
	return errors.Join(append(errs, l.lock.Close())...)
}
