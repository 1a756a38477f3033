package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// names of the two files. newSuffix marks one that is being made; a crash may leave it, and it is removed at Open.
var names = [2]string{"state-a.db", "state-b.db"}

const newSuffix = ".new"

// Open opens the two state files in o.Dir. A bad one is set aside and will be made anew from the other; with both bad or
// missing the store is empty, which Report says. The error is a *FormatError, ErrLocked, or says why the directory
// can't be used; in all these cases nothing was changed.
func Open(o Options) (*Store, Report, error) {
	o.setDefaults()
	s := &Store{o: o, newest: -1}
	var report Report
	heads, bad, err := s.probeAll(&report)
	if err == nil {
		err = s.openAll(heads, bad, &report)
	}
	if err != nil {
		s.Close()
		return nil, report, fmt.Errorf("open state in %s: %w", o.Dir, wrap(err))
	}
	s.choose(&report)
	for _, note := range report.Notes {
		o.Logger.Warn("state: " + note)
	}
	return s, report, nil
}

// probeAll looks at both files before anything is changed in either. bad[i] says why file i must be set aside; a missing
// file has neither head nor reason.
func (s *Store) probeAll(report *Report) (heads [2]*head, bad [2]error, err error) {
	if info, err := os.Stat(s.o.Dir); err != nil {
		return heads, bad, err
	} else if !info.IsDir() {
		return heads, bad, &fs.PathError{Op: "open", Path: s.o.Dir, Err: syscall.ENOTDIR}
	}
	for i, name := range names {
		path := filepath.Join(s.o.Dir, name)
		h, err := s.o.probe(path)
		var newer *FormatError
		switch {
		case err == nil:
			heads[i] = &h
			if oneMeta(path) {
				report.Notes = append(report.Notes, fmt.Sprintf("%s: one of its two meta pages is damaged, as by a power cut; it was opened at the one that is good", path))
			}
		case errors.Is(err, fs.ErrNotExist):
		case errors.As(err, &newer) || fatal(err):
			return heads, bad, err
		default:
			bad[i] = err
		}
	}
	return heads, bad, nil
}

func (s *Store) openAll(heads [2]*head, bad [2]error, report *Report) error {
	for i, name := range names {
		path := filepath.Join(s.o.Dir, name)
		if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if heads[i] != nil {
			db, err := s.o.openBolt(path, false)
			switch {
			case err == nil:
				s.files[i] = &file{path: path, db: db, written: &s.written, head: *heads[i]}
			case fatal(err):
				return err
			default:
				bad[i] = err
			}
		}
		if bad[i] == nil {
			continue
		}
		aside := asideName(path)
		if err := os.Rename(path, aside); err != nil {
			return err
		}
		report.SetAside = append(report.SetAside, aside)
		report.Notes = append(report.Notes, fmt.Sprintf("%s is damaged (%v); it is kept as %s", path, bad[i], aside))
	}
	return nil
}

// choose finds the newest file and says what is odd.
func (s *Store) choose(report *Report) {
	for i, f := range s.files {
		if f == nil {
			continue
		}
		if s.newest < 0 || f.head.number > s.files[s.newest].head.number {
			s.newest = i
		}
	}
	if s.newest < 0 {
		if len(report.SetAside) > 0 {
			report.Notes = append(report.Notes, "no state file is usable: sessions, cursors and the recovery point are lost")
		}
		return
	}
	f := s.files[s.newest]
	report.Newest = f.path
	if other := s.files[1-s.newest]; other != nil && other.head.number+1 != f.head.number {
		report.Notes = append(report.Notes, fmt.Sprintf("%s is of checkpoint %d and %s of %d, not of the one before: it was put back, or its newest page is damaged", other.path, other.head.number, f.path, f.head.number))
	}
	if s.files[1-s.newest] == nil && f.head.number > 1 && len(report.SetAside) == 0 {
		report.Notes = append(report.Notes, fmt.Sprintf("%s is missing; it will be made anew from %s", filepath.Join(s.o.Dir, names[1-s.newest]), f.path))
	}
}

func outOfResources(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EROFS, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
