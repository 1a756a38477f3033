package segment

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The wall clock of a gateway starts at 1970, jumps when a time daemon finds a server, and may jump anywhere. So the log has
// two clocks of its own:
//
//   - The log's clock measures age. It runs with the monotonic clock and never jumps. Across a stop of the machine it goes on
//     by what two synchronised readings are apart, and by nothing while one of them is missing: what is stored can look younger
//     than it is, never older. Across a restart on a machine that goes on running, the time since its boot tells.
//   - The floor is the last trusted time, advanced by what passed since. No record is stamped below it.
//
// The wall clock is trusted from the moment a time daemon vouches for it until somebody sets it while none does. On a machine
// where none ever did, a plausible wall clock is taken instead. What is trusted becomes the floor; a clock that isn't trusted is
// followed where it is ahead of the floor, but doesn't move it: after a correction stamps go back.
//
// The table of epochs remembers how the stamps given so far lie on the log's clock, and by how much they miss the true time.
const (
	slewMs     = 1000                   // a clock that moves by no more than this against the monotonic one is not stepped
	jitterMs   = 2                      // two readings of one clock may differ by this much, from rounding
	holdMs     = 60_000                 // a trusted clock that is behind the floor by no more than this is waited for
	saveMs     = 5_000                  // while records are stamped, the clock is kept in the state this often
	slackMs    = saveMs + 2*slewMs      // so far stamps go on at most beyond what was kept last
	clockEvery = time.Second            // between looks at the clock while none is stamped
	stepEvery  = 10 * time.Second       // between two lines about steps, and between two commits of their own
	earliestMs = 1_735_689_600_000      // 2025-01-01: no wall clock of a running gateway is below
	yearMs     = 365 * 86_400_000       // how far a clock for which nobody vouches may be ahead of the floor
	latestMs   = earliestMs + 50*yearMs // and where there is no floor
)

// Clock is the time of a log. All methods are safe for concurrent use.
type Clock struct {
	read   func() reading // immutable
	system *systemClock   // immutable; nil where a test has the clocks
	log    *slog.Logger   // immutable

	mu sync.Mutex // nothing else is locked under it; Log.mu may be held

	// What must be added to reading.mono to get the time, in ms.
	wall    int64 // of the wall clock
	floor   int64 // below which nothing is stamped
	elapsed int64 // of the log's clock
	line    int64 // of stamps: the higher one of wall and floor
	anchor  int64 // of the wall clock when it was last stepped
	base    int64 // of stamps when the present epoch began

	hold int64 // nothing is stamped below this time
	last int64 // latest stamp; 0 once stamps may go back

	trusted bool // wall is taken for the true time
	synced  bool // because a time daemon vouched for it
	ever    bool // one has vouched for it some time
	gap     bool // the machine was stopped since, for how long isn't known

	epochs []epoch // of the past
	now    epoch

	saved    int64 // reading.mono when the clock was last put into the state
	unsaved  bool  // the table has changed since
	steps    int64
	lastStep time.Duration
	stepLine int64 // reading.mono of the last line about a step, before 0: none
	lines    []logLine
}

// logLine waits to be logged: not under a lock, since whoever reads the log may be slow.
type logLine struct {
	level slog.Level
	what  string
	args  []any
}

// maxLogLines is how many wait at most. A clock that goes mad has nothing to add.
const maxLogLines = 16

func (c *Clock) say(level slog.Level, what string, args ...any) {
	if len(c.lines) < maxLogLines {
		c.lines = append(c.lines, logLine{level, what, args})
	}
}

// tell logs what there is to say. Nothing is locked meanwhile.
func (c *Clock) tell() {
	c.mu.Lock()
	lines := c.lines
	c.lines = nil
	c.mu.Unlock()
	for _, line := range lines {
		c.log.Log(context.Background(), line.level, line.what, line.args...)
	}
}

// Clock is the log's time.
func (l *Log) Clock() *Clock { return l.clock }

