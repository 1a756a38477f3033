//go:build linux

package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// smallSizes make journal files roll and checkpoints run many times within a round.
const smallSizes = `version: 1
commit: {max_bytes: 64KiB, journal_bytes: 1MiB}
mqtt: {max_packet_bytes: 4KiB}
topics:
  - {name: mqtt, partitions: 4, segment_bytes: 1MiB}
`

// testCrash kills the gateway at random moments while clients publish, and finds every acknowledged message in the
// log afterwards. SLUICE_CRASH_ROUNDS and SLUICE_CRASH_SEED change how often and which; scripts/crashloop sets them.
func (r *rig) testCrash(t *testing.T) {
	rounds := envInt(t, "SLUICE_CRASH_ROUNDS", 3)
	seed := envInt(t, "SLUICE_CRASH_SEED", int(time.Now().UnixNano()&0xffffffff))
	for _, c := range []struct{ name, config string }{{"default", ""}, {"small", smallSizes}} {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("SLUICE_CRASH_SEED=%d", seed)
			l := crashLoop{rig: r, config: c.config, random: rand.New(rand.NewPCG(uint64(seed), 0))}
			for round := 1; round <= rounds; round++ {
				l.round(t, round, round == rounds)
			}
			t.Logf("%s: %d rounds, %d kills, slowest start %v; acknowledged %d, found %d, missing %d, twice %d, out of order %d",
				c.name, rounds, l.kills, l.slowest.Round(time.Millisecond), l.acked, l.found, l.missing, l.twice, l.disorder)
		})
	}
}

func envInt(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, s)
	}
	return n
}

// crashLoop is one data directory after the other, each through roundsPerDirectory kills.
type crashLoop struct {
	rig    *rig
	config string
	random *rand.Rand

	g         *gateway
	ackedFile string // everything acknowledged since the directory was made
	foundFile string

	kills                                  int
	slowest                                time.Duration
	acked, found, missing, twice, disorder uint64 // of the finished directories
}

// roundsPerDirectory bounds what a dump has to read: each round adds some hundred thousand messages.
const roundsPerDirectory = 4

// round kills the gateway once or more under load, starts it again and checks everything acknowledged so far.
func (l *crashLoop) round(t *testing.T, n int, last bool) {
	t.Helper()
	if l.g == nil {
		l.open(t)
	}
	scratch := filepath.Dir(l.ackedFile)
	const length = time.Second
	var loads []*process
	var files []string
	for qos := 1; qos <= 2; qos++ {
		file := filepath.Join(scratch, fmt.Sprintf("acked-%d-%d", n, qos))
		files = append(files, file)
		loads = append(loads, spawn(t, l.rig.mqttload, "pub", "-addr", l.g.addr, "-clients", "25", "-window", "20", "-size", "100",
			"-qos", fmt.Sprint(qos), "-proto", fmt.Sprint(4+(n+qos)%2), "-id", fmt.Sprintf("c%d", qos), "-topic", fmt.Sprintf("crash/%d/%%d", qos),
			"-run", fmt.Sprint(2*n+qos), "-seq", file, "-reconnect", "-warmup", "0s", "-duration", length.String()))
	}
	time.Sleep(time.Duration(l.random.Int64N(int64(length * 8 / 10)))) //lint:sleep any moment may be the worst to be killed at
	l.kill(t)
	if l.random.IntN(3) == 0 { // again, while it recovers
		l.g.p = spawn(t, l.rig.sluice, l.g.args...)
		time.Sleep(time.Duration(l.random.Int64N(int64(150 * time.Millisecond)))) //lint:sleep as above
		l.kill(t)
	}
	l.slowest = max(l.slowest, l.g.start(t))
	for _, p := range loads {
		if err := p.wait(t, 30*time.Second); err != nil {
			t.Fatalf("mqttload: %v", err)
		}
		if r := parseLoad(t, p.stdout.String()); r.Refused > 0 {
			t.Errorf("round %d: %d publishes refused: %s", n, r.Refused, p.stdout.String())
		} else {
			p.dull = true
		}
	}
	l.append(t, files)
	l.check(t, n, last || n%roundsPerDirectory == 0)
}

func (l *crashLoop) kill(t *testing.T) {
	t.Helper()
	l.g.kill9(t)
	l.kills++
}

func (l *crashLoop) open(t *testing.T) {
	t.Helper()
	l.g = l.rig.gateway(t, l.config)
	base := filepath.Dir(l.g.dir)
	l.ackedFile, l.foundFile = filepath.Join(base, "acked.txt"), filepath.Join(base, "found.txt")
	l.slowest = max(l.slowest, l.g.start(t))
}

// append adds what one round's generators saw acknowledged.
func (l *crashLoop) append(t *testing.T, files []string) {
	t.Helper()
	all, err := os.OpenFile(l.ackedFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil {
			_, err = all.Write(b)
		}
		if err == nil {
			err = os.Remove(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// check looks for all of the directory's acknowledged messages. The generators never send a message again, so one
// that is there twice or out of its client's order is a fault, too. finish: the directory has been used enough.
func (l *crashLoop) check(t *testing.T, n int, finish bool) {
	t.Helper()
	l.g.found(t, l.foundFile)
	got := l.rig.check(t, l.ackedFile, l.foundFile)
	if got.Lost > 0 || got.Duplicates > 0 || got.Disorder > 0 || got.Acked == 0 {
		t.Errorf("round %d: acknowledged %d, found %d, missing %d (first: run client seq %q), twice %d, out of order %d",
			n, got.Acked, got.Found, got.Lost, got.FirstLost, got.Duplicates, got.Disorder)
	} else {
		t.Logf("round %d: acknowledged %d, found %d, missing 0", n, got.Acked, got.Found)
	}
	if !finish && !t.Failed() {
		return
	}
	l.acked, l.found, l.missing = l.acked+got.Acked, l.found+got.Found, l.missing+got.Lost
	l.twice, l.disorder = l.twice+got.Duplicates, l.disorder+got.Disorder
	l.g.stop(t)
	if t.Failed() {
		t.Fatalf("data directory %s (kept when SLUICE_KEEP is set)", l.g.dir)
	}
	if l.rig.keep == "" {
		if err := os.RemoveAll(filepath.Dir(l.g.dir)); err != nil {
			t.Fatal(err)
		}
	}
	l.g = nil
}
