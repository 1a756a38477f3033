package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicemq/sluice/segment/record"
)

// publish stores batches in the background until stop is closed; the returned function ends it.
func publish(ps []*memPartition, every time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i, p := range ps {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := 0; ; n++ {
				values := make([]string, 1+rand.IntN(5))
				for j := range values {
					values[j] = fmt.Sprintf("p%d batch %d record %d %s", i, n, j, strings.Repeat("x", rand.IntN(100)))
				}
				p.store([]record.Codec{record.None, record.Zstd}[n%2], values...)
				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
		})
	}
	return func() {
		close(done)
		wg.Wait()
	}
}

func TestUndisturbed(t *testing.T) {
	r := newStandIn(t, kfake.NumBrokers(3))
	log := newMemLog()
	ps := log.topic("mqtt", 6)
	hidden := log.topic("x.internal", 1)
	hidden[0].store(record.None, "secret")
	for _, p := range ps {
		p.store(record.None, "first")
	}
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	stop := publish(ps, 2*time.Millisecond)
	g.wait("2000 records", func() bool { return g.Status().Totals.Records > 2000 })
	late := log.topic("late", 2)
	late[1].store(record.None, "late")
	g.TopicsChanged()
	stop()
	g.wait("drained", func() bool { return g.drained() && len(g.Status().Lanes) == 8 })
	g.close()
	r.same("mqtt", ps)
	r.same("late", late)
	st := g.Status()
	if st.Totals.PossibleDuplicates+st.Totals.Retries+st.Totals.Lost != 0 {
		t.Errorf("undisturbed, but %+v", st.Totals)
	}
	if r.cluster.TopicInfo("gw.x.internal") != nil {
		t.Error("an internal topic was mirrored")
	}
	info := r.cluster.TopicInfo("gw.mqtt")
	if info == nil || info.Configs["compression.type"] == nil || *info.Configs["compression.type"] != "producer" {
		t.Errorf("topic created with %+v", info)
	}
	for i, p := range ps {
		next, data, ok, _ := p.Cursor("eu")
		prod, seq, err := parseCursor(data)
		if !ok || next != p.end || err != nil || int64(seq) != p.end || prod.cluster != st.Cluster || prod.topic != info.TopicID {
			t.Errorf("partition %d: cursor %d (%v, %v), sequence %d, producer %+v; log end %d", i, next, ok, err, seq, prod, p.end)
		}
	}
}

// The next mirror goes on where a clean stop left off, in the middle of a stored batch if need be.
func TestRestart(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 3)
	for range 5 {
		g := newRig(t, testOptions(r.addrs...), log)
		g.Start()
		stop := publish(ps, time.Millisecond)
		before := g.Status().Totals.Records
		g.wait("some records", func() bool { return g.Status().Totals.Records > before+300 })
		g.close() // in mid-stream
		stop()
		for _, p := range ps {
			p.merged(t, record.Zstd) // now the cursor is within a batch
		}
	}
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("drained", g.drained)
	g.close()
	r.same("mqtt", ps)
}

func TestDisturbedLink(t *testing.T) {
	for _, kind := range []string{"before", "after"} {
		t.Run(kind, func(t *testing.T) {
			r := newStandIn(t, kfake.NumBrokers(2))
			log := newMemLog()
			ps := log.topic("mqtt", 4)
			o := testOptions(r.addrs...)
			var s saboteur
			o.Dial = s.dial
			g := newRig(t, o, log)
			g.Start()
			stop := publish(ps, time.Millisecond)
			for i := range int32(10) {
				g.wait("progress", func() bool { return g.Status().Totals.Records > int64(i+1)*100 })
				if kind == "before" {
					s.before.Store(1)
				} else {
					s.after.Store(1)
				}
				g.wait("a cut", func() bool { return s.hits.Load() > i })
				for _, p := range ps {
					p.merged(t, record.Zstd) // what goes again is made of other stored batches
				}
			}
			stop()
			g.wait("drained", g.drained)
			r.same("mqtt", ps)
			if st := g.Status(); st.Totals.Retries == 0 || st.Totals.PossibleDuplicates > 0 {
				t.Errorf("%+v", st.Totals)
			}
		})
	}
}