// Age is how long ago a record with that timestamp was stored, as far as that is certain: the true age is never less by more
// than a second, whatever the wall clock did. A timestamp that this log didn't give (later than all: 0, earlier than all: as
// old as the oldest) has the age of the next one that it gave.
func (c *Clock) Age(ms int64) time.Duration {
	mono := c.read().mono
	c.mu.Lock()
	defer c.mu.Unlock()
	now := mono + c.elapsed
	return time.Duration(max(0, now-c.placeLocked(ms, now))) * time.Millisecond
}

// placeLocked is the time on the log's clock at which a record may have been stamped ms: the latest of several.
func (c *Clock) placeLocked(ms, now int64) int64 {
	place, found := int64(0), false
	next := emptyEpoch()
	c.each(func(e *epoch) {
		if e.holds(ms) && (!found || ms+e.shift > place) {
			place, found = ms+e.shift, true
		}
		if e.from > ms && e.from < next.from {
			next = *e
		}
	})
	switch {
	case found:
		return place
	case next.empty():
		return now
	default:
		return next.from + next.shift
	}
}

// Correction is what must be added to a record's timestamp to get the true time. It is 0 for what was stamped by a trusted clock,
// and for timestamps that this log didn't give. It isn't known, and 0, for what was stamped before the clock could be trusted,
// until it is; if the machine stopped meanwhile, for ever.
func (c *Clock) Correction(ms int64) (correction int64, isKnown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Stamps of a clock that was behind lie where a right one gave none. One that was ahead gave what a right one gives later.
	ahead, right, unknown, behind := int64(0), false, false, int64(0)
	c.each(func(e *epoch) {
		switch {
		case !e.holds(ms):
		case !e.is(known):
			unknown = true
		case e.right():
			right = true
		case e.correction > 0:
			behind = e.correction
		default:
			ahead = e.correction
		}
	})
	switch {
	case behind > 0:
		return behind, true
	case unknown:
		return 0, false
	case right:
		return 0, true
	default:
		return ahead, true
	}
}

// Trusted says whether the present wall clock is taken for the true time.
func (c *Clock) Trusted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trusted
}

// status fills in the log's status.
func (c *Clock) status(s *Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.ClockTrusted, s.ClockSteps, s.ClockStep = c.trusted, c.steps, c.lastStep
}

// each calls f for every epoch that has stamps.
func (c *Clock) each(f func(*epoch)) {
	for i := range c.epochs {
		f(&c.epochs[i])
	}
	if !c.now.empty() {
		f(&c.now)
	}
}

// stamp is what a record taken now gets. save says that the clock's state must go with it.
func (c *Clock) stamp(wall, mono int64) (stamp int64, save bool) {
	c.mu.Lock()
	d := wall - mono - c.wall
	if d < -jitterMs || d > jitterMs {
		c.lookLocked(c.read())
		d = 0
	}
	stamp = max(mono+c.line+d, c.hold, c.last)                       // with d it is the wall clock's, to the ms
	save = c.unsaved || stamp < c.now.from || mono-c.saved >= saveMs // the first of its epoch among others
	c.now.from = min(c.now.from, stamp)
	c.last, c.now.to = stamp, max(c.now.to, stamp)
	c.mu.Unlock()
	return stamp, save
}

// look sees whether the wall clock was stepped, or has become trusted, and logs it. It says whether the state must be kept.
func (c *Clock) look() (save bool) {
	r := c.read()
	c.mu.Lock()
	c.lookLocked(r)
	save = c.unsaved
	c.mu.Unlock()
	c.tell()
	return save
}

func (c *Clock) lookLocked(r reading) {
	wall := r.wall - r.mono
	step := wall - c.anchor
	stepped, before := !near(step, 0), c.trusted
	c.wall = wall
	if stepped {
		c.stepped(r, step)
	}
	switch {
	case r.synced && (stepped || !c.synced):
		c.trust(r, true)
	case stepped && !r.synced:
		c.trusted, c.synced = false, false
		if !c.ever && c.plausible(r.mono) {
			c.trust(r, false)
		}
	}
	if c.trusted && (stepped || !before) { // a start says so only where it isn't
		c.say(slog.LevelInfo, "the wall clock is trusted", "now", utc(r.wall), "synchronised", c.synced)
	}
	if c.trusted && (r.synced || !c.synced) { // while the daemon is silent, the floor goes by what passes
		c.follow(r.mono)
	}
	c.turn()
}

