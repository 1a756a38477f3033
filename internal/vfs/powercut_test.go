package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// mem is a file system with the directory /d and these files, "name=content", all durable.
func mem(t testing.TB, files ...string) *Mem {
	t.Helper()
	m := NewMem(MemOptions{})
	do(t, m, "mkdir /d")
	for _, f := range files {
		name, data, _ := strings.Cut(f, "=")
		do(t, m, "write /d/"+name+" 0 "+data, "sync /d/"+name)
	}
	do(t, m, "syncdir /d", "syncdir /")
	return m
}

// do runs commands. Content is written as "a*4096" or "a*100b*20"; see fill.
func do(t testing.TB, f FS, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if err := doOne(f, c); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
}

func doOne(f FS, command string) error {
	w := append(strings.Fields(command), "", "", "")
	name := w[1]
	switch w[0] {
	case "mkdir":
		return f.MkdirAll(name, 0o750)
	case "syncdir":
		return f.SyncDir(name)
	case "remove":
		return f.Remove(name)
	case "rename":
		return f.Rename(name, w[2])
	}
	file, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer file.Close()
	var at int64
	fmt.Sscan(w[2], &at)
	switch w[0] {
	case "write":
		_, err = file.WriteAt([]byte(fill(w[3])), at)
	case "truncate":
		err = file.Truncate(at)
	case "allocate":
		err = file.Allocate(at)
	case "sync":
		err = file.Sync()
	default:
		err = errors.New("unknown command")
	}
	return err
}

// fill spells out "a*3b*2c" as "aaabbc".
func fill(s string) string {
	var b strings.Builder
	for s != "" {
		letter, n := s[0], 1
		if s = s[1:]; strings.HasPrefix(s, "*") {
			end := len(s) - len(strings.TrimLeft(s[1:], "0123456789"))
			n, _ = strconv.Atoi(s[1:end])
			s = s[end:]
		}
		b.Write(bytes.Repeat([]byte{letter}, n))
	}
	return b.String()
}

// runs is the inverse of fill; zeros are ".".
func runs(data string) string {
	var b strings.Builder
	for i := 0; i < len(data); {
		n := 1
		for i+n < len(data) && data[i+n] == data[i] {
			n++
		}
		letter := data[i : i+1]
		if letter == "\x00" {
			letter = "."
		}
		fmt.Fprintf(&b, "%s*%d", letter, n)
		i += n
	}
	return b.String()
}

// show lists all files below a directory with their content.
func show(t testing.TB, f FS, dir string) string {
	t.Helper()
	var all []string
	list, err := f.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			all = append(all, name+"/")
			if s := show(t, f, name); s != "" {
				all = append(all, s)
			}
			continue
		}
		b, err := ReadFile(f, name, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, name+"="+runs(string(b)))
	}
	return strings.Join(all, " ")
}

// outcomes cuts the power of clones with many seeds and counts the states that come out.
func outcomes(t *testing.T, m *Mem, seeds uint64, blockBytes int) map[string]int {
	t.Helper()
	found := map[string]int{}
	for seed := range seeds {
		c := m.Clone()
		c.PowerCut(seeded(seed), blockBytes)
		checkBooks(t, c)
		found[show(t, c, "/")]++
	}
	return found
}

// checkBooks compares what is counted with what is there, just after a power cut.
func checkBooks(t *testing.T, m *Mem) {
	t.Helper()
	var used int64
	for _, n := range append(m.everything(), m.root) {
		held := int64(0)
		for _, p := range n.pages {
			if p.now != nil {
				held++
			}
			if p.now != p.disk || p.writes != 0 || p.first != nil || p.prev != nil || p.forgotten {
				t.Fatal("a page is not as on the disk")
			}
		}
		if used += held; held != n.held || len(n.dirty) > 0 || n.length != n.synced || n.least != n.most || n.opens != 0 {
			t.Fatalf("books are wrong: %d pages held, %d counted, %+v", held, n.held, n.content)
		}
		if n.dir && !maps.Equal(n.names, n.onDisk) {
			t.Fatal("a directory is not as on the disk")
		}
	}
	if used != m.used || len(m.ops) > 0 {
		t.Fatalf("%d pages used, %d counted, %d open operations", used, m.used, len(m.ops))
	}
}

