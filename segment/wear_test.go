package segment

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func TestMeterCountsBlocks(t *testing.T) {
	w := newWear(testBudget, dawn)
	w.times = time.Now().Add(time.Hour) // modification times are another matter
	w.governor.take(time.Now(), 0, false)
	dir := t.TempDir()
	for _, kind := range []int{wearJournal, wearSegments} {
		m := &metered{vfs.OS, w, kind}
		f, err := m.OpenFile(filepath.Join(dir, string(rune('a'+kind))), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		step := func(what string, want, governed int64, do func() error) {
			t.Helper()
			count := func() int64 { return w.written[kind].Load() + w.written[wearSystem].Load() }
			left := func() float64 { return w.governor.balance - w.governor.owed }
			before, balance := count(), left()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			if got := count() - before; got != want {
				t.Errorf("kind %d, %s: %d bytes counted, want %d", kind, what, got, want)
			}
			// The bucket fills up a little meanwhile.
			if got := balance - left(); math.Abs(got-float64(governed)) > w.governor.perSecond {
				t.Errorf("kind %d, %s: %v bytes taken, want %d", kind, what, got, governed)
			}
		}
		write := func(n int, at int64) func() error {
			return func() error { _, err := f.WriteAt(make([]byte, n), at); return err }
		}
		growth := int64(0)
		if kind == wearSegments {
			growth = wearGrowth
		}
		step("zero-fill", 65536*4, 0, write(65536*4, 0))
		step("first sync", growth, growth, f.Sync)
		step("sync of nothing", 0, 0, f.Sync)
		step("a byte", 4096, 4096, write(1, 5000))
		step("two blocks", 8192, 8192, write(4096, 6000))
		step("sync", growth, growth, f.Sync)
	}
}

func TestModificationTimesAreCountedNowAndThen(t *testing.T) {
	w := newWear(0, dawn)
	for s := range 60 {
		w.add(dawn.Add(time.Duration(s)*time.Second), wearJournal, 1, withGroup)
	}
	if got, want := w.written[wearSystem].Load(), int64(12*wearTimes); got != want || w.written[wearJournal].Load() != 60 {
		t.Fatalf("%d bytes in a minute, want %d", got, want)
	}
}

func TestMeanRate(t *testing.T) {
	day := int64(wearDay.Seconds())
	r := meanRate{begun: dawn, at: dawn}
	now := dawn
	if n := r.perDay(now); n != 0 {
		t.Fatalf("%d bytes a day at the start", n)
	}
	feed := func(d time.Duration, perSecond int64) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(10 * time.Second)
			r.add(now, 10*perSecond)
		}
	}
	about := func(what string, want int64) {
		t.Helper()
		if got := r.perDay(now); math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("%s: %d bytes a day, want about %d", what, got, want)
		}
	}
	feed(10*time.Minute, 1000)
	about("ten minutes", 1000*day)
	feed(10*wearDay, 1000)
	about("ten days", 1000*day)
	feed(wearDay, 3000) // a factor of e less of the old
	about("a busier day", int64((1000/math.E+3000*(1-1/math.E))*float64(day)))
}

func TestLife(t *testing.T) {
	for _, c := range []struct {
		endurance, perDay int64
		want              time.Duration
	}{
		{4e12, 0, 0},
		{0, 1e9, 0},
		{4e12, 36e9, time.Duration(float64(wearDay) * 4e12 / 36e9)},
		{1 << 62, 1, 100 * 365 * wearDay},
		{10, 1 << 62, 0},
	} {
		if got := life(c.endurance, c.perDay); got != c.want {
			t.Errorf("%d bytes at %d a day: %v, want %v", c.endurance, c.perDay, got, c.want)
		}
	}
}

func TestWearStatus(t *testing.T) {
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.EnduranceBytes, o.AppendBytes = 4e12, 1
	l := openLog(t, o)
	p := createTopic(t, l, "a", 1, record.None).Partitions()[0]
	put(t, l, p, "value")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w := l.Wear()
	if w.JournalBytes < 3*o.JournalBytes || w.SegmentBytes < wearBlock || w.CheckpointBytes < 2*wearBlock || w.SystemBytes < wearTimes {
		t.Errorf("journal %d, segments %d, checkpoints %d, file system %d", w.JournalBytes, w.SegmentBytes, w.CheckpointBytes, w.SystemBytes)
	}
	if w.EnduranceBytes != 4e12 || w.BudgetPerDay != 0 || w.Delay <= 0 {
		t.Errorf("%+v", w)
	}
	o.EnduranceBytes = 0
	l = openLog(t, o)
	if total, _, err := vfs.OS.Space(o.Dir); err != nil || l.Status().EnduranceBytes != 1000*total {
		t.Errorf("endurance %d on a file system of %d bytes (%v)", l.Status().EnduranceBytes, total, err)
	}
}
