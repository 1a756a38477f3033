package segment

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/record"
)

// crashDriver leads a log through several lives, from a seed. It does in one goroutine, step by step, what committer,
// appender, checkpointer and writers do in theirs, so that a seed repeats everything. Between the file operations of a step
// it may do steps of the others, as far as the locks that are held allow.
type crashDriver struct {
	rng     *rand.Rand
	plant   plant
	tracing bool
	trace   []string

	mem    *vfs.Mem
	fs     *crashFS
	store  *memStore
	o      Options
	log    *Log
	clean  bool // how the last life ended
	lost   bool // a state file
	killed bool // it ended without a power cut

	model   *crashModel
	filling *modelGroup // the group in hand
	sealed  *modelGroup // the one that is being committed
	lazy    map[string]uint64
	writers []*crashWriter
	taken   *cut // of a checkpoint that has begun and has done nothing yet
	number  uint64
	slow    bool // the checkpointer waits until the committer can't go on

	clock     int64 // ms
	retention crashRetention

	// What is under way, outermost first, and where another step may be done in between.
	under []activityKind

	decoder *record.Decoder
	encoder *record.Encoder
	buf     []byte
}

type activityKind int

const (
	committing activityKind = iota
	checkpointing
	appending
	syncing
	creating
	retaining
	dropping // within retaining, while locks of a partition's segments are held
)

func (d *crashDriver) isUnder(kinds ...activityKind) bool {
	for _, k := range d.under {
		for _, want := range kinds {
			if k == want {
				return true
			}
		}
	}
	return false
}

// during runs fn as a part of that activity.
func (d *crashDriver) during(k activityKind, fn func()) {
	d.under = append(d.under, k)
	fn()
	d.under = d.under[:len(d.under)-1]
}

// crashFailure is what the driver panics with when the log is wrong.
type crashFailure struct{ text string }

func (d *crashDriver) fail(format string, args ...any) {
	panic(crashFailure{fmt.Sprintf(format, args...)})
}

func (d *crashDriver) mustNot(err error) {
	if err != nil {
		d.fail("%v\n%s", err, debug.Stack())
	}
}

func (d *crashDriver) note(format string, args ...any) {
	if d.tracing {
		d.trace = append(d.trace, fmt.Sprintf(format, args...))
	}
}

// chance is true once in n times.
func (d *crashDriver) chance(n int) bool { return d.rng.IntN(n) == 0 }

// crashTools are dear to make, and survive a power cut in here.
type crashTools struct {
	decoder *record.Decoder
	encoder *record.Encoder
}

func newCrashTools() *crashTools {
	return &crashTools{record.NewDecoder(1 << 20), record.NewEncoder()}
}

func newCrashDriver(seed uint64, p plant, tools *crashTools) *crashDriver {
	d := &crashDriver{
		rng: rand.New(rand.NewPCG(seed, 1)), plant: p, mem: vfs.NewMem(vfs.MemOptions{}), model: newCrashModel(), clean: true,
		decoder: tools.decoder, encoder: tools.encoder,
	}
	d.store = &memStore{rng: d.rng, newest: -1}
	o := DefaultOptions()
	o.Dir = "/data"
	o.BudgetBytes, o.ReserveBytes = 1<<30, 64<<10
	o.MaxBytes = 4 << 10
	o.MaxRecordBytes = 512
	o.JournalBytes = 40 << 10
	o.AppendBytes = 1 << (8 + d.rng.IntN(5))
	o.MemoryBytes = o.AppendBytes << (1 + d.rng.IntN(3))
	o.Logger = slog.New(slog.DiscardHandler)
	o.openStore = func() (store, error) { return d.store, nil }
	o.waiting = d.waiting
	segmentBytes := int64(1) << (9 + d.rng.IntN(6))
	o.tuneChain = func(c *files.Options) { c.SegmentBytes, c.IndexIntervalBytes = segmentBytes, 128 }
	d.o = o
	d.planRetention()
	return d
}