// TestOutcomes lists for small histories exactly what a power cut may leave. Each must come out, and nothing else.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		do    []string
		block int
		want  []string // what follows "/d/ /d/"
	}{
		{name: "synced and named", do: []string{"write /d/f 0 a*5000", "sync /d/f", "syncdir /d"}, want: []string{"f=a*5000"}},
		{name: "synced, name isn't", do: []string{"write /d/f 0 a*5000", "sync /d/f"}, want: []string{"f=a*5000", ""}},
		{name: "synced later than named", do: []string{"write /d/f 0 a*9", "syncdir /d", "sync /d/f"}, want: []string{"f=a*9"}},
		{name: "removed", files: []string{"f=a"}, do: []string{"remove /d/f"}, want: []string{"f=a*1", ""}},
		{name: "removed for good", files: []string{"f=a"}, do: []string{"remove /d/f", "syncdir /d"}, want: []string{""}},
		{name: "removed and made again", files: []string{"f=a"}, do: []string{"remove /d/f", "write /d/f 0 b", "sync /d/f"},
			want: []string{"f=a*1", "", "f=b*1"}},
		{name: "renamed", files: []string{"f=a"}, do: []string{"rename /d/f /d/g"}, want: []string{"f=a*1", "g=a*1"}},
		{name: "renamed twice", files: []string{"f=a"}, do: []string{"rename /d/f /d/g", "rename /d/g /d/h"},
			want: []string{"f=a*1", "g=a*1", "h=a*1"}},
		{name: "replaced by a file that is there", files: []string{"f=a", "new=b"}, do: []string{"rename /d/new /d/f"},
			want: []string{"f=a*1 /d/new=b*1", "f=b*1"}},
		{name: "replaced by a new file", files: []string{"f=a"},
			do:   []string{"write /d/new 0 b", "sync /d/new", "rename /d/new /d/f"},
			want: []string{"f=a*1", "f=a*1 /d/new=b*1", "f=b*1"}},
		{name: "replaced by a file without its data", files: []string{"f=a"},
			do:   []string{"write /d/new 0 b", "rename /d/new /d/f", "syncdir /d"},
			want: []string{"f=", "f=b*1", "f=.*1", "f=a*1"}}, // the last is stale
		{name: "moved and back", files: []string{"f=a"}, do: []string{"rename /d/f /d/g", "rename /d/g /d/f"},
			want: []string{"f=a*1", "g=a*1"}},
		{name: "three new ones", do: []string{"write /d/a 0 a", "sync /d/a", "write /d/b 0 b", "sync /d/b"},
			want: []string{"", "a=a*1", "b=b*1", "a=a*1 /d/b=b*1"}},
		{name: "directory", do: []string{"mkdir /d/x/y", "write /d/x/y/f 0 a", "sync /d/x/y/f", "syncdir /d/x/y"},
			want: []string{"", "x/", "x/ /d/x/y/ /d/x/y/f=a*1"}},
		{name: "directory with its parents", do: []string{"mkdir /d/x/y", "write /d/x/y/f 0 a", "sync /d/x/y/f", "syncdir /d/x/y",
			"syncdir /d/x", "syncdir /d"}, want: []string{"x/ /d/x/y/ /d/x/y/f=a*1"}},
		{name: "moved into a new directory", files: []string{"f=a"}, do: []string{"mkdir /d/x", "rename /d/f /d/x/f"},
			want: []string{"f=a*1", "f=a*1 /d/x/", "x/ /d/x/f=a*1"}},
		{name: "removed directory", files: []string{"f=a"}, do: []string{"mkdir /d/x", "syncdir /d", "remove /d/x"},
			want: []string{"f=a*1", "f=a*1 /d/x/"}},
		{name: "overwritten", files: []string{"f=a*100"}, do: []string{"write /d/f 0 b*100"}, want: []string{"f=a*100", "f=b*100"}},
		{name: "overwritten over sectors", files: []string{"f=a*1536"}, do: []string{"write /d/f 0 b*1536"},
			want: []string{"f=a*1536", "f=b*1536", "f=a*512b*1024", "f=a*1024b*512", "f=b*512a*1024", "f=b*1024a*512"}},
		{name: "overwritten several times", files: []string{"f=a"},
			do:   []string{"write /d/f 0 b", "write /d/f 0 c", "write /d/f 0 x", "write /d/f 0 y"},
			want: []string{"f=a*1", "f=b*1", "f=x*1", "f=y*1"}}, // and not c, as documented
		{name: "overwritten and synced again", files: []string{"f=a"},
			do: []string{"write /d/f 0 b", "write /d/f 0 c", "sync /d/f"}, want: []string{"f=c*1"}},
		{name: "two blocks of 4 KiB", files: []string{"f=a*8192"}, do: []string{"write /d/f 4095 b*2"},
			want: []string{"f=a*8192", "f=a*4095b*2a*4095", "f=a*4095b*1a*4096", "f=a*4096b*1a*4095"}},
		{name: "one block of 16 KiB", files: []string{"f=a*8192"}, do: []string{"write /d/f 4095 b*2"}, block: 16384,
			want: []string{"f=a*8192", "f=a*4095b*2a*4095", "f=a*4095b*1a*4096", "f=a*4096b*1a*4095"}}, // by a tear at 4096
		{name: "appended within a page", files: []string{"f=a*10"}, do: []string{"write /d/f 10 b*2"},
			want: []string{"f=a*10", "f=a*10b*1", "f=a*10.*1", "f=a*10b*2", "f=a*10.*2"}},
		{name: "truncated", files: []string{"f=a*3"}, do: []string{"truncate /d/f 1"}, want: []string{"f=a*1", "f=a*2", "f=a*3", "f=a*1.*1", "f=a*1.*2"}},
		{name: "truncated for good", files: []string{"f=a*9000"}, do: []string{"truncate /d/f 1", "sync /d/f"}, want: []string{"f=a*1"}},
		{name: "truncated and written again", files: []string{"f=a*2"}, do: []string{"truncate /d/f 0", "write /d/f 0 b*2"},
			want: []string{"f=", "f=a*1", "f=a*2", "f=.*1", "f=.*2", "f=b*1", "f=b*2"}},
		{name: "allocated", do: []string{"allocate /d/f 3", "sync /d/f", "syncdir /d"}, want: []string{"f=.*3"}},
		{name: "allocated, then written", do: []string{"allocate /d/f 3", "sync /d/f", "syncdir /d", "write /d/f 0 b*3"},
			want: []string{"f=.*3", "f=b*3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mem(t, c.files...)
			do(t, m, c.do...)
			found := outcomes(t, m, 600, max(c.block, pageBytes))
			for _, w := range c.want {
				state := strings.TrimSuffix("/d/ /d/"+w, " /d/")
				if found[state] == 0 {
					t.Errorf("never %q", state)
				}
				delete(found, state)
			}
			if len(found) > 0 {
				t.Errorf("may not be: %v", found)
			}
		})
	}
}

