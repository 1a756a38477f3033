package segment

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

// epoch is a stretch of stamps that lie on the log's clock by one shift. Times are in ms.
type epoch struct {
	from, to   int64 // first and last stamp; from > to: none was given yet
	shift      int64 // stamp + shift is its time on the log's clock
	correction int64 // stamp + correction is the true time, where that is known
	flags      epochFlags
}

type epochFlags uint8

const (
	known    epochFlags = 1 << iota // correction is known
	open                            // the clock of this boot may still tell the correction, or a better one
	floating                        // the length of a stop before it isn't known, so its shift may still grow
)

// maxEpochs bounds the table. A gateway whose clock is synchronised has one or two; each boot without a clock of its own
// that ends up synchronised adds one.
const maxEpochs = 64

// emptyEpoch holds no stamp.
func emptyEpoch() epoch { return epoch{from: math.MaxInt64, to: math.MinInt64} }

func (e *epoch) empty() bool          { return e.from > e.to }
func (e *epoch) holds(ms int64) bool  { return e.from <= ms && ms <= e.to }
func (e *epoch) is(f epochFlags) bool { return e.flags&f != 0 }

// right says whether the stamps are the true time.
func (e *epoch) right() bool { return e.is(known) && near(e.correction, 0) }

func near(a, b int64) bool { return a-b <= slewMs && b-a <= slewMs }

// merge takes in the records of o. They may look younger than they are then, and stay longer; never the other way.
func (e *epoch) merge(o *epoch) {
	if !e.is(known) || !o.is(known) || !near(e.correction, o.correction) {
		e.correction = 0
	}
	e.from, e.to = min(e.from, o.from), max(e.to, o.to)
	e.shift = max(e.shift, o.shift)
	e.flags |= o.flags
}

// compact merges epochs whose stamps are right and lie on the log's clock by the same shift, wherever they are: what lies
// between them is in epochs of its own. Then, while there are too many, it merges the two for which that harms least.
func compact(epochs []epoch, most int) []epoch {
	for i := 0; i < len(epochs); i++ {
		for j := len(epochs) - 1; j > i; j-- {
			a, b := &epochs[i], &epochs[j]
			if a.right() && b.right() && a.flags == b.flags && near(a.shift, b.shift) {
				a.merge(b)
				epochs = slices.Delete(epochs, j, j+1)
			}
		}
	}
	for len(epochs) > most {
		slices.SortFunc(epochs, func(a, b epoch) int {
			if a.right() != b.right() { // a long one whose stamps are right must not end up with a shift of the others
				return cmp.Compare(boolInt(a.right()), boolInt(b.right()))
			}
			return cmp.Compare(a.from, b.from)
		})
		best, least := 0, int64(math.MaxInt64)
		for i := range epochs[:len(epochs)-1] {
			if h := harm(epochs, i); h < least && epochs[i].right() == epochs[i+1].right() {
				best, least = i, h
			}
		}
		epochs[best].merge(&epochs[best+1])
		epochs = slices.Delete(epochs, best+1, best+2)
	}
	return epochs
}

// harm is by how much some record would look too young if epoch i took in the next one.
func harm(epochs []epoch, i int) int64 {
	a, b := &epochs[i], &epochs[i+1]
	shift, lowest := max(a.shift, b.shift), min(a.shift, b.shift)
	for j := range epochs {
		if e := &epochs[j]; e.from <= max(a.to, b.to) && e.to >= min(a.from, b.from) {
			lowest = min(lowest, e.shift)
		}
	}
	return shift - lowest
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// What "meta/clock" holds, all integers big endian, times in ms:
//
//	 0   1  format version, 1
//	 1  16  boot id
//	17   8  time since the machine started
//	25   8  the log's clock
//	33   8  the floor of stamps
//	41   8  the wall clock
//	49   8  the stamp that none may be below
//	57   8  how far stamps may have gone on since: 0 after a clean stop
//	65   1  flags: 1 trusted, 2 synchronised, 4 was ever synchronised, 8 the length of the last stop isn't known
//	66   1  number of epochs; the last one is that of now
//	67      each: first stamp, last stamp, shift and correction, 8 bytes each, and 1 byte of flags as in epochFlags
const (
	clockKey        = "meta/clock"
	clockVersion    = 1
	clockFixedBytes = 67
	epochBytes      = 33
)

// clockState is what is kept of a Clock.
type clockState struct {
	bootID                            [16]byte
	boot                              int64
	elapsed, floor, wall, hold, slack int64
	trusted, synced, ever, gap        bool
	epochs                            []epoch
}

func (s *clockState) append(b []byte) []byte {
	b = append(append(b, clockVersion), s.bootID[:]...)
	for _, v := range []int64{s.boot, s.elapsed, s.floor, s.wall, s.hold, s.slack} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	flags := byte(0)
	for i, f := range []bool{s.trusted, s.synced, s.ever, s.gap} {
		if f {
			flags |= 1 << i
		}
	}
	b = append(b, flags, byte(len(s.epochs)))
	for _, e := range s.epochs {
		for _, v := range []int64{e.from, e.to, e.shift, e.correction} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
		b = append(b, byte(e.flags))
	}
	return b
}

func parseClockState(b []byte) (*clockState, error) {
	if len(b) < clockFixedBytes || b[0] != clockVersion || len(b) != clockFixedBytes+int(b[66])*epochBytes || b[66] == 0 {
		return nil, errors.New("the log's clock is stored in an unknown form")
	}
	s := new(clockState)
	b = b[1+copy(s.bootID[:], b[1:]):]
	take := func(vs ...*int64) {
		for _, v := range vs {
			*v = int64(binary.BigEndian.Uint64(b))
			b = b[8:]
		}
	}
	take(&s.boot, &s.elapsed, &s.floor, &s.wall, &s.hold, &s.slack)
	for i, f := range []*bool{&s.trusted, &s.synced, &s.ever, &s.gap} {
		*f = b[0]&(1<<i) != 0
	}
	for b = b[2:]; len(b) > 0; b = b[1:] {
		var e epoch
		take(&e.from, &e.to, &e.shift, &e.correction)
		e.flags = epochFlags(b[0])
		s.epochs = append(s.epochs, e)
	}
	return s, nil
}