// run leads the log through its lives. The error says what is wrong with it.
func (d *crashDriver) run() (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case crashFailure:
			err = errors.New(r.text)
		default:
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	for range 3 + d.rng.IntN(2) {
		d.open()
		d.live()
	}
	d.open()
	for range 6 {
		d.step()
	}
	d.commit()
	d.checkModel(nil, false)
	d.retain()
	d.checkModel(nil, false)
	return nil
}

// attempt runs fn until it ends or the machine stops.
func (d *crashDriver) attempt(fn func()) (stopped bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(machineStopped); !ok {
				panic(r)
			}
			stopped = true
		}
	}()
	fn()
	return false
}

// open opens the log. The machine may stop again and again meanwhile.
func (d *crashDriver) open() {
	for attempt := 0; ; attempt++ {
		stopAt := 0
		if often := 3; attempt < 4 {
			if d.killed { // what it left in the page cache is not durable yet
				often = 2
			}
			if d.chance(often) {
				stopAt = 1 + d.rng.IntN(1<<(2+d.rng.IntN(6)))
			}
		}
		d.fs = &crashFS{FS: d.mem, rng: d.rng, plant: d.plant, stopAt: stopAt, tracing: d.tracing, note: d.note}
		d.store.begin, d.store.stop = d.beginStore, d.fs.stop
		d.note("open, to stop at %d", stopAt)
		d.under, d.taken = nil, nil
		d.o.FS = d.fs
		d.o.now = d.read
		d.mustNot(d.o.Validate())
		d.log = newLog(d.o)
		d.log.encoder = d.encoder
		stopped := d.attempt(func() {
			d.mustNot(d.log.open())
			d.log.openClock()
			d.log.countGaps()
			d.log.checkSpace()
			d.log.checkRoom()
		})
		if !stopped {
			break
		}
		d.crash()
	}
	d.fs.stopAt, d.fs.between = 0, d.between
	d.checkRecovery()
	d.tuneTopics()
	d.filling, d.sealed, d.lazy = newModelGroup(), nil, map[string]uint64{}
	d.writers = nil
	for i := range 3 {
		w := &crashWriter{d: d, name: string(rune('a' + i))}
		w.w = d.log.NewWriter(w)
		d.writers = append(d.writers, w)
	}
}

func (d *crashDriver) beginStore() bool {
	last, _ := d.fs.begin("checkpoint", "state")
	return last
}

// live does steps until the life ends, in one of many ways.
func (d *crashDriver) live() {
	how := d.rng.IntN(8) // 0, 1: clean; 2: between two steps; else: at an operation
	steps, doublings := 5+d.rng.IntN(45), 6
	if d.chance(8) {
		steps, doublings = 200, 8
	}
	d.slow = d.chance(3)
	if how > 2 {
		d.fs.stopAt = d.fs.ops + 1 + d.rng.IntN(1<<(3+d.rng.IntN(doublings)))
	}
	stopped := d.attempt(func() {
		for range steps {
			d.step()
		}
		if how != 2 {
			d.close()
		}
	})
	if d.clean = !stopped && how != 2; d.clean {
		d.fs.release()
		if d.lost = d.chance(16); d.lost {
			d.note("a state file is lost")
			d.store.lose()
		}
		return
	}
	d.crash()
}

// crash is a power cut, or the mere end of the process.
func (d *crashDriver) crash() {
	d.clean = false
	d.look()
	d.fs.release()
	if d.killed = d.chance(4); d.killed {
		d.note("killed")
	} else {
		block := 4096 << (2 * d.rng.IntN(2))
		d.note("power cut, in blocks of %d", block)
		d.mem.PowerCut(d.rng, block)
	}
	if d.lost = d.chance(10); d.lost {
		d.note("a state file is lost")
		d.store.lose()
	}
}

// look notes whether anybody could see the group that is just being committed.
func (d *crashDriver) look() {
	g := d.sealed
	if g == nil {
		return
	}
	for name, p := range g.parts {
		if m := d.model.parts[name]; m != nil && p.HighWatermark() > m.next {
			d.note("%s is visible up to offset %d", name, p.HighWatermark())
			g.seen = true
		}
	}
}
