package files

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// TestCrashes runs a chain through power cuts, kills and failed syncs, while its beginning is dropped. What was synced is there after each, whole and right;
// beyond it is nothing but what was appended.
func TestCrashes(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { crashRun(t, seed) }) {
			return
		}
	}
}

func crashRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	mem, failSync := vfs.NewMem(vfs.MemOptions{}), false
	b := newBench(t)
	b.o.FS, b.o.Dir = &vfs.Faulty{FS: mem, Before: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpSync && failSync {
			failSync = false // the next one succeeds
			return 0, errIO
		}
		return 0, nil
	}}, "/topic-0"
	b.o.SegmentBytes = []int64{3000, 8000, 100_000}[seed/3%3]
	list := series(0, 120, seed)
	recorded, durable, start := int64(0), int64(0), int64(0) // recorded may be of an older checkpoint
	cut := false
	for range 8 {
		end := recorded
		if rng.IntN(6) == 0 {
			end = NoRecoveryPoint
		}
		b.o.Start = start
		if !cut && rng.IntN(4) == 0 {
			b.o.Start = 0 // the state lags behind: not after a power cut, which may bring back any of what was dropped
		}
		chain, r, err := Open(b.o, end)
		if err != nil {
			t.Fatal(err)
		}
		next := chain.NextOffset()
		if next < durable {
			t.Fatalf("synced up to %d, after the crash opened from %d there is %d: %+v", durable, end, next, r)
		}
		if chain.StartOffset() < b.o.Start || chain.StartOffset() > start || end != NoRecoveryPoint && len(r.Missing) > 0 {
			t.Fatalf("start %d, was %d, %d given: %+v", chain.StartOffset(), start, b.o.Start, r)
		}
		if end == NoRecoveryPoint {
			checkKept(t, chain, list, durable)
			return
		}
		n := checkPrefix(t, chain, list)
		o := &owner{t: t, c: chain, held: list}
		if rng.IntN(4) > 0 {
			syncRecovered(o, n)
			recorded, durable = chain.SyncedOffset(), chain.SyncedOffset()
		}
		for i := n; i < len(list) && rng.IntN(30) > 0; i++ {
			o.catchUp(i)
			if rng.IntN(6) == 0 {
				failSync = rng.IntN(4) == 0
				o.sync(i)
				failSync = false
				durable = chain.SyncedOffset()
				if rng.IntN(2) == 0 {
					recorded = durable
				}
			}
			if rng.IntN(10) == 0 && chain.Poisoned() == nil {
				if err := chain.Seal(); err != nil {
					t.Fatal(err)
				}
			}
			if rng.IntN(10) == 0 {
				start = max(start, recorded-int64(rng.IntN(20))) // never beyond the recovery point
				if err := chain.Drop(start); err != nil {
					t.Fatal(err)
				}
			}
		}
		checkPrefix(t, chain, list)
		chain.Close()
		if cut = rng.IntN(3) > 0; cut {
			mem.PowerCut(rng, []int{4096, 16384}[seed%2])
		} // else only the process dies, and its page cache is what the next one reads
	}
}

// syncRecovered is the checkpoint that recovery ends with.
func syncRecovered(o *owner, n int) {
	if n > 0 {
		o.sync(n - 1)
	} else if err := o.c.Sync(); err != nil {
		o.t.Fatal(err)
	}
}

// checkPrefix checks that the chain holds the first batches of list and returns how many.
func checkPrefix(t *testing.T, c *Chain, list []record.Batch) int {
	t.Helper()
	n := 0
	for n < len(list) && list[n].NextOffset() <= c.NextOffset() {
		n++
	}
	got, err := readAll(c, c.StartOffset(), 3000)
	want := joined(stillThere(list[:n], c.StartOffset()))
	if err != nil && !errors.Is(err, ErrOffsetOutOfRange) || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes in offsets %d to %d, want %d: %v", len(got), c.StartOffset(), c.NextOffset(), len(want), err)
	}
	return n
}

// checkKept checks what is left without a recovery point: all that was synced, and of the rest only what is right.
func checkKept(t *testing.T, c *Chain, list []record.Batch, durable int64) {
	t.Helper()
	known := map[string]bool{}
	var want []byte
	for _, x := range list {
		known[string(x)] = true
		if x.LastOffset() < durable && x.LastOffset() >= c.StartOffset() {
			want = append(want, x...)
		}
	}
	var got []byte
	for from := c.StartOffset(); from < c.NextOffset(); {
		p, err := c.Read(nil, from, 1, all)
		if bad := (*DamageError)(nil); errors.As(err, &bad) && bad.Offset >= durable {
			from = bad.Resume
			continue
		}
		if err == nil && len(p) == 0 && from >= durable {
			break // an empty last segment: the hole before it is kept
		}
		if err != nil || !known[string(p)] {
			t.Fatalf("read at %d, synced up to %d: %d bytes, %v", from, durable, len(p), err)
		}
		got, from = append(got, p...), record.Batch(p).NextOffset()
	}
	if !bytes.HasPrefix(got, want) {
		t.Fatalf("%d bytes, of which the first %d were synced", len(got), len(want))
	}
}
