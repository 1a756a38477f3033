package files

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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
}

// List describes the segments in a partition's directory, by base offset. It opens no file.
func List(fsys vfs.FS, dir string) ([]SegmentInfo, error) {
	found, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	sizes := make(map[int64]*SegmentInfo)
	for _, entry := range found {
		base, suffix, ok := parseName(entry.Name())
		if !ok || entry.IsDir() {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since, by the broker that owns the directory
		}
		if err != nil {
			return nil, fmt.Errorf("list segments: %w", err)
		}
		s := sizes[base]
		if s == nil {
			s = &SegmentInfo{Base: base, Path: stem(dir, base) + logSuffix, Bytes: -1, IndexBytes: -1, TimeIndexBytes: -1}
			sizes[base] = s
		}
		switch suffix {
		case logSuffix:
			s.Bytes = info.Size()
		case indexSuffix:
			s.IndexBytes = info.Size()
		case timeSuffix:
			s.TimeIndexBytes = info.Size()
		}
	}
	var list []SegmentInfo
	for _, s := range sizes {
		if s.Bytes >= 0 { // an index without a log says nothing; creating that segment anew overwrites it
			list = append(list, *s)
		}
	}
	slices.SortFunc(list, func(a, b SegmentInfo) int {
		if a.Base < b.Base {
			return -1
		}
		return 1
	})
	return list, nil
}
