package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/sluicemq/sluice/segment/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 30 * time.Second

// standIn is a region: kfake behind a layer that is as strict about batches as a broker of Apache Kafka.
type standIn struct {
	t       *testing.T
	cluster *kfake.Cluster
	addrs   []string

	mu        sync.Mutex
	complaint error
	batches   int // produced, repeats included
	biggest   int // bytes of the records in one request
}

func newStandIn(t *testing.T, opts ...kfake.Opt) *standIn {
	t.Helper()
	r := &standIn{t: t}
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	r.cluster, r.addrs = c, c.ListenAddrs()
	// An observing fault, not a control: a request that is with a control while the cluster closes may be carried out after
	// the cluster saved what it knows of producers.
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, When: r.inspect})
	t.Cleanup(func() {
		c.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.complaint != nil {
			t.Error("a broker would refuse:", r.complaint)
		}
	})
	return r
}

// inspect looks at a request without answering it.
func (r *standIn) inspect(kreq kmsg.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	req := kreq.(*kmsg.ProduceRequest)
	if req.Acks != -1 {
		r.complaint = fmt.Errorf("acks %d", req.Acks)
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			r.batches++
			total += len(p.Records)
			if err := strict(p.Records); err != nil && r.complaint == nil {
				r.complaint = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	r.biggest = max(r.biggest, total)
	return true
}

// strict checks what LogValidator and ProduceRequest.validateRecords of Apache Kafka check and kfake doesn't.
func strict(records []byte) error {
	b, rest, err := record.Next(records)
	if err != nil || len(rest) > 0 {
		return fmt.Errorf("not exactly one batch: %v, %d bytes left", err, len(rest))
	}
	if err := b.Verify(); err != nil {
		return err
	}
	if b.BaseOffset() != 0 || b.LastOffset() != int64(b.Count())-1 || b.Control() || b.Transactional() || b.LogAppendTime() ||
		b.ProducerID() < 0 || b.ProducerEpoch() < 0 || b.BaseSequence() < 0 {
		return fmt.Errorf("header: base offset %d, last %d, %d records, producer %d/%d, sequence %d",
			b.BaseOffset(), b.LastOffset(), b.Count(), b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	}
	n, latest := int64(0), int64(0)
	if err := record.NewDecoder(0).Records(b, func(rec *record.Record) error {
		if rec.Offset != n || rec.Timestamp < 1_600_000_000_000 || rec.Key == nil {
			return fmt.Errorf("record %d: offset %d, time %d, key %q", n, rec.Offset, rec.Timestamp, rec.Key)
		}
		latest = max(latest, rec.Timestamp)
		n++
		return nil
	}); err != nil {
		return err
	}
	if latest != b.MaxTimestamp() {
		return fmt.Errorf("max timestamp %d, header says %d", latest, b.MaxTimestamp())
	}
	return nil
}

// end is a remote partition's log end.
func (r *standIn) end(topic string, partition int32) int64 {
	if info := r.cluster.PartitionInfo(topic, partition); info != nil {
		return info.HighWatermark
	}
	return 0
}

// values reads a remote partition to its end, in order.
func (r *standIn) values(topic string, partition int32) []string {
	r.t.Helper()
	end := r.end(topic, partition)
	if end == 0 {
		return nil
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(0)}}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var values []string
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if rec.Offset != next {
				r.t.Fatalf("%s/%d: offset %d, expected %d", topic, partition, rec.Offset, next)
			}
			next++
			values = append(values, string(rec.Value))
		})
	}
	return values
}

// same checks that the region has exactly what the log has, in order, once.
func (r *standIn) same(topic string, ps []*memPartition) {
	r.t.Helper()
	for i, p := range ps {
		got, want := r.values("gw."+topic, int32(i)), p.values()
		if !slices.Equal(got, want) {
			r.t.Errorf("%s/%d: %d records, want %d; first difference at %d", topic, i, len(got), len(want), firstDifference(got, want))
		}
	}
}

func firstDifference(a, b []string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// lines is a log that tests look into.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(text))
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// rig is a mirror with its log.
type rig struct {
	*Mirror
	t   *testing.T
	out *lines
}

func testOptions(addrs ...string) Options {
	o := DefaultOptions()
	o.Alias, o.Region, o.Brokers = "gw", "eu", addrs
	o.Linger = time.Millisecond
	o.MinBackoff, o.MaxBackoff = 2*time.Millisecond, 40*time.Millisecond
	o.RequestTimeout = 5 * time.Second
	return o
}

func newRig(t *testing.T, o Options, log *memLog) *rig {
	t.Helper()
	out := &lines{}
	m, err := newMirror(o, log, slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{m, t, out}
	t.Cleanup(func() {
		g.close()
		if t.Failed() {
			t.Logf("log:\n%s", out)
		}
	})
	return g
}

func (g *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := g.Close(ctx); err != nil {
		g.t.Error(err)
	}
}

func (g *rig) wait(what string, ok func() bool) {
	g.t.Helper()
	waitFor(g.t, what, ok)
}

// waitFor polls: what is waited for crosses real sockets, which synctest can't see.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (g *rig) drained() bool {
	st := g.Status()
	return st.State == Up && st.LagRecords == 0
}

// cutter of connections: breaks one produce request of a connection before it is written, or its answer after it came.
type saboteur struct {
	before, after atomic.Int32 // so many more times
	dials, fails  atomic.Int32 // fails: dials to refuse
	hits          atomic.Int32
}

func (s *saboteur) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.dials.Add(1)
	if s.fails.Load() > 0 {
		s.fails.Add(-1)
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("link is down")}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &sabotaged{Conn: c, s: s}, nil
}

type sabotaged struct {
	net.Conn
	s   *saboteur
	cut atomic.Bool
}

func take(n *atomic.Int32) bool {
	for v := n.Load(); v > 0; v = n.Load() {
		if n.CompareAndSwap(v, v-1) {
			return true
		}
	}
	return false
}

func (c *sabotaged) Write(p []byte) (int, error) {
	if len(p) >= 6 && p[4] == 0 && p[5] == byte(kmsg.Produce) && len(p) > 40 {
		if take(&c.s.before) {
			c.s.hits.Add(1)
			n, _ := c.Conn.Write(p[:len(p)/2]) // something written: the library itself repeats a request of which nothing was
			c.Close()
			return n, io.ErrClosedPipe
		}
		if take(&c.s.after) {
			c.s.hits.Add(1)
			c.cut.Store(true)
		}
	}
	return c.Conn.Write(p)
}

func (c *sabotaged) Read(p []byte) (int, error) {
	if !c.cut.Load() {
		n, err := c.Conn.Read(p)
		if err != nil || !c.cut.Load() {
			return n, err
		}
	} else if _, err := c.Conn.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	c.Close()
	return 0, io.EOF
}
