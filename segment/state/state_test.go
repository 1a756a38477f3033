package state

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SLUICE_STATE_TEST_CHILD"); dir != "" {
		checkpointForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string) (*Store, Report) {
	t.Helper()
	s, r, err := Open(Options{Dir: dir, TxnBytes: 2000, LockTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s, r
}

func put(key, value string) Change { return Change{Key: []byte(key), Value: []byte(value)} }
func del(key string) Change        { return Change{Key: []byte(key), Delete: true} }

func checkpoint(t testing.TB, s *Store, lsn uint64, changes ...Change) {
	t.Helper()
	if err := s.Checkpoint(changes, point(lsn)); err != nil {
		t.Fatalf("checkpoint %d: %v", lsn, err)
	}
}

func point(lsn uint64) Point {
	return Point{LSN: lsn, Ends: map[string]int64{"a-0": int64(lsn) * 10, "a-1": 0}, Clean: lsn%2 == 0, Followed: lsn%3 == 0}
}

func content(t testing.TB, s *Store, prefix string) map[string]string {
	t.Helper()
	got := map[string]string{}
	last := ""
	err := s.Range([]byte(prefix), func(k, v []byte) bool {
		if string(k) <= last && last != "" {
			t.Fatalf("key %q after %q", k, last)
		}
		last = string(k)
		got[last] = string(v)
		return true
	})
	if err != nil {
		t.Fatalf("range: %v", err)
	}
	return got
}

func wantState(t testing.TB, s *Store, lsn uint64, want map[string]string) {
	t.Helper()
	if got := content(t, s, ""); !maps.Equal(got, want) {
		t.Fatalf("%d keys, want %d: %.300v", len(got), len(want), got)
	}
	p, q := s.Point(), point(lsn)
	if lsn == 0 {
		q = Point{}
	}
	if p.LSN != q.LSN || p.Clean != q.Clean || p.Followed != q.Followed || !maps.Equal(p.Ends, q.Ends) {
		t.Fatalf("point %+v, want %+v", p, q)
	}
	for k, v := range want {
		if got, ok, err := s.Get([]byte(k)); err != nil || !ok || string(got) != v {
			t.Fatalf("get %q: %q, %v, %v", k, got, ok, err)
		}
	}
}

func TestEmpty(t *testing.T) {
	s, r := open(t, t.TempDir())
	if r.Newest != "" || len(r.SetAside)+len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	wantState(t, s, 0, map[string]string{})
	if v, ok, err := s.Get([]byte("x")); v != nil || ok || err != nil {
		t.Errorf("get: %v %v %v", v, ok, err)
	}
	if s.OldestLSN() != 0 || s.UsedBytes() != 0 {
		t.Errorf("oldest %d, used %d", s.OldestLSN(), s.UsedBytes())
	}
}

func TestInTurn(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	steps := []struct {
		changes []Change
		oldest  uint64
		want    map[string]string
	}{
		{[]Change{put("a", "1"), put("b", "2"), put("b", "3")}, 0, map[string]string{"a": "1", "b": "3"}},
		{[]Change{put("c", ""), del("a"), del("nothing")}, 1, map[string]string{"b": "3", "c": ""}},
		{nil, 2, map[string]string{"b": "3", "c": ""}},
		{[]Change{put("d", "x"), del("d")}, 3, map[string]string{"b": "3", "c": ""}},
		{[]Change{put("a", "9")}, 4, map[string]string{"a": "9", "b": "3", "c": ""}},
	}
	for i, step := range steps {
		lsn := uint64(i + 1)
		checkpoint(t, s, lsn, step.changes...)
		wantState(t, s, lsn, step.want)
		if s.OldestLSN() != step.oldest {
			t.Fatalf("step %d: oldest %d, want %d", i, s.OldestLSN(), step.oldest)
		}
	}
	for range 2 {
		s.Close()
		var r Report
		s, r = open(t, dir)
		if r.Newest != filepath.Join(dir, names[0]) || len(r.SetAside)+len(r.Notes) != 0 {
			t.Fatalf("%+v", r)
		}
		wantState(t, s, 5, steps[4].want)
		if s.OldestLSN() != 4 {
			t.Fatalf("oldest %d", s.OldestLSN())
		}
	}
	checkpoint(t, s, 6) // the older file gets what it missed
	s.Close()
	os.Remove(filepath.Join(dir, names[0]))
	s, r := open(t, dir)
	if len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
	wantState(t, s, 6, steps[4].want)
	if s.OldestLSN() != 0 {
		t.Errorf("oldest %d with a file missing", s.OldestLSN())
	}
	checkpoint(t, s, 7)
	if s.OldestLSN() != 6 {
		t.Errorf("oldest %d", s.OldestLSN())
	}
}

// TestRandom compares with a map over many checkpoints and reopenings.
func TestRandom(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(1, 2))
	want := map[string]string{}
	s, _ := open(t, dir)
	for lsn := uint64(1); lsn <= 60; lsn++ {
		var changes []Change
		for range rnd.IntN(60) {
			key := fmt.Sprintf("key/%d", rnd.IntN(300))
			if rnd.IntN(3) == 0 {
				changes = append(changes, del(key))
				delete(want, key)
				continue
			}
			value := strings.Repeat(fmt.Sprint(rnd.IntN(1000)), rnd.IntN(200))
			changes = append(changes, put(key, value))
			want[key] = value
		}
		checkpoint(t, s, lsn, changes...)
		switch rnd.IntN(5) {
		case 0:
			s.Close()
			s, _ = open(t, dir)
		case 1:
			s.Close()
			for range 1 + rnd.IntN(2) { // lose the older one, in whichever way
				os.Remove(filepath.Join(dir, names[1-s.newest]))
			}
			s, _ = open(t, dir)
		}
		wantState(t, s, lsn, want)
	}
}

func TestRange(t *testing.T) {
	s, _ := open(t, t.TempDir())
	var changes []Change
	for i := range 3000 {
		changes = append(changes, put(fmt.Sprintf("p/%05d", i), strings.Repeat("v", i%100)), put(fmt.Sprintf("q/%05d", i), "w"))
	}
	checkpoint(t, s, 1, changes...)
	if got := content(t, s, "p/"); len(got) != 3000 || got["p/02999"] != strings.Repeat("v", 99) {
		t.Errorf("%d keys", len(got))
	}
	if got := content(t, s, "p/0000"); len(got) != 10 {
		t.Errorf("%d keys", len(got))
	}
	if got := content(t, s, "r"); len(got) != 0 {
		t.Errorf("%d keys", len(got))
	}
	n := 0
	err := s.Range(nil, func(k, v []byte) bool {
		n++
		if n == 10 { // the callback may use the store
			checkpoint(t, s, 2, put("p/00000", "changed"))
			checkpoint(t, s, 3)
		}
		clear(k)
		clear(v)
		return n < 2000
	})
	if err != nil || n != 2000 {
		t.Errorf("%d calls, %v", n, err)
	}
	if v, _, _ := s.Get([]byte("p/00000")); string(v) != "changed" {
		t.Errorf("%q", v)
	}
}

// TestConcurrent reads while checkpoints are made: each key has the value of some checkpoint, none goes back.
func TestConcurrent(t *testing.T) {
	s, _ := open(t, t.TempDir())
	checkpoint(t, s, 1, put("n", "00001"))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			last := ""
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, ok, err := s.Get([]byte("n"))
				if err != nil || !ok || string(v) < last {
					t.Errorf("%q after %q, %v, %v", v, last, ok, err)
					return
				}
				last = string(v)
				if err := s.Range([]byte("k"), func(_, _ []byte) bool { return true }); err != nil {
					t.Errorf("range: %v", err)
					return
				}
				_, _, _ = s.Point(), s.OldestLSN(), s.UsedBytes()
			}
		})
	}
	for lsn := uint64(2); lsn < 30; lsn++ {
		changes := []Change{put("n", fmt.Sprintf("%05d", lsn))}
		for i := range 100 {
			changes = append(changes, put(fmt.Sprint("k", i), strings.Repeat("x", int(lsn)*5)))
		}
		checkpoint(t, s, lsn, changes...)
	}
	close(stop)
	wg.Wait()
}

func TestRefused(t *testing.T) {
	s, _ := open(t, t.TempDir())
	checkpoint(t, s, 1, put("a", "1"))
	for _, key := range [][]byte{nil, {}, make([]byte, MaxKeyBytes+1)} {
		if err := s.Checkpoint([]Change{put("a", "2"), {Key: key}}, point(2)); !errors.Is(err, ErrKey) {
			t.Errorf("key of %d bytes: %v", len(key), err)
		}
	}
	if err := s.Checkpoint(nil, Point{Ends: map[string]int64{"x": -1}}); err == nil {
		t.Error("negative end offset")
	}
	checkpoint(t, s, 2, Change{Key: make([]byte, MaxKeyBytes), Value: []byte("x")})
	wantState(t, s, 2, map[string]string{"a": "1", string(make([]byte, MaxKeyBytes)): "x"})
	s.Close()
	if err := s.Checkpoint(nil, point(3)); !errors.Is(err, ErrClosed) {
		t.Errorf("checkpoint: %v", err)
	}
	if _, _, err := s.Get([]byte("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("get: %v", err)
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	checkpoint(t, s, 1, put("a", "1"))
	if _, _, err := Open(Options{Dir: dir, LockTimeout: 20 * time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v", err)
	}
	wantState(t, s, 1, map[string]string{"a": "1"})
	if _, _, err := Open(Options{Dir: filepath.Join(dir, "nowhere")}); err == nil {
		t.Error("opened a directory that isn't there")
	}
	if _, _, err := Open(Options{Dir: filepath.Join(dir, names[0])}); err == nil {
		t.Error("opened a file as a directory")
	}
}

// TestFull fills a file to MaxSize: the checkpoint fails, readers and the other file keep what they had, and after
// deletes it works again.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	s, _, err := Open(Options{Dir: dir, MaxSize: 1 << 20, TxnBytes: 100 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	checkpoint(t, s, 1, put("a", "1"))
	checkpoint(t, s, 2, put("b", "2"))
	want := map[string]string{"a": "1", "b": "2"}
	var big, gone []Change
	for i := range 300 {
		big = append(big, put(fmt.Sprint("big", i), strings.Repeat("x", 8000)))
		gone = append(gone, del(fmt.Sprint("big", i)))
	}
	for range 3 {
		if err := s.Checkpoint(big, point(3)); !errors.Is(err, ErrFull) {
			t.Fatalf("checkpoint: %v", err)
		}
		wantState(t, s, 2, want)
		if s.OldestLSN() != 1 {
			t.Fatalf("oldest %d", s.OldestLSN())
		}
	}
	s.Close()
	s, _ = open(t, dir)
	wantState(t, s, 2, want)
	checkpoint(t, s, 4, append(big[:50:50], gone...)...)
	checkpoint(t, s, 5, put("c", "3"))
	want["c"] = "3"
	wantState(t, s, 5, want)
	left, _ := filepath.Glob(filepath.Join(dir, "*"+newSuffix))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFailedWrite takes the file away from under bbolt: each write fails. The next checkpoint makes the file anew.
func TestFailedWrite(t *testing.T) {
	for _, remaking := range []bool{false, true} {
		dir := t.TempDir()
		var opened []*os.File
		o := Options{Dir: dir, LockTimeout: time.Second}
		o.opener = func(name string, flag int, perm os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, perm)
			opened = append(opened, f)
			return f, err
		}
		s, _, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		checkpoint(t, s, 1, put("a", "1"))
		if !remaking {
			checkpoint(t, s, 2, put("b", "2"))
			opened[0].Close() // a is the older one
		} else {
			s.o.opener = func(name string, flag int, perm os.FileMode) (*os.File, error) {
				f, err := os.OpenFile(name, os.O_RDONLY|flag&os.O_CREATE, perm) // can't be written
				return f, err
			}
		}
		lsn := s.Point().LSN
		before := content(t, s, "")
		if err := s.Checkpoint([]Change{put("c", "3")}, point(3)); err == nil {
			t.Fatal("no error")
		}
		wantState(t, s, lsn, before)
		s.o.opener = nil
		checkpoint(t, s, 4, put("c", "3"))
		before["c"] = "3"
		wantState(t, s, 4, before)
		checkpoint(t, s, 5)
		if s.OldestLSN() != 4 {
			t.Errorf("oldest %d", s.OldestLSN())
		}
		s.Close()
		s, r := open(t, dir)
		if len(r.SetAside)+len(r.Notes) != 0 {
			t.Errorf("%+v", r)
		}
		wantState(t, s, 5, before)
	}
}

// TestFault truncates a file under its memory map: an error, not a crash.
func TestFault(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	var changes []Change
	for i := range 2000 {
		changes = append(changes, put(fmt.Sprintf("k%05d", i), strings.Repeat("v", 100)))
	}
	checkpoint(t, s, 1, changes...)
	checkpoint(t, s, 2, put("z", "z"))
	path := filepath.Join(dir, names[1])
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	err := s.Range(nil, func(_, _ []byte) bool { return true })
	if fault := (*faultError)(nil); !errors.As(err, &fault) {
		t.Fatalf("range: %v", err)
	}
	if _, _, err := s.Get([]byte("k00100")); err == nil {
		t.Fatal("get: no error")
	}
	if err := s.Checkpoint(nil, point(3)); err == nil {
		t.Fatal("checkpoint from a file that can't be read")
	}
	s.Close()
	s, r := open(t, dir)
	if len(r.SetAside) != 1 || s.Point().LSN != 1 || len(content(t, s, "")) != 2000 {
		t.Errorf("%+v, LSN %d", r, s.Point().LSN)
	}
}

func TestHead(t *testing.T) {
	for _, h := range []head{{}, {number: 7, point: point(3)}, {1 << 63, Point{LSN: 1<<64 - 1, Clean: true, Ends: map[string]int64{"": 1<<63 - 1}}}} {
		b := h.encode()
		got, err := decodeHead(b)
		if err != nil || got.number != h.number || got.point.LSN != h.point.LSN || got.point.Clean != h.point.Clean || got.point.Followed != h.point.Followed || !maps.Equal(got.point.Ends, h.point.Ends) {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
		for n := range b {
			if _, err := decodeHead(b[:n]); err == nil {
				t.Errorf("%+v cut to %d bytes: no error", h, n)
			}
		}
		if _, err := decodeHead(append(b, 0)); err == nil {
			t.Error("trailing byte: no error")
		}
	}
}

func FuzzHead(f *testing.F) {
	f.Add(head{number: 7, point: point(3)}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHead(b)
		if err != nil {
			return
		}
		again, err := decodeHead(h.encode())
		if err != nil || !maps.Equal(again.point.Ends, h.point.Ends) || again.number != h.number {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

func BenchmarkCheckpoint(b *testing.B) {
	s, _, err := Open(Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for lsn := uint64(1); b.Loop(); lsn++ {
		var changes []Change
		for i := range 100 {
			changes = append(changes, put(fmt.Sprintf("cursor/%03d", i), fmt.Sprint(lsn)))
		}
		checkpoint(b, s, lsn, changes...)
	}
}
