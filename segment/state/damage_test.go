package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// files are the two files' bytes after n checkpoints, and the state after each.
func files(t testing.TB, n int) (data [2][]byte, want []map[string]string) {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, dir)
	state := map[string]string{}
	want = append(want, maps.Clone(state))
	for lsn := 1; lsn <= n; lsn++ {
		var changes []Change
		for i := range 40 {
			k, v := fmt.Sprintf("key/%03d", (i*7+lsn*3)%120), strings.Repeat(fmt.Sprint(lsn), i*3)
			changes = append(changes, put(k, v))
			state[k] = v
		}
		checkpoint(t, s, uint64(lsn), changes...)
		want = append(want, maps.Clone(state))
	}
	s.Close()
	for i, name := range names {
		p, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		data[i] = p
	}
	return data, want
}

func write(t testing.TB, data [2][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for i, name := range names {
		if data[i] == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newestMeta is the position of the meta page that counts.
func newestMeta(t testing.TB, p []byte) int64 {
	t.Helper()
	x := inspector{f: bytes.NewReader(p), size: int64(len(p))}
	m0, size, ok0 := x.meta(0)
	m1, _, ok1 := x.meta(size)
	if !ok0 || !ok1 {
		t.Fatal("a meta page is bad")
	}
	if m0.txid > m1.txid {
		return 0
	}
	return size
}

func TestDamage(t *testing.T) {
	data, want := files(t, 5) // a has 5, b has 4
	const newest, older = 0, 1
	flipMeta := func(p []byte) []byte { p[newestMeta(t, p)+pageHeader+40] ^= 4; return p }
	garbage := func(p []byte) []byte {
		for i := range p {
			p[i] = byte(rand.Uint32())
		}
		return p
	}
	for _, tc := range []struct {
		name   string
		damage func(p []byte) []byte
		aside  bool
		keeps  bool // the file can still be opened, at its previous transaction
	}{
		{"missing", func([]byte) []byte { return nil }, false, false},
		{"empty", func([]byte) []byte { return []byte{} }, true, false},
		{"one byte", func(p []byte) []byte { return p[:1] }, true, false},
		{"truncated to the meta pages", func(p []byte) []byte { return p[:8192] }, true, false},
		{"truncated by half", func(p []byte) []byte { return p[:len(p)/2] }, true, false},
		{"zeroed", func(p []byte) []byte { clear(p); return p }, true, false},
		{"zeroed but for the meta pages", func(p []byte) []byte { clear(p[8192:]); return p }, true, false},
		{"garbage", garbage, true, false},
		{"garbage but for the meta pages", func(p []byte) []byte { garbage(p[8192:]); return p }, true, false},
		{"newest meta page", flipMeta, false, true},
		{"both meta pages", func(p []byte) []byte { p[30] ^= 1; p[4096+30] ^= 1; return p }, true, false},
		{"text", func([]byte) []byte { return bytes.Repeat([]byte("hello\n"), 5000) }, true, false},
	} {
		for _, which := range []int{newest, older} {
			t.Run(fmt.Sprintf("%s, %d", tc.name, which), func(t *testing.T) {
				d := data
				d[which] = tc.damage(bytes.Clone(data[which]))
				dir := write(t, d)
				s, r := open(t, dir)
				if tc.aside != (len(r.SetAside) == 1) {
					t.Errorf("%+v", r)
				}
				if tc.keeps && !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "meta pages is damaged") }) {
					t.Errorf("a bad meta page is passed over: %q", r.Notes)
				}
				for _, name := range r.SetAside {
					if p, err := os.ReadFile(name); err != nil || !bytes.Equal(p, d[which]) {
						t.Errorf("%s isn't the bad file: %v", name, err)
					}
				}
				lsn := uint64(5)
				if which == newest {
					lsn = 4
				}
				wantState(t, s, lsn, want[lsn])
				oldest := uint64(0)
				if tc.keeps { // the transaction before is of the same checkpoint, under the head before it
					oldest = []uint64{3, 2}[which]
				}
				if s.OldestLSN() != oldest {
					t.Errorf("oldest %d, want %d", s.OldestLSN(), oldest)
				}
				// Replay what the journal has, twice so that both files are written, and lose the one that was good.
				checkpoint(t, s, 5, changesTo(want[5])...)
				checkpoint(t, s, 6)
				checkpoint(t, s, 7)
				if s.OldestLSN() != 6 {
					t.Errorf("oldest %d", s.OldestLSN())
				}
				for i := range names {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					other := write(t, [2][]byte{})
					p, _ := os.ReadFile(filepath.Join(dir, names[i]))
					os.WriteFile(filepath.Join(other, names[i]), p, 0o600)
					s, _ = open(t, other)
					wantState(t, s, s.Point().LSN, want[5])
				}
			})
		}
	}
}

