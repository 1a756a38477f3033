package segment

import (
	"math/rand/v2"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

// A lookup by time finds what a walk over all records finds, wherever the records are: in closed segments, in the last one, in
// memory; also where times go back.
func TestOffsetForTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	topic, err := l.CreateTopic(TopicOptions{Name: "t", Partitions: 1, Compression: record.None, SegmentBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	p := topic.Partitions()[0]
	var times []int64
	add := func(n int) {
		w := l.NewWriter(nil)
		for range n {
			ms := int64(1000 + 10*len(times))
			if len(times) > 3000 && len(times) < 3500 {
				ms -= 20_000 // the clock was set back
			}
			ms += rng.Int64N(40)
			times = append(times, ms)
			if err := w.Begin(); err != nil {
				t.Fatal(err)
			}
			w.Append(p, &record.Record{Timestamp: ms, Value: []byte("0123456789abcdef0123456789abcdef")})
			w.End()
		}
		eventually(t, "all is durable", func() bool { return p.HighWatermark() == int64(len(times)) })
	}
	check := func(ms int64) {
		t.Helper()
		want := -1
		for i, at := range times {
			if at >= ms {
				want = i
				break
			}
		}
		offset, at, ok, err := p.OffsetForTime(ms)
		if err != nil || ok != (want >= 0) || ok && (offset != int64(want) || at != times[want]) {
			t.Fatalf("time %d: offset %d at %d, %v, %v; want %d", ms, offset, at, ok, err, want)
		}
	}
	checkAll := func() {
		t.Helper()
		for _, ms := range []int64{-5, 0, 999, times[0], times[len(times)-1], times[len(times)-1] + 1000} {
			check(ms)
		}
		for range 200 {
			check(times[rng.IntN(len(times))] + rng.Int64N(3) - 1)
		}
	}
	for range 12 {
		add(500)
		checkAll()
	}
	if p.chain.Segments() < 2 {
		t.Fatalf("%d segments", p.chain.Segments())
	}
	l.Close()
	p = openLog(t, o).Topic("t").Partitions()[0]
	checkAll()
}
