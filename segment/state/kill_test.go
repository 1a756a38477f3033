package state

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// killedValue is what key i has after checkpoint lsn: it shows which checkpoint wrote it.
func killedValue(lsn uint64, i int) string {
	return fmt.Sprintf("%d/%s", lsn, strings.Repeat("v", i*5))
}

// checkpointForEver is the child of TestKill: it says each checkpoint's LSN once Checkpoint has returned.
func checkpointForEver(dir string) {
	s, r, err := Open(Options{Dir: dir, TxnBytes: 1000})
	if err != nil || len(r.SetAside) > 0 {
		fmt.Printf("open: %v, %+v\n", err, r)
		os.Exit(1)
	}
	for lsn := s.Point().LSN + 1; ; lsn++ {
		var changes []Change
		for i := range 40 {
			changes = append(changes, put(fmt.Sprint("key", i), killedValue(lsn, i)))
		}
		changes = append(changes, put(fmt.Sprint("odd", lsn), "x"), del(fmt.Sprint("odd", lsn-3)))
		if err := s.Checkpoint(changes, point(lsn)); err != nil {
			fmt.Printf("checkpoint: %v\n", err)
			os.Exit(1)
		}
		fmt.Println(lsn)
	}
}

// TestKill kills a process that checkpoints, at random moments. The last checkpoint that it reported, or the one
// after, is there, whole.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	kills, limit := 40, time.Now().Add(20*time.Second)
	if testing.Short() {
		kills = 5
	}
	n, total := 0, uint64(0)
	for ; n < kills && time.Now().Before(limit); n++ {
		total = killOnce(t, dir)
	}
	t.Logf("%d kills, %d checkpoints", n, total)
}

func killOnce(t *testing.T, dir string) uint64 {
	cmd := exec.Command(os.Args[0])
	if emulator := os.Getenv("SLUICE_TEST_EMULATOR"); emulator != "" { // as go test -exec does for this process
		cmd = exec.Command(emulator, os.Args[0])
	}
	cmd.Env = append(os.Environ(), "SLUICE_STATE_TEST_CHILD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var last uint64
	var timer *time.Timer
	for lines.Scan() {
		if _, err := fmt.Sscan(lines.Text(), &last); err != nil {
			t.Errorf("child: %s", lines.Text())
		}
		if timer == nil { // the moment is counted from its first checkpoint
			timer = time.AfterFunc(time.Duration(rand.IntN(100_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait()
	if t.Failed() {
		t.FailNow()
	}
	s, r := open(t, dir)
	defer s.Close()
	lsn := s.Point().LSN
	if lsn != last && lsn != last+1 || len(r.SetAside) > 0 {
		t.Fatalf("LSN %d after %d was reported; %+v", lsn, last, r)
	}
	if oldest := s.OldestLSN(); oldest != lsn-1 && (oldest != 0 || lsn != 1) {
		t.Fatalf("oldest %d at LSN %d", oldest, lsn)
	}
	got := content(t, s, "key")
	for i := range 40 {
		if got[fmt.Sprint("key", i)] != killedValue(lsn, i) {
			t.Fatalf("LSN %d: key %d is %q", lsn, i, got[fmt.Sprint("key", i)])
		}
	}
	if odd := content(t, s, "odd"); len(odd) != int(min(lsn, 3)) {
		t.Fatalf("LSN %d: %v", lsn, odd)
	}
	return lsn
}
