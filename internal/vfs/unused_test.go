package vfs

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
)

type blindFS struct{ FS }

func (blindFS) Stat(name string) (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "stat", Path: name, Err: syscall.EIO}
}

func TestUnused(t *testing.T) {
	m := NewMem(MemOptions{})
	for _, want := range []string{"/a", "/a.1", "/a.2"} {
		got, err := Unused(m, "/a")
		if err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
		must(t, m.MkdirAll(got, 0o750))
	}
	if _, err := Unused(blindFS{m}, "/a"); !errors.Is(err, syscall.EIO) { // and doesn't look for ever
		t.Fatal(err)
	}
}
