package vfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// PowerCut leaves one of the states that a power cut may leave, as a function of what was done so far and of rng alone.
// Open files of before fail with fs.ErrClosed from then on, and locks are free.
//
// What is sure: bytes that a Sync of their file covered and nobody wrote or cut off since are there, with the length that
// reaching them needs, provided that the file is; entries of a directory that a SyncDir covered are as they were then, provided
// that the directory is. That is all of it. In particular a Sync doesn't make a new file's name durable, nor SyncDir what is
// in the files, nor either a directory's own name. What is not sure falls in one of these ways:
//
//   - Directory operations since the last SyncDir (create, remove, rename, make a directory). With half of the seeds the first
//     so many of all that are open survive, as in a file system that keeps a journal; with the other half each one survives
//     or doesn't whatever the others do, which is the least that POSIX promises. A rename always comes or goes as a whole:
//     old name and new one, and the file that it replaced. A file removed or replaced may be back, with its own content. What is in
//     a directory goes with it, but nothing moves into one that is not there.
//   - The length of a file comes out as it was at the end, as it was at the last Sync, or anywhere between the least and the
//     greatest since, whether or not the blocks below it were written.
//   - Each block of blockBytes (4096 or 16384) with changes since the last Sync comes out on its own: as it was at the end, as
//     after some earlier change of it, as of the last Sync, or torn: up to a boundary of 512 bytes one of these and from there
//     another. A file's blocks draw from one of five leanings, from all lost to all written.
//   - A page that no Sync covered yet, or as a hole, reads as zeros where the block got lost, or as what stood there before the
//     file system gave it to this file: stale content of files that were removed, replaced or truncated. Stale pages come in
//     the order that they had in their file, half of the time at the same position. So bytes of a hole are sure only as long
//     as nobody writes in the same page; Allocate and Sync make it sure as zeros.
//   - What was truncated and grown again counts as overwritten: any mixture of before, zeros and after.
//   - Where Faulty failed a Sync, the pages of that moment stay in doubt even if a later Sync succeeds, until written again.
//
// A page changes many times between two Syncs; of the versions in between the first and the last but one are kept, which shows
// a reader each kind of mixture without keeping a copy for each write. A cut may bring back more files than the capacity holds;
// there is no space left then.
func (m *Mem) PowerCut(rng *rand.Rand, blockBytes int) {
	if blockBytes <= 0 || blockBytes%pageBytes != 0 {
		panic(fmt.Sprintf("power cut with blocks of %d bytes: give a multiple of %d", blockBytes, pageBytes))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	before := m.everything()
	m.cutDirectories(rng)
	for _, n := range before {
		n.linked, n.opens, n.lock, n.pending, n.held = false, 0, nil, 0, 0
	}
	m.used = 0
	m.restore(rng, m.root, blockBytes)
	for _, n := range before {
		if !n.linked { // nothing can bring it back any more
			n.durable = place{}
			m.release(n)
		}
	}
}

// everything is each node that a power cut may leave, but the root, in an order that repeats. One may appear twice.
func (m *Mem) everything() (list []*node) {
	var walk func(dir *node)
	walk = func(dir *node) {
		for _, name := range slices.Sorted(maps.Keys(dir.names)) {
			n := dir.names[name]
			list = append(list, n)
			walk(n)
		}
	}
	walk(m.root)
	for _, op := range m.ops {
		list = append(list, op.node)
	}
	return list
}

func (m *Mem) cutDirectories(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		m.ops = m.ops[:rng.IntN(len(m.ops)+1)]
	} else {
		m.ops = slices.DeleteFunc(m.ops, func(dirOp) bool { return rng.IntN(2) == 0 })
	}
	for _, op := range m.ops {
		if m.possible(op) {
			m.apply(op)
		}
	}
	m.ops = nil
}

