package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// FileCheck is what Inspect finds out about one of the two state files.
type FileCheck struct {
	Path    string
	Missing bool
	Bytes   int64
	// Number is that of the checkpoint that the file holds, Point its recovery point.
	Number uint64
	Point  Point
	// Values is how many values were checked, Kept those whose keys have one of the wanted prefixes.
	Values int64
	Kept   map[string][]byte
	// Err is why the file can't be used, nil if it can; Position is that of the bad page.
	Err      error
	Position int64
	// BadMeta is the position of a meta page that is bad while the other one is good, so that bbolt opens the file as it was
	// then; -1 if there is none.
	BadMeta int64
}

// Inspect reads both state files with plain reads, whole: the structure of their pages, and each value's checksum. It
// takes no lock and writes nothing. A file that is being written meanwhile is read again. It keeps the values whose keys
// begin with one of the prefixes. The error is a *FormatError, or of rights to read.
func Inspect(dir string, prefixes ...string) (checks [2]FileCheck, err error) {
	for i, name := range names {
		path := filepath.Join(dir, name)
		for try := 0; ; try++ {
			before := fingerprint(path)
			if checks[i], err = inspectAll(path, prefixes); err != nil {
				return checks, fmt.Errorf("inspect state: %w", err)
			}
			c := &checks[i]
			if fine := c.Err == nil && c.BadMeta < 0 && !c.Missing; fine || try > 0 && before == fingerprint(path) || try == 50 {
				break
			}
		}
	}
	return checks, nil
}

// fingerprint changes with every transaction: it is what the meta pages say.
func fingerprint(path string) [2]boltMeta {
	pages, _ := metas(path)
	return pages
}

func inspectAll(path string, prefixes []string) (FileCheck, error) {
	c := FileCheck{Path: path, BadMeta: -1, Position: -1, Kept: map[string][]byte{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		c.Missing = true
		return c, nil
	}
	if err != nil {
		c.Err = err
		if fatal(err) {
			return c, err
		}
		return c, nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return c, err
	}
	c.Bytes = info.Size()
	x := inspector{f: f, size: c.Bytes}
	v := visitor{c: &c, prefixes: prefixes}
	x.visit = v.visit
	switch {
	case c.Bytes == 0:
		c.Err = errEmptyFile
	case c.Bytes > inspectMaxFile:
		c.Err = fmt.Errorf("file of %d bytes is too large", c.Bytes)
	default:
		c.Err = x.run()
	}
	var newer *FormatError
	switch {
	case errors.As(c.Err, &newer):
		return c, newer
	case c.Err != nil:
		c.Position = x.at
	case !v.head || !v.format:
		c.Err = errNotOurs
	default:
		for _, at := range []int64{0, x.pageSize} {
			if _, _, ok := x.meta(at); !ok {
				c.BadMeta = at
			}
		}
	}
	return c, nil
}

// visitor looks at what is in the buckets.
type visitor struct {
	c            *FileCheck
	prefixes     []string
	head, format bool
}

func (v *visitor) visit(bucket, key, value []byte) error {
	if bytes.Equal(bucket, metaBucket) && bytes.Equal(key, formatKey) {
		if v.format = len(value) == 4; v.format && binary.BigEndian.Uint32(value) > formatVersion {
			return &FormatError{Path: v.c.Path, Format: binary.BigEndian.Uint32(value), Supported: formatVersion}
		}
		return nil
	}
	isHead := bytes.Equal(bucket, metaBucket) && bytes.Equal(key, headKey)
	if !isHead && !bytes.Equal(bucket, stateBucket) {
		return nil
	}
	plain, ok := unseal(key, value)
	if !ok {
		return &CorruptError{v.c.Path, string(key)}
	}
	v.c.Values++
	if isHead {
		h, err := decodeHead(plain)
		v.c.Number, v.c.Point, v.head = h.number, h.point, err == nil
		return err
	}
	for _, prefix := range v.prefixes {
		if strings.HasPrefix(string(key), prefix) {
			v.c.Kept[string(key)] = bytes.Clone(plain)
		}
	}
	return nil
}

// IsLeftover says whether the name is that of a state file that was being written when the power failed, IsSetAside
// whether it is that of a damaged one that was set aside.
func IsLeftover(name string) bool { return name == names[0]+newSuffix || name == names[1]+newSuffix }

// IsSetAside: see IsLeftover.
func IsSetAside(name string) bool {
	return strings.HasPrefix(name, names[0]+".damaged-") || strings.HasPrefix(name, names[1]+".damaged-")
}

// IsFile says whether the name is that of one of the two files.
func IsFile(name string) bool { return name == names[0] || name == names[1] }
