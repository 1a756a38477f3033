package segment

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicemq/sluice/segment/record"
)

// shared is a world that a log looks at while the test moves it.
type shared struct {
	mu sync.Mutex
	w  *world
}

func (s *shared) read() reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.read()
}

func (s *shared) do(f func(w *world)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.w)
}

// write stores n records as a connection does, in segments a few at a time, and returns their stamps.
func (s *shared) write(t *testing.T, l *Log, p *Partition, n int) (stamps []int64) {
	t.Helper()
	for i := range n {
		w := l.NewWriter(nil)
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
		r := record.Record{Timestamp: w.Stamp(time.Time{}), Value: []byte(strings.Repeat("x", 1000))}
		stamps = append(stamps, r.Timestamp)
		w.Append(p, &r)
		wait(t, l.endWithTicket(w, p, 0), nil)
		s.do(func(w *world) { w.truth += 50 })
		if i%4 == 3 { // by itself, the log makes few batches of many on a fast disk
			if err := l.appendPartition(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return stamps
}

// reopen opens the log after a stop of the machine, with a clean stop before it or without.
func (s *shared) reopen(t *testing.T, l *Log, o *Options, clean bool, stopped, wall int64) (*Log, *Partition) {
	t.Helper()
	if clean {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.do(func(w *world) {
		w.reboot(stopped, wall)
		w.started = w.truth
	})
	l = crash(t, *o)
	o.Dir = l.o.Dir
	return l, l.Topic("t").Partitions()[0]
}

// The clock starts at 1970, is set right, jumps to 2099 and back, and the machine stops in between: nothing ages by that, what
// is stamped by a trusted clock never goes back, and the time indexes are those that Kafka would accept.
func TestClockStepsInALog(t *testing.T) {
	for _, clean := range []bool{true, false} {
		s := &shared{w: newWorld(noon)}
		s.w.set(0)
		o := testOptions(filepath.Join(t.TempDir(), "data"))
		o.now = s.read
		l, p := openOne(t, o)
		early := s.write(t, l, p, 60)
		s.do((*world).sync)
		first := s.write(t, l, p, 60)
		s.do(func(w *world) { w.set(noon + 73*year) })
		far := s.write(t, l, p, 60)
		s.do((*world).sync)
		second := s.write(t, l, p, 60)

		l, p = s.reopen(t, l, &o, clean, 20*day, 0)
		third := s.write(t, l, p, 60)
		if l.Status().ClockTrusted {
			t.Error("a clock at 1970 is trusted")
		}
		for _, stamp := range slices.Concat(early, first, far, second) {
			if age := l.Clock().Age(stamp); age > time.Minute {
				t.Fatalf("a record stamped %v is %v old", utc(stamp), age)
			}
		}
		s.do((*world).sync)
		fourth := s.write(t, l, p, 60)
		if st := l.Status(); !st.ClockTrusted || st.ClockSteps != 1 || st.ClockStep < 50*365*24*time.Hour {
			t.Errorf("status %+v", st)
		}
		for _, stamp := range slices.Concat(early, first, far, second) {
			if age := l.Clock().Age(stamp); age > 20*24*time.Hour+time.Minute || age < 20*24*time.Hour-time.Minute {
				t.Fatalf("a record stamped %v is %v old", utc(stamp), age)
			}
		}
		if stamps := slices.Concat(first, second, third, fourth); !slices.IsSorted(stamps) || far[0] < noon+73*year || early[59] > 10_000 {
			t.Errorf("stamps %v, %v, %v", early[59], far[0], stamps)
		}
		for _, at := range []int64{early[0], far[0], third[0]} {
			if _, ok := l.Clock().Correction(at); !ok {
				t.Errorf("correction of %v is not known", utc(at))
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		checkTimeIndexes(t, filepath.Join(o.Dir, "topics", "t-0"), slices.Concat(early, first, far, second, third, fourth))
	}
}

// checkTimeIndexes looks all stamps up as Kafka does (LogSegment.findOffsetByTimestamp: the last entry below, then a scan), and compares with
// what a scan alone finds.
func checkTimeIndexes(t *testing.T, dir string, stamps []int64) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) < 2 {
		t.Fatalf("%d segments, %v", len(logs), err)
	}
	entries := 0
	for _, path := range logs {
		buf, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var batches []record.Batch
		for len(buf) > 0 {
			var b record.Batch
			if b, buf, err = record.Next(buf); err != nil {
				t.Fatal(err)
			}
			batches = append(batches, b)
		}
		index, err := os.ReadFile(strings.TrimSuffix(path, ".log") + ".timeindex")
		if err != nil || len(index)%12 != 0 {
			t.Fatalf("time index of %d bytes, %v", len(index), err)
		}
		base := batches[0].BaseOffset()
		times, offsets := []int64{-1}, []int64{base - 1}
		for ; len(index) > 0; index = index[12:] {
			ms, at := int64(binary.BigEndian.Uint64(index)), base+int64(binary.BigEndian.Uint32(index[8:]))
			if ms <= times[len(times)-1] || at <= offsets[len(offsets)-1] {
				t.Fatalf("%s: entry %d at %d follows %d at %d", path, ms, at, times[len(times)-1], offsets[len(offsets)-1])
			}
			times, offsets = append(times, ms), append(offsets, at)
			entries++
		}
		for _, stamp := range stamps {
			i, found := slices.BinarySearch(times, stamp)
			if !found {
				i--
			}
			from := offsets[max(i, 0)]
			got := slices.IndexFunc(batches, func(b record.Batch) bool { return b.LastOffset() >= from && b.MaxTimestamp() >= stamp })
			want := slices.IndexFunc(batches, func(b record.Batch) bool { return b.MaxTimestamp() >= stamp })
			if got != want {
				t.Fatalf("%s: time %d leads to batch %d, want %d", path, stamp, got, want)
			}
		}
	}
	if entries < 10 {
		t.Errorf("%d entries in all", entries)
	}
}

// A step is durable soon, though nothing is written.
func TestClockStepIsStoredWhileIdle(t *testing.T) {
	s := &shared{w: newWorld(noon)}
	s.w.set(0)
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.now = s.read
	l := openLog(t, o)
	s.do((*world).sync)
	eventually(t, "the step is stored", func() bool {
		value, ok, err := l.Get([]byte(clockKey))
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return false
		}
		state, err := parseClockState(value)
		return err == nil && state.trusted && state.synced
	})
	if st := l.Status(); st.ClockSteps != 1 || !st.ClockTrusted {
		t.Errorf("%+v", st)
	}
}

// A log that doesn't know its clock (one of an earlier release, or one whose state is lost or damaged) goes on behind its newest
// records, and nothing in it is old.
func TestClockUnknown(t *testing.T) {
	for _, tt := range []struct {
		name   string
		newest int64
		value  string
		wall   int64
		want   int64 // first stamp
	}{
		{"1970", noon, "", 0, noon},
		{"damaged", noon, "garbage", 0, noon},
		{"of another release", noon, "\x02" + strings.Repeat("x", 65) + "\x00", 0, noon},
		{"wall clock is plausible", noon, "", noon + day, noon + day},
		{"a far future is not believed", noon + 73*year, "", noon, noon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &shared{w: newWorld(noon)}
			o := testOptions(filepath.Join(t.TempDir(), "data"))
			o.now = s.read
			l, p := openOne(t, o)
			for _, ms := range []int64{1000, tt.newest} {
				ticket, err := l.Append(p, &record.Record{Timestamp: ms})
				wait(t, ticket, err)
			}
			if tt.value != "" {
				ticket, err := l.Put([]byte(clockKey), []byte(tt.value))
				wait(t, ticket, err)
			}
			l, p = s.reopen(t, l, &o, false, day, tt.wall)
			if damaged := len(l.Recovered().Damages) > 0; damaged != (tt.value != "") {
				t.Errorf("damages %q", l.Recovered().Damages)
			}
			for _, ms := range []int64{0, 1000, tt.newest} {
				if age := l.Clock().Age(ms); age != 0 {
					t.Errorf("age %v of a record stamped %v", age, utc(ms))
				}
			}
			if got := s.write(t, l, p, 1)[0]; got != tt.want {
				t.Errorf("first stamp %v, want %v", utc(got), utc(tt.want))
			}
		})
	}
}

// The real clocks of this machine.
func TestSystemClock(t *testing.T) {
	c := newSystemClock()
	a := c.read()
	b := c.read()
	if a.wall < earliestMs || b.wall < a.wall || b.mono < a.mono || b.boot < a.boot || a.boot == 0 || a.bootID == [16]byte{} || a.bootID != b.bootID {
		t.Errorf("%+v, then %+v", a, b)
	}
	l := openLog(t, testOptions(t.TempDir()))
	w := l.NewWriter(nil)
	if err := w.Begin(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	got := w.Stamp(now)
	w.End()
	if d := got - now.UnixMilli(); d < -jitterMs || d > jitterMs {
		t.Errorf("stamp %v at %v", utc(got), now)
	}
}