// TestOlderCheckpoint: a file that somebody put back is noticed.
func TestOlderCheckpoint(t *testing.T) {
	old, _ := files(t, 2)
	for which := range names {
		data, _ := files(t, 6)
		data[which] = old[which]
		s, r := open(t, write(t, data))
		if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "not of the one before") {
			t.Errorf("notes %q", r.Notes)
		}
		s.Close()
	}
}

func changesTo(m map[string]string) (list []Change) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, put(k, m[k]))
	}
	return list
}

func TestBothDamaged(t *testing.T) {
	data, _ := files(t, 3)
	for i := range data {
		clear(data[i][:8192])
	}
	dir := write(t, data)
	s, r := open(t, dir)
	if len(r.SetAside) != 2 || r.Newest != "" || len(r.Notes) != 3 {
		t.Errorf("%+v", r)
	}
	wantState(t, s, 0, map[string]string{})
	checkpoint(t, s, 1, put("a", "1"))
	wantState(t, s, 1, map[string]string{"a": "1"})
}

// TestEveryByte flips a bit in each byte of the newer file that is in use: it is found, or it doesn't matter.
func TestEveryByte(t *testing.T) {
	data, want := files(t, 5)
	step := 397
	if testing.Short() {
		step = 997
	}
	found := 0
	for at := 0; at < len(data[0]); at += step {
		d := data
		d[0] = bytes.Clone(data[0])
		d[0][at] ^= 1 << (at % 8)
		s, r := open(t, write(t, d))
		lsn := s.Point().LSN
		if lsn < 4 {
			t.Fatalf("byte %d: LSN %d, %+v", at, lsn, r)
		}
		wantState(t, s, lsn, want[lsn])
		found += len(r.SetAside)
		checkpoint(t, s, 5, changesTo(want[5])...)
		checkpoint(t, s, 6)
		wantState(t, s, 6, want[5])
		s.Close()
	}
	if found == 0 {
		t.Error("no damage was found")
	}
}

func TestNewerFormat(t *testing.T) {
	for which := range names {
		data, _ := files(t, 3)
		dir := write(t, data)
		path := filepath.Join(dir, names[which])
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		db.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, []byte{0, 0, 0, 2}) })
		db.Close()
		other := filepath.Join(dir, names[1-which])
		for _, bad := range []bool{false, true} { // the other one may be damaged: that isn't touched either
			if bad {
				os.WriteFile(other, []byte("bad"), 0o600)
			}
			p, _ := os.ReadFile(path)
			q, _ := os.ReadFile(other)
			_, _, err = Open(Options{Dir: dir})
			var newer *FormatError
			if !errors.As(err, &newer) || newer.Format != 2 || newer.Path != path {
				t.Fatalf("open: %v", err)
			}
			p2, _ := os.ReadFile(path)
			q2, _ := os.ReadFile(other)
			if entries, _ := os.ReadDir(dir); len(entries) != 2 || !bytes.Equal(p, p2) || !bytes.Equal(q, q2) {
				t.Errorf("something was changed: %v", entries)
			}
		}
	}
}

// TestInspectCycle: a branch page that is its own child would keep bbolt going round until memory ends.
func TestInspectCycle(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	var changes []Change
	for i := range 2000 {
		changes = append(changes, put(fmt.Sprintf("k%05d", i), strings.Repeat("v", 50)))
	}
	checkpoint(t, s, 1, changes...)
	s.Close()
	p, err := os.ReadFile(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	if err := inspect(bytes.NewReader(p), int64(len(p))); err != nil {
		t.Fatal(err)
	}
	bad := 0
	for at := 8192; at < len(p); at += 4096 {
		id := binary.NativeEndian.Uint64(p[at:])
		if binary.NativeEndian.Uint16(p[at+8:]) != flagBranch || id != uint64(at/4096) {
			continue
		}
		q := bytes.Clone(p)
		binary.NativeEndian.PutUint64(q[at+pageHeader+8:], id)
		if err := inspect(bytes.NewReader(q), int64(len(q))); err == nil {
			continue // a branch page of an older transaction
		}
		bad++
		s, r := open(t, write(t, [2][]byte{q}))
		if len(r.SetAside) != 1 {
			t.Errorf("%+v", r)
		}
		s.Close()
	}
	if bad == 0 {
		t.Error("no branch page was found")
	}
}

func FuzzInspect(f *testing.F) {
	data, _ := files(f, 3)
	f.Add(100, byte(1), 9000, byte(3))
	f.Add(8200, byte(0xff), 4096+24, byte(1))
	f.Fuzz(func(t *testing.T, a int, x byte, b int, y byte) {
		d := data
		d[0] = bytes.Clone(data[0])
		n := len(d[0])
		if a < 0 || b < 0 {
			return
		}
		d[0][a%n] ^= x
		d[0][b%n] ^= y
		s, _ := open(t, write(t, d))
		content(t, s, "")
		checkpoint(t, s, 9, put("a", "1"))
		checkpoint(t, s, 10, put("b", "1"))
		s.Close()
	})
}
