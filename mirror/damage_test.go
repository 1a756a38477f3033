package mirror

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// damagedLane stores ten records, of which 4 to 6 can't be read because of err.
func damagedLane(log *memLog, err error) *memPartition {
	p := log.topic("mqtt", 1)[0]
	p.store(record.None, numbered(0, 4)...)
	p.store(record.None, numbered(4, 3)...)
	p.store(record.None, numbered(7, 3)...)
	p.damage = &segment.DamageError{Path: "x.log", Offset: 4, Resume: 7, Err: err}
	return p
}

// A lane goes on behind what is damaged; that is said and counted once.
func TestDamageIsPassedOver(t *testing.T) {
	for _, where := range []string{"in the middle", "at the end", "at the beginning"} {
		t.Run(where, func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			p := damagedLane(log, errors.New("wrong CRC"))
			want := append(numbered(0, 4), numbered(7, 3)...)
			switch where {
			case "at the end":
				p.damage.Resume = 1 << 62
				want = numbered(0, 4)
			case "at the beginning":
				p.damage.Offset = 0
				want = numbered(7, 3)
			}
			lost := int64(10 - len(want))
			g := newRig(t, testOptions(r.addrs...), log)
			g.Start()
			g.wait("drained", g.drained)
			if got := r.values("gw.mqtt", 0); !slices.Equal(got, want) {
				t.Errorf("%q arrived, want %q", got, want)
			}
			st := g.Status()
			if st.Totals.Lost != lost || st.Totals.Damaged != lost || st.Lanes[0].Damaged != lost || st.Lanes[0].Problem != "" || st.Totals.PossibleDuplicates != 0 {
				t.Errorf("%+v", st)
			}
			if n := g.out.count("are passed over"); n != 1 {
				t.Errorf("%d lines, want 1", n)
			}
			g.close()
			g = newRig(t, testOptions(r.addrs...), log)
			g.Start()
			g.wait("drained", g.drained)
			if st := g.Status(); st.Totals.Lost+st.Totals.Records != 0 {
				t.Errorf("after a restart: %+v", st.Totals)
			}
		})
	}
}

// While it is the disk that doesn't give records, or the log is at work on them, the lane waits, and loses nothing if they come
// back.
func TestLaneWaitsForTheDisk(t *testing.T) {
	for name, breakIt := range map[string]func(p *memPartition){
		"EIO":         func(p *memPartition) {},
		"unavailable": func(p *memPartition) { p.damage, p.broken = nil, fmt.Errorf("read: %w", segment.ErrUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			p := damagedLane(log, syscall.EIO)
			breakIt(p)
			g := newRig(t, testOptions(r.addrs...), log)
			g.Start()
			g.wait("some tries", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.reads > 10
			})
			if st := g.Status(); st.Totals.Lost != 0 || !strings.Contains(st.Lanes[0].Problem, "local log") {
				t.Errorf("%+v", st)
			}
			p.mu.Lock()
			p.damage, p.broken = nil, nil
			p.mu.Unlock()
			g.wait("drained", g.drained)
			r.same("mqtt", []*memPartition{p})
			if st := g.Status(); st.Totals.Lost != 0 || st.Lanes[0].Problem != "" {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A disk that never gives the records again doesn't stop the lane for ever.
func TestLaneLosesPatienceWithTheDisk(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	damagedLane(log, syscall.EIO)
	g := newRig(t, testOptions(r.addrs...), log)
	g.diskPatience = 50 * time.Millisecond
	g.Start()
	g.wait("drained", g.drained)
	if st := g.Status(); st.Totals.Damaged != 3 || st.Totals.Records != 7 || st.Lanes[0].Problem != "" {
		t.Errorf("%+v", st)
	}
}

// What was sent without an answer and is damaged since: what is whole of it goes again, whether or not it had arrived.
func TestPendingIsDamaged(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		t.Run(fmt.Sprintf("arrived=%v", arrived), func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			p := damagedLane(log, errors.New("wrong CRC"))
			bad := p.damage
			p.damage = nil
			g := newRig(t, testOptions(r.addrs...), log)
			answer := kerr.NotEnoughReplicas
			if arrived {
				answer = kerr.RequestTimedOut
			}
			r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: answer, When: func(kmsg.Request) bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.damage = bad
				return true
			}})
			g.Start()
			g.wait("drained", g.drained)
			got := r.values("gw.mqtt", 0)
			want := append(numbered(0, 4), numbered(7, 3)...)
			if arrived {
				want = append(numbered(0, 10), want...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q arrived, want %q", got, want)
			}
			if st := g.Status(); st.Totals.Damaged != 3 || st.Totals.PossibleDuplicates < 7 {
				t.Errorf("%+v", st.Totals)
			}
		})
	}
}

// A segment of the real log with one flipped bit costs the batch that it is in.
func TestRealLogIsDamaged(t *testing.T) {
	r := newStandIn(t)
	dir := t.TempDir()
	l := openLog(t, dir)
	topic, err := l.CreateTopic(segment.TopicOptions{Name: "mqtt", Partitions: 1, SegmentBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		ticket, err := l.Append(topic.Partitions()[0], &record.Record{Timestamp: time.Now().UnixMilli(), Key: []byte("k"), Value: fmt.Appendf(nil, "%d %01000d", i, 0)})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "topics", "mqtt-0", "*.log"))
	if err != nil || len(logs) < 3 {
		t.Fatalf("segments %q, %v", logs, err)
	}
	b, err := os.ReadFile(logs[1])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(logs[1], b, 0o600); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	defer l.Close()
	out := &lines{}
	m, err := New(testOptions(r.addrs...), l, slog.New(slog.NewTextHandler(out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{Mirror: m, t: t, out: out}
	g.Start()
	g.wait("drained", g.drained)
	g.close()
	st := m.Status()
	if st.Totals.Damaged == 0 || st.Totals.Damaged > 70 || st.Totals.Records+st.Totals.Damaged != 300 || out.count("are passed over") != 1 {
		t.Errorf("%+v, it said:\n%s", st.Totals, out)
	}
	t.Logf("%d of 300 records are lost", st.Totals.Damaged)
}
