package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The vectors of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2KafkaVectors(t *testing.T) {
	vectors := map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	}
	for key, want := range vectors {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, Kafka has %d", key, got, want)
		}
	}
}

// A client library's own partitioner must agree for keys of every length and bit pattern.
func TestPartitionAgreesWithKafkaClient(t *testing.T) {
	partitioner := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 4, 7, 64, 100} {
		for i := range 2000 {
			key := make([]byte, 1+i%67)
			for j := range key {
				key[j] = byte(rng.Uint32())
			}
			want := partitioner.Partition(&kgo.Record{Key: key}, n)
			if got := partitionOf(key, n); got != want {
				t.Fatalf("partitionOf(%x, %d) = %d, the client has %d", key, n, got, want)
			}
		}
	}
}

func TestPartitionSpreads(t *testing.T) {
	var hits [4]int
	for i := range 4000 {
		hits[partitionOf(fmt.Appendf(nil, "sensors/%d/temperature", i), len(hits))]++
	}
	for p, n := range hits {
		if n < 800 || n > 1200 {
			t.Errorf("partition %d got %d of 4000 topics: %v", p, n, hits)
		}
	}
}

func BenchmarkPartitionOf(b *testing.B) {
	key := []byte("sensors/building-7/temperature")
	for b.Loop() {
		partitionOf(key, 4)
	}
}
