package segment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/segment/record"
)

var (
	updateDocs = flag.Bool("update", false, "write docs/damage.md from what TestDamageTable finds; with -damage.full")
	damageFull = flag.Bool("damage.full", false, "TestDamageTable tries every case of each row, and compares the results with docs/damage.md")
)

// row is one damage of one kind of file. Its results are stated in docs/damage.md. Where a case loses something and nobody is
// told, words has to say why that can't be known.
type row struct {
	file, damage string
	cases        func(s *scene) []func(r *ruin)
	words        string
}

// rowsOf are the tables of the kinds of file.
var rowsOf = [][]row{journalRows, segmentRows, indexRows, stateRows, lockRows}

// one is a single case.
func one(harm func(r *ruin)) func(*scene) []func(*ruin) {
	return func(*scene) []func(*ruin) { return []func(*ruin){harm} }
}

// outcome is what docs/damage.md says.
func (r result) outcome() string {
	text := r.lostText() + " lost"
	switch {
	case r.said != silent && r.reading:
		text += "; " + r.said + "; readers are told"
	case r.reading:
		text += "; readers are told"
	case r.said != silent:
		text += "; " + r.said
	}
	return text
}

// TestDamageTable damages one thing at a time in a data directory with known content and opens it. It never refuses to start,
// it loses what docs/damage.md says and nothing else, and says so. Of the many cases of a row it tries some, unless -damage.full.
func TestDamageTable(t *testing.T) {
	scenes := []*scene{newScene(t, journalOnly), newScene(t, inSegments), newScene(t, recycled)}
	results := make([][][]line, len(rowsOf)) // by table, row and scene
	t.Run("rows", func(t *testing.T) {
		for i, rows := range rowsOf {
			results[i] = make([][]line, len(rows))
			for j, row := range rows {
				results[i][j] = make([]line, len(scenes))
				for k, s := range scenes {
					if testing.Short() && !*damageFull && k != j%len(scenes) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s", row.file, row.damage, s.kind), func(t *testing.T) {
						t.Parallel()
						results[i][j][k] = row.run(t, s)
					})
				}
			}
		}
	})
	if *damageFull {
		checkDoc(t, "../docs/damage.md", damageDoc(results))
	}
}

// damageDoc is docs/damage.md.
func damageDoc(results [][][]line) []byte {
	var doc bytes.Buffer
	doc.WriteString(damageDocHead)
	for i, rows := range rowsOf {
		fmt.Fprintf(&doc, "\n## %s\n\n| file | damage | left | lost; said at the start | `dump` before the start | |\n| --- | --- | --- | --- | --- | --- |\n", title(rows[0].file))
		for j, row := range rows {
			for _, l := range merged(results[i][j]) {
				_, file, _ := strings.Cut(row.file, ", ")
				fmt.Fprintf(&doc, "| %s | %s | %s | %s | %s | %s |\n", cmp.Or(file, row.file), row.damage, l.left, l.found, l.dumps, row.words)
			}
		}
	}
	return doc.Bytes()
}

// fewCases is how many cases of a row are tried where not all are.
func fewCases() int {
	switch {
	case testing.Short():
		return 1
	case raceEnabled:
		return 3
	}
	return 6
}

func title(file string) string {
	kind, _, _ := strings.Cut(file, ",")
	return strings.ToUpper(kind[:1]) + kind[1:]
}

// line is a row's results for one kind of scene.
type line struct{ left, found, dumps string }

// merged joins those that are the same.
func merged(lines []line) (list []line) {
	for _, l := range lines {
		i := slices.IndexFunc(list, func(m line) bool { return m.found == l.found && m.dumps == l.dumps })
		if i < 0 {
			list = append(list, l)
			continue
		}
		list[i].left += "; " + l.left
	}
	if len(list) == 1 {
		list[0].left = "any"
	}
	return list
}

