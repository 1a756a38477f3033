package mqtt

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mqtt.sock")
	for _, tt := range []struct{ mode, want fs.FileMode }{{0, 0o660}, {0o600, 0o600}, {0o666, 0o666}} {
		b := startAt(t, Listener{Address: "unix:" + path, Mode: tt.mode})
		info, err := os.Stat(path)
		if err != nil || info.Mode() != fs.ModeSocket|tt.want {
			t.Errorf("mode %v: %v, %v", tt.mode, info.Mode(), err)
		}
		b.over(dialPlain(t, nil, b.Addrs()[0])).hello(connectOptions{id: "a"})
		b.end()
		if _, err := os.Lstat(path); err == nil {
			t.Error("the file is left behind")
		}
	}
}

// stale makes a socket's file that nobody listens on, as a broker leaves it that was killed.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
}

func TestUnixSocketInTheWay(t *testing.T) {
	tests := []struct {
		name  string
		there func(t *testing.T, path string)
		want  string // part of the error; empty: none
	}{
		{"nothing", func(*testing.T, string) {}, ""},
		{"left by a killed broker", stale, ""},
		{"in use", func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "stop the program that has it"},
		{"a file", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("important"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "no socket; remove it"},
		{"a datagram socket", func(t *testing.T, path string) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "address in use"},
		{"no directory", func(t *testing.T, path string) { os.Remove(filepath.Dir(path)) }, "directory doesn't exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dir", "mqtt.sock")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			tt.there(t, path)
			before, _ := os.Lstat(path)
			l, err := listenUnix(path, 0o600)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				l.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v", err)
			}
			if after, _ := os.Lstat(path); before != nil && !os.SameFile(before, after) {
				t.Error("what was there is gone")
			}
		})
	}
}

// The socket is never open to more than its mode says, whatever the umask is.
func TestUnixSocketMode(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "mqtt.sock")
	l, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
