//go:build linux

package main_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// remoteTopic is where the default route's topic arrives in the region.
const remoteTopic = "edge.mqtt"

// testMirror holds the region's copy against what was acknowledged at the gateway, through everything that may happen
// to either side.
func (r *rig) testMirror(t *testing.T) {
	need(t, "kafka")
	t.Run("undisturbed", r.testMirrorUndisturbed)
	t.Run("outages", r.testMirrorOutages)
	t.Run("kills", r.testMirrorKills)
}

// testMirrorUndisturbed: with the region up, each message arrives once, also across a clean restart of the gateway.
func (r *rig) testMirrorUndisturbed(t *testing.T) {
	k := r.region(t)
	k.start(t)
	g := r.gateway(t, k.mirrorTo())
	g.start(t)
	m := mirrored{rig: r, g: g, region: k, base: filepath.Dir(g.dir)}
	if err := m.load(t, 1, "-duration", "4s", "-rate", "20000").wait(t, time.Minute); err != nil {
		t.Fatal(err)
	}
	m.arrived(t)
	for n := 2; n <= 3; n++ { // restarts in mid-stream
		p := m.load(t, n, "-duration", "4s", "-rate", "10000", "-reconnect")
		time.Sleep(2 * time.Second) //lint:sleep in mid-stream
		g.stop(t)
		g.start(t)
		if err := p.wait(t, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	got := m.arrived(t)
	if got.Duplicates > 0 {
		t.Errorf("%d of %d records arrived twice", got.Duplicates, got.Found)
	}
	// What is in the log and not acknowledged arrives as well: both hold the same.
	local := filepath.Join(m.base, "local.txt")
	g.found(t, local)
	inLog := r.check(t, m.acked(t), local)
	wait(t, 30*time.Second, "as many records in the region as in the log", func() bool {
		return m.count(t) >= int64(inLog.Found)
	})
	if n := m.count(t); n != int64(inLog.Found) {
		t.Errorf("%d records in the region, %d in the log", n, inLog.Found)
	}
	t.Logf("acknowledged %d, in the log %d, in the region %d, twice %d", got.Acked, inLog.Found, got.Found, got.Duplicates)
	g.stop(t)
}

// testMirrorOutages: the region is absent at the start and killed three times in mid-stream.
func (r *rig) testMirrorOutages(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	k := r.region(t)
	g := r.gateway(t, k.mirrorTo())
	g.start(t)
	m := mirrored{rig: r, g: g, region: k, base: filepath.Dir(g.dir)}
	p := m.load(t, 1, "-duration", "5m", "-rate", "2000")
	time.Sleep(2 * time.Second) //lint:sleep for a backlog
	k.start(t)
	before := int64(0)
	for outage := range 3 {
		wait(t, 60*time.Second, fmt.Sprintf("the region gets new records before outage %d", outage+1), func() bool {
			return m.count(t) > before+1000
		})
		time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) //lint:sleep any moment may be the worst
		before = m.count(t)
		k.kill9(t)
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second)))) //lint:sleep an outage
		k.restart(t)
	}
	wait(t, 60*time.Second, "the region gets new records after the last outage", func() bool { return m.count(t) > before+1000 })
	p.kill() // the file of acknowledged messages is at most shorter for it
	got := m.arrived(t)
	t.Logf("acknowledged %d, in the region %d, repeated by the outages %d", got.Acked, got.Found, got.Duplicates)
	g.stop(t)
}

// testMirrorKills: the gateway is killed several times in mid-stream, so that the cursors it comes back with are behind what
// the region has. Records may arrive twice, then; none may be missing, and none may take the place of another.
func (r *rig) testMirrorKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	k := r.region(t)
	k.start(t)
	g := r.gateway(t, k.mirrorTo())
	g.start(t)
	m := mirrored{rig: r, g: g, region: k, base: filepath.Dir(g.dir)}
	const kills = 4
	p := m.load(t, 1, "-duration", "5m", "-rate", "5000", "-reconnect")
	before := int64(0)
	more := func() bool { return m.count(t) > before+200 }
	for kill := range kills {
		wait(t, 30*time.Second, fmt.Sprintf("the region gets new records before kill %d", kill+1), more)
		time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) //lint:sleep any moment may be the worst
		before = m.count(t)
		g.kill9(t)
		g.start(t)
	}
	wait(t, 30*time.Second, "the region gets new records after the last kill", more)
	p.kill() // the file of acknowledged messages is at most shorter for it
	// Once more when all has arrived: a cursor rides with the next commit, and the last ones have had none. What repeats
	// for it comes before new records.
	m.arrived(t)
	g.kill9(t)
	g.start(t)
	if err := m.load(t, 2, "-duration", "1s", "-rate", "5000").wait(t, time.Minute); err != nil {
		t.Fatal(err)
	}
	got := m.arrived(t)
	local := filepath.Join(m.base, "local.txt")
	g.found(t, local)
	inLog := r.check(t, m.acked(t), local)
	wait(t, 30*time.Second, "as many different records in the region as in the log", func() bool {
		got = m.arrived(t)
		return got.Found-got.Duplicates >= inLog.Found-inLog.Duplicates
	})
	if different := got.Found - got.Duplicates; different != inLog.Found || inLog.Duplicates > 0 {
		t.Errorf("%d different records in the region, %d in the log, of them %d twice", different, inLog.Found, inLog.Duplicates)
	}
	t.Logf("acknowledged %d, in the log %d, in the region %d, repeated by %d kills %d", got.Acked, inLog.Found, got.Found, kills+1, got.Duplicates)
	g.stop(t)
}

// mirrored is a gateway, its region and what was acknowledged between.
type mirrored struct {
	rig    *rig
	g      *gateway
	region *region
	base   string // for files
	files  []string
}

