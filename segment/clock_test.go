package segment

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"
)

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
	year   = 365 * day
)

// noon is the true time at which the worlds of these tests begin: 2026-06-01 12:00 UTC.
const noon = int64(1_780_315_200_000)

// world is a machine with its clocks, in ms.
type world struct {
	truth   int64
	off     int64 // of the wall clock from the truth
	synced  bool
	booted  int64 // truth at which it was
	boots   byte
	started int64 // truth at which the process was
}

func newWorld(truth int64) *world {
	return &world{truth: truth, booted: truth - minute, boots: 1, started: truth}
}

func (w *world) read() reading {
	r := reading{wall: w.truth + w.off, mono: w.truth - w.started, boot: w.truth - w.booted, synced: w.synced}
	r.bootID[0] = w.boots
	return r
}

// set has somebody set the wall clock; the kernel takes that for a clock that nobody vouches for.
func (w *world) set(wall int64) { w.off, w.synced = wall-w.truth, false }

// sync has a time daemon set the clock right.
func (w *world) sync() { w.off, w.synced = 0, true }

// reboot stops the machine for a time. It wakes up with the given wall clock.
func (w *world) reboot(stopped, wall int64) {
	w.truth += stopped
	w.booted = w.truth - 10*second
	w.boots++
	w.set(wall)
}

// clockLife is a Clock through several lives, with what the state would have of it.
type clockLife struct {
	t     testing.TB
	w     *world
	c     *Clock
	state []byte // that is durable
	sent  []byte // that is not yet, nil for none
}

func newLife(t testing.TB, w *world) *clockLife {
	l := &clockLife{t: t, w: w}
	l.start()
	return l
}

func (l *clockLife) start() {
	l.t.Helper()
	l.w.started, l.sent = l.w.truth, nil
	l.c = &Clock{read: l.w.read, log: slog.New(slog.DiscardHandler), stepLine: -1}
	if l.state == nil {
		l.c.begin(l.w.read(), 0)
	} else {
		s, err := parseClockState(l.state)
		if err != nil {
			l.t.Fatal(err)
		}
		l.c.resume(l.w.read(), s)
	}
	l.c.saved, l.c.unsaved = -year, false
}

// stop is a clean one; a crash is without it.
func (l *clockLife) stop() { l.state = l.c.keep(0) }

// stamp is what a durable record gets: what its group holds of the clock is durable, too.
func (l *clockLife) stamp() int64 {
	r := l.w.read()
	s, save := l.c.stamp(r.wall, r.mono)
	if save {
		l.sent = l.c.keep(slackMs)
	}
	l.settle()
	return s
}

// look is one of clockLoop's. What it has to tell is durable with the next record, if not before.
func (l *clockLife) look() {
	if l.c.look() {
		l.sent = l.c.keep(slackMs)
	}
}

func (l *clockLife) settle() {
	if l.sent != nil {
		l.state, l.sent = l.sent, nil
	}
}

// pass lets time pass, with looks.
func (l *clockLife) pass(ms int64) {
	l.w.truth += ms
	l.look()
	l.settle()
}

func (l *clockLife) ages(stamp, want int64) {
	l.t.Helper()
	if got := l.c.Age(stamp).Milliseconds(); got != want {
		l.t.Errorf("record stamped %v: age %v, want %v", utc(stamp), time.Duration(got)*time.Millisecond, time.Duration(want)*time.Millisecond)
	}
}

func (l *clockLife) corrects(stamp, want int64, wantKnown bool) {
	l.t.Helper()
	if got, ok := l.c.Correction(stamp); got != want || ok != wantKnown {
		l.t.Errorf("record stamped %v: correction %v, %v, want %v, %v", utc(stamp), time.Duration(got)*time.Millisecond, ok, time.Duration(want)*time.Millisecond, wantKnown)
	}
}

func (l *clockLife) stamps(want int64) int64 {
	l.t.Helper()
	got := l.stamp()
	if got != want {
		l.t.Errorf("stamp %v, want %v", utc(got), utc(want))
	}
	return got
}

func (l *clockLife) trusted(want bool) {
	l.t.Helper()
	if l.c.Trusted() != want {
		l.t.Errorf("trusted %v, want %v", !want, want)
	}
}

