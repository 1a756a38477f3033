package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sluicemq/sluice/internal/vfs"
)

// ErrNoFreeFile says that all files hold frames that a checkpoint has yet to cover, or that the only free one is the
// spare kept for a failing file.
var ErrNoFreeFile = errors.New("no free journal file")

// ErrFileFull says that the frame doesn't fit into the rest of the file: Roll first. A frame never spans files.
var ErrFileFull = errors.New("journal file full")

// ErrTooLarge says that the frame doesn't fit into any file.
var ErrTooLarge = errors.New("larger than a journal file")

// Files is how many files a journal grows to: one being written, one whose checkpoint is under way, one that waits
// for the second state file to cover it, and a spare for when a write fails.
const Files = 4

// Options says where and how large.
type Options struct {
	FS        vfs.FS
	Dir       string
	FileBytes int64 // of each of the Files files
	Logger    *slog.Logger
}

// Journal is the write-ahead log of a data directory. Append, Roll and Failover belong to one goroutine;
// the other methods are safe for concurrent use.
type Journal struct {
	o Options

	unreadable []Damage // files that Open could not read; immutable

	mu      sync.Mutex
	files   []*file // all, in no order
	current *file   // being written
	lastLSN uint64  // of the last frame that is durable
	nextLSN uint64  // never given twice, not even after a failure
	covered uint64  // LSN up to which checkpoints cover everything
	written int64   // bytes written in this process life, headers and padding included
}

// Open reads which files there are. Nothing is written until Start. A file that can't be read is left out; each Replay
// reports it. Errors: those of the file system, and *FormatError.
func Open(o Options) (*Journal, error) {
	if err := o.FS.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	files, bad, err := openFiles(o.FS, o.Dir, true)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &Journal{o: o, files: files, unreadable: bad}, nil
}

// SyncFound makes durable what Open found. After a kill a frame may be in the page cache only. Replay takes its batches to the
// segments, where they are synced; if the power failed then, the state changes of the frame would be gone, and half of a
// group would be left. Nor need a file that was just being made have its size or its name for sure, and it looks like any other
// that is free.
func (j *Journal) SyncFound() error {
	var err error
	for _, f := range j.files {
		err = errors.Join(err, f.f.Sync())
	}
	return errors.Join(err, j.o.FS.SyncDir(j.o.Dir))
}

// Start begins a new file after a Replay, always: what a crash left behind the last frame of the old one can then never be taken
// for new. lastLSN is the last LSN that Replay or the state knows of; covered is the LSN up to which both state
// files hold everything. It makes the files that Append needs, a spare included.
func (j *Journal) Start(lastLSN, covered uint64) error {
	j.mu.Lock()
	j.lastLSN, j.nextLSN = lastLSN, max(j.nextLSN, lastLSN+1)
	j.mu.Unlock()
	j.Release(covered)
	growErr := j.Grow(3)
	for {
		err := j.use(0, lastLSN)
		if err == nil {
			break
		}
		if errors.Is(err, ErrNoFreeFile) {
			return errors.Join(err, growErr)
		}
		// One bad file must not keep the broker from starting: the next one.
		j.o.Logger.Warn("a journal file can't be written, trying another", "error", err)
		growErr = j.Grow(2)
	}
	if growErr != nil {
		j.o.Logger.Warn("journal can't grow, going on with fewer files", "error", growErr)
	}
	return nil
}

// Grow makes files until there are n beside the ones in use, or Files in all.
func (j *Journal) Grow(n int) error {
	for {
		j.mu.Lock()
		enough := j.freeLocked() >= n || (len(j.files) >= Files && j.freeLocked() > 0)
		j.mu.Unlock()
		if enough {
			return nil
		}
		f, err := createFile(j.o.FS, j.o.Dir, j.o.FileBytes)
		if err != nil {
			return fmt.Errorf("journal: make a file of %d bytes: %w", j.o.FileBytes, err)
		}
		j.mu.Lock()
		j.files = append(j.files, f)
		j.mu.Unlock()
	}
}

func (j *Journal) freeLocked() int {
	n := 0
	for _, f := range j.files {
		if f.free() {
			n++
		}
	}
	return n
}

// use starts a free file, leaving at least keep others free. prevLSN is the last valid LSN of the file before. A file
// that fails is removed: it holds no frame, and hours of retries must not fill the disk with such files.
func (j *Journal) use(keep int, prevLSN uint64) error {
	f, h := j.reserve(keep, prevLSN)
	if f == nil {
		return ErrNoFreeFile
	}
	_, err := f.f.WriteAt(h.encode(), 0)
	if err == nil {
		err = f.f.Sync()
	}
	j.mu.Lock()
	j.written += framesAt
	if err != nil {
		j.files = slices.DeleteFunc(j.files, func(g *file) bool { return g == f })
		j.mu.Unlock()
		err = fmt.Errorf("journal: start %s: %w", f.f.Name(), err)
		j.giveUp(f, err)
		return err
	}
	f.lastLSN, j.current = prevLSN, f
	j.mu.Unlock()
	return nil
}

