package files

import "testing"

// TestDropOfClosedSegment: a segment that was synced to its end when it was active, and closed since, goes at once: there
// may be no Sync for a long time.
func TestDropOfClosedSegment(t *testing.T) {
	list := series(0, 60, 21)
	b := newBench(t)
	c, _ := b.open(0)
	n := 0
	for ; c.Segments() < 2; n++ {
		b.sync(c)
		b.append(c, list[n:n+1])
	}
	first := c.Spans()[0]
	if first.Active || first.End != c.SyncedOffset() {
		t.Fatalf("synced up to %d, %+v", c.SyncedOffset(), c.Spans())
	}
	if err := c.Drop(first.End); err != nil {
		t.Fatal(err)
	}
	if c.Segments() != 1 || c.Spans()[0].Base != first.End {
		t.Fatalf("%+v", c.Spans())
	}
	c.Distrust(errIO) // Restart goes back to the synced offset, where nothing is any more
	o := &owner{t: t, c: c, held: list[:n]}
	o.mustRestart()
	o.catchUp(n - 1)
	b.append(c, list[n:])
	b.sync(c)
	b.wantContent(c, stillThere(list, first.End))
	if c.Bytes() != b.diskBytes() {
		t.Errorf("%d bytes, on disk %d", c.Bytes(), b.diskBytes())
	}
	b.verify()
}
