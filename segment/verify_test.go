package segment

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

func findings(t testing.TB, dir string) ([]Finding, VerifySummary) {
	t.Helper()
	var list []Finding
	sum, err := Verify(dir, func(f Finding) error { list = append(list, f); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return list, sum
}

// harmed is a data directory that is to be damaged.
type harmed struct {
	testing.TB
	dir string
}

const harmedRecords = 4000 // of each partition, in some four segments

// fill makes topic t with two partitions and so many records that the journal has lost them, in batches of a few KiB.
func fill(t testing.TB, l *Log) {
	t.Helper()
	for _, p := range createTopic(t, l, "t", 2, record.None).Partitions() {
		for f := newFiller(l, p); f.next < harmedRecords; {
			if err := f.add(100); err != nil { // one group, one batch
				t.Fatal(err)
			}
			f.wait(t)
			eventually(t, "it is in a segment", func() bool { return p.chain.NextOffset() == int64(f.next) })
		}
		l.SetCursor(p, "eu", 1000, nil)
	}
	newFiller(l, createTopic(t, l, "other", 1, record.None).Partitions()[0]).addAll(t, 30000)
}

func harmedOptions(dir string) Options {
	o := testOptions(dir)
	o.AppendBytes = 256
	return o
}

// intact makes a data directory that was closed cleanly.
func intact(t testing.TB) harmed {
	t.Helper()
	o := harmedOptions(t.TempDir())
	l := openLog(t, o)
	fill(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return harmed{t, o.Dir}
}

// crashed makes one as a kill leaves it: the last records of each partition are in the journal only, and some that the segments
// have are there too.
func crashed(t testing.TB) harmed {
	t.Helper()
	o := harmedOptions(t.TempDir())
	l := openLog(t, o)
	fill(t, l)
	parts := l.Topic("t").Partitions()
	for _, p := range parts {
		f := newFiller(l, p)
		f.next = harmedRecords
		f.acked.Store(harmedRecords)
		f.addAll(t, 200)
		eventually(t, "it is in a segment", func() bool { return p.chain.NextOffset() == int64(f.next) })
	}
	eventually(t, "no checkpoint is under way", l.checkpoints.idle) // which would swallow the wish for another
	l.askForRoll()
	eventually(t, "a checkpoint", func() bool { return l.store.Point().Ends["t-0"] == harmedRecords+200 })
	for i := range 3 {
		for _, p := range parts {
			put(t, l, p, numberedValue(harmedRecords+200+i))
		}
	}
	return harmed{t, o.Dir}.copy()
}

func (h harmed) copy() harmed {
	h.Helper()
	dir := filepath.Join(h.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(h.dir)); err != nil {
		h.Fatal(err)
	}
	return harmed{h.TB, dir}
}

func (h harmed) path(name string) string { return filepath.Join(h.dir, filepath.FromSlash(name)) }

// logs are t-0's log files.
func (h harmed) logs() []files.SegmentInfo {
	h.Helper()
	list, err := files.List(vfs.OS, h.path("topics/t-0"))
	if err != nil || len(list) < 3 {
		h.Fatalf("segments %v, %v", list, err)
	}
	return list
}

type piece struct {
	at         int64
	size       int
	base, next int64
}

// batches are those of t-0's segment i.
func (h harmed) batches(i int) (list []piece) {
	h.Helper()
	data, err := os.ReadFile(h.logs()[i].Path)
	if err != nil {
		h.Fatal(err)
	}
	for rest := data; len(rest) > 0; {
		b, more, err := record.Next(rest)
		if err != nil {
			h.Fatal(err)
		}
		list = append(list, piece{int64(len(data) - len(rest)), len(b), b.BaseOffset(), b.NextOffset()})
		rest = more
	}
	return list
}

func (h harmed) edit(path string, fn func(p []byte) []byte) {
	h.Helper()
	p, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(p), 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
}

func (h harmed) flip(path string, at int64) {
	h.Helper()
	h.edit(path, func(p []byte) []byte { p[at] ^= 4; return p })
}

func (h harmed) remove(path string) {
	h.Helper()
	if err := os.RemoveAll(path); err != nil {
		h.Fatal(err)
	}
}

// newestState is the path of the state file that counts, and the other one.
func (h harmed) states() (newest, other string) {
	h.Helper()
	v := verifier{fs: vfs.OS, dir: h.dir}
	if err := v.look(); err != nil || v.facts.newest == nil {
		h.Fatalf("no state: %v", err)
	}
	newest = v.facts.newest.Path
	for _, name := range []string{"state-a.db", "state-b.db"} {
		if path := h.path(name); path != newest {
			return newest, path
		}
	}
	panic("no other state file")
}

// values are t-0's records by offset, as a reader finds them.
func (h harmed) values() map[int64]string {
	h.Helper()
	view, err := OpenView(h.dir)
	if err != nil {
		h.Fatal(err)
	}
	got := map[int64]string{}
	d := record.NewDecoder(1 << 20)
	err = view.Batches(ViewPartition{"t", 0}, 0, func(b record.Batch, _ Place) error {
		return d.Records(b, func(r *record.Record) error { got[r.Offset] = string(r.Value); return nil })
	}, func(*DamageError) error { return nil })
	if err != nil {
		h.Fatal(err)
	}
	return got
}

// short is a finding in one line.
func (h harmed) short(f Finding) string {
	rel, _ := filepath.Rel(h.dir, f.Path)
	s := fmt.Sprintf("%s %s %s", f.Severity, f.Kind, filepath.ToSlash(rel))
	if f.Position >= 0 {
		s += fmt.Sprintf(":%d", f.Position)
	}
	if f.From >= 0 {
		s += fmt.Sprintf(" %d-%d", f.From, f.To)
	}
	return s
}

func (h harmed) shorts(list []Finding) []string {
	var s []string
	for _, f := range list {
		s = append(s, h.short(f))
		if f.What == "" || f.Remedy == "" {
			h.Errorf("no words: %+v", f)
		}
	}
	return s
}

// damageCase is a row of the damage table: what is done to the directory, what verify then says, and which offsets of t-0 are
// lost for good.
type damageCase struct {
	name  string
	crash bool // to a crashed directory, not an intact one
	harm  func(h harmed) (want []string, lost files.Ranges)
}

// healthy is an intact and a crashed directory, to be copied.
type healthy struct{ intact, crashed harmed }

func (from healthy) make(t testing.TB, c damageCase) harmed {
	h := from.intact
	if c.crash {
		h = from.crashed
	}
	h.TB = t
	return h.copy()
}

func damageTable() []damageCase {
	seg := func(h harmed, i int) (string, string) {
		path := h.logs()[i].Path
		return path, "topics/t-0/" + filepath.Base(path)
	}
	index := func(path, suffix string) string { return strings.TrimSuffix(path, ".log") + suffix }
	return []damageCase{
		{name: "nothing", harm: func(h harmed) ([]string, files.Ranges) { return nil, nil }},
		{name: "flipped bit in a body", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			b := h.batches(1)[2]
			h.flip(path, b.at+100)
			return []string{fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, b.next)}, files.Ranges{{From: b.base, To: b.next}}
		}},
		{name: "two stretches in a segment, one at its beginning", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			all := h.batches(1)
			a, b := all[0], all[3]
			h.flip(path, a.at+100)
			h.flip(path, b.at+100)
			return []string{
				fmt.Sprintf("damage batch %s:%d %d-%d", name, a.at, a.base, a.next), fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, b.next),
			}, files.Ranges{{From: a.base, To: a.next}, {From: b.base, To: b.next}}
		}},
		{name: "flipped bits in what no checksum covers", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			var want []string
			for i, field := range []int64{6, 10, 14, 16} {
				b := h.batches(1)[0]
				all := h.batches(2)
				if i > 0 {
					path, name = seg(h, 2)
					b = all[2*i-1]
				}
				defer h.flip(path, b.at+field)
				want = append(want, fmt.Sprintf("fault batch %s:%d %d-%d", name, b.at, b.base, b.next))
			}
			return want, nil
		}},
		{name: "last batch of the log", harm: func(h harmed) ([]string, files.Ranges) {
			i := len(h.logs()) - 1
			path, name := seg(h, i)
			all := h.batches(i)
			b := all[len(all)-1]
			h.flip(path, b.at+80)
			return []string{fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, b.next)}, files.Ranges{{From: b.base, To: b.next}}
		}},
		{name: "last batch of a closed segment", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 0)
			all := h.batches(0)
			b := all[len(all)-1]
			h.flip(path, b.at+80)
			return []string{fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, b.next)}, files.Ranges{{From: b.base, To: b.next}}
		}},
		{name: "closed segment cut at a batch", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 0)
			all := h.batches(0)
			b, next := all[len(all)-2], all[len(all)-1].next
			h.edit(path, func(p []byte) []byte { return p[:b.at] })
			return []string{
				fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, next),
				fmt.Sprintf("fault index %s:%d 0-%d", index(name, ".index"), h.entry(index(path, ".index"), 8, 4, b.at), b.base),
				fmt.Sprintf("fault timeindex %s:%d 0-%d", index(name, ".timeindex"), h.entryFrom(index(path, ".timeindex"), 12, 8, b.base), b.base),
			}, files.Ranges{{From: b.base, To: next}}
		}},
		{name: "log cut within a batch", harm: func(h harmed) ([]string, files.Ranges) {
			i := len(h.logs()) - 1
			path, name := seg(h, i)
			all := h.batches(i)
			b := all[len(all)-1]
			h.edit(path, func(p []byte) []byte { return p[:b.at+70] })
			return []string{fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, harmedRecords)}, files.Ranges{{From: b.base, To: harmedRecords}}
		}},
		{name: "log file in the middle gone", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			from, to := h.logs()[1].Base, h.logs()[2].Base
			h.remove(path)
			return []string{
				fmt.Sprintf("damage missing %s %d-%d", name, from, to),
				fmt.Sprintf("fault leftover %s %d--1", index(name, ".index"), from), fmt.Sprintf("fault leftover %s %d--1", index(name, ".timeindex"), from),
			}, files.Ranges{{From: from, To: to}}
		}},
		{name: "last log file gone", harm: func(h harmed) ([]string, files.Ranges) {
			i := len(h.logs()) - 1
			path, name := seg(h, i)
			_, before := seg(h, i-1)
			base := h.logs()[i].Base
			h.remove(path)
			return []string{
				fmt.Sprintf("damage missing %s:%d %d-%d", before, h.logs()[i-1].Bytes, base, harmedRecords),
				fmt.Sprintf("fault leftover %s %d--1", index(name, ".index"), base), fmt.Sprintf("fault leftover %s %d--1", index(name, ".timeindex"), base),
			}, files.Ranges{{From: base, To: harmedRecords}}
		}},
		{name: "partition's directory gone", harm: func(h harmed) ([]string, files.Ranges) {
			h.remove(h.path("topics/t-0"))
			return []string{"damage missing topics/t-0 0-4000"}, files.Ranges{{From: 0, To: harmedRecords}}
		}},
		{name: "partition is a file", harm: func(h harmed) ([]string, files.Ranges) {
			h.remove(h.path("topics/t-0"))
			if err := os.WriteFile(h.path("topics/t-0"), []byte("no"), 0o600); err != nil {
				h.Fatal(err)
			}
			return []string{"damage directory topics/t-0 0-4000"}, files.Ranges{{From: 0, To: harmedRecords}}
		}},
		{name: "two log files swapped", harm: func(h harmed) ([]string, files.Ranges) {
			a, nameA := seg(h, 0)
			b, nameB := seg(h, 1)
			l := h.logs()
			p, _ := os.ReadFile(a)
			h.edit(a, func([]byte) []byte { q, _ := os.ReadFile(b); return q })
			h.edit(b, func([]byte) []byte { return p })
			return []string{fmt.Sprintf("damage batch %s:0 0-%d", nameA, l[1].Base), fmt.Sprintf("damage batch %s:0 %d-%d", nameB, l[1].Base, l[2].Base)},
				files.Ranges{{From: 0, To: l[2].Base}}
		}},
		{name: "index missing", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			h.remove(index(path, ".index"))
			return []string{fmt.Sprintf("fault index %s:0 %d-%d", index(name, ".index"), h.logs()[1].Base, h.logs()[2].Base)}, nil
		}},
		{name: "bits flipped in both indexes", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 1)
			l := h.logs()
			h.flip(index(path, ".index"), 8+7)
			h.flip(index(path, ".timeindex"), 12+7)
			return []string{fmt.Sprintf("fault index %s:8 %d-%d", index(name, ".index"), l[1].Base, l[2].Base),
				fmt.Sprintf("fault timeindex %s:12 %d-%d", index(name, ".timeindex"), l[1].Base, l[2].Base)}, nil
		}},
		{name: "index of the last segment, of an odd size", harm: func(h harmed) ([]string, files.Ranges) {
			i := len(h.logs()) - 1
			path, name := seg(h, i)
			size := 0
			h.edit(index(path, ".index"), func(p []byte) []byte { size = len(p) - 8; return p[:len(p)-3] })
			return []string{fmt.Sprintf("fault index %s:%d %d-%d", index(name, ".index"), size, h.logs()[i].Base, harmedRecords)}, nil
		}},
		{name: "index of all zeros", harm: func(h harmed) ([]string, files.Ranges) {
			path, name := seg(h, 0)
			h.edit(index(path, ".index"), func(p []byte) []byte { clear(p); return p })
			return []string{fmt.Sprintf("fault index %s:0 0-%d", index(name, ".index"), h.logs()[1].Base)}, nil
		}},
		{name: "leftovers", harm: func(h harmed) ([]string, files.Ranges) {
			for _, name := range []string{"topics/t-0/x.index.new", "topics/t-0/what", "state-a.db.new", "notes.txt", "topics/lost+found", "journal/x"} {
				if err := os.WriteFile(h.path(name), []byte("x"), 0o600); err != nil {
					h.Fatal(err)
				}
			}
			return []string{"note unknown-file notes.txt", "note leftover state-a.db.new", "note unknown-file journal/x", "note unknown-file topics/lost+found",
				"note unknown-file topics/t-0/what", "note leftover topics/t-0/x.index.new"}, nil
		}},
		{name: "newest state file damaged", harm: func(h harmed) ([]string, files.Ranges) {
			newest, _ := h.states()
			h.edit(newest, func(p []byte) []byte { clear(p); return p })
			return []string{"fault state " + filepath.Base(newest) + ":0"}, nil
		}},
		{name: "older state file missing", harm: func(h harmed) ([]string, files.Ranges) {
			_, other := h.states()
			h.remove(other)
			return []string{"fault state " + filepath.Base(other)}, nil
		}},
		{name: "a meta page damaged", harm: func(h harmed) ([]string, files.Ranges) {
			_, other := h.states()
			h.flip(other, 4096+30)
			return []string{"fault state " + filepath.Base(other) + ":4096"}, nil
		}},
		{name: "a value damaged", harm: func(h harmed) ([]string, files.Ranges) {
			newest, _ := h.states()
			p, _ := os.ReadFile(newest)
			at := bytes.LastIndex(p, []byte("cursor/t/0/eu"))
			if at < 0 {
				h.Fatal("no cursor in the state file")
			}
			for at = 0; ; at++ { // one of the copies is the valid one
				i := bytes.Index(p[at:], []byte("cursor/t/0/eu"))
				if i < 0 {
					break
				}
				at += i
				h.flip(newest, int64(at)+15)
			}
			return []string{"fault state " + filepath.Base(newest) + ":*"}, nil
		}},
		{name: "both state files damaged", harm: func(h harmed) ([]string, files.Ranges) {
			for _, name := range []string{"state-a.db", "state-b.db"} {
				h.edit(h.path(name), func(p []byte) []byte { return p[:100] })
			}
			return []string{"damage state state-a.db:0", "damage state state-b.db:0", "damage state .", "fault topic topics/other-0", "fault topic topics/t-0"}, nil
		}},
		{name: "both state files missing", harm: func(h harmed) ([]string, files.Ranges) {
			h.remove(h.path("state-a.db"))
			h.remove(h.path("state-b.db"))
			return []string{"damage state .", "fault topic topics/other-0", "fault topic topics/t-0"}, nil
		}},
		{name: "no state, and a batch damaged", harm: func(h harmed) ([]string, files.Ranges) {
			h.remove(h.path("state-a.db"))
			h.remove(h.path("state-b.db"))
			path, name := seg(h, 1)
			b := h.batches(1)[1]
			h.flip(path, b.at+100)
			return []string{"damage state .", "fault topic topics/other-0", fmt.Sprintf("damage batch %s:%d %d-%d", name, b.at, b.base, b.next), "fault topic topics/t-0"},
				files.Ranges{{From: b.base, To: b.next}}
		}},
		{name: "journal gone", harm: func(h harmed) ([]string, files.Ranges) {
			h.remove(h.path("journal"))
			return []string{"damage journal journal"}, nil
		}},
		{name: "partition that the topic doesn't have", harm: func(h harmed) ([]string, files.Ranges) {
			if err := os.CopyFS(h.path("topics/t-5"), os.DirFS(h.path("topics/t-1"))); err != nil {
				h.Fatal(err)
			}
			return []string{"fault topic topics/t-5"}, nil
		}},
		{name: "topic that the state doesn't know", harm: func(h harmed) ([]string, files.Ranges) {
			if err := os.CopyFS(h.path("topics/u-0"), os.DirFS(h.path("topics/t-1"))); err != nil {
				h.Fatal(err)
			}
			return []string{"fault topic topics/u-0"}, nil
		}},

		{name: "a crash", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			l := h.logs()
			last := l[len(l)-1]
			_ = last
			return []string{"note journal-only *", "note journal-only *"}, nil
		}},
		{name: "torn tail", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			i := len(h.logs()) - 1
			path, name := seg(h, i)
			all := h.batches(i)
			end := all[len(all)-1]
			h.edit(path, func(p []byte) []byte { return append(p, make([]byte, 300)...) })
			return []string{fmt.Sprintf("note tail %s:%d %d--1", name, end.at+int64(end.size), end.next), "note journal-only *", "note journal-only *"}, nil
		}},
		{name: "damage that the journal makes good", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			// Below the recovery point, but in the journal that the older state file needs.
			path, name, b := h.covered()
			h.flip(path, b.at+100)
			return []string{fmt.Sprintf("fault batch %s:%d %d-%d", name, b.at, b.base, b.next), "note journal-only *", "note journal-only *"}, nil
		}},
		{name: "frame in the journal", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			path, at := h.frame(harmedRecords + 200)
			h.flip(path, at+60)
			return []string{"damage journal journal/" + filepath.Base(path) + fmt.Sprintf(":%d", at), "damage missing *", "note journal-only *", "note journal-only *"},
				nil // but for a byte that the batch's checksum leaves out nothing of the record is wrong
		}},
		{name: "first 16 KiB of the journal", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			path, _ := h.frame(harmedRecords + 200)
			h.edit(path, func(p []byte) []byte { clear(p[:16384]); return p })
			return []string{"fault journal journal", "damage journal journal*", "fault journal journal/" + filepath.Base(path) + ":0",
				"damage missing *", "note journal-only *", "damage missing *", "note journal-only *"}, files.Ranges{{From: harmedRecords + 200, To: harmedRecords + 201}}
		}},
		{name: "both headers of the journal", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			path, _ := h.frame(harmedRecords + 200)
			h.edit(path, func(p []byte) []byte { clear(p[:8192]); return p })
			return []string{"fault journal journal", "fault journal journal/" + filepath.Base(path) + ":0", "note journal-only *", "note journal-only *"}, nil
		}},
		{name: "one header of the journal", crash: true, harm: func(h harmed) ([]string, files.Ranges) {
			path, _ := h.frame(harmedRecords + 200)
			h.flip(path, 20)
			return []string{"fault journal journal/" + filepath.Base(path) + ":0", "note journal-only *", "note journal-only *"}, nil
		}},
	}
}

// entry is the position of the index entry whose field at the byte says value, and entryFrom of the first that says as much.
func (h harmed) entry(path string, width, field int, value int64) int64 {
	h.Helper()
	return h.findEntry(path, width, field, func(v int64) bool { return v == value })
}

func (h harmed) entryFrom(path string, width, field int, value int64) int64 {
	h.Helper()
	return h.findEntry(path, width, field, func(v int64) bool { return v >= value })
}

func (h harmed) findEntry(path string, width, field int, fits func(int64) bool) int64 {
	h.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		h.Fatal(err)
	}
	for at := 0; at+width <= len(p); at += width {
		v := int64(p[at+field])<<24 | int64(p[at+field+1])<<16 | int64(p[at+field+2])<<8 | int64(p[at+field+3])
		if fits(v) {
			return int64(at)
		}
	}
	h.Fatalf("%s has no such entry", path)
	return 0
}

// covered finds a batch of t-0's segments that lies below the recovery point and that the journal holds.
func (h harmed) covered() (path, name string, b piece) {
	h.Helper()
	v := verifier{fs: vfs.OS, dir: h.dir}
	if err := v.look(); err != nil {
		h.Fatal(err)
	}
	end, held := v.facts.newest.Point.Ends["t-0"], v.facts.journal[ViewPartition{"t", 0}]
	for i, s := range h.logs() {
		for _, b := range h.batches(i) {
			whole := false
			held.Split(b.base, b.next, func(r files.Range, in bool) { whole = in && r == files.Range{From: b.base, To: b.next} })
			if whole && b.next <= end {
				return s.Path, "topics/t-0/" + filepath.Base(s.Path), b
			}
		}
	}
	h.Fatalf("the journal holds %v, the recovery point is %d", held, end)
	return "", "", b
}

// frame finds the frame with the record of t-0 at offset.
func (h harmed) frame(offset int64) (path string, at int64) {
	h.Helper()
	var want uint64
	_, err := journal.Inspect(vfs.OS, journal.Dir(h.dir), func(lsn uint64, e *journal.Entry) error {
		if e.Kind == journal.KindBatch && string(e.Topic) == "t" && e.Partition == 0 && record.Batch(e.Batch).BaseOffset() == offset {
			want = lsn
		}
		return nil
	})
	if err != nil {
		h.Fatal(err)
	}
	names, _ := filepath.Glob(h.path("journal/*.journal"))
	for _, name := range names {
		p, err := os.ReadFile(name)
		if err != nil {
			h.Fatal(err)
		}
		magic := fmt.Appendf(nil, "SLJF")
		for at := 8192; at+32 <= len(p); at += 4096 {
			lsn := uint64(0)
			for _, c := range p[at+8 : at+16] {
				lsn = lsn<<8 | uint64(c)
			}
			if bytes.HasPrefix(p[at:], magic) && lsn == want {
				return name, int64(at)
			}
		}
	}
	h.Fatal("no frame")
	return "", 0
}

// matches compares line by line; a * at the end of a wanted line stands for anything.
func matches(got, want []string) bool {
	return slices.EqualFunc(got, want, func(g, w string) bool {
		if stem, any := strings.CutSuffix(w, "*"); any {
			return strings.HasPrefix(g, stem)
		}
		return g == w
	})
}

// Verify says exactly what is wrong, repair mends it, verify is clean then, and no more is lost than has to be.
func TestVerifyAndRepairDamage(t *testing.T) {
	from := healthy{intact(t), crashed(t)}
	for _, c := range damageTable() {
		t.Run(c.name, func(t *testing.T) {
			h := from.make(t, c)
			before := h.values()
			want, lost := c.harm(h)
			list, sum := findings(t, h.dir)
			got := h.shorts(list)
			if !matches(got, want) {
				t.Errorf("findings\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
				for _, f := range list {
					t.Log(f.What)
				}
			}
			bad := slices.ContainsFunc(want, func(s string) bool { return !strings.HasPrefix(s, "note") })
			if sum.Clean() == bad {
				t.Errorf("clean: %v", sum.Clean())
			}
			h.repaired(before, lost)
		})
	}
}

// repaired repairs the directory, first dry, and looks at what is there then.
func (h harmed) repaired(before map[int64]string, lost files.Ranges) {
	h.Helper()
	dry := h.snapshot()
	var planned []RepairAction
	if _, err := Repair(RepairOptions{Dir: h.dir, DryRun: true}, func(a RepairAction) { planned = append(planned, a) }); err != nil {
		h.Fatal(err)
	}
	if after := h.snapshot(); dry != after {
		h.Error("a dry run has changed something")
	}
	var done []RepairAction
	result, err := Repair(RepairOptions{Dir: h.dir}, func(a RepairAction) { done = append(done, a) })
	if err != nil {
		h.Fatalf("repair: %v\n%+v", err, done)
	}
	if (len(planned) == 0) != (len(done) == 0) {
		h.Errorf("planned %+v\ndone %+v", planned, done)
	}
	list, sum := findings(h, h.dir)
	for _, f := range list {
		if f.Severity != SeverityNote || f.Fix != files.FixNone {
			h.Errorf("after repair: %+v", f)
		}
	}
	if !sum.Clean() {
		h.Errorf("after repair: %+v", sum)
	}
	var losses files.Ranges
	for _, l := range result.Losses {
		if l.Topic == "t" && l.Partition == 0 {
			losses = l.Offsets
		}
	}
	if !slices.Equal(losses, lost) {
		h.Errorf("repair says that offsets %v are lost, want %v", losses, lost)
	}
	after := h.values()
	for offset, value := range before {
		_, has := after[offset]
		gone := false
		lost.Split(offset, offset+1, func(_ files.Range, in bool) { gone = in })
		if has == gone || has && after[offset] != value {
			h.Fatalf("offset %d: there %v, lost %v", offset, has, gone)
		}
	}
	if len(after) > len(before) {
		h.Errorf("%d records, before %d", len(after), len(before))
	}
	l := openLog(h, testOptions(h.dir))
	defer l.Close()
	if r := l.Recovered(); len(r.Damages) > 0 || !r.Clean {
		h.Errorf("start after repair: %+v", r)
	}
	if offset := put(h, l, l.Topic("t").Partitions()[0], "more"); offset < int64(len(before)) {
		h.Errorf("offset %d is given again", offset)
	}
}

// snapshot is all names and contents.
func (h harmed) snapshot() string {
	h.Helper()
	var s strings.Builder
	err := filepath.WalkDir(h.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		p, err := os.ReadFile(path)
		fmt.Fprintf(&s, "%s %d %x\n", path, len(p), crc32.ChecksumIEEE(p))
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	return s.String()
}