// possible says whether the directory that something is made in or moved to is on the disk: without it, a rename that survived
// would have taken the old name only. Nor can a directory move below itself because a move before got lost.
func (m *Mem) possible(op dirOp) bool {
	if op.to.dir == nil {
		return true
	}
	for d := op.to.dir; d != m.root; d = d.durable.dir {
		if d == nil || d == op.node {
			return false
		}
	}
	return true
}

// restore shows a directory and all below it as they are on the disk, after the files' content has come out.
func (m *Mem) restore(rng *rand.Rand, dir *node, blockBytes int) {
	dir.names = maps.Clone(dir.onDisk)
	for _, name := range slices.Sorted(maps.Keys(dir.names)) {
		n := dir.names[name]
		n.linked, n.opens, n.lock, n.pending = true, 0, nil, 0
		if n.dir {
			m.restore(rng, n, blockBytes)
			continue
		}
		m.settle(rng, n, blockBytes)
		n.held = 0
		for i := range n.pages {
			if n.pages[i].now != nil {
				n.held++
			}
		}
		m.used += n.held
	}
}

// settle decides what a file comes out as.
func (m *Mem) settle(rng *rand.Rand, n *node, blockBytes int) {
	if len(n.dirty) == 0 && n.least == n.most {
		return
	}
	size := n.cutLength(rng)
	s := settler{rng: rng, content: &n.content, pages: blockBytes / pageBytes, leaning: rng.IntN(5)}
	if len(m.stale) > 0 && rng.IntN(2) == 0 {
		old := m.stale[rng.IntN(len(m.stale))]
		s.stale, s.shift = old.blocks, old.first
		if rng.IntN(2) == 0 {
			s.shift = rng.IntN(len(s.stale))
		}
	}
	slices.Sort(n.dirty)
	for dirty := n.dirty; len(dirty) > 0; {
		first := dirty[0] / s.pages * s.pages
		k := 1
		for k < len(dirty) && dirty[k] < first+s.pages {
			k++
		}
		s.block(first, dirty[:k])
		dirty = dirty[k:]
	}
	n.dirty = nil
	if end := int(pagesOf(size)); end < len(n.pages) {
		m.recycle(n.pages[end:], end)
		clear(n.pages[end:])
		n.pages = n.pages[:end]
	}
	if last := int(size / pageBytes); last < len(n.pages) { // within a page: what a page has beyond the end is never shown
		b := n.pages[last].now.head(size % pageBytes)
		n.pages[last] = page{now: b, disk: b}
	}
	n.length, n.synced, n.least, n.most = size, size, size, size
}

// cutLength is the length that a power cut leaves.
func (c *content) cutLength(rng *rand.Rand) int64 {
	switch rng.IntN(4) {
	case 0:
		return c.length
	case 1:
		return c.synced
	case 2:
		return c.least + rng.Int64N(c.most-c.least+1)
	default: // as a file system that adds blocks
		return max((c.least+rng.Int64N(c.most-c.least+1))/pageBytes*pageBytes, c.least)
	}
}

// settler decides what the blocks of one file come out as.
type settler struct {
	rng     *rand.Rand
	content *content
	pages   int      // of a block
	leaning int      // so many of four blocks are written
	stale   []*block // of another file, for pages that are on the disk for the first time; may be nil
	shift   int      // the page that would get the first of them
}

// version is one of a page's contents.
type version int

const (
	onDisk version = iota
	first
	prev
	now
)

// block decides about the dirty pages of one block. A tear is where it shows, from the first to the last of them.
func (s *settler) block(from int, dirty []int) {
	head := onDisk
	if s.rng.IntN(4) < s.leaning {
		head = s.written()
	}
	tail, tear := head, 0
	if s.leaning > 0 && s.leaning < 4 && s.rng.IntN(4) == 0 {
		head, tail = s.written(), version(s.rng.IntN(int(now)))
		if s.rng.IntN(2) == 0 {
			head, tail = tail, head
		}
		start, end := dirty[0]-from, dirty[len(dirty)-1]+1-from
		tear = start*pageBytes + (1+s.rng.IntN((end-start)*pageBytes/sectorBytes-1))*sectorBytes
	}
	for _, i := range dirty {
		p := &s.content.pages[i]
		base := s.base(i, p)
		b := join(p.version(head, base), p.version(tail, base), tear-(i-from)*pageBytes)
		*p = page{now: b, disk: b}
	}
}

