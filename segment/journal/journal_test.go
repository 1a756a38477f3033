package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

const testFileBytes = 64 << 10

func open(t *testing.T, fs vfs.FS, dir string) *Journal {
	t.Helper()
	j, err := Open(Options{FS: fs, Dir: dir, FileBytes: testFileBytes, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// start opens, replays and starts, and returns the payloads that replay gave.
func start(t *testing.T, fs vfs.FS, dir string, after uint64) (*Journal, []string, Report) {
	t.Helper()
	j := open(t, fs, dir)
	got, r := replayed(t, j, after)
	if err := j.Start(r.LastLSN, after); err != nil {
		t.Fatal(err)
	}
	return j, got, r
}

func replayed(t *testing.T, j *Journal, after uint64) (got []string, r Report) {
	t.Helper()
	r, err := j.Replay(after, func(lsn uint64, e *Entry) error {
		if e.Salvaged {
			got = append(got, fmt.Sprintf("%d~%s-%d:%s", lsn, e.Topic, e.Partition, e.Batch))
			return nil
		}
		switch e.Kind {
		case KindBatch:
			got = append(got, fmt.Sprintf("%d:%s-%d:%s", lsn, e.Topic, e.Partition, e.Batch))
		case KindPut:
			got = append(got, fmt.Sprintf("%d:%s=%s", lsn, e.Key, e.Value))
		case KindDelete:
			got = append(got, fmt.Sprintf("%d:-%s", lsn, e.Key))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, r
}

func appendText(t *testing.T, j *Journal, text string) uint64 {
	t.Helper()
	var f Frame
	f.AddBatch("topic", 7, 3, []byte(text))
	lsn, err := j.Append(&f)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("replay gave %q, want %q", got, want)
	}
}

func TestFrameComesBackWhole(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	var f Frame
	f.AddBatch("a", 1, 0, []byte("one"))
	f.AddChanges(AppendDelete(AppendPut(nil, []byte("k"), []byte("v")), []byte("gone")), 2)
	f.AddBatch("b", 2, 9, nil)
	if _, err := j.Append(&f); err != nil {
		t.Fatal(err)
	}
	f.Reset(1 << 20)
	f.AddChanges(AppendPut(nil, []byte("k"), make([]byte, 9000)), 1)
	if _, err := j.Append(&f); err != nil {
		t.Fatal(err)
	}
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "1:a-0:one", "1:k=v", "1:-gone", "1:b-9:", "2:k="+string(make([]byte, 9000)))
	if r.LastLSN != 2 || r.Torn || len(r.Damages) != 0 {
		t.Fatalf("report %+v", r)
	}
}

func TestRollRecycleAndStart(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	var texts []string
	covered := uint64(0)
	for i := range 60 { // far more than Files files hold
		text := fmt.Sprintf("%d-%s", i, make([]byte, 10000))
		var f Frame
		f.AddBatch("topic", 7, 3, []byte(text))
		if !j.Fits(&f) {
			cut, err := j.Roll()
			if errors.Is(err, ErrNoFreeFile) {
				if err := j.Grow(2); err != nil {
					t.Fatal(err)
				}
				cut, err = j.Roll()
			}
			if err != nil {
				t.Fatal(err)
			}
			j.Release(covered)
			texts = slices.DeleteFunc(texts, func(s string) bool {
				var lsn uint64
				fmt.Sscanf(s, "%d:", &lsn)
				return lsn <= covered
			})
			covered = cut
		}
		lsn, err := j.Append(&f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, fmt.Sprintf("%d:topic-3:%s", lsn, text))
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(names) > Files {
		t.Fatalf("%d files, want at most %d", len(names), Files)
	}
	j2 := open(t, vfs.OS, dir)
	var lsn uint64
	fmt.Sscanf(texts[0], "%d:", &lsn)
	got, r := replayed(t, j2, lsn-1)
	want(t, got, texts...)
	if r.Torn || len(r.Damages) != 0 {
		t.Fatalf("report %+v", r)
	}

	// Once everything is covered, files are reused in any order; what they held is not missed by who looks from outside.
	if err := j2.Start(r.LastLSN, r.LastLSN); err != nil {
		t.Fatal(err)
	}
	appendText(t, j2, "new")
	frames := 0
	r, err := ReplayDir(vfs.OS, dir, func(uint64, *Entry) error { frames++; return nil })
	if err != nil || len(r.Damages) > 0 || frames != 1 {
		t.Fatalf("%d frames, report %+v, %v", frames, r, err)
	}
}

// lastUsed is the path of the file that holds the newest frames.
func lastUsed(j *Journal) string { return j.current.f.Name() }

func patch(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func TestDamage(t *testing.T) {
	const frame1, frame2, frame3 = framesAt, framesAt + blockBytes, framesAt + 2*blockBytes
	all := []string{"1:topic-3:one", "2:topic-3:two", "3:topic-3:three"}
	for _, c := range []struct {
		name    string
		harm    func(t *testing.T, path string)
		want    []string
		torn    bool
		damages []Damage
	}{
		{"none", func(*testing.T, string) {}, all, false, nil},
		{"last frame torn", func(t *testing.T, p string) { patch(t, p, frame3+40, []byte("x")) }, all[:2], true, nil},
		{"last frame lost", func(t *testing.T, p string) { patch(t, p, frame3, make([]byte, blockBytes)) }, all[:2], false, nil},
		{"frame in the middle flipped", func(t *testing.T, p string) { patch(t, p, frame2+40, []byte("x")) },
			[]string{all[0], "2~topic-30723:two", all[2]}, false, []Damage{{FromByte: frame2, ToByte: frame3, FromLSN: 2, ToLSN: 2}}},
		{"frame in the middle with a bad LSN", func(t *testing.T, p string) { patch(t, p, frame2+15, []byte{6}) },
			[]string{all[0], "2~topic-3:two", all[2]}, false, []Damage{{FromByte: frame2, ToByte: frame3, FromLSN: 2, ToLSN: 2}}},
		{"both header copies and the first frame", func(t *testing.T, p string) {
			patch(t, p, 0, make([]byte, framesAt))
			patch(t, p, frame1+40, []byte("x"))
		},
			append([]string{"1~topic-30723:one"}, all[1:]...), false, []Damage{{FromLSN: 1, ToLSN: 1}}},
		{"magic of the last frame", func(t *testing.T, p string) { patch(t, p, frame3, []byte{0x52}) }, all[:2], true, nil},
		{"LSN of the last frame", func(t *testing.T, p string) { patch(t, p, frame3+15, []byte{2}) }, all[:2], true, nil},
		{"two frames zeroed", func(t *testing.T, p string) { patch(t, p, frame1, make([]byte, 2*blockBytes)) },
			all[2:], false, []Damage{{FromByte: frame1, ToByte: frame3, FromLSN: 1, ToLSN: 2}}},
		{"first header copy", func(t *testing.T, p string) { patch(t, p, 0, make([]byte, blockBytes)) }, all, false, nil},
		{"second header copy", func(t *testing.T, p string) { patch(t, p, blockBytes, make([]byte, blockBytes)) }, all, false, nil},
		{"both header copies", func(t *testing.T, p string) { patch(t, p, 0, make([]byte, framesAt)) }, all, false, nil},
		{"length beyond the file", func(t *testing.T, p string) { patch(t, p, frame3+24, []byte{0xff, 0xff, 0xff, 0xff}) }, all[:2], true, nil},
		{"file cut in the last frame", func(t *testing.T, p string) { os.Truncate(p, frame3+20) }, all[:2], false, []Damage{{FromByte: frame3 + 20, ToByte: testFileBytes,
			Cause: "is cut short, at byte 16404 of 65536: frames from 3 on, if there were any, are lost"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			j, _, _ := start(t, vfs.OS, dir, 0)
			for _, text := range []string{"one", "two", "three"} {
				appendText(t, j, text)
			}
			path := lastUsed(j)
			j.Close()
			c.harm(t, path)
			j2, got, r := start(t, vfs.OS, dir, 0)
			want(t, got, c.want...)
			for i := range c.damages {
				if c.damages[i].ToByte > 0 {
					c.damages[i].File = path
				}
			}
			if r.Torn != c.torn || !slices.Equal(r.Damages, c.damages) {
				t.Fatalf("report %+v, want torn %v, damages %v", r, c.torn, c.damages)
			}
			appendText(t, j2, "after")
			got, _ = replayed(t, open(t, vfs.OS, dir), 0)
			want(t, got, append(slices.Clone(c.want), fmt.Sprintf("%d:topic-3:after", j2.LastLSN()))...)
		})
	}
}

func TestMissingFileIsReported(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	first := lastUsed(j)
	j.Grow(2)
	if _, err := j.Roll(); err != nil {
		t.Fatal(err)
	}
	appendText(t, j, "two")
	j.Close()
	os.Remove(first)
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "2:topic-3:two")
	if len(r.Damages) != 1 || r.Damages[0].FromLSN != 1 || r.Damages[0].ToLSN != 1 {
		t.Fatalf("report %+v", r)
	}
	// What a checkpoint covers is not missed.
	if _, r := replayed(t, open(t, vfs.OS, dir), 1); len(r.Damages) != 0 {
		t.Fatalf("report %+v", r)
	}
}

// A frame of an earlier use of a file, or one that somebody published as a payload, is never taken for a new one.
func TestStaleAndForgedFramesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	var forged Frame
	forged.AddBatch("topic", 7, 3, []byte("forged"))
	patch(t, lastUsed(j), framesAt+blockBytes, forged.seal(2, 12345))
	patch(t, lastUsed(j), framesAt+2*blockBytes, forged.seal(3, 0))
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "1:topic-3:one")
	if len(r.Damages) != 0 {
		t.Fatalf("report %+v", r)
	}
}

func TestFailedAppendGoesOnInTheSpare(t *testing.T) {
	for _, fail := range []vfs.Op{vfs.OpWrite, vfs.OpSync} {
		t.Run(string(fail), func(t *testing.T) {
			dir := t.TempDir()
			failing := ""
			fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
				if op == fail && name == failing {
					return 4096, syscall.EIO
				}
				return 0, nil
			}}
			j, _, _ := start(t, fs, dir, 0)
			appendText(t, j, "one")
			failing = lastUsed(j)
			var f Frame
			f.AddBatch("topic", 7, 3, []byte("two"))
			if _, err := j.Append(&f); !errors.Is(err, syscall.EIO) {
				t.Fatalf("append: %v", err)
			}
			if _, err := j.Append(&f); !errors.Is(err, syscall.EIO) {
				t.Fatalf("second append into a failed file: %v", err)
			}
			if err := j.Failover(); err != nil {
				t.Fatal(err)
			}
			lsn, err := j.Append(&f)
			if err != nil || lsn == 2 {
				t.Fatalf("append after failover: lsn %d, %v", lsn, err)
			}
			j.Close()
			failing = ""
			j2, got, r := start(t, fs, dir, 0)
			want(t, got, "1:topic-3:one", fmt.Sprintf("%d:topic-3:two", lsn))
			if len(r.Damages) != 0 {
				t.Fatalf("report %+v", r)
			}
			appendText(t, j2, "three")
			got, _ = replayed(t, open(t, vfs.OS, dir), lsn)
			want(t, got, fmt.Sprintf("%d:topic-3:three", j2.LastLSN()))
		})
	}
}

// A header whose sync failed may be on flash: the file that is used instead must win.
func TestFailedFailoverDoesNotShadowTheNext(t *testing.T) {
	dir := t.TempDir()
	failures := 0
	fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpSync && failures > 0 {
			failures--
			return 0, syscall.EIO
		}
		return 0, nil
	}}
	j, _, _ := start(t, fs, dir, 0)
	if err := j.Grow(2); err != nil {
		t.Fatal(err)
	}
	appendText(t, j, "one")
	failures = 2
	var f Frame
	f.AddBatch("topic", 7, 3, []byte("two"))
	if _, err := j.Append(&f); err == nil {
		t.Fatal("append did not fail")
	}
	if err := j.Failover(); err == nil {
		t.Fatal("failover did not fail")
	}
	if err := j.Failover(); err != nil {
		t.Fatal(err)
	}
	lsn, err := j.Append(&f)
	if err != nil {
		t.Fatal(err)
	}
	got, r := replayed(t, open(t, vfs.OS, dir), 0)
	want(t, got, "1:topic-3:one", fmt.Sprintf("%d:topic-3:two", lsn))
	if len(r.Damages) != 0 {
		t.Fatalf("report %+v", r)
	}
}

