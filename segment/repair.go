package segment

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// RepairOptions say what Repair may do. Dir is required.
type RepairOptions struct {
	// Dir is the data directory.
	Dir string
	// DryRun says only what would be done, and writes nothing.
	DryRun bool
	// RemoveSetAside also deletes the copies of damaged parts that earlier recoveries and repairs have kept.
	RemoveSetAside bool
	// FS is the file system, for tests. nil: the real one.
	FS vfs.FS
}

// RepairAction is one thing that Repair does, or would do.
type RepairAction struct {
	// Topic and Partition say whose it is; Topic is "" where it is nobody's.
	Topic     string
	Partition int32
	// Path is the file, From and To (exclusive) the offsets in question, -1 where there are none or it is unknown.
	Path     string
	From, To int64
	What     string
}

// Loss is what can't be brought back of a partition.
type Loss struct {
	Topic     string
	Partition int32
	Offsets   files.Ranges
	// Beyond is the offset from which on an unknown number of records is gone, -1 if there is no such.
	Beyond int64
}

// Repaired is what Repair found and did.
type Repaired struct {
	Actions int
	Losses  []Loss
	// Left are the findings of damages and faults that are still there; without a dry run it is an error if there are any.
	Left []Finding
}

// Repair mends a data directory that no broker uses: first what recovery leaves alone (damage in segments, indexes,
// leftovers), then with what Open does at each start, and then it looks whether anything is left. It tells say of each
// thing when it does it.
//
// Nothing is removed before what is good of it is durable elsewhere, so after an error or a crash anywhere Repair can be
// called again. Errors: ErrLocked, ErrNewerFormat, and those of the file system.
func Repair(o RepairOptions, say func(RepairAction)) (Repaired, error) {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	r := repairer{o: o, tell: say, v: verifier{fs: o.FS, dir: o.Dir}, losses: map[ViewPartition]*Loss{}}
	if _, err := o.FS.ReadDir(o.Dir); err != nil {
		return r.done, fmt.Errorf("%s can't be repaired: %w", o.Dir, err)
	}
	unlock, err := r.lock()
	if err != nil {
		return r.done, err
	}
	defer unlock.Close()
	err = r.run()
	if err == nil && !o.DryRun {
		err = r.takeBack()
	}
	for _, p := range r.order {
		if loss := r.losses[p]; len(loss.Offsets) > 0 || loss.Beyond >= 0 {
			r.done.Losses = append(r.done.Losses, *loss)
		}
	}
	return r.done, err
}

// takeBack strikes from the losses what recovery has saved out of what was damaged.
func (r *repairer) takeBack() error {
	view := &View{fs: r.o.FS, dir: r.o.Dir}
	for _, p := range r.order {
		var found, lost files.Ranges
		for _, lack := range r.losses[p].Offsets {
			want := Selection{From: lack.From, To: lack.To, Since: math.MinInt64}
			err := view.Select(p, want, func(b record.Batch, _ Place) error {
				found = found.Add(b.BaseOffset(), b.NextOffset())
				return nil
			}, func(*DamageError) error { return nil })
			if err != nil {
				return err
			}
		}
		for _, lack := range r.losses[p].Offsets {
			found.Split(lack.From, lack.To, func(x files.Range, in bool) {
				if !in {
					lost = lost.Add(x.From, x.To)
				}
			})
		}
		r.losses[p].Offsets = lost
	}
	return nil
}

type repairer struct {
	o      RepairOptions
	tell   func(RepairAction)
	v      verifier
	done   Repaired
	losses map[ViewPartition]*Loss
	order  []ViewPartition // of losses
}

// lock takes the lock, or for a dry run, which may not even make the file, sees that it is free.
func (r *repairer) lock() (io.Closer, error) {
	path := filepath.Join(r.o.Dir, lockName)
	if r.o.DryRun {
		used, err := vfs.Locked(path)
		if used {
			err = fmt.Errorf("%s: %w", r.o.Dir, ErrLocked)
		}
		return io.NopCloser(nil), err
	}
	if err := r.v.root(); err != nil { // before a lock file is made in a directory that isn't one
		return nil, err
	}
	lock, err := r.o.FS.Lock(path)
	if errors.Is(err, vfs.ErrLocked) {
		err = fmt.Errorf("%s: %w", r.o.Dir, ErrLocked)
	}
	r.v.mine = true
	return lock, err
}

