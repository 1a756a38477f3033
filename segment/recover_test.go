package segment

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

// What the segments hold beyond the last checkpoint may be torn in the middle: the journal has it, whether the state
// knows the topic, has to learn of it from the journal, or is lost.
func TestJournalRefillsATornSegment(t *testing.T) {
	for _, c := range []struct {
		name    string
		restart bool // with the topic in a checkpoint
		lose    string
	}{
		{"topic in the state", true, ""},
		{"topic in the journal", false, ""},
		{"state lost", false, "state-*.db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions(t.TempDir())
			o.JournalBytes = 4 << 20 // no roll, no checkpoint
			l := openLog(t, o)
			createTopic(t, l, "t", 2, record.None)
			if c.restart {
				l.Close()
				l = openLog(t, o)
			}
			p := l.Topic("t").Partitions()[1]
			fill := newFiller(l, p)
			for fill.next < 10000 {
				if err := fill.add(50); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "most are in segments", func() bool {
				return fill.acked.Load() == int64(fill.next) && l.memory.used() < o.AppendBytes
			})
			crashed := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(crashed, os.DirFS(o.Dir)); err != nil {
				t.Fatal(err)
			}
			logs, _ := filepath.Glob(filepath.Join(crashed, "topics", "t-1", "*.log"))
			b, err := os.ReadFile(logs[0])
			if err != nil || len(b) < 4000 {
				t.Fatalf("%d bytes in %s, %v", len(b), logs[0], err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(logs[0], b, 0o600); err != nil {
				t.Fatal(err)
			}
			if c.lose != "" {
				lost, _ := filepath.Glob(filepath.Join(crashed, c.lose))
				for _, path := range lost {
					os.Remove(path)
				}
			}
			o.Dir = crashed
			again := openLog(t, o)
			equal(t, values(t, again.Topic("t").Partitions()[1], 0, 1<<20), numbered(0, fill.next))
		})
	}
}