// Answers after which the same batch must go again, and must not be there twice.
func TestFaults(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, // stored nevertheless
		kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.UnknownServerError,
		kerr.UnknownTopicID, kerr.InvalidTimestamp, kerr.PolicyViolation,
	} {
		t.Run(e.Message, func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			ps := log.topic("mqtt", 3)
			g := newRig(t, testOptions(r.addrs...), log)
			g.Start()
			stop := publish(ps, time.Millisecond)
			g.wait("progress", func() bool { return g.Status().Totals.Records > 50 })
			h := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{1}, Err: e, Count: 6})
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			if err := h.Wait(ctx, 6); err != nil {
				t.Fatal(err)
			}
			stop()
			g.wait("drained", g.drained)
			r.same("mqtt", ps)
			if st := g.Status(); st.Totals.Retries == 0 || st.Totals.PossibleDuplicates > 0 {
				t.Errorf("%+v", st.Totals)
			}
			if n := g.out.count("topic waits"); n > 1 {
				t.Errorf("%d lines for one cause", n)
			}
			if g.out.count("topic waits") != g.out.count("topic goes on") {
				t.Error("trouble and recovery lines don't match")
			}
		})
	}
}

// A producer that the region doesn't accept is replaced, and what may be there twice is counted.
func TestFenced(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch} {
		t.Run(e.Message, func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			ps := log.topic("mqtt", 1)
			g := newRig(t, testOptions(r.addrs...), log)
			g.Start()
			ps[0].store(record.None, "a", "b")
			g.wait("drained", g.drained)
			r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: e})
			ps[0].store(record.None, "c", "d", "e")
			g.wait("drained", g.drained)
			r.same("mqtt", ps)
			if st := g.Status(); st.Totals.PossibleDuplicates != 3 || g.out.count("records may arrive twice") != 1 {
				t.Errorf("%+v", st.Totals)
			}
		})
	}
}

func TestDuplicateIsSuccess(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 1)
	g := newRig(t, testOptions(r.addrs...), log)
	r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.DuplicateSequenceNumber})
	g.Start()
	ps[0].store(record.None, "the region claims to have it")
	g.wait("drained", g.drained)
	if st := g.Status(); st.Totals.Records != 1 || st.Totals.Retries != 0 {
		t.Errorf("%+v", st.Totals)
	}
}

