package segment

import (
	"io/fs"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
)

// What files cost at the device beside their content, on a file system with a journal of its own. Measured on ext4 with its
// default options (scripts/wear).
const (
	wearBlock = 4096
	// wearGrowth: syncing a file that grew, or a directory, commits a transaction of the file system: descriptor, inode, bitmap
	// or extent, commit record.
	wearGrowth = 3 * wearBlock
	// wearTimes: overwriting a file changes its modification time, and the file system writes that every few seconds:
	// descriptor, inode, commit record, and the inode once more in its place.
	wearTimes    = 4 * wearBlock
	wearInterval = 5 * time.Second // between two such: ext4's default commit interval
)

// defaultLives is how often the file system's capacity can be written over, where nobody says better: a cheap 4 GB eMMC or SD
// card of 3,000 erase cycles takes about 4 TB, a third of it for the device's own rewriting.
const defaultLives = 1000

// rateWindow is the time that most of the daily rate comes from. Before it has passed, the rate is a mean since the start.
const rateWindow = 24 * time.Hour

// Kinds of writing.
const (
	wearJournal = iota
	wearSegments
	wearCheckpoints
	wearSystem // an estimate of what the file system writes besides
	wearKinds
)

// wear counts what is written to flash, as the device sees it: in blocks, with the file system's own.
type wear struct {
	governor  *governor
	endurance int64 // bytes; set at Open
	written   [wearKinds]atomic.Int64
	state     int64 // the store's own count so far; the checkpointer's

	mu    sync.Mutex // the next two are under it
	times time.Time  // when the modification times were last counted
	rate  meanRate
}

func newWear(budget int64, now time.Time) *wear {
	return &wear{governor: newGovernor(budget), rate: meanRate{at: now, begun: now}}
}

// How bytes are taken from the budget.
const (
	notGoverned = iota // written once in the life of the data directory
	withGroup          // by the group that is committed
	asLump             // by something that comes now and then
)

// add counts bytes of a kind.
func (w *wear) add(now time.Time, kind int, bytes int64, how int) {
	w.written[kind].Add(bytes)
	w.mu.Lock()
	times := int64(0)
	if now.Sub(w.times) >= wearInterval {
		w.times, times = now, wearTimes
		w.written[wearSystem].Add(times)
	}
	if how != notGoverned {
		w.rate.add(now, bytes)
	}
	w.rate.add(now, times)
	w.mu.Unlock()
	if how != notGoverned {
		w.governor.take(now, bytes, how == asLump)
	}
	if times > 0 {
		w.governor.take(now, times, true)
	}
}

// meanRate is a mean over time in which what is longer ago counts less. Under wear.mu.
type meanRate struct {
	begun, at time.Time
	sum       float64 // bytes, each weighted by exp(-age/rateWindow)
}

func (r *meanRate) add(now time.Time, bytes int64) {
	if past := now.Sub(r.at); past > time.Second {
		r.sum *= math.Exp(-past.Seconds() / rateWindow.Seconds())
		r.at = now
	}
	r.sum += float64(bytes)
}

// perDay is bytes a day; 0 in the first minute, in which starting is most of what is written.
func (r *meanRate) perDay(now time.Time) int64 {
	r.add(now, 0)
	past := now.Sub(r.begun)
	if past < time.Minute {
		return 0
	}
	weight := rateWindow.Seconds() * -math.Expm1(-past.Seconds()/rateWindow.Seconds())
	return int64(r.sum / weight * wearDay.Seconds())
}

// life is how long flash that takes endurance bytes lasts at perDay; 0: unknown, at most 100 years.
func life(endurance, perDay int64) time.Duration {
	const most = 100 * 365 * wearDay
	if perDay <= 0 || endurance <= 0 {
		return 0
	}
	days := float64(endurance) / float64(perDay)
	if days >= most.Hours()/24 {
		return most
	}
	return time.Duration(days * float64(wearDay))
}

// metered is a file system that counts what is written through it as one kind.
type metered struct {
	vfs.FS
	w    *wear
	kind int
}

type meteredFile struct {
	vfs.File
	m     *metered
	fresh atomic.Bool // just made, and not synced yet
	dirty atomic.Bool // written since the last sync
}

