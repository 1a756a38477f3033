package segment

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// Options say where the log is and how much it may use. Start from DefaultOptions.
type Options struct {
	// Dir is the data directory. It is made if missing.
	Dir string
	// BudgetBytes is what everything in Dir may take together: segments, journal, state, reserve. Before it is reached,
	// the oldest segments are evicted; when none may be, records are refused with ErrFull. 0: 70 % of the file system.
	BudgetBytes int64
	// ReserveBytes of the budget are a file that keeps room for state and bookkeeping when others fill the disk. 0: an
	// eighth of the budget, at most 64 MiB.
	ReserveBytes int64
	// MaxDelay is the longest wait for a commit group to fill, once the disk is free.
	MaxDelay time.Duration
	// WearBudget is how many bytes a day may be written to the flash. A group then waits, up to MaxDelayCeiling, until the budget
	// has something for it; a lone message finds something at once. 0: no budget.
	WearBudget int64
	// MaxDelayCeiling is the longest wait for the wear budget, counted from a group's first message until it is durable if the sync
	// takes as long as syncs did of late.
	MaxDelayCeiling time.Duration
	// EnduranceBytes is what the flash takes in its life. 0: a thousand times the size of the file system.
	EnduranceBytes int64
	// MaxBytes of records seal a group at once. A group may exceed it by what one writer adds in one go.
	MaxBytes int
	// JournalBytes is the size of each of the journal.Files files. 0: 16 MiB, less where all of them would take more than
	// an eighth of the file system or the budget, but what MaxBytes and MaxRecordBytes need.
	JournalBytes int64
	// MaxRecordBytes is the longest record that writers add. A journal file must hold 8 groups of MaxBytes plus two
	// records.
	MaxRecordBytes int
	// AppendBytes of a partition in memory start their append to its segment.
	AppendBytes int
	// MemoryBytes bounds what is in memory and not yet in segments, over all partitions. Commits wait beyond it.
	MemoryBytes int
	// CheckpointInterval is the longest time that durable records stay in the journal only.
	CheckpointInterval time.Duration
	// StateBytes bounds each of the two state files.
	StateBytes int64
	// Partitions is how many all topics will have together, for the size of segments. Fewer than the log has: that many.
	Partitions int
	// Followers are the owners of the cursors that follow a topic, such as the mirrors that it goes to: what each of them
	// has passed is evicted first, and what one has not becomes a gap. It is asked once for each topic. nil: nobody follows.
	Followers func(topic string) []string
	// FS is the file system, for tests. nil: the real one.
	FS vfs.FS
	// Logger gets reports of damage, refusals and their end. nil: none.
	Logger *slog.Logger

	// lostBytes is how large a journal file may have been that is lost. 0: JournalBytes.
	lostBytes int64

	// Seams for tests, nil in a broker.
	now       func() reading        // the clocks
	openStore func() (store, error) // opens the state, instead of the two bbolt files
	tuneChain func(*files.Options)  // sees the options of each partition's segments
	waiting   func()                // is called where a goroutine begins to wait for another one of the log
}

// wait is where a goroutine begins to wait for another one of the log. A test that has all of them in one goroutine does
// the other one's work here.
func (o *Options) wait() {
	if o.waiting != nil {
		o.waiting()
	}
}

// maxJournalBytes is the largest that a journal file can be.
const maxJournalBytes = 1 << 30

// DefaultOptions are those of a gateway with 64 MiB of memory and up.
func DefaultOptions() Options {
	return Options{
		MaxDelay:           5 * time.Millisecond,
		MaxDelayCeiling:    time.Second,
		MaxBytes:           1 << 20,
		MaxRecordBytes:     256 << 10,
		AppendBytes:        64 << 10,
		MemoryBytes:        2 << 20,
		CheckpointInterval: 5 * time.Minute,
		StateBytes:         64 << 20,
	}
}

