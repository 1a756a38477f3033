package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/sluicemq/sluice/internal/vfs"
)

func roll(t *testing.T, j *Journal) {
	t.Helper()
	if err := j.Grow(2); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Roll(); err != nil {
		t.Fatal(err)
	}
}

// A segment is rewritten out of the journal while the broker runs. The header of a file without frames has promised the
// next LSN by then.
func TestReplayLeavesTheNextLSNAlone(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	roll(t, j)
	replayed(t, j, 0)
	appendText(t, j, "two")
	appendText(t, j, "three")
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "1:topic-3:one", "2:topic-3:two", "3:topic-3:three")
	if len(r.Damages) > 0 {
		t.Fatalf("report %+v", r)
	}
}

// A frame is read although its LSN is higher than expected: what is missing is what lies between.
func TestFrameAfterAnLSNThatIsMissing(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	j.nextLSN++
	appendText(t, j, "three")
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "1:topic-3:one", "3:topic-3:three")
	if len(r.Damages) != 1 || r.Damages[0].FromLSN != 2 || r.Damages[0].ToLSN != 2 {
		t.Fatalf("report %+v", r)
	}
}

// A replay that its caller breaks off has not seen all files; what they hold is needed all the same.
func TestBrokenOffReplayFreesNothing(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	roll(t, j)
	appendText(t, j, "two")
	roll(t, j)
	appendText(t, j, "three")
	stop := errors.New("no space")
	if _, err := j.Replay(0, func(uint64, *Entry) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("replay: %v", err)
	}
	j.Release(1)
	for i := range 2 { // use all that is free
		if err := j.Failover(); err != nil {
			t.Fatal(err)
		}
		appendText(t, j, fmt.Sprint(i))
	}
	j2 := open(t, vfs.OS, dir)
	got, r := replayed(t, j2, 1)
	want(t, got, "2:topic-3:two", "3:topic-3:three", "4:topic-3:0", "5:topic-3:1")
	if len(r.Damages) > 0 {
		t.Fatalf("report %+v", r)
	}
}

// Retries while the disk refuses leave no files behind.
func TestFilesThatCannotBeStartedAreRemoved(t *testing.T) {
	dir := t.TempDir()
	failing := false
	headers := map[string]bool{}
	fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpWrite && failing && !headers[name] {
			return 0, syscall.EIO
		}
		return 0, nil
	}}
	j, _, _ := start(t, fs, dir, 0)
	appendText(t, j, "one")
	for range 20 {
		failing = false
		if err := j.Grow(1); err != nil {
			t.Fatal(err)
		}
		failing = true
		if err := j.Failover(); err == nil {
			t.Fatal("failover did not fail")
		}
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) > Files {
		t.Fatalf("%d files", len(names))
	}
	failing = false
	roll(t, j)
	appendText(t, j, "two")
	got, r := replayed(t, open(t, vfs.OS, dir), 0)
	want(t, got, "1:topic-3:one", fmt.Sprintf("%d:topic-3:two", j.LastLSN()))
	if len(r.Damages) > 0 {
		t.Fatalf("report %+v", r)
	}
}

// One bad file keeps nobody from starting.
func TestStartPassesOverBadFiles(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      vfs.Op
		harm    func(t *testing.T, path string)
		damages int
	}{
		{"write", vfs.OpWrite, nil, 0},
		{"sync", vfs.OpSync, nil, 0},
		{"open", vfs.OpOpen, nil, 1},
		{"read", vfs.OpRead, nil, 1},
		{"directory", "", func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			j, _, _ := start(t, vfs.OS, dir, 0)
			appendText(t, j, "one")
			j.Close()
			bad := filepath.Join(dir, "00000002.journal")
			if c.harm != nil {
				c.harm(t, bad)
			}
			fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
				if op == c.op && name == bad {
					return 0, syscall.EIO
				}
				return 0, nil
			}}
			j, got, r := start(t, fs, dir, 0)
			want(t, got, "1:topic-3:one")
			if len(r.Damages) != c.damages {
				t.Fatalf("report %+v", r)
			}
			lsn := appendText(t, j, "two")
			j.Close()
			_, got, _ = start(t, fs, dir, 1)
			want(t, got, fmt.Sprintf("%d:topic-3:two", lsn))
		})
	}
}

// A broker removes files while somebody looks.
func TestReplayDirWithoutAFileThatIsGone(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	gone := filepath.Join(dir, "00000003.journal")
	fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpOpen && name == gone {
			os.Remove(gone)
		}
		return 0, nil
	}}
	if r, err := ReplayDir(fs, dir, func(uint64, *Entry) error { return nil }); err != nil || r.Frames != 1 {
		t.Fatalf("report %+v, %v", r, err)
	}
}

