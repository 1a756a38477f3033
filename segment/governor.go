package segment

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

// The wear governor. What wears flash is the number of commits more than the bytes in them, so a token bucket decides when a
// group commits. Everything that is written takes from it, as it is written: journal frames, appends to segments,
// checkpoints. A group that finds something in the bucket commits as if there were no governor; one that doesn't waits
// until there is, at most up to a ceiling counted from its first message, and not at all once it is so large that its sync
// is well spent. So a lone message is never delayed, and a steady stream is grouped to what the budget allows.
//
// The bucket may go below zero: a large group doesn't wait. What is below zero has to be filled up before the next group finds
// something, so nothing is forgotten. Appends and checkpoints come in lumps, when they must; each is taken bit by bit over about
// half a minute, so that it slows the groups that follow down a little instead of stopping them.
const (
	wearDay = 24 * time.Hour
	// wearBurst is how long an empty bucket takes to fill: what may be written at once after a rest.
	wearBurst = 15 * time.Second
	// wearBelow is how far the bucket may be below zero, lumps included, before the budget counts as exceeded.
	wearBelow = 33 * time.Second
	// wearFill is the part of the budget that flows into the bucket. The rest is for what the bucket can be off by at both
	// ends of any ten minutes: 0.92 × 600 s + 15 s above zero and 33 s below are 600 s.
	wearFill = 0.92
	// wearDebt is how far below zero the bucket may go. What is written beyond is forgotten, or an overload of hours would be
	// followed by hours in which no message commits at once.
	wearDebt = time.Hour
	// wearSpread is the time in which all but a third of a lump is taken.
	wearSpread = 20 * time.Second
	// wearLeast bytes are in the bucket at least when it is full: a commit.
	wearLeast = 8 << 10
	// MinWearBudget bytes a day are the least budget: with less not even a message a minute could commit at once.
	MinWearBudget = 16 << 20
	// governedBytes seal a group, with or without a token.
	governedBytes = 64 << 10
)

// governor is the token bucket. The zero value governs nothing. Safe for concurrent use; it knows no clock but the times
// that it is given, which must come from the monotonic one.
type governor struct {
	perSecond float64 // 0: no budget
	full      float64 // bytes
	below     float64 // bytes, positive

	mu       sync.Mutex
	at       time.Time // of balance; zero: nothing was asked yet and the bucket is full
	balance  float64   // bytes
	owed     float64   // bytes of lumps that are still to be taken
	exceeded time.Duration
}

// newGovernor makes a bucket for a budget of bytes a day, 0 for none. It is full.
func newGovernor(budget int64) *governor {
	perSecond := wearFill * float64(budget) / wearDay.Seconds()
	full := max(perSecond/wearFill*wearBurst.Seconds(), wearLeast)
	return &governor{perSecond: perSecond, full: full, below: perSecond / wearFill * wearBelow.Seconds(), balance: full}
}

func (g *governor) governs() bool { return g.perSecond > 0 }

// fillLocked lets flow in what is due.
func (g *governor) fillLocked(now time.Time) {
	if g.at.IsZero() {
		g.at = now
	}
	past := now.Sub(g.at)
	if past <= 0 {
		return // another goroutine was quicker
	}
	g.at = now
	due := g.owed * -math.Expm1(-past.Seconds()/wearSpread.Seconds())
	g.owed -= due
	g.balance = min(g.full, g.balance+past.Seconds()*g.perSecond-due)
}

// take counts bytes that were written: with a group, or else as a lump.
func (g *governor) take(now time.Time, bytes int64, lump bool) {
	if !g.governs() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fillLocked(now)
	if lump {
		g.owed += float64(bytes)
	} else {
		g.balance -= float64(bytes)
	}
	most := wearDebt.Seconds() * g.perSecond
	g.balance, g.owed = max(g.balance, -most), min(g.owed, most)
}

// wait is about how long it takes until a group may commit, if nothing else is written: 0 for at once.
func (g *governor) wait(now time.Time) time.Duration {
	if !g.governs() {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fillLocked(now)
	if g.balance > 0 {
		return 0
	}
	net := max(g.perSecond-g.owed/wearSpread.Seconds(), g.perSecond/8)           // the caller asks again
	return time.Duration(-g.balance/net*float64(time.Second)) + time.Millisecond // never a moment too early
}

// force notes that a group commits without a token, waited after its first message. While the bucket is too far below zero,
// ten minutes may hold more than their part of the budget: that is what counts as exceeded.
func (g *governor) force(now time.Time, waited time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fillLocked(now)
	if g.balance-g.owed < -g.below {
		g.exceeded += max(waited, 0)
	}
}

// overBudget is for how long groups had to exceed the budget.
func (g *governor) overBudget() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exceeded
}

// awaitToken holds back a group that is ready until the budget has something for it. By the committer.
func (l *Log) awaitToken() {
	g := l.wear.governor
	if !g.governs() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := time.Now()
		wait, waited := g.wait(now), now.Sub(l.active.first)
		if wait == 0 {
			return
		}
		left := l.o.MaxDelayCeiling - waited - time.Duration(l.syncNanos.Load()) // the sync is a part of what the client waits
		if l.closing || l.pressingLocked() || left <= 0 {
			g.force(now, waited)
			return
		}
		l.awaitLocked(awaitingToken, min(wait, left))
	}
}

// pressingLocked says whether the group in hand commits without a token: somebody waits for just this one, or it is large
// enough to be worth its sync.
func (l *Log) pressingLocked() bool {
	return l.active.urgent || l.active.bytes >= min(governedBytes, l.o.MaxBytes/2)
}

// packBytes is the least batch that is compressed for the journal: smaller ones hardly shrink.
const packBytes = 1 << 10

// fillFrame puts a sealed group into the journal frame.
func (l *Log) fillFrame(g *group) {
	l.frame.Reset(2 * l.o.MaxBytes)
	for i, p := range g.parts {
		l.frame.AddBatch(p.topic.name, p.topic.id, p.id, g.batches[i])
	}
	l.frame.AddChanges(g.changes, g.count)
}

// packFrame compresses the batches of the group in the frame as their topics ask for, if that saves a block. Only with a
// budget: without one the time that it takes is worth more. They stay like that in memory, too.
func (l *Log) packFrame(g *group) {
	if !l.wear.governor.governs() {
		return
	}
	raw, rawBytes := slices.Clone(g.batches), l.frame.Len()
	if !l.pack(g) {
		return
	}
	if l.fillFrame(g); l.frame.Len() == rawBytes {
		copy(g.batches, raw)
		l.fillFrame(g)
	}
}

// pack replaces the group's large batches by compressed ones, and says whether there were any.
func (l *Log) pack(g *group) bool {
	large := func(b record.Batch) bool { return len(b) >= packBytes }
	if !slices.ContainsFunc(g.batches, large) {
		return false
	}
	l.encoding.Lock()
	defer l.encoding.Unlock()
	out, from := l.packed[:0], 0
	for i, b := range g.batches {
		if !large(b) {
			continue
		}
		var err error
		if out, err = l.encoder.Compress(out, b, g.parts[i].topic.Compression()); err != nil {
			continue // it goes as it is
		}
		g.batches[i] = record.Batch(out[from:len(out):len(out)])
		from = len(out)
	}
	if l.packed = out; cap(out) > keepScratchBytes {
		l.packed = nil
	}
	return true
}
