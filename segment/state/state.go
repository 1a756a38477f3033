package state

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of Options.
const (
	DefaultMaxSize     = 64 << 20
	DefaultTxnBytes    = 256 << 10
	DefaultLockTimeout = time.Second
	// MaxKeyBytes is bbolt's limit.
	MaxKeyBytes = 32768
	// maxLag bounds the keys remembered between two checkpoints; beyond, the files are compared instead.
	maxLag = 8192
)

// Errors that callers branch on.
var (
	// ErrFull says that a file would exceed MaxSize.
	ErrFull = errors.New("state file has reached its maximum size")
	// ErrKey says that a key is empty or longer than MaxKeyBytes.
	ErrKey = errors.New("state key is empty or too long")
	// ErrLocked says that another process has a state file open.
	ErrLocked = errors.New("state file is in use by another process")
	// ErrClosed says that the store is closed.
	ErrClosed = errors.New("state store is closed")
)

// FormatError says that a newer release wrote the file. Nothing was changed.
type FormatError struct {
	Path              string
	Format, Supported uint32
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %d, this release knows %d and below: run the newer release again", e.Path, e.Format, e.Supported)
}

// CorruptError says that a value is not what was stored.
type CorruptError struct{ Path, Key string }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: the value of %q fails its checksum", e.Path, e.Key)
}

// Point is a recovery point: where the journal's replay begins.
type Point struct {
	// LSN is of the last journal frame that the checkpoint covers.
	LSN uint64
	// Ends are the end offsets, appended and synced, of the partitions by name: "<topic>-<partition>".
	Ends map[string]int64
	// Clean says that the checkpoint was the last act of a clean stop.
	Clean bool
	// Followed says that a journal file had been begun right behind LSN: if there is none at recovery, it was lost.
	Followed bool
}

// Change is one key's new value or its end. Changes are absolute: making one twice is making it once.
type Change struct {
	Key, Value []byte
	Delete     bool
}

// Options of a Store. Dir is required, and must exist.
type Options struct {
	Dir string
	// MaxSize bounds each of the two files, in bytes. There is always a bound: near 2 GiB bbolt crashes on 32-bit machines.
	MaxSize int64
	// TxnBytes is about how much one bbolt transaction writes.
	TxnBytes int
	// LockTimeout is how long Open waits for another process to close the files.
	LockTimeout time.Duration
	// Logger gets what Report says, too. Nil: nobody.
	Logger *slog.Logger

	opener opener // tests make files fail with it
}

func (o *Options) setDefaults() {
	if o.MaxSize <= 0 {
		o.MaxSize = DefaultMaxSize
	}
	o.MaxSize = min(o.MaxSize, 1<<30)
	if o.TxnBytes <= 0 {
		o.TxnBytes = DefaultTxnBytes
	}
	if o.LockTimeout <= 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Report is what Open found.
type Report struct {
	// Newest is the file in use, "" in an empty store.
	Newest string
	// SetAside are the new names of bad files.
	SetAside []string
	// Notes are sentences for the operator.
	Notes []string
}

// Store is the state. It is safe for concurrent use; reads wait neither for checkpoints nor for disks to sync.
type Store struct {
	o Options // immutable

	// work is held through Checkpoint and Close, and taken before mu.
	work sync.Mutex
	lag  map[string]struct{} // under work: keys that the older file may have an older value of; nil: all

	// mu is held for reading while the newest file is read, so nobody reads a file once it is the older one.
	mu     sync.RWMutex
	files  [2]*file // nil: missing, to be made by a checkpoint
	newest int      // -1: empty
	closed bool

	written atomic.Int64 // bytes, in this process
}

// WrittenBytes is what was written to both files in this process life, in whole pages.
func (s *Store) WrittenBytes() int64 { return s.written.Load() }

// Point is the recovery point of the newest file, the zero Point if there is none.
func (s *Store) Point() Point {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.newest < 0 {
		return Point{}
	}
	p := s.files[s.newest].head.point
	p.Ends = maps.Clone(p.Ends)
	return p
}

// OldestLSN is what both files cover: the journal's frames up to it can go. It is 0 while one file is missing.
func (s *Store) OldestLSN() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.files[0] == nil || s.files[1] == nil {
		return 0
	}
	return min(s.files[0].head.point.LSN, s.files[1].head.point.LSN)
}

// OldestEnds are the end offsets that the older of the two files has, none while one file is missing.
func (s *Store) OldestEnds() map[string]int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.files[0] == nil || s.files[1] == nil {
		return nil
	}
	return maps.Clone(s.files[1-s.newest].head.point.Ends)
}

// UsedBytes is the size of both files.
func (s *Store) UsedBytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var n int64
	for _, f := range s.files {
		if f != nil {
			n += f.size()
		}
	}
	return n
}

// Get returns a copy of the key's value.
func (s *Store) Get(key []byte) (value []byte, ok bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, err := s.readableLocked()
	if f == nil || err != nil {
		return nil, false, err
	}
	return f.get(key)
}

func (s *Store) readableLocked() (*file, error) {
	if s.closed {
		return nil, ErrClosed
	}
	if s.newest < 0 {
		return nil, nil
	}
	return s.files[s.newest], nil
}

// Range calls fn with copies of the keys with the prefix, in order, and their values, until it returns false. It reads
// some at a time and calls fn outside of any transaction or lock, so that fn may take its time and use the store; a
// checkpoint meanwhile may be seen in part.
func (s *Store) Range(prefix []byte, fn func(key, value []byte) bool) error {
	from := prefix
	for {
		page, err := s.page(prefix, from)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, c := range page {
			if !fn(c.Key, c.Value) {
				return nil
			}
		}
		last := page[len(page)-1].Key
		from = append(last[:len(last):len(last)], 0)
	}
}

func (s *Store) page(prefix, from []byte) ([]Change, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, err := s.readableLocked()
	if f == nil || err != nil {
		return nil, err
	}
	return f.page(prefix, from, pageBytes)
}

// Close closes the files.
func (s *Store) Close() error {
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	for _, f := range s.files {
		if f != nil {
			errs = append(errs, f.close())
		}
	}
	return errors.Join(errs...)
}
