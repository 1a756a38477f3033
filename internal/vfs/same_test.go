package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSame does the same random things to both file systems and compares all answers.
func TestSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dirs := map[string]FS{t.TempDir(): OS, "/tmp/x": NewMem(MemOptions{})}
	must(t, dirs["/tmp/x"].MkdirAll("/tmp/x", 0o750))
	handles := map[string][]File{}
	var did []string
	for range 3000 {
		op := randomOp(rng)
		answers := map[string]string{}
		for dir, f := range dirs {
			var answer string
			answer, handles[dir] = op.do(f, dir, handles[dir])
			answers[answer] = fmt.Sprintf("%T", f)
		}
		did = append(did, fmt.Sprintf("%+v", op))
		if len(answers) > 1 {
			t.Fatalf("after %s: answers %q", strings.Join(did[max(0, len(did)-30):], "; "), answers)
		}
	}
	for _, files := range handles {
		for _, file := range files {
			file.Close()
		}
	}
}

type anyOp struct {
	kind   string
	a, b   string
	handle int
	flag   int
	at     int64
	n      int
}

func randomOp(rng *rand.Rand) anyOp {
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	names := []string{"a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "e", "e/a"}
	flags := []int{0, os.O_CREATE, os.O_CREATE | os.O_EXCL, os.O_CREATE | os.O_TRUNC, os.O_TRUNC}
	return anyOp{
		kind: pick("open", "open", "remove", "rename", "mkdir", "list", "stat", "syncdir",
			"write", "write", "truncate", "allocate", "sync", "read", "read"),
		a: pick(names...), b: pick(names...), handle: rng.IntN(6),
		flag: flags[rng.IntN(len(flags))] | []int{os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY}[rng.IntN(4)],
		at:   rng.Int64N(20000), n: 1 + rng.IntN(9000),
	}
}

// do does it and says what came of it. Open files are at most six. Where POSIX leaves something open it is Linux that
// counts: O_TRUNC works for readers, too.
func (o anyOp) do(f FS, dir string, files []File) (string, []File) {
	a, b := filepath.Join(dir, o.a), filepath.Join(dir, o.b)
	switch o.kind {
	case "open":
		file, err := f.OpenFile(a, o.flag, 0o640)
		if err == nil {
			files = append(files, file)
			if len(files) > 6 {
				files[0].Close()
				files = files[1:]
			}
		}
		return answer(err), files
	case "remove":
		return answer(f.Remove(a)), files
	case "rename":
		return answer(f.Rename(a, b)), files
	case "mkdir":
		return answer(f.MkdirAll(a, 0o750)), files
	case "list":
		list, err := f.ReadDir(a)
		s := answer(err)
		for _, e := range list {
			s += " " + e.Name()
		}
		return s, files
	case "stat":
		info, err := f.Stat(a)
		if err == nil && !info.IsDir() {
			return fmt.Sprint(info.Size(), info.Mode()), files
		}
		return answer(err), files
	case "syncdir":
		return answer(f.SyncDir(a)), files
	}
	if o.handle >= len(files) {
		return "", files
	}
	return o.file(files[o.handle]), files
}

func (o anyOp) file(file File) string {
	switch o.kind {
	case "write":
		n, err := file.WriteAt(bytes.Repeat([]byte{byte(o.at)}, o.n), o.at)
		return fmt.Sprint(n, answer(err))
	case "truncate":
		return answer(file.Truncate(o.at))
	case "allocate":
		return answer(file.Allocate(o.at))
	case "sync":
		return answer(file.Sync())
	default:
		p := make([]byte, o.n)
		n, err := file.ReadAt(p, o.at)
		return fmt.Sprintf("%d %q %s", n, p[:n], answer(err))
	}
}

func answer(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return fmt.Sprint(err)
}
