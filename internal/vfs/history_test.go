package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// TestPowerCutKeeps does random things, cuts the power now and then, and asks after each cut of each byte and each name
// whether it may be as it is.
func TestPowerCutKeeps(t *testing.T) {
	for seed := range uint64(40) {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { newHistory(t, seed).run(8, 60) }) {
			return
		}
	}
}

// history does random things with one directory and knows what a power cut may do to it.
type history struct {
	t     *testing.T
	m     *Mem
	rng   *rand.Rand
	files map[byte]*tale
	names map[string]byte // as seen
	sure  map[string]byte // name → file, 0: sure that there is none; not there: unsure
	next  byte
}

// tale is what is known of one file. Its number is the first byte, which is synced before the file gets its name.
type tale struct {
	now  []byte
	sure []bool // by byte of now
	min  int    // the least length
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{t: t, m: mem(t), rng: seeded(seed), files: map[byte]*tale{}, names: map[string]byte{}, sure: map[string]byte{}}
}

func (h *history) run(lives, steps int) {
	for life := range lives {
		for range steps {
			h.step()
		}
		other := h.m.Clone()
		cut := h.rng.Uint64()
		block := 4096 << (2 * h.rng.IntN(2))
		h.m.PowerCut(seeded(cut), block)
		other.PowerCut(seeded(cut), block)
		state := show(h.t, h.m, "/")
		if got := show(h.t, other, "/"); got != state {
			h.t.Fatalf("life %d: the same seed does another thing to a clone: %s, %s", life, state, got)
		}
		checkBooks(h.t, h.m)
		h.check()
	}
}

func (h *history) step() {
	name := fmt.Sprintf("/d/%d", h.rng.IntN(6))
	id := h.names[name]
	f := h.files[id]
	at, n := h.rng.IntN(20000), 1+h.rng.IntN(9000)
	switch kind := h.rng.IntN(12); {
	case kind == 0:
		must(h.t, h.m.SyncDir("/d"))
		h.sure = maps.Clone(h.names)
		for i := range 6 {
			if name := fmt.Sprintf("/d/%d", i); h.names[name] == 0 {
				h.sure[name] = 0
			}
		}
	case f == nil:
		h.create(name)
	case kind == 1:
		must(h.t, h.m.Remove(name))
		delete(h.names, name)
		delete(h.sure, name)
	case kind == 2:
		to := fmt.Sprintf("/d/%d", h.rng.IntN(6))
		must(h.t, h.m.Rename(name, to))
		delete(h.names, name)
		h.names[to] = id
		delete(h.sure, name)
		delete(h.sure, to)
	case kind == 3:
		do(h.t, h.m, "sync "+name)
		for i := range f.sure {
			f.sure[i] = true
		}
		f.min = len(f.now)
	case kind == 4:
		do(h.t, h.m, fmt.Sprintf("truncate %s %d", name, 1+at))
		f.resize(1 + at)
	default:
		letter := byte('a' + h.rng.IntN(26))
		do(h.t, h.m, fmt.Sprintf("write %s %d %c*%d", name, 1+at, letter, n))
		f.write(letter, 1+at, n)
	}
	h.look(name)
}

func (h *history) create(name string) {
	if h.next++; h.next == 'a' { // numbers are no letters
		h.next = 'z' + 1
	}
	file := open(h.t, h.m, name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	_, err := file.WriteAt([]byte{h.next}, 0)
	must(h.t, errors.Join(err, file.Sync(), file.Close()))
	h.files[h.next] = &tale{now: []byte{h.next}, sure: []bool{true}, min: 1}
	h.names[name] = h.next
	delete(h.sure, name)
}

func (f *tale) resize(size int) {
	if more := size - len(f.now); more > 0 {
		f.now, f.sure = append(f.now, make([]byte, more)...), append(f.sure, make([]bool, more)...)
	}
	f.now, f.sure, f.min = f.now[:size], f.sure[:size], min(f.min, size)
}

// write knows that a page that reads as zeros may be a hole, which is as unsure as what is written into it.
func (f *tale) write(letter byte, at, n int) {
	f.resize(max(len(f.now), at+n))
	for from := at / pageBytes * pageBytes; from < at+n; from += pageBytes {
		page := f.now[from:min(from+pageBytes, len(f.now))]
		hole := bytes.Count(page, []byte{0}) == len(page)
		for i := range page {
			if written := from+i >= at && from+i < at+n; written || hole {
				f.sure[from+i] = false
			}
		}
	}
	copy(f.now[at:], bytes.Repeat([]byte{letter}, n))
}

// look compares what is seen.
func (h *history) look(name string) {
	h.t.Helper()
	id := h.names[name]
	if exists(h.m, name) != (id != 0) {
		h.t.Fatalf("%s is there: %v", name, id == 0)
	}
	if id != 0 {
		if got := text(h.t, h.m, name); got != string(h.files[id].now) {
			h.t.Fatalf("%s has %s, want %s", name, runs(got), runs(string(h.files[id].now)))
		}
	}
}

// check looks at what a power cut left, and takes it for the truth from then on.
func (h *history) check() {
	seen := map[byte]bool{}
	h.names = map[string]byte{}
	for i := range 6 {
		name := fmt.Sprintf("/d/%d", i)
		id := byte(0)
		if exists(h.m, name) {
			got := text(h.t, h.m, name)
			id = got[0]
			h.names[name] = id
			h.checkFile(name, got)
		}
		if want, sure := h.sure[name]; sure && want != id {
			h.t.Fatalf("%s is file %d, surely it was %d", name, id, want)
		}
		if id != 0 && seen[id] {
			h.t.Fatalf("file %d is there twice", id)
		}
		seen[id] = true
		h.sure[name] = id
	}
}

func (h *history) checkFile(name, got string) {
	f := h.files[got[0]]
	if f == nil || len(got) < f.min {
		h.t.Fatalf("%s: %d bytes of file %d: %+v", name, len(got), got[0], f != nil)
	}
	for i := range min(len(got), len(f.now)) {
		if f.sure[i] && got[i] != f.now[i] {
			h.t.Fatalf("%s: byte %d of file %d is %d, %d was synced", name, i, got[0], got[i], f.now[i])
		}
	}
	*f = tale{now: []byte(got), sure: slices.Repeat([]bool{true}, len(got)), min: len(got)}
}
