package segment

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// View is a data directory as tools see it. It takes no lock and writes nothing, so it may be used while a broker runs;
// then it shows what was durable at some moment after it was asked. Not safe for concurrent use.
type View struct {
	fs  vfs.FS
	dir string
}

// ViewPartition names a partition.
type ViewPartition struct {
	Topic string
	ID    int32
}

// String is <topic>-<partition>.
func (p ViewPartition) String() string { return partitionName(p.Topic, p.ID) }

// Place is where a batch was found: a segment file and a position in bytes, or the journal.
type Place = files.Place

// JournalPlace stands for a batch that only the journal holds.
var JournalPlace = Place{Path: "journal", Position: -1}

// DamageError says what is damaged in a segment.
type DamageError = files.DamageError

// OpenView opens a data directory for reading.
func OpenView(dir string) (*View, error) {
	v := &View{vfs.OS, dir}
	if _, err := v.fs.ReadDir(topicsDir(dir)); err != nil {
		return nil, fmt.Errorf("%s is not a data directory: %w", dir, err)
	}
	return v, nil
}

// Partitions are those that have a directory or records in the journal, by topic and number.
func (v *View) Partitions() ([]ViewPartition, error) {
	found := map[ViewPartition]bool{}
	_, err := v.replay(func(p ViewPartition, _ record.Batch) error {
		found[p] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	entries, err := v.fs.ReadDir(topicsDir(v.dir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if topic, id, ok := splitPartition(e.Name()); ok && e.IsDir() {
			found[ViewPartition{topic, id}] = true
		}
	}
	list := make([]ViewPartition, 0, len(found))
	for p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b ViewPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Damages lists what is missing or damaged in the journal. It looks twice: a file that a broker recycles meanwhile looks
// damaged once.
func (v *View) Damages() ([]journal.Damage, error) {
	nothing := func(ViewPartition, record.Batch) error { return nil }
	first, err := v.replay(nothing)
	if err != nil || len(first.Damages) == 0 {
		return nil, err
	}
	second, err := v.replay(nothing)
	return slices.DeleteFunc(first.Damages, func(d journal.Damage) bool {
		return !slices.Contains(second.Damages, d)
	}), err
}

func (v *View) replay(fn func(ViewPartition, record.Batch) error) (journal.Report, error) {
	return journal.ReplayDir(v.fs, journal.Dir(v.dir), func(_ uint64, e *journal.Entry) error {
		if e.Kind != journal.KindBatch {
			return nil
		}
		b, _, err := record.Next(e.Batch)
		if err != nil {
			return err
		}
		return fn(ViewPartition{string(e.Topic), e.Partition}, b)
	})
}

// Selection says which batches of a partition are wanted. The batches at its edges are given whole.
type Selection struct {
	// From and To are offsets, To exclusive. To is math.MaxInt64 for no end.
	From, To int64
	// Since is a time in ms: batches with older records only may be left out. math.MinInt64 for all.
	Since int64
}

// Batches is Select of all batches from offset on.
func (v *View) Batches(p ViewPartition, offset int64, fn func(record.Batch, Place) error, bad func(*DamageError) error) error {
	return v.Select(p, Selection{offset, math.MaxInt64, math.MinInt64}, fn, bad)
}

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// Select calls fn for each selected batch of the partition, in order: those of the segments, and those that only the
// journal holds. A batch is valid within fn only. A damaged stretch is given to bad, and reading goes on
// behind it. Segments that lie wholly before the selection are not read. Errors: those of fn and bad, and of the file
// system.
func (v *View) Select(p ViewPartition, want Selection, fn func(record.Batch, Place) error, bad func(*DamageError) error) error {
	err := v.batches(p, want, func(b record.Batch, at Place) error {
		if b.BaseOffset() >= want.To {
			return errEnough
		}
		if b.MaxTimestamp() < want.Since {
			return nil
		}
		return fn(b, at)
	}, func(d *DamageError) error {
		if d.Offset >= want.To {
			return errEnough
		}
		return bad(d)
	})
	if err == errEnough {
		return nil
	}
	return err
}

// batches is Select that may give more.
func (v *View) batches(p ViewPartition, want Selection, fn func(record.Batch, Place) error, bad func(*DamageError) error) error {
	// The journal first: what it loses after this is in the segments by then.
	var t tail
	_, err := v.replay(func(q ViewPartition, b record.Batch) error {
		if p == q {
			t.add(b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	next, spans := want.From, t.spans
	fill := func(upTo int64) error {
		for ; len(spans) > 0 && spans[0].last < upTo; spans = spans[1:] {
			s := spans[0]
			if s.last < next {
				continue
			}
			if err := fn(t.batch(s), JournalPlace); err != nil {
				return err
			}
			next = s.last + 1
		}
		return nil
	}
	err = v.segmentBatches(p, want, func(b record.Batch, at Place) error {
		// What is damaged, or just being rewritten, may be in the journal.
		if err := fill(b.BaseOffset()); err != nil {
			return err
		}
		next = b.NextOffset()
		return fn(b, at)
	}, bad)
	if err != nil {
		return err
	}
	return fill(math.MaxInt64)
}

func (v *View) segmentBatches(p ViewPartition, want Selection, fn func(record.Batch, Place) error, bad func(*DamageError) error) error {
	dir := filepath.Join(topicsDir(v.dir), p.String())
	if _, err := v.fs.Stat(dir); err != nil {
		return nil // known from the journal only
	}
	viewer, err := files.OpenReadOnly(v.fs, dir)
	if err != nil {
		return err
	}
	defer viewer.Close()
	viewer.SkipOlder(want.Since)
	next := want.From
	var inner error // of fn
	for {
		err := viewer.Batches(next, func(b record.Batch, at Place) error {
			inner = fn(b, at)
			next = b.NextOffset()
			return inner
		})
		var damage *DamageError
		if inner != nil || !errors.As(err, &damage) {
			return err
		}
		if err := bad(damage); err != nil {
			return err
		}
		if damage.Resume <= next || damage.Resume == math.MaxInt64 {
			return nil // nothing valid behind it; the journal may go on
		}
		next = damage.Resume
	}
}