// Validate says what is wrong, all of it.
func (o Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.Dir != "", "no data directory")
	check(o.BudgetBytes >= 0, "budget of %d bytes is negative", o.BudgetBytes)
	check(o.ReserveBytes >= 0, "reserve of %d bytes is negative", o.ReserveBytes)
	check(o.MaxDelay >= 0 && o.MaxDelay <= time.Minute, "commit delay %v is not within 0 to 1m", o.MaxDelay)
	check(o.WearBudget == 0 || o.WearBudget >= MinWearBudget, "wear budget of %d bytes a day is below %d; 0 is none", o.WearBudget, MinWearBudget)
	check(o.WearBudget == 0 || o.MaxDelayCeiling >= o.MaxDelay && o.MaxDelayCeiling <= time.Minute, "ceiling of the commit delay %v is not within the delay %v to 1m", o.MaxDelayCeiling, o.MaxDelay)
	check(o.EnduranceBytes >= 0, "endurance of %d bytes is negative", o.EnduranceBytes)
	check(o.MaxBytes >= 4<<10 && o.MaxBytes <= 16<<20, "group size %d is not within 4 KiB to 16 MiB", o.MaxBytes)
	check(o.MaxRecordBytes > 0 && o.MaxRecordBytes <= 16<<20, "record size %d is not within 1 byte to 16 MiB", o.MaxRecordBytes)
	least := o.leastJournal()
	check(o.JournalBytes == 0 || o.JournalBytes >= least, "journal files of %d bytes are too small for groups of %d and packets of %d bytes: at least %d, or smaller groups and packets",
		o.JournalBytes, o.MaxBytes, o.MaxRecordBytes, least)
	check(o.JournalBytes <= maxJournalBytes, "journal files of %d bytes are larger than 1 GiB", o.JournalBytes)
	check(o.AppendBytes > 0 && o.MemoryBytes >= o.AppendBytes, "memory of %d bytes is below the append size of %d", o.MemoryBytes, o.AppendBytes)
	check(o.CheckpointInterval > 0, "checkpoint interval %v is not positive", o.CheckpointInterval)
	check(o.StateBytes >= 1<<20 && o.StateBytes <= 1<<30, "state size %d is not within 1 MiB to 1 GiB", o.StateBytes)
	if o.BudgetBytes > 0 && len(errs) == 0 {
		_, err := o.Plan(0)
		return err
	}
	return errors.Join(errs...)
}

// TopicOptions describe a topic.
type TopicOptions struct {
	// Name is a legal Kafka topic name.
	Name string
	// Partitions is fixed when the topic is made.
	Partitions int32
	// Compression of what is appended to segments.
	Compression record.Codec
	// SegmentBytes is the size at which a segment is closed and the next one begun, at most 1 GiB. 0: by the budget and
	// RetentionBytes, between 1 and 64 MiB.
	SegmentBytes int64
	// RetentionBytes is what the topic's partitions may take together before the oldest segments go. 0: no bound but the
	// budget.
	RetentionBytes int64
	// RetentionAge, in whole milliseconds, is how long records are kept at least; segments go whole, when their newest
	// record is older. 0: for ever.
	RetentionAge time.Duration
	// Priority decides which topic gives way first when the budget is used up.
	Priority Priority
	// OnFull says what happens at RetentionBytes, or when the budget is used up.
	OnFull OnFull
}

// MaxPartitions is the most partitions of one topic.
const MaxPartitions = 1024

// MaxTopicNameLength is how many characters a topic's name may have in Kafka.
const MaxTopicNameLength = 249

// ValidTopicName says whether Kafka would take the name of a log topic (org.apache.kafka.common.internals.Topic.validate).
func ValidTopicName(name string) error {
	switch {
	case name == "":
		return errors.New("a topic needs a name")
	case name == "." || name == "..":
		return fmt.Errorf("%q can't be a topic's name", name)
	case len(name) > MaxTopicNameLength:
		return fmt.Errorf("the topic name %.20q… is %d characters long; at most %d are allowed", name, len(name), MaxTopicNameLength)
	}
	for _, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("%q is not a topic name: %q is not allowed; use letters, digits, '.', '_' and '-'", name, c)
		}
	}
	return nil
}

// Validate says what is wrong with the topic's description.
func (o TopicOptions) Validate() error {
	if err := ValidTopicName(o.Name); err != nil {
		return err
	}
	switch {
	case o.Partitions < 1 || o.Partitions > MaxPartitions:
		return fmt.Errorf("topic %s: %d partitions are not within 1 to %d", o.Name, o.Partitions, MaxPartitions)
	case o.SegmentBytes != 0 && (o.SegmentBytes < 64<<10 || o.SegmentBytes > 1<<30):
		return fmt.Errorf("topic %s: segments of %d bytes are not within 64 KiB to 1 GiB", o.Name, o.SegmentBytes)
	case o.Compression > record.Zstd:
		return fmt.Errorf("topic %s: there is no compression %d", o.Name, o.Compression)
	}
	return o.validateRetention()
}
