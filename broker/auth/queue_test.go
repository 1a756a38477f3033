package auth

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueueTakesTurns: addresses take turns, and within one the first is first.
func TestQueueTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 100)
		if err := q.take(t.Context(), netip.Addr{}); err != nil {
			t.Fatal(err)
		}
		flood, other, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.Addr{}
		var order []string
		var wg sync.WaitGroup
		come := func(name string, from netip.Addr) {
			wg.Go(func() {
				if err := q.take(t.Context(), from); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				q.give()
			})
			synctest.Wait()
		}
		for _, name := range []string{"f1", "f2", "f3", "f4"} {
			come(name, flood)
		}
		come("o1", other)
		come("t1", third)
		come("o2", other)
		q.give()
		wg.Wait()
		if want := []string{"f1", "o1", "t1", "f2", "o2", "f3", "f4"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
		if q.free != 1 || q.waiting != 0 || len(q.sources) != 0 {
			t.Errorf("%+v", q)
		}
	})
}

// TestFullQueueMakesRoom: the address with most waiters gives way to one with fewer, and not to one with as many.
func TestFullQueueMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0, 4)
		flood, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		var mu sync.Mutex
		busy := make(map[netip.Addr]int)
		var wg sync.WaitGroup
		come := func(from netip.Addr) {
			wg.Go(func() {
				if err := q.take(t.Context(), from); errors.Is(err, ErrBusy) {
					mu.Lock()
					busy[from]++
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		for range 5 {
			come(flood)
		}
		for range 3 {
			come(other)
		}
		if busy[flood] != 3 || busy[other] != 1 || q.waiting != 4 {
			t.Errorf("refused: %v; %d wait", busy, q.waiting)
		}
		for range 4 {
			q.give()
		}
		wg.Wait()
	})
}

// TestQueueLosesNoPlace: whatever the order of coming, giving up and giving back.
func TestQueueLosesNoPlace(t *testing.T) {
	const places = 3
	q := newQueue(places, 20)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 7)})
			for range 200 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(200))*time.Microsecond)
				if err := q.take(ctx, from); err == nil {
					if r.IntN(3) == 0 {
						<-time.After(time.Duration(r.IntN(50)) * time.Microsecond)
					}
					q.give()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if q.free != places || q.waiting != 0 || len(q.sources) != 0 {
		t.Errorf("%+v", q)
	}
}
