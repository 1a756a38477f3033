package segment

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	crashSeed  = flag.Uint64("crash.seed", 0, "the one seed of TestCrash, with its trace; 0: crash.seeds of them")
	crashSeeds = flag.Int("crash.seeds", 200, "how many seeds TestCrash tries")
	crashFor   = flag.Duration("crash.for", time.Minute, "how long TestCrash begins with new seeds")
	crashBase  = flag.Uint64("crash.base", 0, "what the seeds of TestCrash are made from; 0: something new for each run")
	crashPlant = flag.String("crash.plant", "", "a bug to plant in TestCrash, which must then fail: one of the names in TestCrashFindsPlantedBugs")
)

// TestCrash leads logs through power cuts and kills at any file operation, recovery included, and compares what they hold with
// a model after each: what was acknowledged is there, a group is there as a whole or not at all, offsets have no hole and
// no repeat. A seed repeats everything.
func TestCrash(t *testing.T) {
	if *crashSeed != 0 {
		if text := crashOnce(*crashSeed, plant(*crashPlant), newCrashTools()); text != "" {
			t.Fatal(text)
		}
		return
	}
	base := *crashBase
	if base == 0 {
		base = rand.Uint64()
	}
	t.Logf("crash.base=%d", base)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // many short lives and a small heap: half of the time otherwise
	seeds, until := int64(*crashSeeds), time.Now().Add(*crashFor)
	if raceEnabled || testing.Short() {
		seeds = min(seeds, 50)
	}
	var next, tried, failed atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			tools := newCrashTools()
			for n := next.Add(1); n <= seeds && failed.Load() < 3 && time.Now().Before(until); n = next.Add(1) {
				tried.Add(1)
				if text := crashOnce(crashSeedOf(base, n), plant(*crashPlant), tools); text != "" {
					failed.Add(1)
					t.Error(text)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d of %d seeds tried", tried.Load(), seeds)
}

// TestCrashFindsPlantedBugs: the model has teeth.
func TestCrashFindsPlantedBugs(t *testing.T) {
	if raceEnabled {
		t.Skip("takes too long under the race detector")
	}
	for _, p := range plants {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			tools := newCrashTools()
			for n := int64(1); n <= 1000; n++ {
				if err := newCrashDriver(crashSeedOf(1, n), p, tools).run(); err != nil {
					t.Logf("found by seed %d of 1000: %v", n, err)
					return
				}
			}
			t.Error("not found by 1000 seeds")
		})
	}
}

// TestCrashRepeats: a seed does the same things again.
func TestCrashRepeats(t *testing.T) {
	trace := func(seed uint64) string {
		d := newCrashDriver(seed, noPlant, newCrashTools())
		d.tracing = true
		if err := d.run(); err != nil {
			t.Error(err)
		}
		return strings.Join(d.trace, "\n")
	}
	seeds := int64(20)
	if raceEnabled || testing.Short() {
		seeds = 5
	}
	for n := int64(1); n <= seeds; n++ {
		seed := crashSeedOf(2, n)
		if a, b := trace(seed), trace(seed); a != b {
			t.Fatalf("seed %d: two runs differ:\n%s\n\n\n%s", seed, a, b)
		}
	}
}

func crashSeedOf(base uint64, n int64) uint64 {
	return rand.New(rand.NewPCG(base, uint64(n))).Uint64() | 1 // never 0
}

// crashOnce runs a seed, and when it fails once more, for the trace.
func crashOnce(seed uint64, p plant, tools *crashTools) string {
	err := newCrashDriver(seed, p, tools).run()
	if err == nil {
		return ""
	}
	d := newCrashDriver(seed, p, newCrashTools())
	d.tracing = true
	again := d.run()
	text := fmt.Sprintf("-crash.seed=%d -crash.plant=%s:\n%s\n%v", seed, p, strings.Join(d.trace, "\n"), err)
	if firstLine(again) != firstLine(err) {
		text += fmt.Sprintf("\nIt does not repeat: the second run says %v", again)
	}
	return text
}

// firstLine is what failed, without a stack.
func firstLine(err error) string {
	line, _, _ := strings.Cut(fmt.Sprint(err), "\n")
	return line
}