// written is the last version, or now and then one before.
func (s *settler) written() version {
	if s.rng.IntN(4) > 0 {
		return now
	}
	return first + version(s.rng.IntN(2))
}

// base is what is where a page should be when nothing of it was written since the last Sync.
func (s *settler) base(i int, p *page) *block {
	if p.disk != nil || s.stale == nil || s.rng.IntN(4) == 0 {
		return p.disk
	}
	k := (i - s.shift) % len(s.stale)
	if k < 0 {
		k += len(s.stale)
	}
	return s.stale[k]
}

func (p *page) version(v version, base *block) *block {
	switch {
	case v == now:
		return p.now
	case v == prev && p.writes > 2:
		return p.prev
	case v != onDisk && p.writes > 1:
		return p.first
	}
	return base
}

// join is head up to the tear and tail from there. The tear may be before or after the page.
func join(head, tail *block, tear int) *block {
	if head == tail || tear <= 0 {
		return tail
	}
	if tear >= pageBytes {
		return head
	}
	b := new(block)
	if tail != nil {
		*b = *tail
	}
	if head == nil {
		head = &zeros
	}
	copy(b[:tear], head[:])
	return b
}

// stale is what was in the pages of a file, or of a part of one.
type stale struct {
	first  int // the page that the first block was
	blocks []*block
}

// Bounds of what is kept.
const (
	staleFiles = 32
	stalePages = 256 // of one file
)

// recycle remembers what is in freed pages: what is on the disk, or may be.
func (m *Mem) recycle(freed []page, first int) {
	old := stale{first, make([]*block, min(len(freed), stalePages))}
	some := false
	for i := range old.blocks {
		b := freed[i].disk
		if b == nil {
			b = freed[i].now
		}
		some = some || b != nil && b != &zeros
		old.blocks[i] = b
	}
	if !some {
		return
	}
	if len(m.stale) == staleFiles {
		m.stale = slices.Delete(m.stale, 0, 1)
	}
	m.stale = append(m.stale, old)
}

// Clone copies the file system with all that is durable and all that isn't. It has no open files and no locks.
func (m *Mem) Clone() *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	copies := map[*node]*node{}
	c := &Mem{capacity: m.capacity, life: m.life, changes: m.changes, stale: slices.Clone(m.stale), root: m.root.clone(copies)}
	c.ops = make([]dirOp, len(m.ops))
	for i, op := range m.ops {
		c.ops[i] = dirOp{op.node.clone(copies), op.from.clone(copies), op.to.clone(copies)}
	}
	for _, n := range copies {
		if n.linked {
			c.used += n.held
		} else {
			n.held = 0
		}
	}
	return c
}

func (at place) clone(copies map[*node]*node) place {
	return place{at.dir.clone(copies), at.name}
}

func (n *node) clone(copies map[*node]*node) *node {
	if n == nil {
		return nil
	}
	if c := copies[n]; c != nil {
		return c
	}
	c := new(node)
	copies[n] = c
	*c = *n
	c.opens, c.lock = 0, nil
	c.pages, c.dirty = slices.Clone(n.pages), slices.Clone(n.dirty)
	c.durable = n.durable.clone(copies)
	c.names, c.onDisk = cloneNames(n.names, copies), cloneNames(n.onDisk, copies)
	return c
}

func cloneNames(names map[string]*node, copies map[*node]*node) map[string]*node {
	if names == nil {
		return nil
	}
	c := make(map[string]*node, len(names))
	for name, n := range names {
		c[name] = n.clone(copies)
	}
	return c
}