func TestBrokersComeAndGo(t *testing.T) {
	r := newStandIn(t, kfake.NumBrokers(3))
	log := newMemLog()
	ps := log.topic("mqtt", 6)
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	stop := publish(ps, time.Millisecond)
	for i := range 8 {
		g.wait("progress", func() bool { return g.Status().Totals.Records > int64(i+1)*200 })
		switch i % 4 {
		case 0, 2:
			r.cluster.ShufflePartitionLeaders()
		case 1:
			if err := r.cluster.RemoveNode(2); err != nil {
				t.Fatal(err)
			}
		case 3:
			if _, _, err := r.cluster.AddNode(2, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	g.wait("drained", g.drained)
	r.same("mqtt", ps)
	if st := g.Status(); st.Totals.PossibleDuplicates > 0 {
		t.Errorf("%+v", st.Totals)
	}
}

// The region is away at the start, comes, is killed in mid-stream, and comes back with what it had.
func TestRegionAway(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	log := newMemLog()
	ps := log.topic("mqtt", 2)
	ps[0].store(record.None, "early")
	g := newRig(t, testOptions(fmt.Sprintf("127.0.0.1:%d", port)), log)
	g.Start()
	g.wait("unreachable", func() bool { return g.Status().State == Unreachable && g.Status().Problem != "" })
	stop := publish(ps, 2*time.Millisecond)
	opts := []kfake.Opt{kfake.Ports(port), kfake.DataDir(dir), kfake.SyncWrites(), kfake.ClusterID("eu-1")}
	var r *standIn
	for i := range 3 {
		before := g.Status().Totals.Records
		r = newStandIn(t, opts...)
		g.wait("progress", func() bool { return g.Status().Totals.Records > before+200 })
		if i < 2 {
			r.cluster.Close()
			g.wait("unreachable", func() bool { return g.Status().State == Unreachable })
		}
	}
	stop()
	g.wait("drained", g.drained)
	r.same("mqtt", ps)
	if st := g.Status(); st.Totals.PossibleDuplicates > 0 {
		t.Errorf("%+v", st.Totals)
	}
	if down, up := g.out.count("region unreachable"), g.out.count("region up"); down != 3 || up != 3 {
		t.Errorf("%d lines of an unreachable region and %d of a reachable one, want 3 and 3", down, up)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestNameDoesNotResolve(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 1)
	ps[0].store(record.None, "kept")
	o := testOptions("kafka.region.invalid:9092")
	var resolves atomic.Bool
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !resolves.Load() && strings.HasPrefix(addr, "kafka.region.invalid") {
			return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: "kafka.region.invalid", IsNotFound: true}}
		}
		if strings.HasPrefix(addr, "kafka.region.invalid") {
			addr = r.addrs[0]
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	g := newRig(t, o, log)
	g.Start()
	g.wait("a clear problem", func() bool { return strings.Contains(g.Status().Problem, "does not resolve") })
	resolves.Store(true)
	g.wait("drained", g.drained)
	r.same("mqtt", ps)
}

func TestTopicCreationRefused(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	bad, good := log.topic("bad", 2), log.topic("good", 1)
	refused := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "gw.bad", Err: kerr.PolicyViolation, Count: -1})
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	bad[0].store(record.None, "waits")
	bad[1].store(record.None, "waits, too")
	good[0].store(record.None, "goes")
	g.wait("the good topic", func() bool { return r.end("gw.good", 0) == 1 })
	g.wait("tries", func() bool { return refused.Hits() >= 3 })
	g.wait("a problem of the lanes", func() bool {
		p := g.Status().Lanes[0].Problem
		return strings.Contains(p, "POLICY_VIOLATION") && strings.Contains(p, "create the topic by hand")
	})
	if n := g.out.count("topic waits"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	refused.Remove()
	g.wait("drained", g.drained)
	r.same("bad", bad)
	if n := g.out.count("topic goes on"); n != 1 {
		t.Errorf("%d recovery lines, want 1", n)
	}
}

func TestFewerPartitions(t *testing.T) {
	r := newStandIn(t, kfake.SeedTopics(2, "gw.mqtt"))
	log := newMemLog()
	ps := log.topic("mqtt", 4)
	for _, p := range ps {
		p.store(record.None, "value")
	}
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("the first two", func() bool { return g.Status().LagRecords == 2 })
	st := g.Status()
	if !strings.Contains(st.Lanes[3].Problem, "--partitions 4") || st.Lanes[0].Problem != "" || st.Lanes[2].LagRecords != 1 {
		t.Errorf("status %+v", st)
	}
}

func TestTopicRecreated(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 2)
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	ps[0].store(record.None, "before 1", "before 2", "before 3")
	g.wait("drained", g.drained)
	if err := r.cluster.DeleteTopic("gw.mqtt"); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.CreateTopic("gw.mqtt", 2, nil); err != nil {
		t.Fatal(err)
	}
	ps[0].store(record.None, "after")
	g.wait("drained", g.drained)
	if got := r.values("gw.mqtt", 0); !slices.Equal(got, []string{"after"}) {
		t.Errorf("region has %q", got)
	}
	if n := g.out.count("created anew"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	// And while no mirror runs.
	g.close()
	if err := r.cluster.DeleteTopic("gw.mqtt"); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.CreateTopic("gw.mqtt", 2, nil); err != nil {
		t.Fatal(err)
	}
	ps[0].store(record.None, "later")
	g = newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("drained", g.drained)
	if got := r.values("gw.mqtt", 0); !slices.Equal(got, []string{"later"}) || g.out.count("created anew") != 1 {
		t.Errorf("region has %q", got)
	}
}

func TestTooLarge(t *testing.T) {
	r := newStandIn(t)
	if err := r.cluster.CreateTopic("gw.mqtt", 1, map[string]string{"max.message.bytes": "20000"}); err != nil {
		t.Fatal(err)
	}
	log := newMemLog()
	ps := log.topic("mqtt", 1)
	for range 40 {
		ps[0].store(record.None, noise(3000), noise(3000))
	}
	ps[0].store(record.None, "small", noise(30000), "behind it")
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("a problem", func() bool { return g.Status().Lanes[0].Problem != "" })
	st := g.Status()
	if r.end("gw.mqtt", 0) != 81 || !strings.Contains(st.Lanes[0].Problem, "offset 81: MESSAGE_TOO_LARGE") ||
		!strings.Contains(st.Lanes[0].Problem, "raise it on the topic") {
		t.Errorf("%d records arrived; lane %+v", r.end("gw.mqtt", 0), st.Lanes[0])
	}
	if n := g.out.count("topic waits"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	cfg := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, "gw.mqtt"
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = "max.message.bytes", kmsg.StringPtr("1000000")
	res.Configs = append(res.Configs, c)
	cfg.Resources = append(cfg.Resources, res)
	if _, err := g.region.client.Request(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	g.wait("drained", g.drained)
	r.same("mqtt", ps)
}

func TestHolesAndLostRecords(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	p := log.topic("mqtt", 1)[0]
	for i := range 30 {
		p.store(record.None, numbered(i*10, 3)...)
		p.hole(int64(1 + i%3))
	}
	p.store(record.None, "end")
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("drained", g.drained)
	r.same("mqtt", []*memPartition{p})
	g.close()
	next, data, _, _ := p.Cursor("eu")
	if _, seq, err := parseCursor(data); err != nil || seq != 91 || next != p.end {
		t.Errorf("cursor %d with sequence %d, want %d with 91: %v", next, seq, p.end, err)
	}
	// Retention takes records that the region doesn't have.
	for i := range 10 {
		p.store(record.None, numbered(1000+i, 1)...)
	}
	p.mu.Lock()
	p.start = p.end - 4
	p.batches = p.batches[len(p.batches)-4:]
	p.mu.Unlock()
	g = newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("drained", g.drained)
	if st := g.Status(); st.Totals.Lost != 6 || st.Totals.Records != 4 || g.out.count("left the log before") != 1 {
		t.Errorf("%+v", st.Totals)
	}
}

func TestDamagedLog(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 2)
	ps[0].store(record.None, "good")
	ps[0].store(record.None, "bad")
	ps[0].batches[1][record.HeaderBytes+5] ^= 1
	ps[1].store(record.None, "another partition")
	g := newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("a problem and the other lane", func() bool {
		return strings.Contains(g.Status().Lanes[0].Problem, "local log") && r.end("gw.mqtt", 1) == 1
	})
	if n := g.out.count("topic waits"); n != 1 {
		t.Errorf("%d lines, want 1", n)
	}
	g.close()
	ps[0].mu.Lock()
	ps[0].batches[1][record.HeaderBytes+5] ^= 1
	ps[0].mu.Unlock()
	g = newRig(t, testOptions(r.addrs...), log)
	g.Start()
	g.wait("drained", g.drained)
	r.same("mqtt", ps)
}

// Many lanes with a backlog share a request's bytes, and none starves.
func TestManyLanes(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 64)
	stored := 0
	for i, p := range ps {
		for range 6 {
			values := []string{fmt.Sprint("lane ", i), noise(20 << 10)}
			stored += 20 << 10
			p.store(record.None, values...)
		}
	}
	o := testOptions(r.addrs...)
	o.BatchBytes, o.RequestBytes = 64<<10, 256<<10
	g := newRig(t, o, log)
	var order []int64
	var mu sync.Mutex
	r.cluster.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		for _, t := range kreq.(*kmsg.ProduceRequest).Topics {
			for _, p := range t.Partitions {
				order = append(order, int64(p.Partition))
			}
		}
		return nil, nil, false
	})
	g.Start()
	g.wait("drained", g.drained)
	g.close()
	r.same("mqtt", ps)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.biggest > 256<<10+4096 || r.biggest < 128<<10 {
		t.Errorf("biggest request %d bytes, bound %d, stored %d", r.biggest, 256<<10, stored)
	}
	seen := map[int64]bool{}
	for _, p := range order[:64] {
		seen[p] = true
	}
	if len(seen) != 64 {
		t.Errorf("the first 64 batches are of %d lanes, want each once", len(seen))
	}
}

