//go:build linux

// Weartable measures what reaches the flash: bytes and flushes at the block device, from the kernel's counters
// (/sys/block/*/stat), for each commit and for each message of a steady stream. scripts/wear gives it a loop disk of its own;
// on a gateway it can be given a real one, as long as nobody else writes to it.
//
// Everything is measured between two syncs of the whole file system, with a clean stop of the broker before the second, so that
// segments, checkpoints and the file system's own writing are in the figures. Files that are made once in the life of a data
// directory (the journal's, which are filled with zeros) are made before.
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
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "wear:", err)
		os.Exit(1)
	}
}

// meter is one run of this program. Immutable once made.
type meter struct {
	dir      string // on the device
	stat     string // the device's counters
	duration time.Duration
	rate     float64 // messages a second of a stream
	commits  float64 // commits a second of the long run over 16 partitions
	clients  int
	fill     string
	only     *regexp.Regexp
	work     string // binaries, not on the device
	sluice   string
	mqttload string
}

func run(ctx context.Context) error {
	m := &meter{}
	var device, only string
	flag.StringVar(&m.dir, "dir", "", "an empty directory on the device; scripts/wear gives one")
	flag.StringVar(&device, "device", "", "the block device's name under /sys/class/block, such as loop0 or mmcblk0p2")
	flag.DurationVar(&m.duration, "duration", time.Minute, "measured time of each stream")
	flag.Float64Var(&m.rate, "rate", 100, "messages a second of a stream")
	flag.Float64Var(&m.commits, "commits", 10, "commits a second of the long run over 16 partitions")
	flag.IntVar(&m.clients, "clients", 100, "publishers of a stream")
	flag.StringVar(&m.fill, "fill", "json", "payloads: json or random")
	flag.StringVar(&only, "only", "", "regular expression: measure only rows whose name matches")
	strict := flag.Bool("strict", false, "exit with 1 when a row is beyond its limit")
	flag.Parse()
	if m.dir == "" || device == "" || m.duration < time.Second || m.rate <= 0 || m.commits <= 0 || m.clients < 1 {
		return errors.New("-dir and -device are needed (scripts/wear has them), -duration from 1s, -rate, -commits and -clients above 0")
	}
	if m.fill != "json" && m.fill != "random" {
		return fmt.Errorf("-fill %s: use json or random", m.fill)
	}
	m.stat = filepath.Join("/sys/class/block", device, "stat")
	if _, err := m.counters(); err != nil {
		return err
	}
	var err error
	if m.only, err = regexp.Compile(only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if m.work, err = os.MkdirTemp("", "sluice-weartable-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.work)
	if err := m.build(ctx); err != nil {
		return err
	}
	var rows []row
	for _, c := range m.cases() {
		if !m.only.MatchString(c.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "wear: %s\n", c.name)
		r, err := m.measureCase(ctx, c)
		if err != nil {
			printTable(m, rows)
			return fmt.Errorf("%s: %w", c.name, err)
		}
		rows = append(rows, r)
	}
	printTable(m, rows)
	for _, r := range rows {
		if *strict && r.failed() {
			return errors.New("a row is beyond its limit")
		}
	}
	return nil
}

// build makes the binaries that are measured and that measure.
func (m *meter) build(ctx context.Context) error {
	m.sluice, m.mqttload = filepath.Join(m.work, "sluice"), filepath.Join(m.work, "mqttload")
	for _, b := range []struct{ dir, out, pkg string }{{".", m.sluice, "./cmd/sluice"}, {"scripts/mqttload", m.mqttload, "."}} {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.out, b.pkg)
		cmd.Dir, cmd.Env = b.dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v, to be run from the repository's root: %w\n%s", cmd.Args, err, out)
		}
	}
	return nil
}

// measureCase runs one case in a directory of its own.
func (m *meter) measureCase(ctx context.Context, c wearCase) (row, error) {
	dir, err := os.MkdirTemp(m.dir, "case-")
	if err != nil {
		return row{}, err
	}
	r, err := c.measure(ctx, dir)
	r.name = c.name
	if rm := os.RemoveAll(dir); err == nil {
		err = rm
	}
	return r, err
}
