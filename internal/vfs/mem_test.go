package vfs

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
)

// free checks what is left, in pages.
func free(t *testing.T, m *Mem, want int64) {
	t.Helper()
	if _, got, err := m.Space("/"); got != want*pageBytes || err != nil {
		t.Errorf("%d bytes free, %v; want %d pages", got, err, want)
	}
}

func full(t *testing.T, n, want int, err error) {
	t.Helper()
	var e *fs.PathError
	if n != want || !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &e) || e.Path != "/f" {
		t.Errorf("%d bytes written, %v; want %d and ENOSPC", n, err, want)
	}
}

// TestCapacity counts pages, exactly.
func TestCapacity(t *testing.T) {
	m := NewMem(MemOptions{Capacity: 5*pageBytes + 100})
	if total, _, _ := m.Space("/"); total != 5*pageBytes+100 {
		t.Errorf("capacity is %d", total)
	}
	free(t, m, 5)
	f := open(t, m, "/f", os.O_RDWR|os.O_CREATE)
	n, err := f.WriteAt(make([]byte, 6*pageBytes), 100)
	full(t, n, 5*pageBytes-100, err)
	free(t, m, 0)
	write(t, f, strings.Repeat("a", 5*pageBytes), 0) // in place
	n, err = f.WriteAt([]byte("b"), 5*pageBytes)
	full(t, n, 0, err)
	n, err = f.WriteAt([]byte("bb"), 5*pageBytes-1)
	full(t, n, 1, err)
	if size, _ := f.Size(); size != 5*pageBytes {
		t.Errorf("size is %d", size)
	}
	do(t, m, "mkdir /d", "write /d/empty 0 ") // names take nothing
	lock, err := m.Lock("/lock")
	must(t, err)
	must(t, lock.Close())

	must(t, f.Truncate(pageBytes+1))
	free(t, m, 3)
	must(t, f.Truncate(100*pageBytes)) // a hole
	free(t, m, 3)
	write(t, f, "x", 50*pageBytes)
	free(t, m, 2)
	full(t, 0, 0, f.Allocate(5*pageBytes)) // 3 more; nothing is done
	free(t, m, 2)
	must(t, f.Allocate(4*pageBytes))
	free(t, m, 0)
	write(t, f, strings.Repeat("c", 4*pageBytes), 0)

	must(t, m.Remove("/f"))
	free(t, m, 0)
	must(t, f.Close())
	free(t, m, 5)
	do(t, m, "write /d/a 0 a*8192", "write /d/b 0 b*4096", "rename /d/b /d/a")
	free(t, m, 4)
	do(t, m, "truncate /d/a 0")
	free(t, m, 5)
	free(t, m.Clone(), 5)
}

// TestCapacityAfterPowerCut: space follows what came out, even where more came back than there is room for.
func TestCapacityAfterPowerCut(t *testing.T) {
	m := NewMem(MemOptions{Capacity: 2 * pageBytes})
	do(t, m, "write /a 0 a*8192", "sync /a", "syncdir /", "remove /a", "write /b 0 b*8192", "sync /b")
	free(t, m, 0)
	found := map[string]bool{}
	for seed := range uint64(100) {
		c := m.Clone()
		c.PowerCut(seeded(seed), pageBytes)
		a, b := exists(c, "/a"), exists(c, "/b")
		switch {
		case !a && !b:
			free(t, c, 2)
		default:
			free(t, c, 0)
		}
		if a && b {
			found["both"] = true
			if err := doOne(c, "write /c 0 c"); !errors.Is(err, syscall.ENOSPC) {
				t.Error(err)
			}
			do(t, c, "remove /a")
			free(t, c, 0)
			do(t, c, "remove /b")
			free(t, c, 2)
		}
	}
	if !found["both"] {
		t.Error("never both")
	}
}

// TestBounds: what can't be, or would take the machine's memory, is refused.
func TestBounds(t *testing.T) {
	m := NewMem(MemOptions{})
	f := open(t, m, "/f", os.O_RDWR|os.O_CREATE)
	_, err := f.WriteAt([]byte("x"), maxFileBytes)
	for _, err := range []error{err, f.Truncate(maxFileBytes + 1), f.Allocate(maxFileBytes + 1)} {
		if !errors.Is(err, syscall.EFBIG) {
			t.Error(err)
		}
	}
	for _, flag := range []int{os.O_APPEND, os.O_SYNC} {
		if _, err := m.OpenFile("/g", os.O_RDWR|os.O_CREATE|flag, 0o640); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("flag %x: %v", flag, err)
		}
	}
	if err := m.Remove("/"); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	for i := range 3 * staleFiles {
		do(t, m, "write /s 0 "+string(rune('a'+i%26))+"*4096", "sync /s", "syncdir /", "remove /s", "syncdir /")
	}
	do(t, m, "write /s 0 s*2000000", "sync /s", "truncate /s 0", "sync /s")
	if len(m.stale) != staleFiles || len(m.stale[staleFiles-1].blocks) != stalePages {
		t.Errorf("%d stale files, %d pages of the last", len(m.stale), len(m.stale[staleFiles-1].blocks))
	}
}

// TestClone: neither sees what is done to the other, durable or not, and handles stay with the original.
func TestClone(t *testing.T) {
	m := mem(t, "f=a*9000", "gone=g", "moved=m")
	file := open(t, m, "/d/f", os.O_RDWR)
	_, err := m.Lock("/d/lock")
	must(t, err)
	do(t, m, "write /d/f 0 b*100", "write /d/new 0 n", "remove /d/gone", "rename /d/moved /d/there")
	seen := show(t, m, "/")

	c := m.Clone()
	if got := show(t, c, "/"); got != seen {
		t.Errorf("clone has %s, want %s", got, seen)
	}
	_, err = c.Lock("/d/lock")
	must(t, err)
	changes := []string{"write /d/f 0 x*9000", "truncate /d/f 3", "sync /d/f", "remove /d/new", "rename /d/there /d/f", "mkdir /d/e", "syncdir /d"}
	do(t, c, changes...)
	c.PowerCut(seeded(1), pageBytes)
	if got := show(t, m, "/"); got != seen {
		t.Errorf("changes of the clone show: %s", got)
	}
	write(t, file, "b", 0)

	left := outcomes(t, m, 50, pageBytes)
	c = m.Clone()
	do(t, m, changes...)
	m.PowerCut(seeded(1), pageBytes)
	if got := show(t, c, "/"); got != seen {
		t.Errorf("changes of the original show: %s", got)
	}
	if got := outcomes(t, c, 50, pageBytes); !maps.Equal(got, left) {
		t.Errorf("power cuts leave %v, want %v", got, left)
	}
}