// The first start is at 1970, then a time daemon finds its server.
func TestClockFirstBootIn1970(t *testing.T) {
	w := newWorld(noon)
	w.set(0)
	l := newLife(t, w)
	l.trusted(false)
	early := l.stamps(0)
	l.corrects(early, 0, false)
	l.pass(hour)
	l.ages(early, hour)
	w.sync()
	l.pass(0)
	l.trusted(true)
	l.ages(early, hour)
	l.corrects(early, noon, true)
	late := l.stamps(noon + hour)
	l.corrects(late, 0, true)
	if l.c.steps != 1 || l.c.lastStep != time.Duration(noon)*time.Millisecond {
		t.Errorf("%d steps, the last %v", l.c.steps, l.c.lastStep)
	}
	l.stop()
	w.reboot(3*day, 0) // the next time it starts at 1970, the log knows better
	l.start()
	l.stamps(noon + hour + 1)
	l.ages(late, 0) // nobody knows yet how long the stop was
	w.sync()
	l.pass(minute)
	l.ages(late, 3*day+minute)
	l.ages(early, 3*day+hour+minute)
	l.corrects(early, noon, true)
}

// A machine without a battery, whose log has data of 2026, starts at 1970. What was stored before does not expire, and stamps
// go on from there.
func TestClockRebootIn1970(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			w := newWorld(noon)
			w.sync()
			l := newLife(t, w)
			l.stamps(noon)
			l.pass(4 * second)
			old := l.stamps(noon + 4*second) // the state doesn't have this one after a crash
			if clean {
				l.stop()
			}
			w.reboot(60*day, 0)
			l.start()
			l.trusted(false)
			first := l.stamp()
			if first < old || first > old+slackMs+1 {
				t.Errorf("first stamp %v, the last one of before was %v", utc(first), utc(old))
			}
			if age := l.c.Age(old); age > time.Second {
				t.Errorf("age %v before it can be known", age)
			}
			l.pass(10 * minute)
			second := l.stamp()
			l.corrects(second, 0, false)
			w.sync()
			l.pass(0)
			l.trusted(true)
			// A crash forgets at most the last seconds: the floor is that much lower, the stop that much longer.
			ageOf := func(stamp, want int64) {
				t.Helper()
				if got := l.c.Age(stamp).Milliseconds(); got > want+1 || got < want-slackMs-1 {
					t.Errorf("age %d, want %d", got, want)
				}
			}
			ageOf(old, 60*day+10*minute)
			ageOf(first, 10*minute)
			ageOf(second, 0)
			if c, ok := l.c.Correction(second); !ok || second+c > w.truth+1 || second+c < w.truth-slackMs {
				t.Errorf("corrected to %v, %v", utc(second+c), ok)
			}
			l.corrects(old, 0, true)
			l.stamps(w.truth)
		})
	}
}

// One jump to 2099, for which nobody vouches, must not pin what follows.
func TestClockJumpTo2099(t *testing.T) {
	const far = noon + 73*year
	for _, restart := range []string{"", "process", "machine"} {
		t.Run("restart="+restart, func(t *testing.T) {
			w := newWorld(noon)
			w.sync()
			l := newLife(t, w)
			old := l.stamps(noon)
			w.set(far)
			jumped := l.stamps(far)
			l.trusted(false)
			l.corrects(jumped, -73*year, true) // the last trusted time is known, and what passed since
			l.pass(hour)
			l.ages(old, hour)
			l.ages(jumped, hour)
			l.stamps(far + hour)
			stopped := int64(0)
			switch restart {
			case "process":
				l.start()
			case "machine":
				l.stop()
				stopped = day
				w.reboot(stopped, far+hour+day)
				l.start()
				l.ages(old, hour)
				l.corrects(l.stamps(far+hour+day), 0, false)
			}
			l.stamps(far + hour + stopped)
			w.sync()
			l.stamps(noon + hour + stopped)
			l.trusted(true)
			l.ages(old, hour+stopped)
			l.ages(jumped, hour+stopped)
			l.corrects(jumped, -73*year, true)
			l.ages(far+hour+stopped, 0)
			l.pass(day)
			l.stamps(w.truth)
			l.ages(old, hour+stopped+day)
		})
	}
}