// OpenFile opens a file whose writes are counted.
func (m *metered) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := m.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	c := &meteredFile{File: f, m: m}
	c.fresh.Store(flag&os.O_EXCL != 0)
	return c, nil
}

// SyncDir syncs a directory, which is a transaction of the file system.
func (m *metered) SyncDir(name string) error {
	m.w.add(time.Now(), wearSystem, wearGrowth, asLump)
	return m.FS.SyncDir(name)
}

// WriteAt counts the blocks that are touched.
func (f *meteredFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	if n > 0 {
		first, last := off/wearBlock, (off+int64(n)-1)/wearBlock
		f.dirty.Store(true)
		f.m.w.add(time.Now(), f.m.kind, (last-first+1)*wearBlock, f.how(first))
	}
	return n, err
}

// how a write from that block on is taken from the budget.
func (f *meteredFile) how(block int64) int {
	switch {
	case f.fresh.Load():
		return notGoverned // a journal file is filled with zeros once, when it is made
	case f.m.kind == wearJournal && block > 0:
		return withGroup
	}
	return asLump // a journal file's header, or to a segment
}

// Sync counts what syncing a file that grew costs. Journal files don't grow.
func (f *meteredFile) Sync() error {
	f.fresh.Store(false)
	if f.dirty.Swap(false) && f.m.kind != wearJournal {
		f.m.w.add(time.Now(), wearSystem, wearGrowth, asLump)
	}
	return f.File.Sync()
}

// countState counts what the store wrote since the last time. By the checkpointer, or when it doesn't run.
func (l *Log) countState() {
	s, ok := l.store.(interface{ WrittenBytes() int64 })
	if !ok {
		return
	}
	written := s.WrittenBytes()
	if n := written - l.wear.state; n > 0 {
		l.wear.add(time.Now(), wearCheckpoints, n, asLump)
	}
	l.wear.state = written
}

// setEndurance is how many bytes the flash takes in its life.
func (l *Log) setEndurance() error {
	l.wear.endurance = l.o.EnduranceBytes
	if l.wear.endurance > 0 {
		return nil
	}
	total, _, err := l.o.FS.Space(l.o.Dir)
	if err != nil {
		return err
	}
	l.wear.endurance = defaultLives * min(total, math.MaxInt64/defaultLives)
	return nil
}

// Wear is what an operator wants to know about the flash. Bytes are those of the blocks of 4 KiB that were written by this
// process, since its start.
type Wear struct {
	JournalBytes    int64
	SegmentBytes    int64 // with indexes
	CheckpointBytes int64 // of the two state files
	SystemBytes     int64 // an estimate of what the file system writes besides, made for ext4
	// BytesPerDay is the mean of all four since the start, and once that is long ago mostly of the last day. Journal files that are made, which
	// happens once, are left out.
	BytesPerDay int64
	// EnduranceBytes is what the flash takes in its life, configured or guessed.
	EnduranceBytes int64
	// Life is EnduranceBytes at BytesPerDay, of new flash that nobody else writes to: at most 100 years, 0 when nothing is known.
	Life time.Duration
	// BudgetPerDay is commit.wear_budget, 0 for none.
	BudgetPerDay int64
	// OverBudget is for how long groups had to commit without a token although ten minutes may then exceed their part of the
	// budget: even at the ceiling of delay the budget is too small for what comes in.
	OverBudget time.Duration
	// Delay is a moving average of the time from the first message of a group until it is durable. A connection that waits for
	// each acknowledgement before it sends the next message gets at most 1/Delay messages a second.
	Delay time.Duration
}

// Wear is what was written so far. It may be asked after Close, too.
func (l *Log) Wear() Wear {
	w := l.wear
	w.mu.Lock()
	perDay := w.rate.perDay(time.Now())
	w.mu.Unlock()
	return Wear{
		JournalBytes:    w.written[wearJournal].Load(),
		SegmentBytes:    w.written[wearSegments].Load(),
		CheckpointBytes: w.written[wearCheckpoints].Load(),
		SystemBytes:     w.written[wearSystem].Load(),
		BytesPerDay:     perDay,
		EnduranceBytes:  w.endurance,
		Life:            life(w.endurance, perDay),
		BudgetPerDay:    l.o.WearBudget,
		OverBudget:      w.governor.overBudget(),
		Delay:           time.Duration(l.delayNanos.Load()),
	}
}
