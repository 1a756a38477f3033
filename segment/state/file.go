package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// A state file is a bbolt database with two buckets:
//
//	"state"  key → value, CRC-32C (uint32, big endian) of key and value
//	"meta"   "format" → uint32, big endian: 1
//	         "head" → the recovery point as below, CRC-32C as above
//
// The head, integers big endian:
//
//	0   uint64  number of the checkpoint, one more than the one before it in the other file
//	8   uint64  LSN
//	16  uint8   flags: bit 0 clean, bit 1 followed
//	17  uvarint number of partitions, and for each, by name:
//	      uvarint length of the name, name, uvarint end offset
const (
	formatVersion = 1
	headFixed     = 17
	flagClean     = 1
	flagFollowed  = 2
	crcBytes      = 4
	pageBytes     = 64 << 10
	pageKeys      = 512
	filePerm      = 0o600
)

var (
	stateBucket = []byte("state")
	metaBucket  = []byte("meta")
	formatKey   = []byte("format")
	headKey     = []byte("head")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

type opener func(name string, flag int, perm os.FileMode) (*os.File, error)

// file is one of the two, open.
type file struct {
	path    string
	db      *bolt.DB
	written *atomic.Int64 // Store.written
	head    head          // under Store.mu
	// suspect says that a write failed: what the file holds is unknown and is never added to. Under Store.work.
	suspect bool
	faulted bool // bbolt panicked within and may hold its own locks: it can't be closed. Under Store.work.
}

type head struct {
	number uint64
	point  Point
}

// faultError is a panic within bbolt, or a fault at its memory map: an I/O error, or a file that is not what it says.
type faultError struct{ value any }

func (e *faultError) Error() string { return fmt.Sprintf("fault in state file: %v", e.value) }

// guard turns what a bad file makes bbolt do into an error.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &faultError{r}
		}
	}()
	return fn()
}

func (o *Options) bolt(readOnly bool) *bolt.Options {
	return &bolt.Options{
		Timeout:      o.LockTimeout,
		FreelistType: bolt.FreelistMapType,
		MaxSize:      int(o.MaxSize),
		ReadOnly:     readOnly,
		NoStatistics: true,
		OpenFile:     o.opener,
	}
}

// openBolt opens or makes the database.
func (o *Options) openBolt(path string, readOnly bool) (db *bolt.DB, err error) {
	err = guard(func() error {
		db, err = bolt.Open(path, filePerm, o.bolt(readOnly))
		return err
	})
	if err != nil {
		return nil, err
	}
	db.AllocSize = 256 << 10 // the default of 16 MiB would be most of MaxSize
	return db, nil
}

// probe reads a file's head and checks every page and value, without changing anything.
func (o *Options) probe(path string) (h head, err error) {
	if err := inspectFile(path); err != nil {
		return head{}, err
	}
	db, err := o.openBolt(path, true)
	if err != nil {
		return head{}, err
	}
	err = guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			h, err = readHead(tx, path)
			if err != nil {
				return err
			}
			return checkValues(tx, path)
		})
	})
	if fault := (*faultError)(nil); !errors.As(err, &fault) {
		err = errors.Join(err, guard(db.Close))
	}
	return h, err
}

var errNotOurs = errors.New("not a state file")

func readHead(tx *bolt.Tx, path string) (head, error) {
	meta, state := tx.Bucket(metaBucket), tx.Bucket(stateBucket)
	if meta == nil || state == nil {
		return head{}, errNotOurs
	}
	format := meta.Get(formatKey)
	if len(format) != 4 {
		return head{}, errNotOurs
	}
	if v := binary.BigEndian.Uint32(format); v > formatVersion {
		return head{}, &FormatError{Path: path, Format: v, Supported: formatVersion}
	}
	raw, ok := unseal(headKey, meta.Get(headKey))
	if !ok {
		return head{}, &CorruptError{path, string(headKey)}
	}
	return decodeHead(raw)
}

func checkValues(tx *bolt.Tx, path string) error {
	c := tx.Bucket(stateBucket).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if _, ok := unseal(k, v); !ok {
			return &CorruptError{path, string(k)}
		}
	}
	return nil
}

