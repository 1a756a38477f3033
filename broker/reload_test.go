package broker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// reloads counts what a part was asked to do.
type reloads struct {
	n   atomic.Int32
	err error
}

func (r *reloads) reload() error {
	r.n.Add(1)
	return r.err
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace moves a new file of the same length and age into the place of file.
func replace(t *testing.T, file, text string) {
	t.Helper()
	old, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file+".new", text)
	if err := os.Chtimes(file+".new", time.Time{}, old.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func TestReloadOnChange(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, dir string)
		want   int32
	}{
		{"nothing", func(*testing.T, string) {}, 0},
		{"longer", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "a"), "longer") }, 1},
		{"moved into place", func(t *testing.T, dir string) { replace(t, filepath.Join(dir, "a"), "2") }, 1},
		{"removed", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "a")) }, 1},
		{"appears", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "missing"), "1") }, 1},
		{"both of them", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "a"), "22")
			write(t, filepath.Join(dir, "missing"), "22")
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "a"), "1")
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var part, other reloads
				r := newReloader(slog.New(slog.DiscardHandler))
				r.register("part", []string{filepath.Join(dir, "a"), "", filepath.Join(dir, "missing")}, part.reload)
				r.register("other", nil, other.reload)
				go r.run(ctx)
				time.Sleep(watchInterval / 2)
				tt.change(t, dir)
				time.Sleep(5 * watchInterval)
				synctest.Wait()
				if part.n.Load() != tt.want || other.n.Load() != 0 {
					t.Errorf("%d reloads, want %d; %d of a part without files", part.n.Load(), tt.want, other.n.Load())
				}
			})
		})
	}
}

// A file is read once it stays as it is for the time between two looks.
func TestReloadWaitsForAFileToRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	write(t, file, "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var part reloads
		r := newReloader(slog.New(slog.DiscardHandler))
		r.register("part", []string{file}, part.reload)
		go r.run(ctx)
		time.Sleep(watchInterval / 2)
		for n := range 5 {
			write(t, file, strings.Repeat("x", n+1))
			time.Sleep(watchInterval)
		}
		synctest.Wait()
		if part.n.Load() != 0 {
			t.Errorf("read %d times while it was written", part.n.Load())
		}
		time.Sleep(2 * watchInterval)
		synctest.Wait()
		if part.n.Load() != 1 {
			t.Errorf("read %d times once it came to rest", part.n.Load())
		}
	})
}

// Asking for all reads everything, a failure is logged once and not tried again until something changes.
func TestReloadAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	write(t, file, "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var said strings.Builder
		var good, former reloads
		bad := reloads{err: errors.New("users.txt: line 3 is no user")}
		r := newReloader(slog.New(slog.NewTextHandler(&said, nil)))
		r.register("good", nil, former.reload)
		r.register("passwords", []string{file}, bad.reload)
		r.register("good", nil, good.reload)
		go r.run(ctx)
		r.all()
		r.all() // one is enough
		synctest.Wait()
		time.Sleep(10 * watchInterval)
		synctest.Wait()
		if bad.n.Load() != 1 || good.n.Load() != 1 || former.n.Load() != 0 {
			t.Errorf("%d, %d and %d calls", bad.n.Load(), good.n.Load(), former.n.Load())
		}
		for _, want := range []string{"stays in use", "what=passwords", "line 3 is no user", "msg=reloaded what=good"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("no %q in %s", want, said.String())
			}
		}
	})
}

func TestBrokerReloads(t *testing.T) {
	b, said := newTestBroker(t, testOptions(t.TempDir()))
	called := make(chan struct{}, 1)
	b.Watch("something", nil, func() error {
		called <- struct{}{}
		return io.ErrUnexpectedEOF
	})
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	b.Reload()
	<-called
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(said.String(), "reload failed") {
		t.Error(said.String())
	}
}