// TestTwoDirectories: a rename between directories is a whole, and durable with either of them.
func TestTwoDirectories(t *testing.T) {
	for _, c := range []struct {
		do   []string
		want []string
	}{
		{nil, []string{"/d/ /d/f=a*1 /e/", "/d/ /e/ /e/g=a*1"}},
		{[]string{"syncdir /d"}, []string{"/d/ /e/ /e/g=a*1"}},
		{[]string{"syncdir /e"}, []string{"/d/ /e/ /e/g=a*1"}},
		{[]string{"syncdir /e", "remove /e/g", "syncdir /e"}, []string{"/d/ /e/"}},
	} {
		for _, made := range []bool{false, true} { // whether the file's own name was durable before
			m := mem(t)
			do(t, m, "mkdir /e", "syncdir /", "write /d/f 0 a", "sync /d/f")
			want := slices.Clone(c.want)
			if made {
				do(t, m, "syncdir /d")
			} else if c.do == nil {
				want = append(want, "/d/ /e/")
			}
			do(t, m, "rename /d/f /e/g")
			do(t, m, c.do...)
			found := outcomes(t, m, 100, pageBytes)
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("after %q: %q, want %q", c.do, got, want)
			}
		}
	}
}

// TestPrefixes: with about half of the seeds the directory operations that survive are the first so many, any number of them.
func TestPrefixes(t *testing.T) {
	m := mem(t)
	states := []string{"/d/"}
	for i := range 8 {
		do(t, m, fmt.Sprintf("write /d/%d 0 a", i), fmt.Sprintf("sync /d/%d", i))
		states = append(states, fmt.Sprintf("%s /d/%d=a*1", states[i], i))
	}
	found := outcomes(t, m, 1000, pageBytes)
	all := 0
	for _, s := range states {
		if all += found[s]; found[s] < 25 { // 500/9 + 500/256 expected
			t.Errorf("%q %d times", s, found[s])
		}
	}
	if all < 400 || all > 650 || len(found) < 150 { // of the independent ones 9 of 256 are prefixes by chance
		t.Errorf("%d of 1000 are prefixes; %d states", all, len(found))
	}
}

// TestLengths: the last length, the synced one and others between the extremes come out often.
func TestLengths(t *testing.T) {
	m := mem(t, "f=a*6000")
	do(t, m, "truncate /d/f 4000", "write /d/f 4000 b*5000", "truncate /d/f 5000")
	found := map[int]int{}
	for state, n := range outcomes(t, m, 1000, pageBytes) {
		size := len(fill(strings.TrimPrefix(state, "/d/ /d/f=")))
		if size < 4000 || size > 9000 {
			t.Errorf("length %d", size)
		}
		found[size] += n
	}
	if found[5000] < 200 || found[6000] < 200 || found[8192]+found[4096] < 100 || len(found) < 150 {
		t.Errorf("5000: %d, 6000: %d, whole pages: %d; %d lengths", found[5000], found[6000], found[4096]+found[8192], len(found))
	}
}

// TestUnsyncedPages looks at each page of a new file with a durable name: which mixtures come out.
func TestUnsyncedPages(t *testing.T) {
	const pages = 12
	for _, block := range []int{4096, 16384} {
		m := mem(t, "old="+strings.Repeat("s*4096", 3), "f=")
		do(t, m, "remove /d/old", "syncdir /d")
		do(t, m, fmt.Sprintf("write /d/f 0 b*%d", pages*4096))
		kinds := map[string]int{}
		for state, n := range outcomes(t, m, 2000, block) {
			data := fill(strings.ReplaceAll(strings.TrimPrefix(state, "/d/ /d/f="), ".", "z"))
			if len(data) < pages*4096 {
				kinds["short"] += n
				continue
			}
			for at := 0; at < len(data); at += block {
				kinds[pattern(t, data[at:at+block])] += n
			}
		}
		t.Logf("blocks of %d: %v", block, kinds)
		want := []string{"short", "b", "z", "s", "bz", "zb", "bs", "sb"}
		for _, k := range want {
			if kinds[k] == 0 {
				t.Errorf("blocks of %d: never %s", block, k)
			}
		}
	}
}

