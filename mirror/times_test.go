package mirror

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicemq/sluice/segment/record"
)

const (
	trueTime = int64(1_700_000_000_000)
	bootTime = int64(60_000) // 1970
)

// storeAt appends one batch of records with the given timestamps.
func (p *memPartition) storeAt(codec record.Codec, value string, timestamps ...int64) {
	p.mu.Lock()
	var b record.Builder
	for _, ms := range timestamps {
		b.Append(&record.Record{Timestamp: ms, Key: []byte("k"), Value: []byte(value)})
	}
	out, err := record.NewEncoder().Compress(nil, b.Seal(p.end), codec)
	if err != nil {
		panic(err)
	}
	p.batches = append(p.batches, out)
	p.end += int64(len(timestamps))
	p.mu.Unlock()
	p.log.wake()
}

func timesOf(t *testing.T, b record.Batch) (times []int64) {
	t.Helper()
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
	greatest := int64(0)
	err := record.NewDecoder(0).Records(b, func(r *record.Record) error {
		times = append(times, r.Timestamp)
		greatest = max(greatest, r.Timestamp)
		return nil
	})
	if err != nil || b.BaseTimestamp() != times[0] || b.MaxTimestamp() != greatest {
		t.Fatalf("batch of %d to %d holds %v, %v", b.BaseTimestamp(), b.MaxTimestamp(), times, err)
	}
	return times
}

func TestTimestampsPutRight(t *testing.T) {
	big := noise(40 << 10)
	learned := func(ms int64) (int64, bool) {
		if ms < trueTime {
			return trueTime, true
		}
		return 0, true
	}
	unknown := func(ms int64) (int64, bool) { return 0, ms >= trueTime }
	for _, tt := range []struct {
		name       string
		correction func(int64) (int64, bool)
		waits      bool
		store      func(*memPartition)
		want       []int64 // nil: errUnclear
		untrusted  int64
		asStored   bool // the records' bytes are those that are stored
	}{
		{"big batch by its header", learned, true, func(p *memPartition) {
			p.storeAt(record.Zstd, big, bootTime+5, bootTime)
		}, []int64{trueTime + bootTime + 5, trueTime + bootTime}, 0, true},
		{"alone, compressed on the way", learned, true, func(p *memPartition) {
			p.storeAt(record.None, strings.Repeat("x", 500), bootTime, bootTime+1)
		}, []int64{trueTime + bootTime, trueTime + bootTime + 1}, 0, false},
		{"merged with right ones", learned, true, func(p *memPartition) {
			p.storeAt(record.None, "a", bootTime)
			p.storeAt(record.None, "b", trueTime+7)
		}, []int64{trueTime + bootTime, trueTime + 7}, 0, false},
		{"big batch with both kinds", learned, true, func(p *memPartition) {
			p.storeAt(record.Zstd, big, bootTime, trueTime+7)
		}, []int64{trueTime + bootTime, trueTime + 7}, 0, false},
		{"big batch waits", unknown, true, func(p *memPartition) { p.storeAt(record.Zstd, big, bootTime) }, nil, 0, false},
		{"small batches wait", unknown, true, func(p *memPartition) {
			p.storeAt(record.None, "a", bootTime)
			p.storeAt(record.None, "b", trueTime)
		}, nil, 0, false},
		{"those before it don't wait", unknown, true, func(p *memPartition) {
			p.storeAt(record.None, "a", trueTime)
			p.storeAt(record.None, "b", trueTime+1, bootTime)
		}, []int64{trueTime, trueTime + 1}, 0, false},
		{"big batch as it is", unknown, false, func(p *memPartition) {
			p.storeAt(record.Zstd, big, bootTime, bootTime+1)
		}, []int64{bootTime, bootTime + 1}, 2, true},
		{"small batches as they are", unknown, false, func(p *memPartition) {
			p.storeAt(record.None, "a", bootTime)
			p.storeAt(record.None, "b", trueTime)
		}, []int64{bootTime, trueTime}, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newMemLog().topic("t", 1)[0]
			tt.store(p)
			c := newCutter(record.Zstd)
			c.correction, c.waits = tt.correction, tt.waits
			s := sizeOf(1 << 18)
			out, got, err := c.next(nil, p, 0, &s)
			if tt.want == nil {
				if !errors.Is(err, errUnclear) || len(out) > 0 {
					t.Fatalf("%d bytes, %v", len(out), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if times := timesOf(t, out); !slices.Equal(times, tt.want) || got != (span{0, int64(len(tt.want))}) || c.untrusted != tt.untrusted {
				t.Errorf("%v in %v, %d untrusted; want %v, %d", times, got, c.untrusted, tt.want, tt.untrusted)
			}
			if stored := p.batches[0]; tt.asStored != bytes.Equal(out[record.HeaderBytes:], stored[record.HeaderBytes:]) {
				t.Errorf("as stored: %v", !tt.asStored)
			}
			c.waits = false
			again, err := c.exactly(nil, p, got)
			if err != nil || !slices.Equal(timesOf(t, again), tt.want) {
				t.Errorf("again: %v, %v", timesOf(t, again), err)
			}
		})
	}
}

// remoteTimes are the timestamps in a remote partition.
func (r *standIn) remoteTimes(topic string, n int) (times []int64) {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for len(times) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) { times = append(times, rec.Timestamp.UnixMilli()) })
	}
	return times
}

