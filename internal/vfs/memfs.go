package vfs

import (
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// OpenFile opens a file; with O_CREATE the new name is durable after SyncDir only. Known flags are O_RDONLY, O_WRONLY,
// O_RDWR, O_CREATE, O_EXCL and O_TRUNC; others fail with EINVAL.
func (m *Mem) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, flag, perm)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	n.opens++
	access := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	return &memFile{m: m, n: n, name: name, life: m.life, reads: access != os.O_WRONLY, writes: access != os.O_RDONLY}, nil
}

func (m *Mem) open(name string, flag int, perm fs.FileMode) (*node, error) {
	const access = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
	if flag&^(access|os.O_CREATE|os.O_EXCL|os.O_TRUNC) != 0 {
		return nil, syscall.EINVAL
	}
	at, n, err := m.findPlace(name)
	switch {
	case err != nil:
		return nil, err
	case n == nil && flag&os.O_CREATE == 0:
		return nil, syscall.ENOENT
	case n == nil && strings.HasSuffix(name, "/"):
		return nil, syscall.EISDIR
	case n == nil:
		return m.make(at, false, perm), nil
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, syscall.EEXIST
	case n.dir && (flag&access != os.O_RDONLY || flag&(os.O_CREATE|os.O_TRUNC) != 0):
		return nil, syscall.EISDIR
	}
	if flag&os.O_TRUNC != 0 {
		m.truncate(n, 0)
	}
	return n, nil
}

// Remove deletes a file or an empty directory. Handles go on working.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, n, err := m.findPlace(name)
	switch {
	case err != nil:
	case n == nil:
		err = syscall.ENOENT
	case n == m.root:
		err = syscall.EBUSY
	case len(n.names) > 0:
		err = syscall.ENOTEMPTY
	}
	if err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	m.change(dirOp{node: n, from: at})
	return nil
}

// Rename moves a file or a directory. It replaces a file, never a directory (as package os has it).
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldName, newName); err != nil {
		return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldName, newName string) error {
	from, n, err := m.findPlace(oldName)
	if err != nil {
		return err
	}
	to, target, err := m.findPlace(newName)
	switch {
	case err != nil:
		return err
	case n == nil:
		return syscall.ENOENT
	case target != nil && target.dir:
		return syscall.EEXIST
	case n == target:
		return nil
	case n.dir && within(oldName, newName):
		return syscall.EINVAL
	case n.dir && target != nil:
		return syscall.ENOTDIR
	}
	m.change(dirOp{n, from, to})
	return nil
}

func within(dir, name string) bool {
	return strings.HasPrefix(filepath.Clean("/"+name)+"/", strings.TrimSuffix(filepath.Clean("/"+dir), "/")+"/")
}

// MkdirAll makes a directory and its parents. Each new one is durable after SyncDir of its parent.
func (m *Mem) MkdirAll(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if name == "" {
		return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOENT}
	}
	n := m.root
	for rest := filepath.Clean("/" + name)[1:]; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next := n.names[part]
		if next == nil {
			next = m.make(place{n, part}, true, perm)
		}
		if !next.dir {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		n = next
	}
	return nil
}

// ReadDir lists a directory sorted by name, with the sizes of that moment.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.findDir(name)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	list := make([]fs.DirEntry, 0, len(n.names))
	for _, base := range slices.Sorted(maps.Keys(n.names)) {
		list = append(list, fs.FileInfoToDirEntry(n.names[base].info(base)))
	}
	return list, nil
}

func (m *Mem) findDir(name string) (*node, error) {
	n, err := m.find(name)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	return n, err
}

// Stat describes a file or a directory.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find(name)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return n.info(filepath.Base(name)), nil
}

// SyncDir makes the entries of a directory durable, not those below its subdirectories.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.findDir(name)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	m.syncDir(n)
	return nil
}

// Lock locks a file until the Closer is closed or the power is cut.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if n.lock != nil {
		return nil, ErrLocked
	}
	n.opens++
	n.lock = &memLock{memFile{m: m, n: n, name: name, life: m.life}}
	return n.lock, nil
}

type memLock struct{ memFile }

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if err := l.close(); err != nil {
		return err
	}
	l.n.lock = nil
	return nil
}

type memInfo struct {
	name    string
	size    int64
	mode    fs.FileMode
	changed int64
}

func (n *node) info(name string) fs.FileInfo {
	i := memInfo{name, n.length, n.perm, n.changed}
	if n.dir {
		i.size, i.mode = pageBytes, n.perm|fs.ModeDir
	}
	return i
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return time.UnixMilli(i.changed) }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }
