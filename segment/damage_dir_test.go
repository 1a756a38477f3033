package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// A scene is a data directory with known content, as a crash or a clean stop leaves it, to be copied and damaged.
type scene struct {
	kind    string
	o       Options
	values  map[string][]string // by partition
	state   map[string]string
	journal string  // the file in use, as all paths relative to the directory
	older   string  // the one before it
	frames  []frame // the last ones, in the file in use
	logs    []string
	batches []frame           // the last two of the last log of a-0
	states  [2]string         // newest first
	past    map[string][]byte // content of the state files some checkpoints before
}

// frame is a stretch of a file: of a journal frame the entries, too, without padding.
type frame struct{ at, end int64 }

// The ways in which a scene ends.
const (
	journalOnly = "journal only"     // killed: the last frames are in the journal only
	inSegments  = "also in segments" // killed: they are in the segments as well, unsynced
	recycled    = "recycled"         // stopped cleanly: segments and state have everything
)

func sceneOptions(dir string) Options {
	o := testOptions(dir)
	o.MaxBytes, o.MaxRecordBytes, o.JournalBytes = 8<<10, 2<<10, 128<<10
	o.FS = nosync{vfs.OS}
	o.AppendBytes, o.MemoryBytes = 1<<20, 4<<20 // only checkpoints append, so that each run makes the same files
	return o
}

func newScene(t *testing.T, kind string) *scene {
	t.Helper()
	s := &scene{kind: kind, o: sceneOptions(filepath.Join(t.TempDir(), "data")), values: map[string][]string{}, state: map[string]string{}}
	l := openLog(t, s.o)
	createTopic(t, l, "a", 2, record.None)
	createTopic(t, l, "b", 1, record.None)
	for i := range 10 { // three segments each, and every journal file used more than once
		for j := range 8 {
			s.write(t, l, fmt.Sprint("s/old", j), 30, "a-0", "a-1", "b-0")
		}
		s.checkpoint(t, l)
		if i == 5 {
			s.past = map[string][]byte{"state-a.db": readFile(t, s.o.Dir, "state-a.db"), "state-b.db": readFile(t, s.o.Dir, "state-b.db")}
		}
	}
	for range 2 {
		s.write(t, l, "s/old9", 1, "a-0", "a-1", "b-0")
		s.checkpoint(t, l)
	}
	s.checkpoint(t, l)
	for i, partitions := range [][]string{{"a-0"}, {"a-1"}, {"b-0"}, {"a-0", "a-1"}, {"a-0", "b-0"}, {"a-0", "a-1"}} {
		s.write(t, l, fmt.Sprint("s/new", i), max(1, 10-i*i), partitions...)
		for _, p := range l.allPartitions() {
			if kind == inSegments {
				if err := l.appendPartition(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if kind == recycled {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(s.o.Dir)); err != nil {
		t.Fatal(err)
	}
	l.Close()
	s.o.Dir = dir
	s.survey(t)
	return s
}

// checkpoint makes one behind all that was written.
func (s *scene) checkpoint(t *testing.T, l *Log) {
	t.Helper()
	before := l.Status().Checkpoints
	l.askForRoll()
	eventually(t, "a checkpoint", func() bool { return l.Status().Checkpoints > before && l.checkpoints.idle() })
}

// write makes one frame: n records in each of the partitions and a state value.
func (s *scene) write(t *testing.T, l *Log, key string, n int, partitions ...string) {
	t.Helper()
	w := l.NewWriter(nil)
	if err := w.Begin(); err != nil {
		t.Fatal(err)
	}
	for _, name := range partitions {
		for range n {
			v := fmt.Sprintf("%s %06d %s", name, len(s.values[name]), strings.Repeat("x", 60))
			w.Append(l.partitionNamed(name), &record.Record{Timestamp: int64(1000 + len(s.values[name])), Value: []byte(v)})
			s.values[name] = append(s.values[name], v)
		}
	}
	s.state[key] = fmt.Sprintf("%d", len(s.values["a-0"]))
	w.Put([]byte(key), []byte(s.state[key]))
	ticket := l.endWithTicket(w, nil, 0)
	wait(t, ticket, nil)
}

// survey finds what there is to damage.
func (s *scene) survey(t *testing.T) {
	t.Helper()
	newest, older := uint64(0), uint64(0)
	for _, path := range s.glob(t, "journal/*") {
		b := s.read(t, path)
		if lsn := binary.BigEndian.Uint64(b[24:]); string(b[:8]) == "SLUICEJN" && lsn > newest {
			s.older, s.journal, older, newest = s.journal, path, newest, lsn
		} else if string(b[:8]) == "SLUICEJN" && lsn > older {
			s.older, older = path, lsn
		}
	}
	b := s.read(t, s.journal)
	for at := int64(8192); at < int64(len(b)) && bytes.Equal(b[at:at+4], []byte("SLJF")) && bytes.Equal(b[at+16:at+24], b[16:24]); {
		end := at + 32 + int64(binary.BigEndian.Uint32(b[at+24:]))
		s.frames = append(s.frames, frame{at, end})
		at = (end + 4095) &^ 4095
	}
	s.logs = s.glob(t, "topics/a-0/*.log")
	b = s.read(t, s.logs[len(s.logs)-1])
	for at := int64(0); at < int64(len(b)); {
		end := at + 12 + int64(binary.BigEndian.Uint32(b[at+8:]))
		s.batches = append(s.batches, frame{at, end})
		at = end
	}
	behind := (s.frames[len(s.frames)-1].end + 4095) &^ 4095
	if stale := s.read(t, s.journal)[behind:]; !bytes.Contains(stale, []byte("SLJF")) {
		t.Fatal("no stale frames follow the last one")
	}
	if len(s.frames) != 6 || len(s.logs) < 3 || len(s.batches) < 2 {
		t.Fatalf("%d frames, logs %q, %d batches in the last", len(s.frames), s.logs, len(s.batches))
	}
	s.batches = s.batches[len(s.batches)-2:]
	s.states = [2]string{"state-a.db", "state-b.db"}
	if stateNumber(t, filepath.Join(s.o.Dir, s.states[0])) < stateNumber(t, filepath.Join(s.o.Dir, s.states[1])) {
		s.states[0], s.states[1] = s.states[1], s.states[0]
	}
}

// glob lists files, relative to the directory.
func (s *scene) glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(s.o.Dir, pattern))
	if len(names) == 0 {
		t.Fatalf("no %s", pattern)
	}
	for i, name := range names {
		names[i], _ = filepath.Rel(s.o.Dir, name)
	}
	return names
}

func (s *scene) read(t *testing.T, path string) []byte {
	t.Helper()
	return readFile(t, s.o.Dir, path)
}

func readFile(t *testing.T, dir, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sizeOf(s *scene, path string) int64 {
	info, err := os.Stat(filepath.Join(s.o.Dir, path))
	if err != nil {
		panic(err)
	}
	return info.Size()
}

// newestMeta is the place of the meta page of a bbolt file that counts: the one of the later transaction.
func newestMeta(b []byte) int64 {
	if binary.NativeEndian.Uint64(b[64:]) > binary.NativeEndian.Uint64(b[4096+64:]) {
		return 0
	}
	return 4096
}

// stateNumber is the number of a state file's checkpoint.
func stateNumber(t *testing.T, path string) (number uint64) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		number = binary.BigEndian.Uint64(tx.Bucket([]byte("meta")).Get([]byte("head")))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// ruin is a copy of a scene for one damage.
type ruin struct {
	*scene
	t   *testing.T
	dir string
}

// edit replaces a file's content; nil removes the file.
func (r *ruin) edit(path string, change func([]byte) []byte) {
	r.t.Helper()
	b := change(slices.Clone(r.read(r.t, path)))
	path = filepath.Join(r.dir, path)
	err := os.Remove(path)
	if b != nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *ruin) swap(one, other string) {
	r.t.Helper()
	a, b := r.read(r.t, one), r.read(r.t, other)
	r.edit(one, func([]byte) []byte { return b })
	r.edit(other, func([]byte) []byte { return a })
}

// result is what became of a damaged directory.
type result struct {
	lost    map[string][]int64 // offsets by partition
	state   []string           // keys that are lost or old
	said    string             // the gravest: nothing, note, torn, damage
	reading bool               // a reader met damage
	dump    string
	text    []string // Damages, Notes
}

func (r result) lostText() string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(r.lost)) {
		parts = append(parts, fmt.Sprintf("%d of %s", len(r.lost[p]), p))
	}
	if len(r.state) > 0 {
		parts = append(parts, fmt.Sprintf("%d state values", len(r.state)))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// quickDir is a name for a directory in memory, if there is such a place: bbolt syncs for real, thousands of times.
func quickDir(t *testing.T) (dir string, remove func()) {
	t.Helper()
	base, err := os.MkdirTemp("/dev/shm", "sluice-test-")
	if err != nil {
		base, err = os.MkdirTemp("", "sluice-test-")
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(base, "data"), func() { os.RemoveAll(base) }
}

// open opens the damaged copy, compares what it holds with what was written, and sees that no offset is given twice.
func (s *scene) open(t *testing.T, harm func(r *ruin)) result {
	t.Helper()
	dir, remove := quickDir(t)
	defer remove()
	if err := os.CopyFS(dir, os.DirFS(s.o.Dir)); err != nil {
		t.Fatal(err)
	}
	harm(&ruin{s, t, dir})
	o := s.o
	o.Dir = dir
	var res result
	res.dump = s.dump(t, dir)
	l, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer l.Close()
	s.compare(t, l, &res)
	rec := l.Recovered()
	res.text = append(slices.Clone(rec.Damages), rec.Notes...)
	switch {
	case len(rec.Damages) > 0:
		res.said = damage
	case rec.Torn:
		res.said = torn
	case len(rec.Notes) > 0:
		res.said = note
	default:
		res.said = silent
	}
	for name, want := range s.values {
		p := l.partitionNamed(name)
		if p == nil {
			t.Errorf("%s is gone", name)
			continue
		}
		if offset := put(t, l, p, "next"); offset < int64(len(want)) && (res.said != torn && res.said != silent || len(res.lost[name]) == 0) {
			t.Errorf("%s: offset %d was given before", name, offset)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l = openLog(t, o)
	again := l.Recovered()
	for _, d := range again.Damages { // what lies in a segment stays there
		if !slices.Contains(rec.Damages, d) {
			t.Errorf("the start after that says %s", d)
		}
	}
	if !again.Clean {
		t.Errorf("the start after that: %+v", again)
	}
	return res
}

// The ways in which a start speaks of damage, from the least to the gravest.
const (
	silent = ""
	note   = "note"
	torn   = "torn tail, counted"
	damage = "damage"
)

// compare finds out what is lost. Whatever is there has to be right.
func (s *scene) compare(t *testing.T, l *Log, res *result) {
	t.Helper()
	res.lost = map[string][]int64{}
	for name, want := range s.values {
		got := map[int64]string{}
		if p := l.partitionNamed(name); p != nil {
			got = readOver(t, p, &res.reading)
		}
		for offset, v := range want {
			switch g, ok := got[int64(offset)]; {
			case !ok:
				res.lost[name] = append(res.lost[name], int64(offset))
			case g != v:
				t.Errorf("%s at offset %d: %.30q, want %.30q", name, offset, g, v)
			}
		}
		if len(got) > len(want) {
			t.Errorf("%s has %d records, %d were written", name, len(got), len(want))
		}
	}
	for key, want := range s.state {
		if v, ok, err := l.Get([]byte(key)); !ok || string(v) != want || err != nil {
			res.state = append(res.state, key)
		}
	}
	slices.Sort(res.state)
}

// readOver reads a partition from its start, over damage.
func readOver(t *testing.T, p *Partition, damaged *bool) map[int64]string {
	t.Helper()
	got := map[int64]string{}
	d := record.NewDecoder(1 << 20)
	for offset := p.StartOffset(); offset < p.HighWatermark(); {
		b, err := p.Read(nil, offset, 8<<10)
		var bad *DamageError
		if errors.As(err, &bad) {
			*damaged = true
			if bad.Resume <= offset || bad.Resume == math.MaxInt64 {
				break
			}
			offset = bad.Resume
			continue
		}
		if err != nil {
			t.Fatalf("read %s at %d: %v", p, offset, err)
		}
		if len(b) == 0 {
			break // a hole with nothing behind it
		}
		for len(b) > 0 {
			batch, rest, err := record.Next(b)
			if err == nil {
				err = d.Records(batch, func(r *record.Record) error { got[r.Offset] = string(r.Value); return nil })
			}
			if err != nil {
				t.Fatalf("read %s at %d: %v", p, offset, err)
			}
			b, offset = rest, batch.NextOffset()
		}
	}
	return got
}

// dump is what a view of the directory shows, before anything was opened.
func (s *scene) dump(t *testing.T, dir string) string {
	t.Helper()
	view, err := OpenView(dir)
	if err != nil {
		return "fails"
	}
	said, missing := 0, 0
	d := record.NewDecoder(1 << 20)
	for name, want := range s.values {
		topic, id, _ := splitPartition(name)
		got := map[int64]bool{}
		err := view.Batches(ViewPartition{topic, id}, 0, func(b record.Batch, _ Place) error {
			return d.Records(b, func(r *record.Record) error {
				if r.Offset >= int64(len(want)) || string(r.Value) != want[r.Offset] {
					return fmt.Errorf("offset %d of %s holds %.30q", r.Offset, name, r.Value)
				}
				got[r.Offset] = true
				return nil
			})
		}, func(*DamageError) error { said++; return nil })
		if err != nil {
			t.Errorf("dump: %v", err)
		}
		missing += len(want) - len(got)
	}
	damages, err := view.Damages()
	if err != nil {
		t.Errorf("dump: %v", err)
	}
	text := "shows all"
	if missing > 0 {
		text = fmt.Sprintf("misses %d records", missing)
	}
	if said+len(damages) > 0 {
		text += ", names the damage"
	}
	return text
}