func (row row) run(t *testing.T, s *scene) line {
	var found, dumps []string
	cases := row.cases(s)
	step := 1
	if !*damageFull {
		step = (len(cases) + fewCases() - 1) / fewCases()
	}
	for i := 0; i < len(cases); i += step {
		res := s.open(t, cases[i])
		lost := res.lostText() != "nothing"
		if lost && res.said == silent && !res.reading && row.words == "" || lost && res.said == note {
			t.Errorf("case %d: %s lost, and nobody is told: %q", i, res.lostText(), res.text)
		}
		if got := res.outcome(); !slices.Contains(found, got) {
			t.Logf("case %d of %d: %s; %.300q", i, len(cases), got, res.text)
			found = append(found, got)
		}
		if !slices.Contains(dumps, res.dump) {
			dumps = append(dumps, res.dump)
		}
		if t.Failed() {
			break
		}
	}
	slices.Sort(found)
	slices.Sort(dumps)
	return line{s.kind, strings.Join(found, "<br>"), strings.Join(dumps, "<br>")}
}

// checkDoc compares a document with what a test found out.
func checkDoc(t *testing.T, path string, content []byte) {
	t.Helper()
	if t.Failed() {
		return
	}
	if *updateDocs {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
		t.Errorf("%s is not what the test found: go test ./segment -run TestDamageTable -damage.full -update (%v)", path, err)
	}
}

const damageDocHead = `# Damage table

What a start makes of a damaged file. Generated by TestDamageTable in segment, which damages a data directory of three
partitions in each of these ways and opens it: ` + "`go test ./segment -run TestDamageTable -damage.full -update`" + `.

In every row the broker starts, and everything that is not listed as lost is there with its offsets. Lost offsets are given to no
other record, except where the loss can't be told from a write that the power failure interrupted: those rows say "torn tail,
counted" or nothing at all. Where a whole journal file is lost, or its end, nobody knows how far it went: each partition goes
on behind all offsets that fit into a journal file.

- "damage" is an error in the log and in the recovery report, with topic, partition and offsets; "note" is a
  warning: nothing is lost by it.
- "readers are told": sealed segments are not read as a whole at a start, only their ends. Damage inside is found by the
  first reader, who gets the place and goes on behind it, and by ` + "`sluice verify`" + `.
- "journal only": killed, the last six groups are in the journal and not yet in segments. "also in segments": they are there,
  too, not synced. "recycled": stopped cleanly, the journal may be used anew.
- "a-0", "a-1" and "b-0" are partitions; the numbers are of records. The last six groups hold 13, 11 and 7 of them and six state values.

What can't be told at all:

- A last frame of the journal that was whole and acknowledged, and whose damage looks like an interrupted write or like a frame
  that was never written. Only what a frame was that others follow is certain.
- A journal file that is lost within the moment between its beginning and the end of the checkpoint that goes with it.
- Two sealed segments of two partitions that have the same offsets, swapped: a batch doesn't name its partition.
- Oldest segments that are missing, from one on: retention leaves the same picture.
`

// flip flips one bit of a byte.
func flip(b []byte, at int64) []byte { b[at] ^= 1 << (at % 8); return b }

func flipAt(path func(s *scene) string, at func(s *scene) []int64) func(s *scene) []func(r *ruin) {
	return func(s *scene) (all []func(r *ruin)) {
		for _, a := range at(s) {
			all = append(all, func(r *ruin) { r.edit(path(s), func(b []byte) []byte { return flip(b, a) }) })
		}
		return all
	}
}

func edit(path func(s *scene) string, change func(b []byte) []byte) func(s *scene) []func(r *ruin) {
	return one(func(r *ruin) { r.edit(path(r.scene), change) })
}

func gone([]byte) []byte  { return nil }
func empty([]byte) []byte { return []byte{} }
func text(b []byte) []byte {
	return bytes.Repeat([]byte("not what it was\n"), len(b)/16)
}

// everyByte are the bytes of the last two stretches and the one behind each: all of them where it matters most, elsewhere
// those where something changes, and some.
func (s *scene) everyByte(list []frame, size int64) (at []int64) {
	for _, f := range list[len(list)-2:] {
		for i := f.at; i <= f.end && i < size; i++ {
			if s.kind == journalOnly || i < f.at+33 || i >= f.end-1 || i%31 == 0 {
				at = append(at, i)
			}
		}
	}
	return at
}

