package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"syscall"
)

// block is the content of a page. It is never changed once a page has it.
type block [pageBytes]byte

var zeros block

// page is a part of a file as seen now and as a power cut may leave it. A nil block is a hole: zeros that take no space.
type page struct {
	now  *block
	disk *block // as of the last Sync
	// Versions between disk and now, of which any may have been written back: the first, and the one before now. One
	// each from both ends stands for all of them: what lies between differs from its neighbours in which bytes are new.
	first, prev *block
	writes      uint8 // since the last Sync, up to 3; 0: now is on the disk
	forgotten   bool  // a Sync failed: the next one takes this page for written although it isn't
}

// content is what is in a file. It is under Mem.mu.
type content struct {
	pages  []page // may be shorter than the file: the rest is a hole; longer after a truncate that isn't durable
	dirty  []int  // pages with writes > 0
	held   int64  // pages that count in Mem.used
	length int64
	// The length as of the last Sync, and the extremes since: all that a power cut may leave.
	synced, least, most int64
}

// memFile is a handle. Its fields don't change but closed, which is under m.mu.
type memFile struct {
	m             *Mem
	n             *node
	name          string
	life          uint64
	reads, writes bool
	closed        bool
}

var errNegative = errors.New("negative offset")

func (f *memFile) fail(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

func (f *memFile) live(op string) error {
	if f.closed || f.life != f.m.life {
		return f.fail(op, fs.ErrClosed)
	}
	return nil
}

func (f *memFile) Name() string { return f.name }

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.close()
}

func (f *memFile) close() error {
	if err := f.live("close"); err != nil {
		return err
	}
	f.closed = true
	f.n.opens--
	f.m.release(f.n)
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	return f.n.length, f.live("stat")
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	switch err := f.live("read"); {
	case err != nil:
		return 0, err
	case off < 0:
		return 0, f.fail("readat", errNegative)
	case !f.reads:
		return 0, f.fail("read", syscall.EBADF)
	case f.n.dir:
		return 0, f.fail("read", syscall.EISDIR)
	case len(p) == 0:
		return 0, nil
	}
	n := f.n.read(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (c *content) read(p []byte, off int64) int {
	total := int(min(int64(len(p)), max(c.length-off, 0)))
	p = p[:total]
	for len(p) > 0 {
		b := &zeros
		if i := off / pageBytes; i < int64(len(c.pages)) && c.pages[i].now != nil {
			b = c.pages[i].now
		}
		k := copy(p, b[off%pageBytes:])
		p, off = p[k:], off+int64(k)
	}
	return total
}

// WriteAt writes. When the space ends within, what fits is written and the error is ENOSPC.
func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	switch err := f.live("write"); {
	case err != nil:
		return 0, err
	case off < 0:
		return 0, f.fail("writeat", errNegative)
	case len(p) == 0:
		return 0, nil
	case !f.writes:
		return 0, f.fail("write", syscall.EBADF)
	case off+int64(len(p)) > maxFileBytes:
		return 0, f.fail("write", syscall.EFBIG)
	}
	n := f.m.write(f.n, p, off)
	if n < len(p) {
		return n, f.fail("write", syscall.ENOSPC)
	}
	return n, nil
}

func (m *Mem) write(n *node, p []byte, off int64) (written int) {
	m.touch(n)
	for len(p) > 0 {
		i, in := int(off/pageBytes), int(off%pageBytes)
		k := min(len(p), pageBytes-in)
		old := n.at(i)
		if old == nil && !m.claim(n) {
			break
		}
		n.put(i, old.with(p[:k], in))
		p, off, written = p[k:], off+int64(k), written+k
		n.grow(off)
	}
	return written
}

// claim takes space for one more page of a file.
func (m *Mem) claim(n *node) bool {
	got := m.take(1)
	n.held += got
	return got == 1
}

// with is a copy with some bytes replaced.
func (b *block) with(p []byte, at int) *block {
	if len(p) == pageBytes && bytes.Equal(p, zeros[:]) {
		return &zeros
	}
	c := new(block)
	if b != nil && len(p) < pageBytes {
		*c = *b
	}
	copy(c[at:], p)
	return c
}

// head is a copy of which only the first size bytes are not zero.
func (b *block) head(size int64) *block {
	if b == nil || b == &zeros {
		return b
	}
	c := new(block)
	copy(c[:size], b[:])
	return c
}

func (c *content) at(i int) *block {
	if i >= len(c.pages) {
		return nil
	}
	return c.pages[i].now
}

// put gives a page its next version.
func (c *content) put(i int, b *block) {
	if i >= len(c.pages) {
		c.pages = append(c.pages, make([]page, i+1-len(c.pages))...)
	}
	p := &c.pages[i]
	switch p.writes {
	case 0:
		c.dirty = append(c.dirty, i)
	case 1:
		p.first = p.now
	default:
		p.prev = p.now
	}
	p.writes = min(p.writes+1, 3)
	p.now, p.forgotten = b, false
}

func (c *content) grow(size int64) {
	if size > c.length {
		c.setLength(size)
	}
}

func (c *content) setLength(size int64) {
	c.length = size
	c.least, c.most = min(c.least, size), max(c.most, size)
}

// Truncate changes the length. What is cut off is freed.
func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	switch err := f.live("truncate"); {
	case err != nil:
		return err
	case size < 0 || !f.writes:
		return f.fail("truncate", syscall.EINVAL)
	case size > maxFileBytes:
		return f.fail("truncate", syscall.EFBIG)
	}
	f.m.truncate(f.n, size)
	return nil
}