// repairRounds is how often Repair looks for something to mend. What is behind a damage may be seen only when that is mended.
const repairRounds = 4

func (r *repairer) run() error {
	var aside []string
	for round := range repairRounds {
		if err := r.v.look(); err != nil {
			return err
		}
		if round == 0 {
			aside = r.setAsideFiles()
		}
		r.count()
		if !slices.ContainsFunc(r.v.findings, func(f Finding) bool { return f.Fix != files.FixNone }) && r.v.more == 0 {
			return r.removeSetAside(aside)
		}
		if err := r.mend(); err != nil {
			return err
		}
		if r.o.DryRun {
			return r.removeSetAside(aside)
		}
		if err := r.recover(); err != nil {
			return err
		}
	}
	if err := r.v.look(); err != nil {
		return err
	}
	for _, f := range r.v.findings {
		if f.Severity != SeverityNote {
			r.done.Left = append(r.done.Left, f)
		}
	}
	if n := len(r.done.Left); n > 0 {
		return fmt.Errorf("%s: %d damages or faults can't be repaired, the first: %s: %s", r.o.Dir, n, r.done.Left[0].Path, r.done.Left[0].What)
	}
	return r.removeSetAside(aside)
}

// count takes down what is lost.
func (r *repairer) count() {
	for _, f := range r.v.findings {
		if f.Severity != SeverityDamage || f.Topic == "" || f.From < 0 {
			continue
		}
		p := ViewPartition{f.Topic, f.Partition}
		loss := r.losses[p]
		if loss == nil {
			loss = &Loss{Topic: p.Topic, Partition: p.ID, Beyond: -1}
			r.losses[p] = loss
			r.order = append(r.order, p)
		}
		if f.To >= 0 {
			loss.Offsets = loss.Offsets.Add(f.From, f.To)
		} else {
			loss.Beyond = f.From
		}
	}
}

func (r *repairer) say(a RepairAction) {
	r.done.Actions++
	r.tell(a)
}

func (r *repairer) note(path, format string, args ...any) {
	r.say(RepairAction{Path: path, From: -1, To: -1, What: fmt.Sprintf(format, args...)})
}

// mend does what recovery leaves alone, and in a dry run says what recovery would do.
func (r *repairer) mend() error {
	mended := map[ViewPartition]bool{}
	for _, f := range r.v.findings {
		p := ViewPartition{f.Topic, f.Partition}
		var err error
		switch {
		case f.Fix == files.FixNone:
		case f.Fix == files.FixStart:
			r.say(RepairAction{f.Topic, f.Partition, f.Path, f.From, f.To, "leave it to recovery, as at a start: " + f.What})
		case f.Topic != "" && mended[p]:
		case f.Topic == "":
			err = r.asideJournal(f.Path)
		case f.Kind == "topic":
			err = r.asidePartition(p, f.Path)
		default:
			mended[p] = true
			err = files.Repair(r.partition(p))
		}
		if err != nil {
			return fmt.Errorf("repair: %w", err)
		}
	}
	return nil
}

func (r *repairer) partition(p ViewPartition) files.RepairOptions {
	return files.RepairOptions{
		CheckOptions: r.v.facts.checked[p],
		DryRun:       r.o.DryRun,
		Say: func(a files.Action) {
			r.say(RepairAction{p.Topic, p.ID, a.Path, a.From, a.To, a.What})
		},
		Fill: func(from, to int64, fn func(record.Batch) error) error {
			_, err := journal.Inspect(r.o.FS, journal.Dir(r.o.Dir), func(_ uint64, e *journal.Entry) error {
				if e.Kind != journal.KindBatch || string(e.Topic) != p.Topic || e.Partition != p.ID {
					return nil
				}
				b, err := wholeBatch(e)
				if err != nil || b.BaseOffset() < from || b.LastOffset() >= to {
					return nil
				}
				return fn(b)
			})
			return err
		},
	}
}