func truncated(path func(s *scene) string, at func(s *scene) []int64) func(s *scene) []func(r *ruin) {
	return func(s *scene) (all []func(r *ruin)) {
		for _, a := range at(s) {
			all = append(all, func(r *ruin) { r.edit(path(s), func(b []byte) []byte { return b[:a] }) })
		}
		return all
	}
}

func zeroed(path func(s *scene) string, at func(s *scene) []int64) func(s *scene) []func(r *ruin) {
	return func(s *scene) (all []func(r *ruin)) {
		for _, a := range at(s) {
			all = append(all, func(r *ruin) { r.edit(path(s), func(b []byte) []byte { clear(b[a:]); return b }) })
		}
		return all
	}
}

func current(s *scene) string { return s.journal }

func lastFrames(s *scene) []int64 { return s.everyByte(s.frames, s.o.JournalBytes) }

// places adds distances to a place.
func places(from int64, by ...int64) (at []int64) {
	for _, b := range by {
		at = append(at, from+b)
	}
	return at
}

// Bytes of each field of a journal file's header and of a frame's.
var (
	headerFields = []int64{0, 7, 8, 12, 16, 23, 24, 31, 32, 39, 40, 47, 48, 55}
	frameFields  = []int64{0, 3, 4, 7, 8, 15, 16, 23, 24, 27, 28, 31}
)

var journalRows = []row{
	{"journal, file in use", "none", one(func(*ruin) {}), "stale frames of an earlier use follow the last one"},
	{"journal, file in use", "missing", edit(current, gone), ""},
	{"journal, file in use", "empty", edit(current, empty), ""},
	{"journal, file in use", "truncated at every byte of the last two frames", truncated(current, lastFrames), ""},
	{"journal, file in use", "truncated in its unused end", truncated(current, func(s *scene) []int64 { return places(s.frames[5].end, 8192) }), ""},
	{"journal, file in use", "zeros from every byte of the last two frames on", zeroed(current, lastFrames), "where the frame's header is gone it looks like one that was never written"},
	{"journal, file in use", "a bit in each field of the first header copy", flipAt(current, func(*scene) []int64 { return headerFields }), ""},
	{"journal, file in use", "a bit in each field of the second header copy", flipAt(current, func(*scene) []int64 { return places(4096, headerFields...) }), ""},
	{"journal, file in use", "both header copies", edit(current, func(b []byte) []byte { return flip(flip(b, 20), 4096+20) }), ""},
	{"journal, file in use", "both header copies and the first frame", one(func(r *ruin) {
		r.edit(r.journal, func(b []byte) []byte { return flip(flip(flip(b, 20), 4096+20), r.frames[0].at+4) })
	}), ""},
	{"journal, file in use", "wrong magic in headers and frames", one(func(r *ruin) {
		r.edit(r.journal, func(b []byte) []byte {
			for at := 0; at < len(b); at += 4096 {
				b[at] ^= 1
			}
			return b
		})
	}), ""},
	{"journal, file in use", "a bit in each header field of the last frame", flipAt(current, func(s *scene) []int64 { return places(s.frames[5].at, frameFields...) }), ""},
	{"journal, file in use", "a bit in the body of the last frame", flipAt(current, func(s *scene) []int64 { return places(s.frames[5].at, 33, 60, 150) }), ""},
	{"journal, file in use", "a bit in each header field of a frame in the middle", flipAt(current, func(s *scene) []int64 { return places(s.frames[3].at, frameFields...) }), ""},
	{"journal, file in use", "a bit in the body of a frame in the middle, in a batch", flipAt(current, func(s *scene) []int64 { return places(s.frames[3].at, 32+14+3+30, 32+14+3+100) }), ""},
	{"journal, file in use", "a bit in the body of a frame in the middle, in an entry's header", flipAt(current, func(s *scene) []int64 { return places(s.frames[3].at, 32, 33, 37, 41, 45) }), ""},
	{"journal, file in use", "a bit in the body of a frame in the middle, in a state value", flipAt(current, func(s *scene) []int64 { return places(s.frames[3].end, -1, -5) }), ""},
	{"journal, file in use", "a bit in the padding", flipAt(current, func(s *scene) []int64 { return places(s.frames[5].end, 0, 1, 100) }), ""},
	{"journal, file in use", "forged frames after the last one", one(func(r *ruin) {
		r.edit(r.journal, func(b []byte) []byte { return r.forge(b) })
	}), "right magic, LSN and checksum; the epoch can't be guessed"},
	{"journal, file in use", "a frame in the middle with a forged one over it", one(func(r *ruin) {
		r.edit(r.journal, func(b []byte) []byte { return r.forgeInside(b) })
	}), ""},
	{"journal, file in use", "swapped with the one before it", one(func(r *ruin) { r.swap(r.journal, r.older) }), "names mean nothing"},
	{"journal, file in use", "swapped with a segment", one(func(r *ruin) { r.swap(r.journal, r.logs[0]) }), "two files are damaged"},
	{"journal, other content", "all files", one(func(r *ruin) {
		for _, path := range r.glob(r.t, "journal/*") {
			r.edit(path, text)
		}
	}), ""},
	{"journal, the file before", "missing", one(func(r *ruin) { r.edit(r.older, gone) }), "a checkpoint covers it"},
	{"journal, the file before", "other content", one(func(r *ruin) { r.edit(r.older, text) }), ""},
	{"journal, all files", "missing", one(func(r *ruin) {
		for _, path := range r.glob(r.t, "journal/*") {
			r.edit(path, gone)
		}
	}), ""},
}

