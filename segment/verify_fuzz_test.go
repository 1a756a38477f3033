package segment

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// smallDir is a small data directory, closed cleanly: its files by name, and its records.
func smallDir(t testing.TB) (names []string, content map[string][]byte, values map[int64]string) {
	t.Helper()
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.MaxBytes, o.MaxRecordBytes, o.JournalBytes, o.AppendBytes, o.MemoryBytes = 4<<10, 1<<10, 64<<10, 256, 8<<10
	l, p := openOne(t, o)
	for f := newFiller(l, p); f.next < 2500; {
		f.addAll(t, 100)
		eventually(t, "it is in a segment", func() bool { return p.chain.NextOffset() == int64(f.next) })
	}
	l.SetCursor(p, "eu", 1000, nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	content = map[string][]byte{}
	err := filepath.WalkDir(o.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == lockName {
			return err
		}
		name, _ := filepath.Rel(o.Dir, path)
		names = append(names, name)
		content[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, content, harmed{t, o.Dir}.values()
}

// FuzzVerify spoils a file or two of a data directory. Verify never calls it clean when a record that was there can't be
// read, by whoever only looks or by the broker, and never fails; repair makes it clean.
func FuzzVerify(f *testing.F) {
	names, content, want := smallDir(f)
	for i := range names {
		f.Add(byte(i), byte(0), uint32(5000), byte(4), byte(i), uint32(0), byte(0))
		f.Add(byte(i), byte(i), uint32(i*777), byte(1), byte(i+1), uint32(13), byte(128))
	}
	f.Fuzz(func(t *testing.T, file, op byte, at uint32, x byte, other byte, otherAt uint32, y byte) {
		h := harmed{t, filepath.Join(t.TempDir(), "data")}
		spoilt := maps.Clone(content)
		name := names[int(file)%len(names)]
		p := append([]byte{}, content[name]...)
		at %= uint32(len(p) + 1)
		switch op % 4 {
		case 0:
			if int(at) < len(p) {
				p[at] ^= x
			}
		case 1:
			p = p[:at]
		case 2:
			clear(p[at:])
		default:
			p = nil
		}
		if spoilt[name] = p; p == nil {
			delete(spoilt, name)
		}
		second := names[int(other)%len(names)]
		if q := append([]byte{}, spoilt[second]...); len(q) > 0 {
			q[otherAt%uint32(len(q))] ^= y
			spoilt[second] = q
		}
		for name, p := range spoilt {
			if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(h.path(name), p, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		checkSpoilt(h, want)
	})
}

func checkSpoilt(h harmed, want map[int64]string) {
	var list []Finding
	sum, err := Verify(h.dir, func(f Finding) error { list = append(list, f); return nil })
	if newer := err != nil; newer {
		return // a bit of the format's number
	}
	if sum.Clean() {
		if got := h.values(); !maps.Equal(got, want) {
			h.Fatalf("clean with %d of %d records: %+v", len(got), len(want), list)
		}
		l := openLog(h, testOptions(h.copy().dir))
		if got := values(h, l.Topic("t").Partitions()[0], 0, 1<<20); len(got) != len(want) {
			h.Fatalf("clean, and the broker finds %d of %d records: %+v", len(got), len(want), list)
		}
		l.Close()
		return
	}
	if _, err := Repair(RepairOptions{Dir: h.dir}, func(RepairAction) {}); err != nil {
		h.Fatalf("%v\nfound before: %+v", err, list)
	}
	if list, sum := findings(h, h.dir); !sum.Clean() {
		h.Fatalf("after repair: %+v", list)
	}
	for offset, value := range h.values() {
		if want[offset] != value {
			h.Fatalf("offset %d is %.20q", offset, value)
		}
	}
}
