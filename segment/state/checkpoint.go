package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// Checkpoint stores changes, of which a later one of the same key wins, and the recovery point p, in the older of the two
// files, together with what that file lacks from the checkpoint before. They go in transactions of about TxnBytes, p
// in the last. Then that file is the newest, and readers see the changes.
//
// If it fails the newest file and what readers see are as before, and Checkpoint can be called again, with the same or
// more changes: it makes the failed file anew. ErrKey is about the changes, ErrFull about MaxSize.
func (s *Store) Checkpoint(changes []Change, p Point) error {
	for _, c := range changes {
		if len(c.Key) == 0 || len(c.Key) > MaxKeyBytes {
			return fmt.Errorf("checkpoint: %w: %d bytes", ErrKey, len(c.Key))
		}
	}
	for name, end := range p.Ends {
		if end < 0 {
			return fmt.Errorf("checkpoint: end offset %d of %s", end, name)
		}
	}
	s.work.Lock()
	defer s.work.Unlock()
	if s.closed { // written under work, too
		return ErrClosed
	}
	p.Ends = maps.Clone(p.Ends)
	h, target := head{number: 1, point: p}, 0
	var from *file
	if s.newest >= 0 {
		target, from = 1-s.newest, s.files[s.newest]
		h.number = from.head.number + 1
	}
	f := s.files[target]
	var err error
	if f == nil || f.suspect {
		f, err = s.remake(target, from, changes, h)
	} else {
		err = s.update(f, from, changes, h)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", wrap(err))
	}
	s.mu.Lock()
	f.head = h
	s.files[target], s.newest = f, target
	s.mu.Unlock()
	s.remember(changes)
	return nil
}

// remember notes what the other file now lacks.
func (s *Store) remember(changes []Change) {
	s.lag = nil
	if len(changes) > maxLag {
		return
	}
	s.lag = make(map[string]struct{}, len(changes))
	for _, c := range changes {
		s.lag[string(c.Key)] = struct{}{}
	}
}

// update brings the older file f up to date. A failure makes it suspect, if nothing else: transactions before the failed
// one are in it, under the old recovery point, which is allowed but not worth relying on.
func (s *Store) update(f, from *file, changes []Change, h head) error {
	lag := s.lag
	if lag == nil {
		var err error
		if lag, err = differences(f, from); err != nil {
			f.suspect = true
			return err
		}
	}
	b := batch{f: f, limit: s.o.TxnBytes}
	err := func() error {
		for key := range lag {
			value, ok, err := from.get([]byte(key))
			if err != nil {
				return err
			}
			if err := b.add(Change{Key: []byte(key), Value: value, Delete: !ok}); err != nil {
				return err
			}
		}
		return b.finish(changes, h)
	}()
	f.suspect = err != nil
	return err
}

// write runs a transaction. bbolt gives its locks back after a panic, except when that happens again as it rolls back.
func (f *file) write(fn func(*bolt.Tx) error) error {
	err := guard(func() error {
		return f.db.Update(func(tx *bolt.Tx) error {
			tx.OnCommit(func() {
				s := tx.Stats()
				f.written.Add(s.GetPageAlloc() + int64(f.db.Info().PageSize)) // and the meta page
			})
			return fn(tx)
		})
	})
	if fault := (*faultError)(nil); errors.As(err, &fault) {
		f.faulted = true
	}
	return err
}

// differences compares two files by their keys and values and returns the keys of which old has not what from has.
func differences(old, from *file) (map[string]struct{}, error) {
	lag := make(map[string]struct{})
	err := guard(func() error {
		return old.db.View(func(otx *bolt.Tx) error {
			return from.db.View(func(ntx *bolt.Tx) error {
				oc, nc := otx.Bucket(stateBucket).Cursor(), ntx.Bucket(stateBucket).Cursor()
				ok, ov := oc.First()
				nk, nv := nc.First()
				for ok != nil || nk != nil {
					order := bytes.Compare(ok, nk)
					switch {
					case nk == nil || ok != nil && order < 0:
						lag[string(ok)] = struct{}{}
						ok, ov = oc.Next()
					case ok == nil || order > 0:
						lag[string(nk)] = struct{}{}
						nk, nv = nc.Next()
					default:
						if !bytes.Equal(ov, nv) {
							lag[string(ok)] = struct{}{}
						}
						ok, ov = oc.Next()
						nk, nv = nc.Next()
					}
				}
				return nil
			})
		})
	})
	return lag, err
}

// remake makes a file from a copy of from, which may be nil, and the changes. It takes the place of the old one, if
// there is one, only when it is complete and synced.
func (s *Store) remake(target int, from *file, changes []Change, h head) (*file, error) {
	path := filepath.Join(s.o.Dir, names[target])
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	db, err := s.o.openBolt(path+newSuffix, false)
	if err != nil {
		return nil, err
	}
	f := &file{path: path, db: db, written: &s.written}
	err = s.fill(f, from, changes, h)
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err == nil {
		err = syncDir(s.o.Dir)
	}
	if err != nil {
		_ = f.close()
		_ = os.Remove(path + newSuffix)
		return nil, err
	}
	if old := s.files[target]; old != nil {
		_ = old.close() // suspect, and no longer in the directory: nothing it says matters
	}
	return f, nil
}

func (s *Store) fill(f, from *file, changes []Change, h head) error {
	f.db.NoSync = true // one sync at the end will do: nobody opens the file before
	err := f.write(func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucket(stateBucket); err != nil {
			return err
		}
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		return meta.Put(formatKey, binary.BigEndian.AppendUint32(nil, formatVersion))
	})
	if err != nil {
		return err
	}
	b := batch{f: f, limit: s.o.TxnBytes}
	for key := []byte{}; from != nil; {
		page, err := from.page(nil, key, pageBytes)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, c := range page {
			if err := b.add(c); err != nil {
				return err
			}
		}
		last := page[len(page)-1].Key
		key = append(last[:len(last):len(last)], 0)
	}
	if err := b.finish(changes, h); err != nil {
		return err
	}
	f.db.NoSync = false
	return guard(f.db.Sync)
}

// batch collects changes into transactions of about limit bytes.
type batch struct {
	f       *file
	limit   int
	pending []Change
	bytes   int
}

func (b *batch) add(c Change) error {
	b.pending = append(b.pending, c)
	if b.bytes += len(c.Key) + len(c.Value) + crcBytes; b.bytes < b.limit {
		return nil
	}
	return b.commit(nil)
}

// finish adds the changes and commits what is left together with the head.
func (b *batch) finish(changes []Change, h head) error {
	for _, c := range changes {
		if err := b.add(c); err != nil {
			return err
		}
	}
	return b.commit(&h)
}

func (b *batch) commit(h *head) error {
	err := b.f.write(func(tx *bolt.Tx) error {
		state := tx.Bucket(stateBucket)
		for _, c := range b.pending {
			if err := c.apply(state); err != nil {
				return err
			}
		}
		if h == nil {
			return nil
		}
		return tx.Bucket(metaBucket).Put(headKey, seal(headKey, h.encode()))
	})
	clear(b.pending)
	b.pending, b.bytes = b.pending[:0], 0
	return err
}

func (c Change) apply(state *bolt.Bucket) error {
	if c.Delete {
		return state.Delete(c.Key)
	}
	sealed := seal(c.Key, c.Value)
	if bytes.Equal(state.Get(c.Key), sealed) {
		return nil // spares the flash
	}
	return state.Put(c.Key, sealed)
}