func (r *repairer) asideJournal(path string) error {
	if r.o.DryRun {
		r.note(path, "set it aside")
		return nil
	}
	aside, err := journal.SetAside(r.o.FS, path)
	if err == nil {
		r.note(path, "set aside as %s", aside)
	}
	return err
}

// asidePartition sets the directory of a partition aside that its topic doesn't have.
func (r *repairer) asidePartition(p ViewPartition, dir string) error {
	aside, err := vfs.Unused(r.o.FS, dir+".damaged")
	if err != nil {
		return err
	}
	r.say(RepairAction{p.Topic, p.ID, dir, -1, -1, "set aside as " + aside})
	if r.o.DryRun {
		return nil
	}
	if err := r.o.FS.Rename(dir, aside); err != nil {
		return err
	}
	return r.o.FS.SyncDir(filepath.Dir(dir))
}

// locked is a file system whose lock we have already.
type locked struct{ vfs.FS }

func (locked) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// recover does what a start of the broker does, and makes a checkpoint in each state file.
func (r *repairer) recover() error {
	o := DefaultOptions()
	o.Dir, o.FS, o.Logger = r.o.Dir, locked{r.o.FS}, slog.New(slog.DiscardHandler)
	// Whatever the configuration is: no batch is too large, no file too small, and nothing is to be made room for.
	o.MaxBytes, o.MaxRecordBytes, o.StateBytes, o.BudgetBytes = 16<<20, 16<<20, 1<<30, math.MaxInt64/16
	o.ReserveBytes = 1
	if info, err := r.o.FS.Stat(filepath.Join(r.o.Dir, reserveName)); err == nil {
		o.ReserveBytes = max(info.Size(), 1) // as it is
	}
	o.JournalBytes, o.lostBytes = 1<<20, maxJournalBytes // if no file is left to tell: as many offsets as there can be, but no such files
	if n := r.v.facts.fileLen; n >= 64<<10 && n <= maxJournalBytes {
		o.JournalBytes, o.lostBytes = n, n
	}
	l := newLog(o)
	err := l.open() // releases everything itself when it fails
	if err != nil {
		return fmt.Errorf("repair: %w", markFormat(err))
	}
	for range 2 { // one for each state file
		if err == nil {
			err = l.checkpointNow(l.journal.LastLSN())
		}
	}
	if err = errors.Join(err, l.release()); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	if n := l.recovered.Frames; n > 0 {
		r.note(journal.Dir(r.o.Dir), "replayed %d frames with %d records that were not in segments yet", n, l.recovered.Records)
	}
	if n := l.recovered.CutBytes; n > 0 {
		r.note(topicsDir(r.o.Dir), "cut %d bytes of torn tails off, which the journal has", n)
	}
	for _, what := range slices.Concat(l.recovered.Damages, l.recovered.Notes) {
		r.note(r.o.Dir, "%s", what)
	}
	return nil
}

// setAsideFiles lists the copies of damaged parts that are there.
func (r *repairer) setAsideFiles() (paths []string) {
	if !r.o.RemoveSetAside {
		return nil
	}
	for _, f := range r.v.findings {
		if f.Kind == "set-aside" {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

func (r *repairer) removeSetAside(paths []string) error {
	for _, path := range paths {
		r.note(path, "delete it: it was set aside")
		if r.o.DryRun {
			continue
		}
		if strings.HasPrefix(path, topicsDir(r.o.Dir)) && isAsideDir(filepath.Base(path)) {
			entries, _ := r.o.FS.ReadDir(path) // none of a plain file
			for _, e := range entries {
				if err := r.o.FS.Remove(filepath.Join(path, e.Name())); err != nil {
					return fmt.Errorf("repair: %w", err)
				}
			}
		}
		if err := r.o.FS.Remove(path); err != nil {
			return fmt.Errorf("repair: %w", err)
		}
	}
	return nil
}
