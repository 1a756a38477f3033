package segment

import (
	"slices"
	"sync"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

// told remembers what it was told.
type told struct {
	mu     sync.Mutex
	groups []uint64
}

func (o *told) Committed(group uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups = append(o.groups, group)
}

// Who is enlisted is told of each group once, whoever adds to it, and of no other; and offsets are given in the order of Append.
func TestEnlist(t *testing.T) {
	l := openLog(t, testOptions(t.TempDir()))
	p := createTopic(t, l, "t", 1, record.None).Partitions()[0]
	var o told
	other := l.NewWriter(&o)
	var want []uint64
	for i := range 4 {
		var groups []uint64
		for range 3 {
			w := l.NewWriter(nil)
			if err := w.Begin(); err != nil {
				t.Fatal(err)
			}
			next := w.Next(p)
			w.Append(p, &record.Record{Value: []byte("x")})
			if got := w.Next(p); got != next+1 {
				t.Errorf("next offset %d after %d", got, next)
			}
			group := w.Group()
			if i%2 == 0 {
				w.Enlist(other)
				w.Enlist(other)
				if !slices.Contains(groups, group) {
					groups = append(groups, group)
				}
			}
			if got := w.End(); got != group {
				t.Errorf("group %d, not %d", got, group)
			}
		}
		want = append(want, groups...)
		ticket, err := l.Put([]byte("k"), []byte("v"))
		wait(t, ticket, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if high := p.HighWatermark(); high != 12 {
		t.Errorf("high watermark %d", high)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.groups, want) {
		t.Errorf("told of %d, not %d", o.groups, want)
	}
}
