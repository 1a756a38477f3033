//go:build linux

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestE2E runs the real binary against real peers: mosquitto's clients, Apache Kafka and its tools, kcat, kill -9.
//
// What a machine lacks is skipped, unless SLUICE_REQUIRE (mosquitto,kcat,kafka,paho,pahogo,mqttjs,namespaces,loop; comma-separated) lists it.
// A failing run prints the end of what each process said. SLUICE_KEEP=DIR keeps data directories and logs there,
// SLUICE_BINARY=FILE tests that binary instead of building one.
func TestE2E(t *testing.T) {
	if testing.Short() {
		t.Skip("end-to-end tests take minutes; run without -short")
	}
	r := newRig(t)
	t.Run("mosquitto", r.testMosquitto)
	t.Run("will", r.testWill)
	t.Run("paho", r.testPaho)
	t.Run("clients", r.testClients)
	t.Run("migration", r.testMigration)
	if !raceEnabled { // which makes hashes and handshakes ten times as dear
		t.Run("storm", r.testStorm)
	}
	t.Run("clear", r.testClear)
	t.Run("crash", r.testCrash)
	t.Run("sessions", r.testSessions)
	t.Run("retained", r.testRetained)
	t.Run("retained-crash", r.testRetainedCrash)
	t.Run("dumplog", r.testDumpLog)
	t.Run("readers", r.testReaders)
	t.Run("mirror", r.testMirror)
	t.Run("disk", r.testDisk)
}

// rig is what all end-to-end tests share. Immutable once made.
type rig struct {
	root     string // of the repository
	sluice   string // the binary under test, built with the race detector when the test is
	mqttload string
	keep     string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	r := &rig{root: root, sluice: filepath.Join(bin, "sluice"), mqttload: filepath.Join(bin, "mqttload"), keep: os.Getenv("SLUICE_KEEP")}
	if other := os.Getenv("SLUICE_BINARY"); other != "" {
		r.sluice = other
	} else if raceEnabled {
		r.build(t, root, "build", "-race", "-o", r.sluice, "./cmd/sluice")
	} else {
		r.build(t, root, "build", "-o", r.sluice, "./cmd/sluice")
	}
	r.build(t, filepath.Join(root, "scripts", "mqttload"), "build", "-o", r.mqttload, ".")
	return r
}

func (r *rig) build(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// dir makes a directory for a test, under SLUICE_KEEP if that is set.
func (r *rig) dir(t *testing.T) string {
	t.Helper()
	if r.keep == "" {
		return t.TempDir()
	}
	if err := os.MkdirAll(r.keep, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := os.MkdirTemp(r.keep, strings.ReplaceAll(t.Name(), "/", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// requirements maps what SLUICE_REQUIRE may list to the commands that it needs.
var requirements = map[string][]string{
	"mosquitto": {"mosquitto", "mosquitto_pub", "mosquitto_sub", "mosquitto_rr", "stdbuf"},
	"mqttjs":    {"node", "npm"},
	"kcat":      {"kcat"},
	"kafka":     {"java", "mvn", "bash"},
	"paho":      {systemPython},
}

// systemPython is Debian's interpreter: python3-paho-mqtt installs for it and not for others in PATH.
const systemPython = "/usr/bin/python3"

// need skips the test when a peer isn't installed, or fails it when SLUICE_REQUIRE says that it has to be.
func need(t *testing.T, peers ...string) {
	t.Helper()
	for _, peer := range peers {
		for _, command := range requirements[peer] {
			if _, err := exec.LookPath(command); err != nil {
				missing(t, required(peer), "%s: %s is not in PATH", peer, command)
			}
		}
		if peer == "paho" && exec.Command(systemPython, "-c", "import paho.mqtt.client").Run() != nil {
			missing(t, required(peer), "paho: %s has no module paho.mqtt", systemPython)
		}
	}
}

// required reports whether SLUICE_REQUIRE lists a peer.
func required(peer string) bool {
	return slices.Contains(strings.Split(os.Getenv("SLUICE_REQUIRE"), ","), peer)
}

func missing(t *testing.T, required bool, format string, args ...any) {
	t.Helper()
	if required {
		t.Fatalf(format+" and SLUICE_REQUIRE lists it", args...)
	}
	t.Skipf(format+"; not listed in SLUICE_REQUIRE", args...)
}

// wait polls until done says so, or fails the test after limit. Other processes give no other sign.
func wait(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// run runs a command to its end, at most limit, and returns what it wrote to stdout. A non-zero exit fails the test.
func run(t *testing.T, limit time.Duration, name string, args ...string) string {
	t.Helper()
	out, errOut, err := tryRun(t, limit, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, tail(out), tail(errOut))
	}
	return out
}

func tryRun(t *testing.T, limit time.Duration, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("still running after %v", limit)
	}
	return out.String(), errOut.String(), err
}

// tail is the end of what a process said, for a failure's message.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}

// loadResult is what mqttload prints, as far as tests look at it.
type loadResult struct {
	Sent, Acked, Refused, Unacked     uint64
	Found, Lost, Duplicates, Disorder uint64
	Disconnects, Reconnects           int
	FirstLost                         []string `json:"first_lost"`
	Errors                            map[string]int
}

func parseLoad(t *testing.T, out string) (r loadResult) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("mqttload printed %q: %v", tail(out), err)
	}
	return r
}
