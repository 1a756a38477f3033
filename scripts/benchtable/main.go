//go:build linux

// Benchtable measures sluice side by side with mosquitto and prints the table of what it promises: rates and CPU as
// ratios within one run, memory, size of the binary. scripts/bench starts it.
//
// Both brokers run on loopback, each measurement on a fresh one, taking turns; a figure is the median over all rounds.
// Mosquitto keeps nothing on disk (persistence off, no limit on what is in flight); sluice runs with its defaults and
// syncs before each acknowledgement. The ratios hold for the machine and the file system named above the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of this program. Immutable once made.
type bench struct {
	runs      int
	seconds   time.Duration  // measured time of one cell
	only      *regexp.Regexp // rows to measure
	root      string         // of the repository
	work      string         // binaries, data directories
	sluice    string
	mqttload  string
	mosquitto string
	pin       bool // there are two cores to pin to
}

func run(ctx context.Context) error {
	b := &bench{}
	flag.IntVar(&b.runs, "runs", envInt("BENCH_RUNS", 5), "rounds; figures are medians over them (BENCH_RUNS)")
	seconds := flag.Int("seconds", envInt("BENCH_SECONDS", 4), "measured seconds of each cell (BENCH_SECONDS)")
	only := flag.String("only", os.Getenv("BENCH_ONLY"), "regular expression: measure only rows whose name matches (BENCH_ONLY)")
	dir := flag.String("dir", os.Getenv("BENCH_DIR"), "where data directories go; its file system is what is measured (BENCH_DIR; default scripts/.cache)")
	strict := flag.Bool("strict", false, "exit with 1 when a row fails")
	flag.Parse()
	if b.runs < 1 || *seconds < 1 {
		return errors.New("-runs and -seconds must be at least 1")
	}
	var err error
	b.seconds = time.Duration(*seconds) * time.Second
	if b.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if err := b.prepare(ctx, *dir); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	if err := b.describe(); err != nil {
		return err
	}
	var rows []row
	for _, measure := range []func(context.Context) ([]row, error){b.measureSpeed, b.measureMemory, b.measureSize} {
		more, err := measure(ctx)
		rows = append(rows, more...)
		if err != nil {
			printTable(rows)
			return err
		}
	}
	printTable(rows)
	if *strict && failed(rows) {
		return errors.New("a row failed")
	}
	return nil
}

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// prepare builds what is measured and what measures.
func (b *bench) prepare(ctx context.Context, dir string) error {
	var err error
	if b.mosquitto, err = exec.LookPath("mosquitto"); err != nil {
		b.mosquitto = "/usr/sbin/mosquitto" // not in everybody's PATH on Debian
		if _, err := os.Stat(b.mosquitto); err != nil {
			return errors.New("no mosquitto to compare with: install it (Debian: mosquitto)")
		}
	}
	if b.root, err = os.Getwd(); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.root, "cmd", "sluice")); err != nil {
		return errors.New("run it from the repository's root, or by scripts/bench")
	}
	if dir == "" {
		dir = filepath.Join(b.root, "scripts", ".cache")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp(dir, "bench-"); err != nil {
		return err
	}
	b.sluice, b.mqttload = filepath.Join(b.work, "sluice"), filepath.Join(b.work, "mqttload")
	if err := b.build(ctx, b.root, []string{"CGO_ENABLED=0"}, "-o", b.sluice, "./cmd/sluice"); err != nil {
		return err
	}
	if err := b.build(ctx, filepath.Join(b.root, "scripts", "mqttload"), nil, "-o", b.mqttload, "."); err != nil {
		return err
	}
	_, err = exec.LookPath("taskset")
	b.pin = err == nil && runtime.NumCPU() >= 2
	return nil
}

func (b *bench) build(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-ldflags=-s -w"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// measureSize builds for the gateways' usual machine.
func (b *bench) measureSize(ctx context.Context) ([]row, error) {
	r := row{name: "binary, stripped, linux/arm64", limit: 20, most: true, unit: "MB"}
	if !b.wanted(r.name) {
		return nil, nil
	}
	out := filepath.Join(b.work, "sluice-arm64")
	if err := b.build(ctx, b.root, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64"}, "-o", out, "./cmd/sluice"); err != nil {
		return nil, err
	}
	info, err := os.Stat(out)
	if err != nil {
		return nil, err
	}
	r.measured = float64(info.Size()) / 1e6
	return []row{r}, nil
}

func (b *bench) wanted(name string) bool { return b.only.MatchString(name) }