// Sequences wrap from 2^31-1 to 0, also in mid-batch. kfake counts otherwise, so the model here answers in its place.
func TestSequenceWrap(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 1)
	g := newRig(t, testOptions(r.addrs...), log)
	var mu sync.Mutex
	expected, wrapped := int64(0), false
	var model error
	r.cluster.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		req := kreq.(*kmsg.ProduceRequest)
		p := req.Topics[0].Partitions[0]
		b := record.Batch(p.Records)
		if int64(b.BaseSequence()) != expected%(1<<31) && model == nil {
			model = fmt.Errorf("sequence %d, want %d", b.BaseSequence(), expected%(1<<31))
		}
		expected += int64(b.Count())
		wrapped = wrapped || expected >= 1<<31
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		rp := kmsg.NewProduceResponseTopicPartition()
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	g.Start()
	ps[0].store(record.None, "a")
	g.wait("drained", g.drained)
	mu.Lock()
	expected = 1<<31 - 5
	mu.Unlock()
	g.mu.Lock()
	g.topics[0].lanes[0].sequence = 1<<31 - 5
	g.mu.Unlock()
	for range 6 {
		ps[0].store(record.None, "b", "c", "d")
		g.wait("drained", g.drained)
	}
	mu.Lock()
	defer mu.Unlock()
	if model != nil || !wrapped {
		t.Errorf("wrapped %v: %v", wrapped, model)
	}
}