// A gateway that boots in 1970 keeps its records until the clock is right, and then sends them with the right times.
func TestLaneWaitsForClock(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	log.unclear = true
	log.correct = func(ms int64) (int64, bool) { return 0, ms >= trueTime }
	p := log.topic("mqtt", 1)[0]
	p.storeAt(record.None, "right", trueTime)
	p.storeAt(record.None, "early", bootTime)
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("the lane waits", func() bool {
		lane := g.Status().Lanes[0]
		return lane.Cursor == 1 && strings.Contains(lane.Problem, "clock")
	})
	log.mu.Lock()
	log.unclear = false
	log.correct = func(ms int64) (int64, bool) {
		if ms < trueTime {
			return trueTime, true
		}
		return 0, true
	}
	log.mu.Unlock()
	g.wait("drained", g.drained)
	if times := r.remoteTimes("gw.mqtt", 2); !slices.Equal(times, []int64{trueTime, trueTime + bootTime}) {
		t.Errorf("times %v", times)
	}
	if st := g.Status(); st.Totals.Untrusted != 0 || st.Lanes[0].Problem != "" {
		t.Errorf("status %+v", st)
	}
}

// If the clock stays wrong, records go as they are, and are counted.
func TestLaneWaitsForClockNotForEver(t *testing.T) {
	const longAgo = trueTime - 50_000_000_000
	for _, wait := range []time.Duration{-1, 200 * time.Millisecond} {
		r := newStandIn(t)
		log := newMemLog()
		log.unclear = true
		log.correct = func(ms int64) (int64, bool) { return 0, ms >= trueTime }
		p := log.topic("mqtt", 1)[0]
		p.storeAt(record.None, "early", longAgo, longAgo+1)
		o := testOptions(r.addrs...)
		o.ClockWait = wait
		begun := time.Now()
		g := newRig(t, o, log)
		g.Start()
		g.wait("drained", g.drained)
		if took := time.Since(begun); took < wait {
			t.Errorf("sent after %v", took)
		}
		if times := r.remoteTimes("gw.mqtt", 2); !slices.Equal(times, []int64{longAgo, longAgo + 1}) {
			t.Errorf("times %v", times)
		}
		if st := g.Status(); st.Totals.Untrusted != 2 || g.out.count("clock that wasn't trusted") != 1 {
			t.Errorf("status %+v", st)
		}
		g.close()
	}
}