// Steps for which nobody vouches, while running.
func TestClockStepsUnsynchronised(t *testing.T) {
	for _, by := range []int64{-20 * year, -hour, -2 * second, 2 * second, hour, 20 * year} {
		t.Run(time.Duration(by*1e6).String(), func(t *testing.T) {
			w := newWorld(noon)
			w.sync()
			l := newLife(t, w)
			old := l.stamps(noon)
			w.set(w.truth + by)
			l.pass(0)
			l.trusted(false)
			mid := l.stamps(max(noon, noon+by))
			l.pass(5 * minute)
			l.ages(old, 5*minute)
			l.ages(mid, 5*minute)
			l.corrects(mid, min(0, -by), true)
			w.sync()
			l.pass(0)
			l.trusted(true)
			l.ages(old, 5*minute)
			l.stamps(noon + 5*minute)
			l.corrects(old, 0, true)
		})
	}
}

// A time daemon that was wrong before: stamps wait for a clock that is a little behind, and go back to one that is far behind.
// Ages go by what passed in any case.
func TestClockVouchedTwice(t *testing.T) {
	for _, tt := range []struct {
		by   int64 // of the second correction
		want int64 // stamp then
	}{{-30 * second, noon + minute}, {-10 * year, noon + minute - 10*year}, {10 * year, noon + minute + 10*year}} {
		t.Run(time.Duration(tt.by*1e6).String(), func(t *testing.T) {
			w := newWorld(noon)
			w.sync()
			l := newLife(t, w)
			old := l.stamps(noon)
			l.pass(minute)
			w.off, w.synced = tt.by, true
			l.stamps(tt.want)
			l.pass(day)
			l.ages(old, day+minute)
			l.stamps(w.truth + tt.by)
			l.trusted(true)
		})
	}
}

// Where no time daemon ever was, a plausible clock is taken.
func TestClockNobodyVouches(t *testing.T) {
	w := newWorld(noon)
	l := newLife(t, w)
	l.trusted(true)
	old := l.stamps(noon)
	l.corrects(old, 0, true)
	l.stop()
	w.reboot(30*day, noon+30*day)
	l.start()
	l.trusted(true)
	l.stamps(w.truth)
	l.ages(old, 0) // a stop doesn't count: nobody knows
	l.pass(hour)
	l.ages(old, hour)
	w.set(w.truth + 20*year)
	l.pass(0)
	l.trusted(false)
	l.corrects(l.stamps(w.truth+20*year), -20*year, true)
	l.start()
	l.trusted(false)
	w.set(w.truth)
	l.pass(0)
	l.trusted(true)
	l.stamps(w.truth)
	w.reboot(day, 0) // its battery is empty now
	l.start()
	l.trusted(false)
	from := noon + 30*day + hour
	l.stamps(from + slackMs + 1)
	w.set(w.truth) // rdate, which doesn't vouch
	l.pass(0)
	l.trusted(true)
	l.corrects(from+slackMs+1, day, true)
	l.stamps(w.truth)
	// And then there is one, and the clock was wrong.
	mid := l.stamps(w.truth)
	w.truth += 9 * day
	w.set(w.truth - 9*day)
	l.pass(0)
	w.sync()
	l.pass(0)
	l.ages(mid, 9*day)
	l.stamps(w.truth)
}

// The seconds that a restart of the process takes count, whatever the wall clock does meanwhile.
func TestClockRestartOfProcess(t *testing.T) {
	for _, clean := range []bool{true, false} {
		w := newWorld(noon)
		w.set(5 * hour) // 1970, and nobody vouches
		l := newLife(t, w)
		early := l.stamps(5 * hour)
		if clean {
			l.stop()
		}
		w.truth += hour
		l.start()
		l.ages(early, hour)
		l.corrects(early, 0, false)
		l.stamps(6 * hour)
		w.truth += minute
		w.sync() // while the process is away
		w.truth += minute
		l.start()
		l.ages(early, hour+2*minute)
		l.corrects(early, noon-5*hour, true)
		l.stamps(w.truth)
		l.pass(day)
		l.ages(early, day+hour+2*minute)
		if n := len(l.c.epochs); n != 1 {
			t.Errorf("%d epochs are past, want the one of 1970", n)
		}
	}
}