func (h head) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, h.number)
	b = binary.BigEndian.AppendUint64(b, h.point.LSN)
	var flags byte
	if h.point.Clean {
		flags |= flagClean
	}
	if h.point.Followed {
		flags |= flagFollowed
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(len(h.point.Ends)))
	for _, name := range slices.Sorted(maps.Keys(h.point.Ends)) {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = binary.AppendUvarint(b, uint64(h.point.Ends[name]))
	}
	return b
}

var errHead = errors.New("recovery point is malformed")

func decodeHead(b []byte) (head, error) {
	if len(b) < headFixed {
		return head{}, errHead
	}
	h := head{number: binary.BigEndian.Uint64(b)}
	h.point = Point{LSN: binary.BigEndian.Uint64(b[8:]), Clean: b[16]&flagClean != 0, Followed: b[16]&flagFollowed != 0, Ends: make(map[string]int64)}
	b = b[headFixed:]
	count, n := binary.Uvarint(b)
	if n <= 0 {
		return head{}, errHead
	}
	b = b[n:]
	for ; count > 0; count-- {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return head{}, errHead
		}
		name := string(b[n : n+int(size)])
		b = b[n+int(size):]
		end, n := binary.Uvarint(b)
		if n <= 0 || int64(end) < 0 {
			return head{}, errHead
		}
		b = b[n:]
		h.point.Ends[name] = int64(end)
	}
	if len(b) > 0 {
		return head{}, errHead
	}
	return h, nil
}

// seal appends the checksum.
func seal(key, value []byte) []byte {
	crc := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, len(value)+crcBytes), value...), crc)
}

// unseal checks and removes it. The value aliases sealed.
func unseal(key, sealed []byte) (value []byte, ok bool) {
	n := len(sealed) - crcBytes
	if n < 0 {
		return nil, false
	}
	crc := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, sealed[:n])
	return sealed[:n:n], crc == binary.BigEndian.Uint32(sealed[n:])
}

func (f *file) get(key []byte) (value []byte, ok bool, err error) {
	err = guard(func() error {
		return f.db.View(func(tx *bolt.Tx) error {
			sealed := tx.Bucket(stateBucket).Get(key)
			if sealed == nil {
				return nil
			}
			v, good := unseal(key, sealed)
			if !good {
				return &CorruptError{f.path, string(key)}
			}
			value, ok = append([]byte{}, v...), true
			return nil
		})
	})
	return value, ok, err
}

// page returns copies of the entries with the prefix from key from on: up to about limit bytes of them.
func (f *file) page(prefix, from []byte, limit int) (page []Change, err error) {
	err = guard(func() error {
		return f.db.View(func(tx *bolt.Tx) error {
			size := 0
			c := tx.Bucket(stateBucket).Cursor()
			for k, v := c.Seek(from); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
				value, good := unseal(k, v)
				if !good {
					return &CorruptError{f.path, string(k)}
				}
				page = append(page, Change{Key: bytes.Clone(k), Value: append([]byte{}, value...)})
				if size += len(k) + len(v); size >= limit || len(page) == pageKeys {
					break
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

func (f *file) size() int64 {
	info, err := os.Stat(f.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (f *file) close() error {
	if f.faulted {
		return nil
	}
	return guard(f.db.Close)
}

// fatal says that err is no sign of damage in the file.
func fatal(err error) bool {
	for _, e := range []error{os.ErrPermission, berrors.ErrTimeout} {
		if errors.Is(err, e) {
			return true
		}
	}
	return outOfResources(err)
}

func wrap(err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrLocked, err)
	case errors.Is(err, berrors.ErrMaxSizeReached):
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// asideName is an unused name for a bad file. Seconds, since a clock may stand at 1970, get a number where taken.
func asideName(path string) string {
	name := fmt.Sprintf("%s.damaged-%d", path, time.Now().Unix())
	try := name
	for i := 1; ; i++ {
		if _, err := os.Lstat(try); err != nil {
			return try
		}
		try = fmt.Sprintf("%s.%d", name, i)
	}
}
