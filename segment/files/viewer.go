package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// Viewer looks at a partition's directory and changes nothing there, whether a broker is writing to it or not. It is
// for one goroutine.
type Viewer struct {
	fs       vfs.FS
	dir      string
	segments []SegmentInfo
	since    int64 // ms; segments that are older by their time index may be skipped
}

// Place is where a batch stands.
type Place struct {
	// Path is the log file, Position the batch's in it.
	Path     string
	Position int64
}

// OpenReadOnly lists the segments in dir, which is all it needs.
func OpenReadOnly(fsys vfs.FS, dir string) (*Viewer, error) {
	list, err := List(fsys, dir)
	if err != nil {
		return nil, err
	}
	return &Viewer{fs: fsys, dir: dir, segments: list, since: math.MinInt64}, nil
}

// Segments are those that were there when the viewer was opened.
func (v *Viewer) Segments() []SegmentInfo { return v.segments }

// SkipOlder lets Batches leave out segments that hold nothing from ms on. Their time indexes say so, if they are sound.
func (v *Viewer) SkipOlder(ms int64) { v.since = ms }

// older says whether a closed segment's time index ends before the wanted time.
func (v *Viewer) older(seg SegmentInfo) bool {
	n := seg.TimeIndexBytes / timeEntryBytes
	if v.since == math.MinInt64 || n <= 0 || seg.TimeIndexBytes%timeEntryBytes != 0 {
		return false
	}
	f, err := v.fs.OpenFile(stem(v.dir, seg.Base)+timeSuffix, os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	x := indexFile{f, seg.Base, make([]byte, timeEntryBytes)}
	last, _, err := x.timeEntry(n - 1)
	return err == nil && last < v.since && x.increasing(n, timeEntryBytes)
}

// Batches calls fn with each batch from the one that holds offset from, in order, each checked; b is valid during
// the call only. What a broker appends meanwhile may be seen; the end is where the last file ends, inside a batch or
// not, since that may be one being written. Segments removed meanwhile are skipped.
//
// The error is fn's, or a *DamageError, after which another call with its Resume goes on.
func (v *Viewer) Batches(from int64, fn func(b record.Batch, at Place) error) error {
	for i, seg := range v.segments {
		limit := int64(math.MaxInt64)
		if i+1 < len(v.segments) {
			limit = v.segments[i+1].Base
		}
		if limit <= from || limit != math.MaxInt64 && v.older(seg) {
			continue
		}
		if err := v.segment(seg, limit, from, fn); err != nil {
			return err
		}
	}
	return nil
}

func (v *Viewer) segment(seg SegmentInfo, limit, from int64, fn func(record.Batch, Place) error) error {
	f, err := v.fs.OpenFile(seg.Path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("view segment: %w", err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("view segment: %w", err)
	}
	p := &patient{f: f}
	s := scanner{f: p, size: size, maxBatch: record.MaxBatchBytes, expect: seg.Base}
	for {
		at := Place{seg.Path, s.position}
		b, err := s.next()
		switch {
		case err == nil && b.LastOffset() >= limit:
			return nil // superseded by the next segment
		case err == nil && b.LastOffset() < from:
		case err == nil:
			if err := fn(b, at); err != nil {
				return err
			}
		case err == io.EOF, s.expect == limit:
			return nil
		case readError(err) != nil:
			return fmt.Errorf("view segment: %w", err)
		default:
			if bad, err := s.viewDamage(seg, limit, p.cause(err)); bad == nil || err != nil {
				return err
			} else if bad.Resume > from {
				bad.Offset = max(bad.Offset, from)
				return bad
			}
		}
	}
}

// viewDamage moves s behind damage and describes it. It is nil if it may be a batch that is being written.
func (s *scanner) viewDamage(seg SegmentInfo, limit int64, cause error) (*DamageError, error) {
	bad := &DamageError{Path: seg.Path, Position: s.position, Offset: s.expect, Resume: limit, Err: cause}
	s.expect++ // the bad one's own offset doesn't come again
	ok, err := s.resync(limit)
	switch {
	case err != nil:
		return nil, fmt.Errorf("view segment: %w", err)
	case ok:
		bad.Resume = s.expect
	case limit == math.MaxInt64 && errors.Is(cause, errTorn) && !unreadable(cause):
		return nil, nil
	}
	return bad, nil
}

// Close ends the view.
func (v *Viewer) Close() error { return nil }
