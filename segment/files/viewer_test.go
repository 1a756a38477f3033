package files

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

func viewAll(t *testing.T, v *Viewer, from int64) []byte {
	t.Helper()
	var got []byte
	if err := v.Batches(from, func(x record.Batch, _ Place) error { got = append(got, x...); return nil }); err != nil {
		t.Fatalf("view: %v", err)
	}
	return got
}

func TestViewer(t *testing.T) {
	b := newBench(t)
	list := series(0, 60, 91)
	c, _ := b.open(0)
	b.append(c, list)
	before := dirState(t, b.o.Dir)
	v, err := OpenReadOnly(vfs.OS, b.o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range list {
		if got := viewAll(t, v, x.LastOffset()); !bytes.Equal(got, joined(list[i:])) {
			t.Fatalf("from %d: %d bytes", x.LastOffset(), len(got))
		}
	}
	stop := errors.New("stop")
	if err := v.Batches(0, func(record.Batch, Place) error { return stop }); err != stop {
		t.Errorf("fn's error became %v", err)
	}
	// A batch that is being written is the end.
	half := makeBatch(c.NextOffset(), 2, 400, 1)
	b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return append(p, half[:len(half)/2]...) })
	if got := viewAll(t, v, 0); !bytes.Equal(got, joined(list)) {
		t.Errorf("with a short end: %d bytes", len(got))
	}
	b.edit(b.lastFile(logSuffix), func(p []byte) []byte { return p[:len(p)-len(half)/2] })
	if after := dirState(t, b.o.Dir); after != before {
		t.Errorf("the viewer changed something:\n%s\n%s", before, after)
	}
	// Damage is reported with its place, and the rest can be had.
	bad := list[30]
	path := flip(b, bad, 65)
	var got []byte
	from, errs := int64(0), 0
	for {
		err := v.Batches(from, func(x record.Batch, at Place) error {
			got = append(got, x...)
			return nil
		})
		if err == nil {
			break
		}
		var de *DamageError
		if !errors.As(err, &de) || de.Path != path || de.Offset != bad.BaseOffset() || de.Resume != bad.NextOffset() {
			t.Fatalf("%v", err)
		}
		from = de.Resume
		errs++
	}
	if want := append(joined(list[:30]), joined(list[31:])...); errs != 1 || !bytes.Equal(got, want) {
		t.Errorf("%d errors, %d bytes, want %d", errs, len(got), len(want))
	}
}

func dirState(t *testing.T, dir string) string {
	t.Helper()
	var s strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		p, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		s.WriteString(e.Name())
		s.WriteString(" ")
		s.Write(p)
		s.WriteString("\n")
	}
	return s.String()
}