// A healthy gateway has one past epoch however often it starts.
func TestClockTableStaysSmall(t *testing.T) {
	w := newWorld(noon)
	w.sync()
	l := newLife(t, w)
	first := l.stamp()
	for i := range 300 {
		l.pass(hour)
		l.stamps(w.truth)
		if i%2 == 0 {
			l.stop()
		}
		w.reboot(hour, w.truth+hour)
		if i%3 == 0 {
			w.sync()
		}
		l.start()
		l.stamps(w.truth)
		l.pass(minute)
		w.sync()
		l.pass(0)
		l.stamps(w.truth)
	}
	if n := len(l.c.epochs); n > 1 {
		t.Errorf("%d past epochs: %+v", n, l.c.epochs)
	}
	l.ages(first, w.truth-noon)
}

// Each start without a clock of its own adds an epoch; the table is bounded, and ages are never too great.
func TestClockTableIsBounded(t *testing.T) {
	w := newWorld(noon)
	w.sync()
	l := newLife(t, w)
	type rec struct{ stamp, truth int64 }
	var recs []rec
	for i := range int64(200) {
		l.pass(hour)
		recs = append(recs, rec{l.stamp(), w.truth})
		l.stop()
		w.reboot(hour+(i*i%37)*minute, 0)
		l.start()
		l.pass(30 * second)
		recs = append(recs, rec{l.stamp(), w.truth})
		l.pass(30 * second)
		w.sync()
		l.pass(0)
	}
	l.stop()
	if n := len(l.c.epochs); n >= maxEpochs {
		t.Errorf("%d past epochs", n)
	}
	if n := len(l.state); n > clockFixedBytes+maxEpochs*epochBytes {
		t.Errorf("%d bytes of state", n)
	}
	for _, r := range recs {
		age, truth := l.c.Age(r.stamp).Milliseconds(), w.truth-r.truth
		if age > truth+second || age < truth-3*hour {
			t.Errorf("age %v of a record that is %v old", time.Duration(age*1e6), time.Duration(truth*1e6))
		}
	}
}

// A small step, such as a leap second, is followed without a word.
func TestClockSlew(t *testing.T) {
	w := newWorld(noon)
	w.sync()
	l := newLife(t, w)
	l.stamps(noon)
	w.off = 700
	l.stamps(noon + 700)
	w.off = -200
	l.stamps(noon + 700) // waits
	l.pass(2 * second)
	l.stamps(w.truth - 200)
	if l.c.steps != 0 || len(l.c.epochs) != 0 {
		t.Errorf("%d steps, epochs %+v", l.c.steps, l.c.epochs)
	}
}

// What was stamped a little ahead of a clock that is right since, or by one that is wrong by less than a step, goes on from there
// after a restart, of the process or of the machine; and no stamp is more than a second beside its epoch.
func TestClockSlightlyAhead(t *testing.T) {
	for name, restart := range map[string]func(l *clockLife){
		"process":         func(l *clockLife) { l.stop(); l.start() },
		"killed":          func(l *clockLife) { l.start() },
		"machine":         func(l *clockLife) { l.stop(); l.w.reboot(4, l.w.truth+4); l.w.sync(); l.start() },
		"machine, killed": func(l *clockLife) { l.w.reboot(4, l.w.truth+4); l.w.sync(); l.start() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(noon)
			w.sync()
			l := newLife(t, w)
			l.stamps(noon)
			w.set(noon - hour)
			l.pass(0)
			w.set(noon + 900)
			l.stamps(noon + 900)
			w.sync()
			last := l.stamps(noon + 900) // waits
			restart(l)
			if s := l.stamp(); s < last {
				t.Errorf("stamp %v is below %v, which was vouched for", utc(s), utc(last))
			}
		})
	}
	w := newWorld(noon)
	w.sync()
	l := newLife(t, w)
	l.stamps(noon)
	for _, off := range []int64{998, 999, 1000, 1001, 1002} {
		w.off = -off
		l.pass(0)
		l.pass(minute) // until what was stamped before is over
		l.c.stamp(w.read().wall-jitterMs, w.read().mono)
		if age := l.c.Age(l.c.last).Milliseconds(); age > slewMs {
			t.Errorf("a clock that is %d ms behind: age %d ms of a record that is taken now", off, age)
		}
	}
}