// pattern is the order of the letters in a block, each run of them a whole number of sectors.
func pattern(t *testing.T, block string) (s string) {
	t.Helper()
	for at := 0; at < len(block); at += sectorBytes {
		sector := block[at : at+sectorBytes]
		if sector != strings.Repeat(sector[:1], sectorBytes) {
			t.Fatalf("a sector is torn: %q", sector)
		}
		if !strings.HasSuffix(s, sector[:1]) {
			s += sector[:1]
		}
	}
	return s
}

// TestBlocksStayWhole: but for a tear, the pages of a block of 16 KiB come or go together.
func TestBlocksStayWhole(t *testing.T) {
	m := mem(t, "f=a*65536")
	do(t, m, "write /d/f 0 b*65536")
	for state := range outcomes(t, m, 500, 16384) {
		data := fill(strings.TrimPrefix(state, "/d/ /d/f="))
		for at := 0; at < len(data); at += 16384 {
			if p := pattern(t, data[at:at+16384]); len(p) > 2 {
				t.Fatalf("a block has %s", p)
			}
		}
	}
}

// TestStale: only pages that nothing can bring back are stale, and they come in order, at the same place or elsewhere.
func TestStale(t *testing.T) {
	const old = "p*4096q*4096r*4096s*4096"
	for _, c := range []struct {
		name  string
		do    []string
		stale bool
	}{
		{"nothing freed", nil, false},
		{"removed", []string{"remove /d/old", "syncdir /d"}, true},
		{"replaced", []string{"write /d/x 0 x", "rename /d/x /d/old", "syncdir /d"}, true},
		{"truncated", []string{"truncate /d/old 0", "sync /d/old"}, true},
		{"truncated, not for good", []string{"truncate /d/old 0"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mem(t, "old="+old, "f=")
			do(t, m, c.do...)
			do(t, m, "write /d/f 0 b*16384")
			var same, moved, all int
			for state, n := range outcomes(t, m, 500, pageBytes) {
				_, f, _ := strings.Cut(state, "/d/f=")
				f, _, _ = strings.Cut(f, " ")
				data := fill(strings.ReplaceAll(f, ".", "z"))
				for at := 0; at+4096 <= len(data); at += 4096 {
					if i := strings.Index("pqrs", data[at:at+1]); i == at/4096 {
						same += n
					} else if i >= 0 {
						moved += n
					}
				}
				if strings.Contains(f, old) || f == old {
					all += n
				}
			}
			t.Logf("stale pages at their place %d, elsewhere %d, whole file %d", same, moved, all)
			if c.stale != (same > 0) || c.stale != (moved > 0) || c.stale != (all > 0) {
				t.Errorf("stale pages at their place %d, elsewhere %d, whole file %d", same, moved, all)
			}
		})
	}
	t.Run("removed, not for good", func(t *testing.T) {
		m := mem(t, "old="+old, "f=")
		do(t, m, "remove /d/old", "write /d/f 0 b*16384")
		stale := 0
		for state := range outcomes(t, m, 500, pageBytes) {
			f, back, isBack := strings.Cut(state, " /d/old=")
			if isBack && (back != old || strings.ContainsAny(strings.TrimPrefix(f, "/d/ /d/f="), "pqrs")) {
				t.Fatalf("pages of a file that is there are in another: %s", state)
			}
			if !isBack && strings.ContainsAny(f, "pqrs") {
				stale++
			}
		}
		if stale == 0 {
			t.Error("never stale though the file was gone")
		}
	})
	t.Run("open", func(t *testing.T) {
		m := mem(t, "old=s*4096", "f=")
		file := open(t, m, "/d/old", os.O_RDONLY)
		do(t, m, "remove /d/old", "syncdir /d")
		if len(m.stale) > 0 {
			t.Error("an open file is stale")
		}
		must(t, file.Close())
		if len(m.stale) != 1 {
			t.Error("a removed file isn't stale once closed")
		}
	})
}