// A frame whose entries make no sense, whatever wrote it, is damage like any other.
func TestFrameWithoutSenseIsPassedOver(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	var f Frame
	f.AddChanges(AppendPut(nil, []byte("k"), []byte("v")), 1)
	f.AddChanges([]byte{99}, 1)
	if _, err := j.Append(&f); err != nil {
		t.Fatal(err)
	}
	appendText(t, j, "three")
	_, got, r := start(t, vfs.OS, dir, 0)
	want(t, got, "1:topic-3:one", "3:topic-3:three")
	if len(r.Damages) != 1 || r.Damages[0].FromLSN != 2 || r.Damages[0].ToLSN != 2 {
		t.Fatalf("report %+v", r)
	}
}

func TestFrameLargerThanAFile(t *testing.T) {
	j, _, _ := start(t, vfs.OS, t.TempDir(), 0)
	var f Frame
	f.AddBatch("topic", 7, 3, make([]byte, testFileBytes-framesAt-100))
	if !j.Fits(&f) {
		t.Fatal("a file that is empty has no room")
	}
	f.AddBatch("topic", 7, 3, make([]byte, 200))
	if _, err := j.Append(&f); !j.Fits(&f) || !errors.Is(err, ErrTooLarge) {
		t.Fatalf("append: %v", err)
	}
	appendText(t, j, "goes on")
}

// Whoever looks may come upon a frame that is just being written, and find the next one behind it a moment later.
func TestFrameThatIsBeingWritten(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	for _, text := range []string{"one", "two", "three"} {
		appendText(t, j, text)
	}
	path := lastUsed(j)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const frame2, frame3 = framesAt + blockBytes, framesAt + 2*blockBytes
	patch(t, path, frame2+40, []byte("x"))
	reads := 0
	fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRead && name == path {
			if reads++; reads == 5 { // two openings, frames 1 and 2, and then
				patch(t, path, frame2, whole[frame2:frame3])
			}
		}
		return 0, nil
	}}
	var lsns []uint64
	r, err := ReplayDir(fs, dir, func(lsn uint64, _ *Entry) error { lsns = append(lsns, lsn); return nil })
	if err != nil || len(r.Damages) > 0 || !slices.Equal(lsns, []uint64{1, 2, 3}) || reads < 5 {
		t.Fatalf("frames %v, report %+v, %v", lsns, r, err)
	}
}

// A broker goes on while somebody opens one file after the other.
func TestReplayDirSeesFilesOfOneMoment(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	roll(t, j)
	appendText(t, j, "two")
	busy := false
	fs := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpOpen && name == lastUsed(j) && !busy {
			busy = true
			j.Release(1)
			for _, text := range []string{"three", "four"} {
				if err := j.Failover(); err != nil {
					t.Fatal(err)
				}
				appendText(t, j, text)
			}
		}
		return 0, nil
	}}
	var lsns []uint64
	r, err := ReplayDir(fs, dir, func(lsn uint64, _ *Entry) error { lsns = append(lsns, lsn); return nil })
	if err != nil || len(r.Damages) > 0 || !slices.Equal(lsns, []uint64{2, 3, 4}) || !busy {
		t.Fatalf("frames %v, report %+v, %v", lsns, r, err)
	}
}

// A checkpoint by time while nothing is written begins no second file at the same LSN: nothing would tell at recovery which
// of them goes on.
func TestRollOfAnEmptyFile(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := start(t, vfs.OS, dir, 0)
	appendText(t, j, "one")
	for range 6 { // however their names are sorted
		lsn := j.LastLSN()
		for range 3 {
			roll(t, j)
			j.Release(lsn)
		}
		appendText(t, j, "more")
		if got, r := replayed(t, open(t, vfs.OS, dir), lsn); len(got) != 1 || len(r.Damages) > 0 {
			t.Fatalf("%q, %+v", got, r)
		}
	}
}

// A roll that fails leaves the file in hand as it is, if the new one is gone for sure. Else nothing may be added behind what
// its header, which may be on flash, declares void.
func TestRollThatFails(t *testing.T) {
	for _, c := range []struct {
		name string
		fail []vfs.Op
		void bool
	}{
		{"file removed", []vfs.Op{vfs.OpSync}, false},
		{"file stays", []vfs.Op{vfs.OpSync, vfs.OpRemove}, true},
		{"file may come back", []vfs.Op{vfs.OpSync, vfs.OpSyncDir}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			armed := false
			fsys := &vfs.Faulty{FS: vfs.OS, Before: func(op vfs.Op, _ string) (int, error) {
				if armed && slices.Contains(c.fail, op) {
					return 0, syscall.EIO
				}
				return 0, nil
			}}
			j, _, _ := start(t, fsys, dir, 0)
			appendText(t, j, "one")
			armed = true
			if _, err := j.Roll(); err == nil {
				t.Fatal("the roll succeeded")
			}
			armed = false
			var f Frame
			f.AddBatch("topic", 7, 3, []byte("two"))
			_, err := j.Append(&f)
			if c.void != (err != nil) {
				t.Fatalf("append: %v", err)
			}
			if c.void {
				if err := j.Failover(); err != nil {
					t.Fatal(err)
				}
				appendText(t, j, "two")
			}
			_, r := replayed(t, open(t, vfs.OS, dir), 0)
			if r.Frames != 2 || len(r.Damages) > 0 {
				t.Fatalf("%+v", r)
			}
		})
	}
}
