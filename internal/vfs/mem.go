package vfs

import (
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Mem is a file system in memory that can lose power (PowerCut). It implements FS, and may be used concurrently.
//
// Files are kept in pages of 4096 bytes, which are also what they take of the capacity; names, directories and holes
// take nothing. Paths are absolute or relative to the root, which is all there is at first. ModTime counts changes: only
// the order of two of them means something. Permissions are recorded and not enforced. A file may have 1 GiB.
//
// What a directory or a file shows and what a power cut leaves of it are kept side by side, down to the page and to the
// name, and a page's content is never changed in place but replaced: so versions, stale copies and clones share it, and
// a cut or a clone costs time by the number of changed pages and of files, not by their bytes.
type Mem struct {
	capacity int64 // bytes; 0: unlimited

	mu      sync.RWMutex
	root    *node
	ops     []dirOp // changes of directories that no SyncDir made durable yet, oldest first
	stale   []stale // content of freed pages, oldest first
	used    int64   // pages of the files that have a name or are open
	life    uint64  // power cuts so far; handles of another life are dead
	changes int64
}

// MemOptions says what a Mem is like.
type MemOptions struct {
	// Capacity in bytes; 0: unlimited (Space then says 1 TiB). Whole pages of 4096 bytes count.
	Capacity int64
}

const (
	pageBytes    = 4096
	sectorBytes  = 512
	maxFileBytes = 1 << 30
	unlimited    = 1 << 40
)

// node is a file or a directory. All of it is under Mem.mu.
type node struct {
	dir     bool
	perm    fs.FileMode
	changed int64 // Mem.changes at the last change
	linked  bool  // has a name now
	opens   int   // handles of this life
	pending int   // elements of Mem.ops about this node
	durable place // the name that it has on the disk
	freed   bool  // its pages are in Mem.stale
	lock    *memLock

	content                        // of a file
	names, onDisk map[string]*node // of a directory: as seen now, and as on the disk
}

// place is an entry of a directory; the zero place is none.
type place struct {
	dir  *node
	name string
}

// dirOp is one change of directories: an entry that goes, one that comes, or (a rename) both as a whole.
type dirOp struct {
	node     *node
	from, to place
}

// NewMem makes an empty file system.
func NewMem(o MemOptions) *Mem {
	return &Mem{capacity: o.Capacity, root: &node{dir: true, perm: 0o755, linked: true, names: map[string]*node{}, onDisk: map[string]*node{}}}
}

// Space says how large the file system is and what is left of it, in bytes.
func (m *Mem) Space(name string) (total, free int64, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if _, err := m.find(name); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return m.total(), max(m.total()/pageBytes-m.used, 0) * pageBytes, nil
}

func (m *Mem) total() int64 {
	if m.capacity == 0 {
		return unlimited
	}
	return m.capacity
}

// take claims pages, or as many of them as there are.
func (m *Mem) take(pages int64) int64 {
	pages = min(pages, max(m.total()/pageBytes-m.used, 0))
	m.used += pages
	return pages
}

func (m *Mem) touch(n *node) {
	m.changes++
	n.changed = m.changes
}

// find looks a path up. The error is a bare syscall.Errno.
func (m *Mem) find(name string) (*node, error) {
	if name == "" {
		return nil, syscall.ENOENT
	}
	n := m.root
	for rest := filepath.Clean("/" + name)[1:]; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.names[part]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// findPlace looks up where a path's entry is or would be. The node is nil when there is none.
func (m *Mem) findPlace(name string) (place, *node, error) {
	if name == "" {
		return place{}, nil, syscall.ENOENT
	}
	name = filepath.Clean("/" + name)
	dir, err := m.find(filepath.Dir(name))
	if err != nil {
		return place{}, nil, err
	}
	if !dir.dir {
		return place{}, nil, syscall.ENOTDIR
	}
	if name == "/" {
		return place{}, m.root, nil
	}
	at := place{dir, filepath.Base(name)}
	return at, dir.names[at.name], nil
}

// change makes a change of directories visible and remembers that it isn't durable.
func (m *Mem) change(op dirOp) {
	if op.from.dir != nil {
		delete(op.from.dir.names, op.from.name)
		m.touch(op.from.dir)
	}
	op.node.linked = op.to.dir != nil
	if op.to.dir != nil {
		replaced := op.to.dir.names[op.to.name]
		op.to.dir.names[op.to.name] = op.node
		m.touch(op.to.dir)
		if replaced != nil {
			replaced.linked = false
			m.release(replaced)
		}
	}
	op.node.pending++
	m.ops = append(m.ops, op)
	m.release(op.node)
}

// make creates a file or a directory.
func (m *Mem) make(at place, dir bool, perm fs.FileMode) *node {
	n := &node{dir: dir, perm: perm.Perm()}
	if dir {
		n.names, n.onDisk = map[string]*node{}, map[string]*node{}
	}
	m.touch(n)
	m.change(dirOp{node: n, to: at})
	return n
}

// release gives back the space of a node without a name and a handle, and calls its pages stale once no power cut can bring
// it back. It may be called at any time.
func (m *Mem) release(n *node) {
	if n.dir || n.linked || n.opens > 0 {
		return
	}
	m.used -= n.held
	n.held = 0
	if n.durable.dir == nil && n.pending == 0 && !n.freed {
		n.freed = true
		m.recycle(n.pages, 0)
	}
}

// apply makes a change of directories durable. A node is on the disk in one place at most, so that a rename of it that was
// lost and one that was not make no second name.
func (m *Mem) apply(op dirOp) {
	n := op.node
	if at := n.durable; at.dir != nil {
		delete(at.dir.onDisk, at.name)
		n.durable = place{}
	}
	n.pending--
	if op.to.dir != nil {
		replaced := op.to.dir.onDisk[op.to.name]
		op.to.dir.onDisk[op.to.name], n.durable = n, op.to
		if replaced != nil {
			replaced.durable = place{}
			m.release(replaced)
		}
	}
	m.release(n)
}

// syncDir makes what changed in a directory durable. A rename from one directory to another is durable with either.
func (m *Mem) syncDir(dir *node) {
	rest := m.ops[:0]
	for _, op := range m.ops {
		if op.from.dir != dir && op.to.dir != dir {
			rest = append(rest, op)
			continue
		}
		if op.from.dir != nil && op.to.dir != nil { // what happened to it elsewhere before is history now
			kept := rest[:0]
			for _, earlier := range rest {
				if earlier.node == op.node {
					earlier.node.pending--
				} else {
					kept = append(kept, earlier)
				}
			}
			rest = kept
		}
		m.apply(op)
	}
	clear(m.ops[len(rest):])
	m.ops = rest
}