func TestCloseGivesUp(t *testing.T) {
	r := newStandIn(t)
	log := newMemLog()
	ps := log.topic("mqtt", 1)
	g := newRig(t, testOptions(r.addrs...), log)
	reached := make(chan struct{})
	r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(reached)
		return nil, nil, true // no answer, ever
	})
	g.Start()
	ps[0].store(record.None, "a")
	<-reached
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	if _, _, ok, _ := ps[0].Cursor("eu"); ok {
		t.Error("the cursor moved without an answer")
	}
}

func TestCloseWithoutStart(t *testing.T) {
	newRig(t, testOptions("127.0.0.1:1"), newMemLog()).close()
}

// Producer ids are refused for a while: nothing is sent without one.
func TestNoProducerID(t *testing.T) {
	for _, e := range []*kerr.Error{kerr.ClusterAuthorizationFailed, kerr.CoordinatorLoadInProgress} {
		t.Run(e.Message, func(t *testing.T) {
			r := newStandIn(t)
			log := newMemLog()
			ps := log.topic("mqtt", 2)
			h := r.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: e, Count: 12})
			g := newRig(t, testOptions(r.addrs...), log)
			g.Start()
			ps[0].store(record.None, "a")
			ps[1].store(record.None, "b")
			g.wait("a problem", func() bool { return strings.Contains(g.Status().Lanes[0].Problem, "no producer id: "+e.Message) })
			g.wait("drained", g.drained)
			r.same("mqtt", ps)
			if h.Hits() != 12 || g.out.count("topic waits") > 1 {
				t.Errorf("%d tries, %d lines", h.Hits(), g.out.count("topic waits"))
			}
		})
	}
}
