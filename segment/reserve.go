package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/sluicemq/sluice/internal/vfs"
)

// reserveName is a file of nothing in the data directory. When the file system is full it is cut to nothing, which makes
// room for what must be written: records that were acknowledged and are still in memory, state, a journal file. New
// records are refused until it has its size again.
const reserveName = "reserve"

type reserve struct {
	held atomic.Int64 // bytes of the file

	mu   sync.Mutex
	file vfs.File // set by Open, under mu; nil when closed
}

// openReserve takes the reserve at the start. A disk without the room for it refuses records, not the start.
func (l *Log) openReserve() error {
	r := &l.reserve
	file, err := l.o.FS.OpenFile(filepath.Join(l.o.Dir, reserveName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.file = file
	size, err := file.Size()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	switch want := l.plan.ReserveBytes; {
	case size == want:
		r.held.Store(want)
		return nil
	case size > want:
		if err := file.Truncate(want); err != nil {
			return err
		}
		r.held.Store(want)
		return nil
	}
	if l.holdReserve(); r.held.Load() != l.plan.ReserveBytes {
		l.refuseForReserve(errors.New("there was no room for it at the start"))
	}
	return nil
}

// giveUpReserve frees the reserve of a log that can't be opened for want of space, and says whether that helped.
func giveUpReserve(o Options) bool {
	path := filepath.Join(o.Dir, reserveName)
	if info, err := o.FS.Stat(path); err != nil || info.Size() == 0 {
		return false
	}
	file, err := o.FS.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return file.Truncate(0) == nil
}

// useReserve frees the reserve, all of it at once, and refuses records from then on. It says whether there is room now that
// there wasn't before.
func (l *Log) useReserve(cause error) bool {
	r := &l.reserve
	if r.held.Load() == 0 {
		return false // also while it is just being taken, which may last
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held.Load() == 0 || r.file == nil {
		return false
	}
	l.refuseForReserve(cause)
	if err := r.file.Truncate(0); err != nil {
		l.log.Warn("the reserve can't be freed", "error", err)
		l.refuse(causeReserve, nil) // it is still held; what failed for want of space has a refusal of its own
		return false
	}
	r.held.Store(0)
	_ = r.file.Sync() // has the file system hand out the blocks again; what it says changes nothing
	l.kickRetention()
	return true
}

func (l *Log) refuseForReserve(cause error) {
	l.refuse(causeReserve, &refusal{ErrFull, fmt.Errorf("the reserve of %d bytes in %s is in use: make room on the file system, or for data.budget (%w)",
		l.plan.ReserveBytes, l.o.Dir, cause)})
}

// holdReserve takes the reserve again if there is room for it beside what is under way, within the file system and the
// budget, and nothing waits for room. It is a no-op while the reserve is held.
func (l *Log) holdReserve() {
	r := &l.reserve
	r.mu.Lock()
	defer r.mu.Unlock()
	want := l.plan.ReserveBytes
	if r.held.Load() == want || r.file == nil {
		return
	}
	if l.failing.Load() > 0 || l.checkpoints.lastError() != nil || l.usedBytes() > l.plan.LimitBytes {
		return
	}
	if l.space.free.Load() < want+l.underWay()+l.underWay()/4 {
		return
	}
	err := r.file.Allocate(want)
	if err == nil {
		err = r.file.Sync()
	}
	if err != nil {
		_ = r.file.Truncate(0)
		l.log.Warn("no room for the reserve yet", "bytes", want, "error", err)
		return
	}
	r.held.Store(want)
	l.refuse(causeReserve, nil)
}

// underWay is how much may still want to be written to the file system once records are refused: what is in memory or on
// its way there, and the journal files that are not made yet.
func (l *Log) underWay() int64 {
	onDisk, _ := l.journal.Bytes()
	return l.plan.HeadroomBytes + int64(l.o.MemoryBytes) + l.journalBytes() - onDisk
}

// makeRoomForState frees the reserve when the state is about to grow beyond what the budget has left for it. That is what
// the reserve is for, too.
func (l *Log) makeRoomForState() {
	need := l.stateGrowth(l.overlay.takenBytes())
	l.space.changes.Store(int64(l.overlay.takenBytes()))
	if l.checkpoints.lastError() != nil {
		need += l.space.state.Load() // one file may be made anew, from a copy of the other
	}
	if used := l.usedBytes(); used+l.reserve.held.Load()+need > l.plan.BudgetBytes {
		l.useReserve(fmt.Errorf("%d bytes are used of %d, and the state may want %d more", used, l.plan.BudgetBytes, need))
	}
}

// stateGrowth is how much a checkpoint with so many bytes of changes may make the state grow. The older file gets what
// changed since it was the newer one, in whole pages, and bbolt makes it grow by doubling up to 256 KiB, and in steps
// of that from then on.
func (l *Log) stateGrowth(changes int) int64 {
	return 2*(int64(changes)+l.space.changes.Load()) + max(64<<10, min(l.space.state.Load()/2, 256<<10))
}

// checkState refuses changes of state, but for those of retention itself, when state has used the reserve up, too.
func (l *Log) checkState() {
	if l.reserve.held.Load() > 0 {
		l.refuse(causeState, nil)
		return
	}
	// The next checkpoint makes one file grow by what is pending, and the one after it the other.
	used, pending := l.usedBytes(), l.overlay.allBytes()
	growth := l.stateGrowth(pending) + l.stateGrowth(pending) - 2*l.space.changes.Load()
	if used+growth <= l.plan.BudgetBytes {
		l.refuse(causeState, nil)
		return
	}
	l.refuse(causeState, &refusal{ErrFull, fmt.Errorf("%s holds %d bytes, and with %d for the state there is nothing left of the budget of %d: raise data.budget",
		l.o.Dir, used, growth, l.plan.BudgetBytes)})
}

// maxPendingState bytes of state changes in memory ask for a checkpoint: few enough for the reserve.
func (l *Log) maxPendingState() int { return int(min(1<<20, max(l.plan.ReserveBytes/8, 16<<10))) }

// checkSpace looks at the file system and refuses records while others have filled it.
func (l *Log) checkSpace() {
	_, free, err := l.o.FS.Space(l.o.Dir)
	if err != nil {
		l.log.Warn("can't find out how much space is free", "error", err)
		return
	}
	l.space.free.Store(free)
	l.holdReserve()
	least := l.underWay()
	l.mu.Lock()
	refused := l.causes[causeSpace] != nil
	l.mu.Unlock()
	switch {
	case free < least:
		l.refuse(causeSpace, &refusal{ErrFull, fmt.Errorf("the file system of %s has %d bytes free, fewer than the %d that are kept for what is under way: make room",
			l.o.Dir, free, least)})
	case refused && free >= least+least/4:
		l.refuse(causeSpace, nil)
	}
}

func (r *reserve) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
