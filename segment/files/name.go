package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
)

// The files of the segment that begins at offset 170 (Kafka: LogFileUtils.java):
//
//	00000000000000000170.log         RecordBatches, one after the other
//	00000000000000000170.index       offset → position
//	00000000000000000170.timeindex   timestamp → offset
//
// and beside them, ours, which Kafka ignores:
//
//	00000000000000000170.log.aside            a whole segment that recovery took out of the chain
//	00000000000000000170.log.damaged-8192     the end of a segment, from position 8192, that recovery cut off
//
// where a number is added for a name that exists.
const (
	logSuffix    = ".log"
	indexSuffix  = ".index"
	timeSuffix   = ".timeindex"
	asideSuffix  = ".aside"
	damagedInfix = ".damaged-"
	baseDigits   = 20
)

// stem is the path of a segment's files without their suffixes.
func stem(dir string, base int64) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d", baseDigits, base))
}

// parseName splits a segment file's name. ok is false for any other file.
func parseName(name string) (base int64, suffix string, ok bool) {
	if len(name) <= baseDigits || strings.Trim(name[:baseDigits], "0123456789") != "" {
		return 0, "", false
	}
	switch suffix = name[baseDigits:]; suffix {
	case logSuffix, indexSuffix, timeSuffix:
	default:
		return 0, "", false
	}
	base, err := strconv.ParseInt(name[:baseDigits], 10, 64)
	return base, suffix, err == nil
}

// SegmentInfo describes one segment as its directory shows it.
type SegmentInfo struct {
	// Base is the offset that the segment begins at.
	Base int64
	// Path is that of the log file.
	Path string
	// Bytes is the size of the log file, IndexBytes and TimeIndexBytes those of its indexes, -1 where there is none.
	Bytes, IndexBytes, TimeIndexBytes int64

	err error // why the log file's size isn't known
}

// List describes the segments in a partition's directory, by base offset. It opens no file.
func List(fsys vfs.FS, dir string) ([]SegmentInfo, error) {
	l, err := list(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	for _, s := range l.segments {
		if s.err != nil {
			return nil, fmt.Errorf("list segments: %w", s.err)
		}
	}
	return l.segments, nil
}

// listing is what a partition's directory shows.
type listing struct {
	segments []SegmentInfo // by base offset
	side     []sideFile
	lost     []SegmentInfo   // those whose log is missing though an index is there
	left     []string        // paths of files that the interrupted making of an index left
	others   map[string]bool // names of all that is not a segment's
}

// list reads a directory once, and looks at each file in it once.
func list(fsys vfs.FS, dir string) (l listing, err error) {
	found, err := fsys.ReadDir(dir)
	if err != nil {
		return l, err
	}
	l.others = make(map[string]bool)
	logs := 0
	for _, entry := range found { // sorted: what belongs to one segment comes together
		if entry.IsDir() {
			l.others[entry.Name()] = true
			continue
		}
		base, suffix, ok := parseName(entry.Name())
		if !ok {
			err = l.addOther(dir, entry)
		} else {
			err = l.addSegment(dir, entry, base, suffix)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since, by the broker that owns the directory
		}
		if err != nil {
			return l, err
		}
	}
	for _, s := range l.segments {
		if s.Path != "" {
			l.segments[logs] = s
			logs++
			continue
		}
		l.lost = append(l.lost, s)
	}
	l.segments = l.segments[:logs]
	return l, nil
}

func (l *listing) addOther(dir string, entry fs.DirEntry) error {
	name := entry.Name()
	l.others[name] = true
	if _, suffix, ok := parseName(strings.TrimSuffix(name, newSuffix)); ok && suffix != logSuffix {
		l.left = append(l.left, filepath.Join(dir, name))
		return nil
	}
	base, ok := sideBase(name)
	if !ok {
		return nil
	}
	info, err := entry.Info()
	if unreadable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.side = append(l.side, sideFile{base, filepath.Join(dir, name), info.Size()})
	return nil
}

func (l *listing) addSegment(dir string, entry fs.DirEntry, base int64, suffix string) error {
	size := int64(-1)
	info, err := entry.Info()
	switch {
	case err == nil:
		size = info.Size()
	case !unreadable(err):
		return err
	}
	if n := len(l.segments); n == 0 || l.segments[n-1].Base != base {
		l.segments = append(l.segments, SegmentInfo{Base: base, Bytes: -1, IndexBytes: -1, TimeIndexBytes: -1})
	}
	s := &l.segments[len(l.segments)-1]
	switch suffix {
	case logSuffix:
		s.Path, s.Bytes, s.err = filepath.Join(dir, entry.Name()), max(size, 0), err
	case indexSuffix:
		s.IndexBytes = size
	case timeSuffix:
		s.TimeIndexBytes = size
	}
	return nil
}
