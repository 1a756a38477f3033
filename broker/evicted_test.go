package broker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/mirror"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

func TestFollowers(t *testing.T) {
	follow, err := followers([]mirror.Options{
		{Region: "eu", Topics: []string{"a.*"}, Exclude: []string{"ab"}},
		{Region: "us", Topics: []string{"a", "b"}},
		{Topics: []string{".*"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string][]string{
		"a": {"eu", "us", "region"}, "ab": {"region"}, "ac": {"eu", "region"}, "b": {"us", "region"}, "ba": {"region"},
	} {
		if got := follow(topic); !slices.Equal(got, want) {
			t.Errorf("%s is followed by %v, want %v", topic, got, want)
		}
	}
	if _, err := followers([]mirror.Options{{Topics: []string{"("}}}); err == nil {
		t.Error("an expression that is none was taken")
	}
}

// What was evicted before a region had it is among what was dropped, by topic and reason.
func TestEvictedUnmirroredIsReported(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Topics[0] = segment.TopicOptions{Name: "mqtt", Partitions: 1, SegmentBytes: 64 << 10, RetentionBytes: 128 << 10}
	to := mirror.DefaultOptions()
	to.Alias, to.Brokers = "gw", []string{"127.0.0.1:1"} // nobody is there
	o.Mirrors = []mirror.Options{to}
	b, said := newTestBroker(t, o)
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	defer b.Stop()
	p := b.log.Topic("mqtt").Partitions()[0]
	for range 200 {
		ticket, err := b.log.Append(p, &record.Record{Timestamp: time.Now().UnixMilli(), Value: make([]byte, 4000)})
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var lost int64
	for deadline := time.Now().Add(20 * time.Second); lost == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing was evicted")
		}
		for _, d := range b.dropped() {
			if d.Topic == "mqtt" && d.Reason == "evicted unmirrored by bytes" {
				lost = d.Messages
			}
		}
		time.Sleep(time.Millisecond) //lint:sleep the log evicts in its own time
	}
	new(dropReport).log(b.lg, b.dropped())
	if !strings.Contains(said.String(), `reason="evicted unmirrored by bytes"`) {
		t.Errorf("it said:\n%s", said)
	}
}
