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