func TestNewerFormatIsRefusedUntouched(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	path := lastUsed(j)
	j.Close()
	h := header{epoch: 1, firstLSN: 1, size: testFileBytes}.encode()
	h[15] = formatVersion + 1
	reseal(h)
	patch(t, path, 0, h)
	before, _ := os.ReadFile(path)
	_, err := Open(Options{FS: vfs.OS, Dir: dir, FileBytes: testFileBytes, Logger: slog.New(slog.DiscardHandler)})
	var format *FormatError
	if !errors.As(err, &format) || format.Version != formatVersion+1 {
		t.Fatalf("open: %v", err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Fatal("the file was changed")
	}
}

func FuzzParseEntry(f *testing.F) {
	var fr Frame
	fr.AddBatch("topic", 7, 3, []byte("one"))
	fr.AddChanges(AppendPut(AppendDelete(nil, []byte("k")), []byte("k"), []byte("v")), 2)
	f.Add(fr.buf[frameHeaderBytes:], uint32(3))
	f.Fuzz(func(t *testing.T, b []byte, n uint32) {
		total := 0
		eachEntry(b, n, func(e *Entry) error {
			total += len(e.Topic) + len(e.Batch) + len(e.Key) + len(e.Value)
			return nil
		})
		if total > len(b) {
			t.Fatalf("entries of %d bytes out of %d", total, len(b))
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			nosync := &nosyncFS{vfs.OS}
			j, err := Open(Options{FS: nosync, Dir: b.TempDir(), FileBytes: 16 << 20, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			if err := j.Start(0, 0); err != nil {
				b.Fatal(err)
			}
			batch := make([]byte, size)
			var f Frame
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				f.Reset(1 << 20)
				f.AddBatch("topic", 1, 0, batch)
				if !j.Fits(&f) {
					j.Release(j.LastLSN())
					j.Grow(2)
					if _, err := j.Roll(); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := j.Append(&f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