// forge puts frames behind the last one that are right but for the epoch.
func (r *ruin) forge(b []byte) []byte {
	last := r.frames[5]
	lsn := binary.BigEndian.Uint64(b[last.at+8:])
	at := (last.end + 4095) &^ 4095
	for i := range int64(3) {
		f := b[at+i*4096 : at+(i+1)*4096]
		copy(f, forgedFrame(b[last.at:last.end], lsn+1+uint64(i), 42))
	}
	return b
}

// forgeInside puts a frame in the place of one in the middle that is right but for the epoch.
func (r *ruin) forgeInside(b []byte) []byte {
	f := r.frames[2]
	lsn := binary.BigEndian.Uint64(b[f.at+8:])
	clear(b[f.at : f.at+4096])
	copy(b[f.at:], forgedFrame(b[r.frames[3].at:r.frames[3].end], lsn, 42))
	return b
}

func forgedFrame(f []byte, lsn, epoch uint64) []byte {
	f = slices.Clone(f)
	binary.BigEndian.PutUint64(f[8:], lsn)
	binary.BigEndian.PutUint64(f[16:], epoch)
	binary.BigEndian.PutUint32(f[4:], crc32.Checksum(f[8:], crc32.MakeTable(crc32.Castagnoli)))
	return f
}

func sealed(s *scene) string { return s.logs[1] }
func active(s *scene) string { return s.logs[len(s.logs)-1] }
func batchesOf(s *scene, path string) (list []frame) {
	b, err := os.ReadFile(s.o.Dir + "/" + path)
	if err != nil {
		panic(err)
	}
	for at := int64(0); len(b) > 0; {
		batch, rest, err := record.Next(b)
		if err != nil {
			panic(err)
		}
		list = append(list, frame{at, at + int64(len(batch))})
		at, b = at+int64(len(batch)), rest
	}
	return list
}

// batchFields are bytes of each field of a batch's header, and one of its body.
var batchFields = []int64{0, 7, 8, 11, 12, 15, 16, 17, 20, 21, 22, 23, 26, 27, 34, 35, 42, 43, 50, 51, 52, 53, 56, 57, 60, 100}

func lastBatches(s *scene) []int64 {
	list := batchesOf(s, active(s))
	return s.everyByte(list, list[len(list)-1].end)
}

// lastSealedBatches are the bytes of the last two batches' headers, and some of their bodies.
func lastSealedBatches(s *scene) (at []int64) {
	list := batchesOf(s, sealed(s))
	for _, f := range list[len(list)-2:] {
		for i := f.at; i < f.end; i++ {
			if i < f.at+record.HeaderBytes || i%499 == 0 || i == f.end-1 {
				at = append(at, i)
			}
		}
	}
	return at
}