// stepped counts and reports a step of the wall clock.
func (c *Clock) stepped(r reading, step int64) {
	c.anchor = c.wall
	c.steps++
	c.lastStep = time.Duration(step) * time.Millisecond
	if c.stepLine >= 0 && r.mono-c.stepLine < stepEvery.Milliseconds() {
		return // a clock that goes mad must not fill the log
	}
	c.stepLine = r.mono
	direction := "forward"
	if step < 0 {
		direction = "back"
	}
	c.say(slog.LevelWarn, "the wall clock was stepped; no record expires by that", "direction", direction, "by", c.lastStep.Abs(),
		"now", utc(r.wall), "synchronised", r.synced, "steps", c.steps)
}

// plausible says whether a wall clock for which nobody vouches may be right: near the floor, or ahead of it by a stop.
func (c *Clock) plausible(mono int64) bool {
	wall, floor := mono+c.wall, max(mono+c.floor, c.hold)
	if wall < earliestMs || wall > latestMs {
		return false
	}
	return floor < earliestMs || wall >= floor-holdMs && wall <= floor+yearMs
}

// trust takes the wall clock for the true time from now on. That tells how long the machine was stopped, if both ends of
// the stop are vouched for, and by how much the stamps of this boot miss the true time.
func (c *Clock) trust(r reading, synced bool) {
	stop := int64(0)
	if synced && c.gap && c.ever {
		stop = max(0, c.wall-c.floor)
		c.elapsed += stop
	}
	settle := func(e *epoch) {
		if e.is(floating) {
			e.shift += stop
		}
		if e.is(open) && (synced || !e.is(known)) {
			e.correction = c.wall - c.elapsed + e.shift
			e.flags |= known
		}
		e.flags &^= floating
		if synced {
			e.flags &^= open
		}
	}
	for i := range c.epochs {
		settle(&c.epochs[i])
	}
	settle(&c.now)
	c.trusted, c.synced, c.ever, c.gap = true, synced, c.ever || synced, false
	c.epochs = compact(c.epochs, maxEpochs-1)
	c.unsaved = true
}

// follow makes the trusted wall clock the floor. If it is a little behind the floor, stamps wait for it; if it is far behind,
// what was trusted before was wrong, and stamps go back.
func (c *Clock) follow(mono int64) {
	least := max(mono+c.floor, c.hold)
	if behind := least - (mono + c.wall); behind > holdMs {
		c.hold, c.last = 0, 0
		c.say(slog.LevelWarn, "the clock was ahead; timestamps go back", "by", time.Duration(behind)*time.Millisecond)
	} else if behind > 0 {
		c.hold = least
	}
	c.floor = c.wall
}

// turn begins a new epoch if stamps lie on the log's clock by another shift now, or are known better or worse.
func (c *Clock) turn() {
	flags := known
	switch {
	case !c.trusted && c.gap:
		flags = open | floating
	case !c.synced:
		flags |= open
	}
	line := c.floor // where the wall clock is trusted, that is it
	if !c.trusted {
		line = max(c.wall, c.floor)
	}
	if flags == c.now.flags && max(line-c.base, c.base-line) <= slewMs-jitterMs { // stamps miss line by jitterMs
		c.line = line
		return
	}
	if line < c.line-slewMs {
		c.last = 0
	}
	if !c.now.empty() {
		c.epochs = compact(append(c.epochs, c.now), maxEpochs-1)
	}
	c.now = emptyEpoch()
	c.now.shift, c.now.flags = c.elapsed-line, flags
	if c.now.is(known) {
		c.now.correction = c.floor - line
	}
	c.line, c.base = line, line
	c.unsaved = true
}

func utc(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
