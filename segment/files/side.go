package files

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// sideFile is what recovery, or a tool, set aside.
type sideFile struct {
	base  int64 // of the segment
	path  string
	bytes int64
}

// sideBase is the base offset in the name of a file that was set aside; ok is false for any other file.
func sideBase(name string) (base int64, ok bool) {
	if len(name) <= baseDigits {
		return 0, false
	}
	what, ok := strings.CutPrefix(name[baseDigits:], logSuffix)
	if !ok || !strings.HasPrefix(what, asideSuffix) && !strings.HasPrefix(what, damagedInfix) {
		return 0, false
	}
	base, _, ok = parseName(name[:baseDigits] + logSuffix)
	return base, ok
}

// addSide counts a file that was set aside.
func (c *Chain) addSide(s sideFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.side = append(c.side, s)
	slices.SortStableFunc(c.side, func(a, b sideFile) int { return cmp.Compare(a.base, b.base) })
}

// SideBytes is the size of the files that were set aside. They are part of Bytes.
func (c *Chain) SideBytes() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.side {
		n += s.bytes
	}
	return n
}

// RemoveOldestSide removes the file that was set aside from the lowest offsets, or the next one if it can't be removed.
// path is "" when there is none left. The error is that of the first that could not be removed, when none could.
func (c *Chain) RemoveOldestSide() (freed int64, path string, err error) {
	c.mu.Lock()
	list := slices.Clone(c.side)
	c.mu.Unlock()
	for _, s := range list {
		freed, rerr := c.RemoveSide(s.path)
		if rerr == nil && freed > 0 {
			return freed, s.path, nil
		}
		if err == nil {
			err = rerr
		}
	}
	return 0, "", err
}

// RemoveSide removes a file that was set aside, and returns what that freed: 0 if it was gone already.
func (c *Chain) RemoveSide(path string) (freed int64, err error) {
	err = c.o.FS.Remove(path)
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil && !gone {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.side = slices.DeleteFunc(c.side, func(s sideFile) bool {
		if s.path != path {
			return false
		}
		if !gone {
			freed = s.bytes
		}
		return true
	})
	return freed, nil
}
