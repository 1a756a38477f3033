package record

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// The tests here let a real client's producer and consumer talk to this package, through a broker that stores batches as
// they come.

const interopTopic = "interop"

// interop is a broker with one topic of one partition and a client of it. Versions are held below topic ids, so that raw
// requests can name the topic.
func interop(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, interopTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	opts = append(opts, kgo.SeedBrokers(c.ListenAddrs()...), kgo.MaxVersions(kversion.V2_8_0()), kgo.DefaultProduceTopic(interopTopic))
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func interopContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// fetchRaw is the bytes of the partition from the offset on.
func fetchRaw(t *testing.T, cl *kgo.Client, offset int64) []byte {
	t.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MaxWaitMillis, req.MinBytes = 64<<20, 1000, 1
	topic, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	topic.Topic = interopTopic
	part.FetchOffset, part.PartitionMaxBytes = offset, 64<<20
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := cl.SeedBrokers()[0].Request(interopContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	p := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatal(err)
	}
	return p.RecordBatches
}

// produceRaw sends the batch as it is.
func produceRaw(t *testing.T, cl *kgo.Client, b Batch) {
	t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10_000
	topic, part := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	topic.Topic = interopTopic
	part.Records = b
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := cl.SeedBrokers()[0].Request(interopContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		message := ""
		if p.ErrorMessage != nil {
			message = *p.ErrorMessage
		}
		t.Fatalf("%v: %s", err, message)
	}
}

// TestReadsWhatAClientProduces: batches of the client's producer, all codecs, byte for byte as the broker hands them out.
func TestReadsWhatAClientProduces(t *testing.T) {
	codecs := map[Codec]kgo.CompressionCodec{
		None: kgo.NoCompression(), Gzip: kgo.GzipCompression(), Snappy: kgo.SnappyCompression(),
		LZ4: kgo.Lz4Compression(), Zstd: kgo.ZstdCompression(),
	}
	for c, codec := range codecs {
		t.Run(c.String(), func(t *testing.T) {
			cl := interop(t, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(20*time.Millisecond))
			rs := messages(500)
			var sent []*kgo.Record
			for _, r := range rs {
				k := &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp)}
				for _, h := range r.Headers {
					k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
				}
				sent = append(sent, k)
			}
			if err := cl.ProduceSync(interopContext(t), sent...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			var got []Record
			seen := false
			for rest := fetchRaw(t, cl, 0); len(rest) > 0; {
				b, after, err := Next(rest)
				if err != nil {
					t.Fatal(err)
				}
				seen = seen || b.Codec() == c
				got = append(got, mustDecode(t, b)...)
				if b.ProducerID() < 0 || b.BaseSequence() != int32(b.BaseOffset()) {
					t.Errorf("producer %d, sequence %d at offset %d", b.ProducerID(), b.BaseSequence(), b.BaseOffset())
				}
				rest = after
			}
			checkRecords(t, got, rs, 0)
			if !seen {
				t.Errorf("no batch of codec %s seen", c)
			}
		})
	}
}

// TestClientReadsWhatIsWritten: our batches, built, compressed and merged, sent as they are and read by the client's consumer.
func TestClientReadsWhatIsWritten(t *testing.T) {
	rs := messages(300)
	e := NewEncoder()
	for c := None; c <= Zstd; c++ {
		t.Run(c.String(), func(t *testing.T) {
			cl := interop(t, kgo.ConsumeTopics(interopTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			merged, err := e.Merge(nil, split(t, 0, rs[:200], []Codec{None, Zstd, Snappy}, 1, 7, 60), c)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := e.Compress(nil, build(200, rs[200:]...), c)
			if err != nil {
				t.Fatal(err)
			}
			for i, b := range []Batch{merged, plain} {
				if b.Codec() != c {
					t.Fatalf("batch %d is %s", i, b.Codec())
				}
				sent := Batch(slices.Clone(b))
				Restamp(sent, 0, -1, -1, -1, -1)
				produceRaw(t, cl, sent)
			}
			var got []Record
			for len(got) < len(rs) {
				fetches := cl.PollFetches(interopContext(t))
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				fetches.EachRecord(func(k *kgo.Record) {
					r := Record{Offset: k.Offset, Timestamp: k.Timestamp.UnixMilli(), Key: k.Key, Value: k.Value}
					for _, h := range k.Headers {
						r.Headers = append(r.Headers, Header{Key: h.Key, Value: h.Value})
					}
					got = append(got, r)
				})
			}
			checkRecords(t, got, rs, 0)
			// The broker's bytes are ours, but for base offset and leader epoch.
			raw := fetchRaw(t, cl, 0)
			if len(raw) != len(merged)+len(plain) || !bytes.Equal(raw[posMagic:len(merged)], merged[posMagic:]) {
				t.Errorf("%d bytes stored, %d and %d sent", len(raw), len(merged), len(plain))
			}
		})
	}
}

// TestIdempotentSequences: restamped batches of one producer are taken in order, and a repeat is taken for a duplicate.
func TestIdempotentSequences(t *testing.T) {
	cl := interop(t)
	resp, err := kmsg.NewPtrInitProducerIDRequest().RequestWith(interopContext(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	rs := messages(90)
	for i, b := range split(t, 5000, rs, []Codec{None, Zstd}, 30) {
		Restamp(b, 0, -1, resp.ProducerID, resp.ProducerEpoch, int32(30*i))
		produceRaw(t, cl, b)
		produceRaw(t, cl, b) // as after a lost answer
	}
	var got []Record
	for rest := fetchRaw(t, cl, 0); len(rest) > 0; {
		b, after, err := Next(rest)
		if err != nil {
			t.Fatal(err)
		}
		got, rest = append(got, mustDecode(t, b)...), after
	}
	checkRecords(t, got, rs, 0)
}

func ExampleBuilder() {
	var b Builder
	b.Append(&Record{Timestamp: 1_700_000_000_000, Key: []byte("plant/line-4/temp"), Value: []byte("21.5")})
	b.Append(&Record{Timestamp: 1_700_000_000_250, Key: []byte("plant/line-4/temp"), Value: []byte("21.6")})
	batch := b.Seal(100)
	if err := batch.Verify(); err != nil {
		fmt.Println(err)
	}
	err := NewDecoder(0).Records(batch, func(r *Record) error {
		fmt.Printf("%d %d %s=%s\n", r.Offset, r.Timestamp, r.Key, r.Value)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// 100 1700000000000 plant/line-4/temp=21.5
	// 101 1700000000250 plant/line-4/temp=21.6
}
