package segment

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

func TestPlan(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name                     string
		change                   func(o *Options)
		fs                       int64 // MiB
		budget, reserve, journal int64 // MiB
		want                     string
	}{
		{"a large file system", func(*Options) {}, 1 << 20, 734003, 64, 16, ""},
		{"a small one", func(*Options) {}, 1000, 700, 64, 16, ""},
		{"a smaller one", func(o *Options) { o.MaxBytes, o.MaxRecordBytes = 64<<10, 4<<10 }, 64, 44, 5, 2, ""},
		{"too small for the packets", func(*Options) {}, 64, 0, 0, 0, "lower commit.max_bytes and mqtt.max_packet_bytes"},
		{"a budget bounds the journal", func(o *Options) { o.BudgetBytes = 256 * mib; o.MaxBytes = 256 << 10 }, 1 << 20, 256, 32, 8, ""},
		{"the journal that is configured", func(o *Options) { o.JournalBytes = 32 * mib }, 1000, 700, 64, 32, ""},
		{"one that is too large", func(o *Options) { o.JournalBytes = 256 * mib }, 1000, 0, 0, 0, "lower commit.journal_bytes"},
		{"the reserve that is configured", func(o *Options) { o.ReserveBytes = 200 * mib }, 1000, 700, 200, 16, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := DefaultOptions()
			c.change(&o)
			p, err := o.Plan(c.fs * mib)
			if c.want != "" {
				if !errors.Is(err, ErrBudget) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "data.budget") {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil || p.BudgetBytes/mib != c.budget || p.ReserveBytes/mib != c.reserve || p.JournalBytes/mib != c.journal {
				t.Fatalf("%+v, %v", p, err)
			}
			if p.JournalBytes < o.leastJournal() || p.SoftBytes >= p.LimitBytes || p.LimitBytes+p.HeadroomBytes+p.ReserveBytes != p.BudgetBytes {
				t.Errorf("%+v", p)
			}
			if p.HeadroomBytes > journal.Files*p.JournalBytes/16+64<<10+int64(o.MemoryBytes)/64 {
				t.Errorf("headroom of %d bytes with journal files of %d", p.HeadroomBytes, p.JournalBytes)
			}
			if err := p.Fit([]TopicOptions{{Name: "t", Partitions: 4}}); err != nil {
				t.Error(err)
			}
			if err := p.Fit([]TopicOptions{{Name: "t", Partitions: 4}, {Name: "u", Partitions: 1, SegmentBytes: p.BudgetBytes / 2}}); !errors.Is(err, ErrBudget) {
				t.Errorf("a topic that doesn't fit: %v", err)
			}
		})
	}
}

func TestSegmentBytes(t *testing.T) {
	o := DefaultOptions()
	o.BudgetBytes = 2 << 30
	p, err := o.Plan(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o          TopicOptions
		partitions int
		want       int64
	}{
		{TopicOptions{Partitions: 1}, 1, 64 << 20},
		{TopicOptions{Partitions: 4}, 16, 16 << 20},
		{TopicOptions{Partitions: 4}, 1000, 1 << 20},
		{TopicOptions{Partitions: 4, SegmentBytes: 100 << 20}, 1000, 100 << 20},
		{TopicOptions{Partitions: 4, RetentionBytes: 64 << 20}, 4, 4 << 20},
		{TopicOptions{Partitions: 4, RetentionBytes: 8 << 20}, 4, 1 << 20},
	} {
		if got := p.segmentBytes(c.o, c.partitions); got != c.want {
			t.Errorf("%+v among %d: %d, want %d", c.o, c.partitions, got, c.want)
		}
	}
}

// What an earlier release stored is read, and it can read what it knows.
func TestStoredTopics(t *testing.T) {
	full := TopicOptions{
		Name: "t", Partitions: 3, Compression: record.Zstd, SegmentBytes: 1 << 20,
		RetentionBytes: 1 << 30, RetentionAge: 168 * time.Hour, Priority: Critical, OnFull: Reject,
	}
	plain := TopicOptions{Name: "t", Partitions: 3, Compression: record.Zstd, SegmentBytes: 1 << 20}
	for _, o := range []TopicOptions{full, plain} {
		b := encodeTopic(7, o)
		id, got, err := decodeTopic("t", b)
		if err != nil || id != 7 || got != o {
			t.Errorf("%+v is read as %d, %+v, %v", o, id, got, err)
		}
		for n := range b {
			if _, got, err := decodeTopic("t", b[:n]); err == nil && n != topicBytes1 {
				t.Errorf("%d of %d bytes are read as %+v", n, len(b), got)
			}
		}
	}
	v1 := "\x01\x00\x00\x00\x07\x00\x00\x00\x03\x04\x00\x00\x00\x00\x00\x10\x00\x00"
	if b := encodeTopic(7, plain); string(b) != v1 {
		t.Errorf("a plain topic is stored as %q", b)
	}
	for name, o := range map[string]TopicOptions{
		"bytes below two segments": {RetentionBytes: 1 << 20},
		"negative age":             {RetentionAge: -1},
		"fraction of a ms":         {RetentionAge: time.Microsecond},
		"priority":                 {Priority: 4},
		"on full":                  {OnFull: 2},
	} {
		o.Name, o.Partitions, o.SegmentBytes = "t", 3, 1<<20
		if err := o.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Retention of a topic that exists is the one that is configured now, and is known to the next Open.
func TestRetentionIsChanged(t *testing.T) {
	o := testOptions(t.TempDir())
	l := openLog(t, o)
	to := TopicOptions{Name: "t", Partitions: 1, SegmentBytes: 64 << 10}
	for i, change := range []func(){
		func() {}, func() { to.RetentionAge = time.Hour }, func() { to.RetentionBytes = 1 << 20 }, func() { to.Priority = High }, func() { to.OnFull = Reject },
	} {
		change()
		topic, err := l.CreateTopic(to)
		if err != nil {
			t.Fatal(err)
		}
		if got := *topic.options.Load(); got != to {
			t.Fatalf("change %d: %+v", i, got)
		}
		l.Close()
		l = openLog(t, o)
		if got := *l.Topic("t").options.Load(); got != to {
			t.Fatalf("change %d after a restart: %+v", i, got)
		}
	}
}

// A topic that doesn't fit beside the others isn't made.
func TestTopicWithoutRoom(t *testing.T) {
	o := testOptions(t.TempDir())
	o.BudgetBytes = 8 << 20
	l := openLog(t, o)
	made := 0
	for ; made < 20; made++ {
		if _, err := l.CreateTopic(TopicOptions{Name: fmt.Sprint("t", made), Partitions: 1}); err != nil {
			if !errors.Is(err, ErrBudget) {
				t.Fatal(err)
			}
			break
		}
	}
	if made != 2 {
		t.Errorf("%d topics with segments of 1 MiB fit into 8 MiB", made)
	}
}