// TestFailedSync: after it a Sync that succeeds makes durable only what was written since.
func TestFailedSync(t *testing.T) {
	errIO := errors.New("input/output error")
	m := mem(t, "f=a*8192")
	f := &Faulty{FS: m, Before: NewPlan(Fault{Op: OpSync, Err: errIO}).Before}
	do(t, f, "write /d/f 0 b*4096", "write /d/f 4096 b*100")
	if err := doOne(f, "sync /d/f"); !errors.Is(err, errIO) {
		t.Fatal(err)
	}
	do(t, f, "write /d/f 4096 c", "sync /d/f")
	found := outcomes(t, m, 300, pageBytes)
	for state := range found {
		if !strings.HasSuffix(state, "c*1b*99a*3996") {
			t.Fatalf("what was written after the failure was lost: %s", state)
		}
	}
	if found["/d/ /d/f=a*4096c*1b*99a*3996"] == 0 || found["/d/ /d/f=b*4096c*1b*99a*3996"] == 0 {
		t.Errorf("only %v", found)
	}
	do(t, f, "write /d/f 0 b", "sync /d/f")
	if found := outcomes(t, m, 50, pageBytes); len(found) != 1 {
		t.Errorf("written again and synced: %v", found)
	}
}

// TestAfterPowerCut: handles are dead, locks are free, what came out is durable, and the same seed does the same.
func TestAfterPowerCut(t *testing.T) {
	m := mem(t, "f=a")
	file := open(t, m, "/d/f", os.O_RDWR)
	lock, err := m.Lock("/d/lock")
	must(t, err)
	do(t, m, "syncdir /d", "write /d/f 0 b*9000", "write /d/g 0 c*9000")
	m.PowerCut(seeded(1), pageBytes)

	_, readErr := file.ReadAt(make([]byte, 1), 0)
	_, writeErr := file.WriteAt(make([]byte, 1), 0)
	_, sizeErr := file.Size()
	for i, err := range []error{readErr, writeErr, sizeErr, file.Sync(), file.Truncate(0), file.Allocate(1), file.Close()} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
	again, err := m.Lock("/d/lock")
	must(t, err)
	if err := lock.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a lock of before closes: %v", err)
	}
	if _, err := m.Lock("/d/lock"); err != ErrLocked {
		t.Errorf("closing the lock of before freed the new one: %v", err)
	}
	must(t, again.Close())
	state := show(t, m, "/")
	for seed := range uint64(20) {
		m.PowerCut(seeded(seed), pageBytes)
		if got := show(t, m, "/"); got != state {
			t.Fatalf("another power cut: %s, was %s", got, state)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a block of 1000 bytes went well")
		}
	}()
	m.PowerCut(seeded(1), 1000)
}

// BenchmarkLife is what a seed of the crash model costs at least: a clone, about 200 operations on two files of up to 1 MiB,
// and a power cut.
func BenchmarkLife(b *testing.B) {
	base := mem(b, "journal=z*1048576", "log=y*1048576", "index=x*8192")
	frame := bytes.Repeat([]byte("f"), 4096)
	record := bytes.Repeat([]byte("r"), 300)
	rng := seeded(1)
	b.ReportAllocs()
	for b.Loop() {
		m := base.Clone()
		journal, err1 := m.OpenFile("/d/journal", os.O_RDWR, 0)
		log, err2 := m.OpenFile("/d/log", os.O_RDWR, 0)
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
		for i := range int64(80) {
			journal.WriteAt(frame, i*4096)
			journal.Sync()
			log.WriteAt(record, 1<<20+i*300)
			if i%40 == 0 {
				log.Sync()
			}
		}
		m.PowerCut(rng, 4096)
	}
}

func BenchmarkClone(b *testing.B) {
	base := mem(b, "journal=z*1048576", "log=y*1048576", "index=x*8192")
	b.ReportAllocs()
	for b.Loop() {
		base.Clone()
	}
}