// truncate treats what is cut off as written over by a hole, so that a power cut may leave any mixture.
func (m *Mem) truncate(n *node, size int64) {
	m.touch(n)
	first := int(pagesOf(size))
	for i := first; i < len(n.pages); i++ {
		if n.pages[i].now != nil {
			n.put(i, nil)
			n.held--
			m.used--
		}
	}
	if in := size % pageBytes; in != 0 && size < n.length && n.at(first-1) != nil {
		n.put(first-1, n.at(first-1).head(in))
	}
	n.setLength(size)
}

func pagesOf(size int64) int64 { return (size + pageBytes - 1) / pageBytes }

// Allocate makes all of the first size bytes of the file take space. It does all of it or fails with ENOSPC.
func (f *memFile) Allocate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	switch err := f.live("fallocate"); {
	case err != nil:
		return err
	case size < 0:
		return f.fail("fallocate", syscall.EINVAL)
	case size == 0:
		return nil
	case !f.writes:
		return f.fail("fallocate", syscall.EBADF)
	case size > maxFileBytes:
		return f.fail("fallocate", syscall.EFBIG)
	}
	if !f.m.allocate(f.n, size) {
		return f.fail("fallocate", syscall.ENOSPC)
	}
	return nil
}

func (m *Mem) allocate(n *node, size int64) bool {
	last, want := int(pagesOf(size)), int64(0)
	for i := range last {
		if n.at(i) == nil {
			want++
		}
	}
	if got := m.take(want); got < want {
		m.used -= got
		return false
	}
	n.held += want
	for i := range last {
		if n.at(i) == nil {
			n.put(i, &zeros)
		}
	}
	n.grow(size)
	m.touch(n)
	return true
}

// Sync makes content and length durable, except pages of which a Sync failed before.
func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.live("fdatasync"); err != nil {
		return err
	}
	if f.n.dir {
		f.m.syncDir(f.n)
		return nil
	}
	f.m.sync(f.n)
	return nil
}

func (m *Mem) sync(n *node) {
	forgotten := n.dirty[:0]
	for _, i := range n.dirty {
		switch p := &n.pages[i]; {
		case int64(i) >= pagesOf(n.length): // freed below
		case p.forgotten:
			forgotten = append(forgotten, i)
		default:
			*p = page{now: p.now, disk: p.now}
		}
	}
	n.dirty = forgotten
	n.synced, n.least, n.most = n.length, n.length, n.length
	if end := int(pagesOf(n.length)); end < len(n.pages) {
		m.recycle(n.pages[end:], end)
		clear(n.pages[end:])
		n.pages = n.pages[:end]
	}
}

// syncFailed is what Faulty tells of a Sync that it made fail: as in Linux, the pages count as written from now on although
// they may not be, and only writing them again gives the next Sync something to do.
func (f *memFile) syncFailed() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.live("fdatasync") != nil {
		return
	}
	for _, i := range f.n.dirty {
		f.n.pages[i].forgotten = true
	}
}
