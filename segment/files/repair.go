package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// RepairOptions say what Repair may use. CheckOptions are those of the Check that found what there is to mend.
type RepairOptions struct {
	CheckOptions
	// Fill calls fn for each batch that the journal has with offsets from from to to, in order.
	Fill func(from, to int64, fn func(record.Batch) error) error
	// DryRun says only what would be done.
	DryRun bool
	// Say is told what is done, when it is done.
	Say func(Action)
}

// Action is one thing that Repair does.
type Action struct {
	// Path is the file, From and To the offsets in question, -1 where there are none.
	Path     string
	From, To int64
	// What is done.
	What string
}

// Repair mends what recovery leaves alone in a partition's directory that nobody has open: damage below the recovery
// point, indexes, and leftovers. What lies beyond the recovery point is left as it is, for Open and the journal.
//
// Bad bytes are copied to a file beside and synced before anything else; a segment's good batches behind them go into
// new segments, so that the names tell which offsets are missing, with what the journal has of those; these appear under
// their names only when they are synced, the last one first; then the old file is cut. A crash anywhere between leaves
// everything readable that was, and Repair can be called again. So it can after an error, which is the file system's.
func Repair(o RepairOptions) error {
	list, err := List(o.FS, o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r := repairer{o: o, end: o.effectiveEnd()}
	if err := r.removeLeftovers(list); err != nil {
		return err
	}
	next := o.Start
	for i, seg := range list {
		limit := int64(math.MaxInt64)
		if i+1 < len(list) {
			limit = list[i+1].Base
		}
		if limit <= o.Start {
			continue // to be removed
		}
		if i == 0 && o.Start < seg.Base && o.Journal.meets(o.Start, seg.Base) {
			if err := r.fillHole(next, seg.Base); err != nil {
				return err
			}
		}
		if err := r.segment(seg, limit); err != nil {
			return fmt.Errorf("repair %s: %w", seg.Path, err)
		}
	}
	if len(list) == 0 {
		return r.fillHole(next, min(r.end, o.Journal.End()))
	}
	return nil
}

type repairer struct {
	o   RepairOptions
	end int64 // what lies beyond is for Open
}

func (r *repairer) say(path string, from, to int64, format string, args ...any) {
	r.o.Say(Action{path, from, to, fmt.Sprintf(format, args...)})
}

// removeLeftovers removes files that were being written, and indexes without a log.
func (r *repairer) removeLeftovers(list []SegmentInfo) error {
	var paths []string
	c := checker{o: r.o.CheckOptions, end: r.end, report: func(p Problem) {
		if p.Fix == FixRemove {
			paths = append(paths, p.Path)
		}
	}}
	found, err := r.o.FS.ReadDir(r.o.Dir)
	if err != nil {
		return err
	}
	c.leftovers(found, list)
	for _, path := range paths {
		r.say(path, -1, -1, "remove it: it is left over")
		if r.o.DryRun {
			continue
		}
		if err := r.o.FS.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// segment mends one segment.
func (r *repairer) segment(seg SegmentInfo, limit int64) error {
	log, size, err := openSized(r.o.FS, seg.Path)
	if err != nil {
		return err
	}
	defer log.Close()
	var first *stretch
	mended := 0
	w, err := walk(log, size, seg.Base, limit, func(record.Batch, int64) error { return nil }, func(s stretch) error {
		if b := mend(log, s, min(limit, r.end)); b != nil && r.isMine(s) {
			mended++
			return r.mendHeader(seg, s, b)
		}
		if first == nil {
			first = &s
		}
		return nil
	})
	if err != nil {
		return err
	}
	if mended > 0 && !r.o.DryRun {
		return r.segment(seg, limit) // what is behind is seen better now
	}
	if first != nil && r.isMine(*first) {
		return r.rewrite(seg, limit, log, size, first.position)
	}
	if next, to := w.next, min(limit, r.end); first == nil && r.o.Journal.meets(next, to) {
		if err := r.fillHole(next, to); err != nil {
			return err
		}
	}
	return r.indexes(seg, limit)
}

// isMine says whether a stretch is Repair's: it begins below the recovery point. Anything else may be what a crash left.
func (r *repairer) isMine(s stretch) bool { return s.from < r.end }

func (r *repairer) mendHeader(seg SegmentInfo, s stretch, b record.Batch) error {
	r.say(seg.Path, b.BaseOffset(), b.NextOffset(), "correct the batch header at byte %d", s.position)
	if r.o.DryRun {
		return nil
	}
	f, err := r.o.FS.OpenFile(seg.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	// In place: what is overwritten is wrong, and a torn write can be mended again.
	_, err = f.WriteAt(b[:unchecked], s.position)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// fillHole makes segments of what the journal has of a hole.
func (r *repairer) fillHole(from, to int64) error {
	if !r.o.Journal.meets(from, to) {
		return nil
	}
	p := pieces{r: r, next: from}
	defer p.discard()
	if err := r.fill(&p, from, to); err != nil {
		return err
	}
	return p.publish()
}

// fill adds what the journal has from from to to.
func (r *repairer) fill(p *pieces, from, to int64) error {
	if !r.o.Journal.meets(from, to) {
		return nil
	}
	return r.o.Fill(from, to, func(b record.Batch) error {
		if b.BaseOffset() < p.next || b.LastOffset() >= to {
			return nil
		}
		r.say(r.o.Dir, b.BaseOffset(), b.NextOffset(), "bring it back from the journal")
		return p.add(b)
	})
}

// rewrite takes the stretches from the first one, at position cut, on out of the segment.
func (r *repairer) rewrite(seg SegmentInfo, limit int64, log vfs.File, size, cut int64) error {
	p := pieces{r: r}
	defer p.discard()
	_, err := walk(log, size, seg.Base, limit, func(b record.Batch, at int64) error {
		if at < cut {
			return nil
		}
		return p.add(b)
	}, func(s stretch) error {
		p.next = s.from
		stop := limit == math.MaxInt64 && (s.to > r.end || !r.isMine(s))
		if stop {
			s.end, s.to = size, max(s.from, r.end) // what is behind is the journal's
		}
		if err := r.keepAside(seg, log, s); err != nil {
			return err
		}
		if err := r.fill(&p, s.from, s.to); err != nil {
			return err
		}
		if stop {
			return errStop
		}
		return nil
	})
	if err != nil && err != errStop {
		return err
	}
	if err := p.publish(); err != nil {
		return err
	}
	if err := r.cut(seg, cut, p.has(seg.Base)); err != nil {
		return err
	}
	if cut == 0 {
		return nil
	}
	return r.remake(seg.Base, cut)
}

var errStop = errors.New("enough")

// keepAside copies a stretch to a file beside.
func (r *repairer) keepAside(seg SegmentInfo, log vfs.File, s stretch) error {
	name, err := vfs.Unused(r.o.FS, fmt.Sprintf("%s%s%d", seg.Path, damagedInfix, s.position))
	if err != nil {
		return err
	}
	to := s.to
	if to == math.MaxInt64 {
		to = -1
	}
	r.say(seg.Path, s.from, to, "take %d bytes at byte %d out and keep them as %s", s.end-s.position, s.position, name)
	if r.o.DryRun {
		return nil
	}
	f, err := r.o.FS.OpenFile(name+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	if err = copyRange(f, &patient{f: log, endures: true}, s.position, s.end); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = r.o.FS.Rename(name+newSuffix, name)
	}
	if err != nil {
		_ = r.o.FS.Remove(name + newSuffix)
		return err
	}
	return r.o.FS.SyncDir(r.o.Dir)
}

// cut ends the segment at position. A log without a batch is removed, unless a new one has taken its place.
func (r *repairer) cut(seg SegmentInfo, position int64, replaced bool) error {
	switch {
	case r.o.DryRun || replaced:
		return nil
	case position > 0:
		f, err := r.o.FS.OpenFile(seg.Path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err = f.Truncate(position); err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	}
	for _, suffix := range []string{timeSuffix, indexSuffix, logSuffix} {
		if err := r.o.FS.Remove(stem(r.o.Dir, seg.Base) + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return r.o.FS.SyncDir(r.o.Dir)
}

// indexes makes a segment's indexes anew if they are wrong. Check decides, so that both agree.
func (r *repairer) indexes(seg SegmentInfo, limit int64) error {
	wrong := false
	c := checker{o: r.o.CheckOptions, end: r.end, report: func(p Problem) { wrong = wrong || p.Fix == FixIndex }}
	c.segment(seg, limit)
	if !wrong {
		return nil
	}
	r.say(seg.Path, seg.Base, c.next, "make its indexes anew")
	if r.o.DryRun {
		return nil
	}
	return r.remake(seg.Base, c.good)
}

// remake makes both indexes of a segment anew, for the first size bytes of its log.
func (r *repairer) remake(base, size int64) error {
	if r.o.DryRun {
		return nil
	}
	log, all, err := openSized(r.o.FS, stem(r.o.Dir, base)+logSuffix)
	if err != nil {
		return err
	}
	defer log.Close()
	size = min(size, all)
	x := newIndexer(DefaultIndexIntervalBytes)
	p := &patient{f: log, endures: true}
	list, err := scanAll(&scanner{f: p, size: size, maxBatch: record.MaxBatchBytes, expect: base}, math.MaxInt64, &x)
	if err != nil {
		return err
	}
	index, times := encodeEntries(list, base)
	for i, suffix := range []string{indexSuffix, timeSuffix} {
		path := stem(r.o.Dir, base) + suffix
		if info, err := r.o.FS.Stat(path); err == nil && info.IsDir() {
			if err := r.o.FS.Remove(path); err != nil { // goes on only if it is empty: it isn't ours
				return err
			}
		}
		if err := replaceFile(r.o.FS, path, [][]byte{index, times}[i]); err != nil {
			return err
		}
	}
	return r.o.FS.SyncDir(r.o.Dir)
}

// pieces are new segments under construction. Each takes batches that follow each other.
type pieces struct {
	r      *repairer
	next   int64 // offset behind the last batch
	bases  []int64
	joined bool // the next batch goes to the last piece if it follows
	f      vfs.File
	size   int64
}

func (p *pieces) has(base int64) bool { return slices.Contains(p.bases, base) }

func (p *pieces) path(base int64) string { return stem(p.r.o.Dir, base) + logSuffix }

func (p *pieces) add(b record.Batch) error {
	if n := len(p.bases); n == 0 || !p.joined || b.BaseOffset() != p.next || p.size+int64(len(b)) > MaxSegmentBytes {
		if err := p.begin(b.BaseOffset()); err != nil {
			return err
		}
	}
	p.next, p.joined = b.NextOffset(), true
	p.size += int64(len(b))
	if p.r.o.DryRun {
		return nil
	}
	_, err := p.f.WriteAt(b, p.size-int64(len(b)))
	return err
}

func (p *pieces) begin(base int64) error {
	if err := p.end(); err != nil {
		return err
	}
	p.bases, p.size = append(p.bases, base), 0
	if p.r.o.DryRun {
		return nil
	}
	f, err := p.r.o.FS.OpenFile(p.path(base)+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	p.f = f
	return err
}

// end makes the last piece durable.
func (p *pieces) end() error {
	if p.f == nil {
		return nil
	}
	err := p.f.Sync()
	err = errors.Join(err, p.f.Close())
	p.f = nil
	return err
}

// publish puts the pieces in place, the last one first: each then ends, for readers and recovery, what the old segment has.
func (p *pieces) publish() error {
	if err := p.end(); err != nil {
		return err
	}
	for n := len(p.bases); n > 0; n-- {
		base := p.bases[n-1]
		p.r.say(p.path(base), base, -1, "begin a segment here")
		if p.r.o.DryRun {
			p.bases = p.bases[:n-1]
			continue
		}
		if err := p.r.o.FS.Rename(p.path(base)+newSuffix, p.path(base)); err != nil {
			return err
		}
		if err := p.r.o.FS.SyncDir(p.r.o.Dir); err != nil {
			return err
		}
		if err := p.r.remake(base, math.MaxInt64); err != nil {
			return err
		}
	}
	return nil
}

// discard removes what publish has not put in place.
func (p *pieces) discard() {
	if p.f != nil {
		p.f.Close()
	}
	if p.r.o.DryRun {
		return
	}
	for _, base := range p.bases {
		_ = p.r.o.FS.Remove(p.path(base) + newSuffix)
	}
}

// copyRange copies bytes from and to of src to the beginning of dst.
func copyRange(dst vfs.File, src io.ReaderAt, from, to int64) error {
	buf := make([]byte, scanChunk)
	for at := from; at < to; {
		n, err := src.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
		if n == 0 {
			return err
		}
		if _, err := dst.WriteAt(buf[:n], at-from); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}
