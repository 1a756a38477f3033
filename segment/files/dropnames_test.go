package files

import (
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

// TestDropMakesNamesDurable: before a segment goes, the names of those that stay are durable. A power cut that took both would
// look like a loss.
func TestDropMakesNamesDurable(t *testing.T) {
	list := series(0, 60, 22)
	b := newBench(t)
	synced, removed := false, 0
	b.o.FS = &vfs.Faulty{FS: diskFS, Before: func(op vfs.Op, name string) (int, error) {
		switch {
		case op == vfs.OpSyncDir && name == b.o.Dir:
			synced = true
		case op == vfs.OpRemove:
			if removed++; !synced {
				t.Errorf("%s is removed first", name)
			}
		}
		return 0, nil
	}}
	c, _ := b.open(0)
	for n := 0; c.Segments() < 2; n++ {
		b.sync(c)
		b.append(c, list[n:n+1])
	}
	synced = false // the second segment's name came after
	if err := c.Drop(c.Spans()[0].End); err != nil || removed == 0 {
		t.Fatalf("%v, %d removed", err, removed)
	}
}