// giveUp removes a file that could not be started. Its header may be on flash all the same and void what comes behind its
// first LSN in the file before. So that one goes on only if the file is gone for sure; else what follows begins another,
// with a later LSN.
func (j *Journal) giveUp(f *file, cause error) {
	gone := j.remove(f) == nil && j.o.FS.SyncDir(j.o.Dir) == nil
	j.mu.Lock()
	defer j.mu.Unlock()
	if c := j.current; c == nil || c.failed != nil || !gone {
		j.nextLSN++
		if c != nil && c.failed == nil {
			c.failed = cause
		}
	}
}

// reserve takes a free file if more than keep are free. It is in use from then on, with frames that nothing covers, so
// that a Release meanwhile leaves it alone.
func (j *Journal) reserve(keep int, prevLSN uint64) (*file, header) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.freeLocked() <= keep {
		return nil, header{}
	}
	f := j.files[slices.IndexFunc(j.files, (*file).free)]
	h := header{epoch: newEpoch(), firstLSN: j.nextLSN, prevLSN: prevLSN, size: j.o.FileBytes, covered: j.covered}
	f.header, f.used, f.begin, f.end, f.lastLSN = h, true, framesAt, framesAt, math.MaxUint64
	return f, h
}

// Fits says whether to append the frame to the file in hand. It is true of one that is too large for any.
func (j *Journal) Fits(f *Frame) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.current.end+int64(f.Len()) <= j.current.header.size || j.tooLarge(f)
}

func (j *Journal) tooLarge(f *Frame) bool { return framesAt+int64(f.Len()) > j.o.FileBytes }

// Append writes the frame and makes it durable with one sync. On an error nothing of it counts and the file takes
// no more: call Failover, then Append again. Not so after ErrTooLarge and ErrFileFull.
func (j *Journal) Append(f *Frame) (lsn uint64, err error) {
	if j.tooLarge(f) {
		return 0, fmt.Errorf("journal: group of %d bytes: %w", f.Len(), ErrTooLarge)
	}
	j.mu.Lock()
	c := j.current
	if c.failed != nil {
		j.mu.Unlock()
		return 0, c.failed
	}
	if c.end+int64(f.Len()) > c.header.size {
		j.mu.Unlock()
		return 0, ErrFileFull
	}
	lsn = j.nextLSN
	j.nextLSN++
	at, epoch := c.end, c.header.epoch
	j.mu.Unlock()

	b := f.seal(lsn, epoch)
	_, err = c.f.WriteAt(b, at)
	if err == nil {
		err = c.f.Sync()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.written += int64(len(b))
	if err != nil {
		c.failed = fmt.Errorf("journal: append to %s: %w", c.f.Name(), err)
		return 0, c.failed
	}
	c.end += int64(len(b))
	c.lastLSN, j.lastLSN = lsn, lsn
	return lsn, nil
}

// Roll goes on in another file and leaves the spare alone, unless the one in hand holds no frame yet: two that begin at
// one LSN could not be put in order. It returns the last LSN before the file that is then in hand.
func (j *Journal) Roll() (cut uint64, err error) {
	j.mu.Lock()
	cut = j.lastLSN
	fresh := j.current != nil && j.current.failed == nil && j.current.header.firstLSN == j.nextLSN
	j.mu.Unlock()
	if fresh {
		return cut, nil
	}
	return cut, j.use(1, cut)
}

// Failover goes on in the spare after Append failed. The frame that failed may be on flash all the same: the new
// file's header says that it is void, and its LSN is not used again.
func (j *Journal) Failover() error { return j.use(0, j.LastLSN()) }

// LastLSN is the LSN of the last durable frame.
func (j *Journal) LastLSN() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lastLSN
}

// Follows says whether the file in hand was begun right behind lsn.
func (j *Journal) Follows(lsn uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.current != nil && j.current.header.prevLSN == lsn
}

// Release frees the files whose frames are all at or below covered, an LSN up to which both state files hold
// everything. A file that failed is removed.
func (j *Journal) Release(covered uint64) {
	j.mu.Lock()
	j.covered = max(j.covered, covered)
	var gone []*file
	j.files = slices.DeleteFunc(j.files, func(f *file) bool {
		if f == j.current || (f.used && f.lastLSN > covered) {
			return false
		}
		f.used = false
		size, err := f.f.Size()
		if f.failed == nil && err == nil && size == j.o.FileBytes && len(j.files)-len(gone) <= Files {
			return false
		}
		gone = append(gone, f) // surplus, failed, of another configured size, or cut short while it was made
		return true
	})
	j.mu.Unlock()
	for _, f := range gone {
		j.remove(f)
	}
}

// remove closes and deletes a file that is in Journal.files no more.
func (j *Journal) remove(f *file) error {
	f.f.Close()
	err := j.o.FS.Remove(f.f.Name())
	if err != nil {
		j.o.Logger.Warn("journal: can't remove a file that is not needed any more", "file", f.f.Name(), "error", err)
	}
	return err
}

// Bytes is what the journal takes on disk now, and what it has written in this process life.
func (j *Journal) Bytes() (onDisk, written int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.files {
		onDisk += max(f.header.size, j.o.FileBytes)
	}
	return onDisk, j.written
}

// Close closes the files. It writes nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	for _, f := range j.files {
		err = errors.Join(err, f.f.Close())
	}
	j.files, j.current = nil, nil
	return err
}

// Dir is where a data directory keeps its journal.
func Dir(dataDir string) string { return filepath.Join(dataDir, "journal") }