// load publishes at QoS 1 in the background.
func (m *mirrored) load(t *testing.T, run int, args ...string) *process {
	t.Helper()
	file := filepath.Join(m.base, fmt.Sprintf("acked-%d", run))
	m.files = append(m.files, file)
	return spawn(t, m.rig.mqttload, append([]string{"pub", "-addr", m.g.addr, "-clients", "20", "-window", "20", "-size", "100",
		"-topic", "mirror/%d", "-run", fmt.Sprint(run), "-seq", file, "-warmup", "0s"}, args...)...)
}

// acked joins the files of all loads.
func (m *mirrored) acked(t *testing.T) string {
	t.Helper()
	var all []byte
	for _, file := range m.files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b[:strings.LastIndexByte(string(b), '\n')+1]...) // without the torn line of a killed load
	}
	joined := filepath.Join(m.base, "acked.txt")
	if err := os.WriteFile(joined, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return joined
}

// arrived waits until the region has every acknowledged message, and wants each client's in its order.
func (m *mirrored) arrived(t *testing.T) (got loadResult) {
	t.Helper()
	acked, found := m.acked(t), filepath.Join(m.base, "arrived.txt")
	var records []*kgo.Record
	for end := time.Now().Add(90 * time.Second); ; {
		count := m.count(t)
		records = m.read(t)
		writeFound(t, found, records)
		if got = m.rig.check(t, acked, found); got.Lost == 0 {
			break
		}
		wait(t, time.Until(end), fmt.Sprintf("%d of %d acknowledged messages arrive (run client seq: %q)", got.Lost, got.Acked, got.FirstLost),
			func() bool { return m.count(t) > count })
	}
	if got.Disorder > 0 {
		t.Errorf("%d of %d records arrived out of order", got.Disorder, got.Found)
	}
	checkRecords(t, records)
	return got
}

// source reads who sent a payload from mqttload's header: magic, run, client, sequence.
func source(payload []byte) (run, client uint32, seq uint64, ok bool) {
	if len(payload) < 36 || string(payload[:4]) != "MQL1" {
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint32(payload[4:]), binary.BigEndian.Uint32(payload[8:]), binary.BigEndian.Uint64(payload[12:]), true
}

func writeFound(t *testing.T, file string, records []*kgo.Record) {
	t.Helper()
	var lines strings.Builder
	for _, r := range records {
		run, client, seq, ok := source(r.Value)
		if !ok {
			t.Fatalf("partition %d offset %d: not a message of mqttload: %.80q", r.Partition, r.Offset, r.Value)
		}
		fmt.Fprintf(&lines, "%d %d %d\n", run, client, seq)
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkRecords wants the MQTT topic as key, one partition a key, and the envelope header.
func checkRecords(t *testing.T, records []*kgo.Record) {
	t.Helper()
	partition := map[string]int32{}
	for _, r := range records {
		_, client, _, _ := source(r.Value)
		if want := fmt.Sprintf("mirror/%d", client); string(r.Key) != want {
			t.Fatalf("partition %d offset %d: key %q, want %q", r.Partition, r.Offset, r.Key, want)
		}
		if p, seen := partition[string(r.Key)]; seen && p != r.Partition {
			t.Fatalf("key %q is in partitions %d and %d", r.Key, p, r.Partition)
		}
		partition[string(r.Key)] = r.Partition
		if len(r.Headers) == 0 || r.Headers[0].Key != "mqtt" {
			t.Fatalf("partition %d offset %d: headers %v, want the envelope first", r.Partition, r.Offset, r.Headers)
		}
	}
}

// count is how many records the remote topic has.
func (m *mirrored) count(t *testing.T) (n int64) {
	t.Helper()
	m.g.mustRun(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, end := range m.region.ends(ctx, t, remoteTopic) {
		n += end
	}
	return n
}

// read reads the remote topic from its start to the ends that it has now; nothing when it isn't there yet.
func (m *mirrored) read(t *testing.T) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	ends := m.region.ends(ctx, t, remoteTopic)
	from := map[int32]kgo.Offset{}
	for p, end := range ends {
		if end > 0 {
			from[p] = kgo.NewOffset().AtStart()
		}
	}
	if len(from) == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(m.region.bootstrap), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{remoteTopic: from}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for len(from) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("reading %s took too long; partitions left: %v", remoteTopic, from)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < ends[r.Partition] {
				records = append(records, r)
			}
			if r.Offset >= ends[r.Partition]-1 {
				delete(from, r.Partition)
			}
		})
	}
	return records
}

// ends asks for each partition's end offset; empty when the topic or the broker isn't there.
func (k *region) ends(ctx context.Context, t *testing.T, topic string) map[int32]int64 {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	meta := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	meta.Topics = append(meta.Topics, asked)
	found, err := meta.RequestWith(ctx, client)
	if err != nil || len(found.Topics) != 1 || kerr.ErrorForCode(found.Topics[0].ErrorCode) != nil {
		return nil
	}
	list := kmsg.NewPtrListOffsetsRequest()
	lt := kmsg.NewListOffsetsRequestTopic()
	lt.Topic = topic
	for _, p := range found.Topics[0].Partitions {
		lp := kmsg.NewListOffsetsRequestTopicPartition()
		lp.Partition, lp.Timestamp = p.Partition, -1
		lt.Partitions = append(lt.Partitions, lp)
	}
	list.Topics = append(list.Topics, lt)
	got, err := list.RequestWith(ctx, client)
	if err != nil {
		return nil
	}
	ends := map[int32]int64{}
	for _, p := range got.Topics[0].Partitions {
		if kerr.ErrorForCode(p.ErrorCode) == nil {
			ends[p.Partition] = p.Offset
		}
	}
	return ends
}