// A power cut leaves no stamp outside its epoch, although the clock has gone from one end of what is no step to the other since
// it was kept last.
func TestClockSlackCoversSlew(t *testing.T) {
	w := newWorld(noon)
	w.sync()
	l := newLife(t, w)
	l.stamps(noon)
	w.off = -990
	l.pass(0)
	l.pass(minute)
	l.stamp() // kept
	w.off = 990
	w.truth += 100
	l.c.look()
	w.truth += saveMs - 200
	last := l.stamp()
	w.reboot(hour, w.truth+hour)
	l.start()
	held := false
	l.c.each(func(e *epoch) { held = held || e.holds(last) })
	if !held {
		t.Errorf("stamp %v is in none of the epochs %+v", utc(last), l.c.epochs)
	}
}

// Whatever the clocks do, no record looks older than it is by more than a second, and what is stamped by a clock that is
// vouched for never goes back.
func TestClockRandom(t *testing.T) {
	clocks := 300
	if raceEnabled || testing.Short() {
		clocks = 40
	}
	for range clocks {
		seed := rand.Uint64()
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { randomClock(t, rand.New(rand.NewPCG(seed, 0))) }) {
			return
		}
	}
}

func randomClock(t *testing.T, rng *rand.Rand) {
	w := newWorld(noon)
	span := func() int64 { return int64(1) << rng.IntN(36) } // up to two years
	wallNow := func() int64 {
		return []int64{0, w.truth, w.truth + span(), max(w.truth-span(), 0), noon + 73*year, w.truth + rng.Int64N(3*second)}[rng.IntN(6)]
	}
	w.set(wallNow())
	if rng.IntN(2) == 0 {
		w.sync()
	}
	l := newLife(t, w)
	type rec struct{ stamp, truth int64 }
	var recs []rec
	vouched := int64(0)
	for range 300 {
		switch rng.IntN(12) {
		case 0:
			w.set(wallNow())
		case 1:
			w.sync()
		case 2:
			w.synced = false
		case 3:
			if rng.IntN(2) == 0 {
				l.stop()
			}
			w.truth += span() >> 10
			l.start()
		case 4:
			if rng.IntN(2) == 0 {
				l.stop()
			}
			stopped := span()
			w.truth += stopped
			wall := wallNow()
			w.truth -= stopped
			w.reboot(stopped, wall)
			if rng.IntN(3) == 0 {
				w.sync()
			}
			l.start()
		case 5, 6:
			w.truth += span() >> 4
			if l.look(); rng.IntN(2) == 0 {
				l.settle()
			}
		default:
			w.truth += rng.Int64N(10 * second)
			s := l.stamp()
			if s < vouched {
				t.Fatalf("stamp %v is below %v, which was vouched for", utc(s), utc(vouched))
			}
			if l.c.synced {
				vouched = max(vouched, s)
				if w.synced && s > w.truth+holdMs {
					t.Fatalf("stamp %v of a synchronised clock at %v", utc(s), utc(w.truth))
				}
			}
			recs = append(recs, rec{s, w.truth})
		}
		if len(l.c.epochs) >= maxEpochs {
			t.Fatalf("%d epochs", len(l.c.epochs))
		}
		for _, r := range recs {
			if age, truth := l.c.Age(r.stamp).Milliseconds(), w.truth-r.truth; age > truth+second {
				t.Fatalf("age %d of a record stamped %v, which is %d old", age, utc(r.stamp), truth)
			}
		}
	}
}

func FuzzClockState(f *testing.F) {
	w := newWorld(noon)
	l := newLife(f, w)
	l.stamp()
	l.stop()
	f.Add(l.state)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseClockState(b)
		if err != nil {
			return
		}
		if got := s.append(nil); string(got) != string(b) && b[65] < 16 {
			t.Errorf("%x became %x", b, got)
		}
		c := &Clock{read: w.read, log: slog.New(slog.DiscardHandler), stepLine: -1}
		c.resume(w.read(), s)
		c.stamp(w.read().wall, w.read().mono)
		c.keep(0)
	})
}

func BenchmarkStamp(b *testing.B) {
	l := openLog(b, testOptions(b.TempDir()))
	w := l.NewWriter(nil)
	if err := w.Begin(); err != nil {
		b.Fatal(err)
	}
	defer w.End()
	b.ReportAllocs()
	now := time.Now()
	for b.Loop() {
		w.Stamp(now)
	}
}

// What the wall clock alone costs, to compare.
func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		_ = time.Now().UnixMilli()
	}
}
