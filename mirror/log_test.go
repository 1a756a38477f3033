package mirror

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

func openLog(t *testing.T, dir string) *segment.Log {
	t.Helper()
	o := segment.DefaultOptions()
	o.ReserveBytes = 1 << 20
	o.Followers = func(string) []string { return []string{testOptions("x:1").Owner()} }
	o.Dir, o.MaxBytes, o.MaxRecordBytes, o.JournalBytes, o.StateBytes = dir, 64<<10, 64<<10, 2<<20, 4<<20
	o.Logger = slog.New(slog.DiscardHandler)
	l, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The real log: batches in memory and in segments, rolls of the journal, and restarts of both in mid-stream.
func TestRealLog(t *testing.T) {
	r := newStandIn(t)
	dir := t.TempDir()
	var want []string
	for run := range 4 {
		l := openLog(t, dir)
		topic, err := l.CreateTopic(segment.TopicOptions{Name: "mqtt", Partitions: 2, Compression: record.Zstd, SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(testOptions(r.addrs...), l, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		g := &rig{Mirror: m, t: t, out: &lines{}}
		g.Start()
		var last segment.Ticket
		for i := range 3000 {
			v := fmt.Sprintf("run %d record %d %s", run, i, strings.Repeat("x", rand.IntN(400)))
			if last, err = l.Append(topic.Partitions()[0], &record.Record{Timestamp: time.Now().UnixMilli(), Key: []byte("k"), Value: []byte(v)}); err != nil {
				t.Fatal(err)
			}
			want = append(want, v)
		}
		if err := last.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if run == 3 {
			g.wait("drained", g.drained)
		}
		g.close()
		if st := m.Status(); st.Totals.Lost+st.Totals.PossibleDuplicates > 0 {
			t.Errorf("run %d: %+v", run, st.Totals)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.values("gw.mqtt", 0); !slices.Equal(got, want) {
		t.Errorf("%d records arrived, want %d; first difference at %d", len(got), len(want), firstDifference(got, want))
	}
}

// What left the log before the region had it is passed over, said and counted once, and is a gap in the log's state.
func TestRealLogLosesRecords(t *testing.T) {
	r := newStandIn(t)
	dir := t.TempDir()
	l := openLog(t, dir)
	topic, err := l.CreateTopic(segment.TopicOptions{
		Name: "mqtt", Partitions: 1, SegmentBytes: 64 << 10, RetentionBytes: 256 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := topic.Partitions()[0]
	add := func(n int) {
		t.Helper()
		var last segment.Ticket
		for range n {
			if last, err = l.Append(p, &record.Record{Timestamp: time.Now().UnixMilli(), Key: []byte("k"), Value: []byte(fmt.Sprintf("%d %01000d", p.HighWatermark(), 0))}); err != nil {
				t.Fatal(err)
			}
			if err := last.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mirrored := func() (Totals, *lines) {
		t.Helper()
		out := &lines{}
		m, err := New(testOptions(r.addrs...), l, slog.New(slog.NewTextHandler(out, nil)))
		if err != nil {
			t.Fatal(err)
		}
		g := &rig{Mirror: m, t: t, out: out}
		g.Start()
		g.wait("drained", g.drained)
		g.close()
		return m.Status().Totals, out
	}
	add(10)
	if totals, _ := mirrored(); totals.Lost != 0 || totals.Records != 10 {
		t.Fatalf("before: %+v", totals)
	}
	add(600)
	for deadline := time.Now().Add(20 * time.Second); p.StartOffset() <= 100; {
		if time.Now().After(deadline) {
			t.Fatalf("start %d", p.StartOffset())
		}
		time.Sleep(time.Millisecond) //lint:sleep the log evicts in its own time
	}
	for settled := int64(-1); settled != p.StartOffset(); {
		settled = p.StartOffset()
		time.Sleep(300 * time.Millisecond) //lint:sleep the log evicts in its own time
	}
	start := p.StartOffset()
	gaps, err := l.Gaps(p)
	if err != nil || len(gaps) != 1 || gaps[0].First != 10 || gaps[0].Last != start-1 || gaps[0].Records != start-10 {
		t.Fatalf("gaps %+v, %v", gaps, err)
	}
	totals, out := mirrored()
	if totals.Lost != start-10 || totals.Records != 610-start || out.count("left the log before") != 1 {
		t.Errorf("%+v with start %d, %d lines", totals, start, out.count("left the log before"))
	}
	if got := len(r.values("gw.mqtt", 0)); int64(got) != 10+610-start {
		t.Errorf("%d records arrived", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	defer l.Close()
	if totals, _ := mirrored(); totals.Lost+totals.Records != 0 {
		t.Errorf("after a restart: %+v", totals)
	}
}
