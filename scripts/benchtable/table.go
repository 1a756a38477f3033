//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// row is one line of the table.
type row struct {
	name       string
	limit      float64 // required ratio or figure; 0: shown only
	most       bool    // limit is an upper one
	measured   float64
	unit       string  // of limit and measured; none for ratios
	ours, base float64 // medians behind a ratio, 0 when there are none
	absolute   string  // their unit
	note       string
}

func ratio(name string, limit float64, most bool, ours, base float64, unit, note string) row {
	r := row{name: name, limit: limit, most: most, ours: ours, base: base, absolute: unit, note: note}
	if base > 0 {
		r.measured = ours / base
	}
	return r
}

func (r row) verdict() string {
	switch {
	case r.limit == 0:
		return ""
	case r.most && r.measured <= r.limit && r.measured > 0, !r.most && r.measured >= r.limit:
		return "pass"
	default:
		return "FAIL"
	}
}

func failed(rows []row) bool {
	for _, r := range rows {
		if r.verdict() == "FAIL" {
			return true
		}
	}
	return false
}

func printTable(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\trequired\tmeasured\t\tsluice\tagainst\t")
	for _, r := range rows {
		required := ""
		if r.limit > 0 {
			required = fmt.Sprintf("%s %.4g%s", map[bool]string{true: "≤", false: "≥"}[r.most], r.limit, space(r.unit))
		}
		ours, base := "", ""
		if r.base > 0 {
			ours, base = figure(r.ours)+r.absolute, figure(r.base)+r.absolute
		}
		fmt.Fprintf(w, "%s\t%s\t%.3g%s\t%s\t%s\t%s\t%s\n", r.name, required, r.measured, space(r.unit), r.verdict(), ours, base, r.note)
	}
	w.Flush()
}

func space(unit string) string {
	if unit == "" {
		return ""
	}
	return " " + unit
}

// figure prints thousands grouped, small numbers with two digits after the point.
func figure(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.2f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// describe names what the figures depend on: machine, file system, and what a sync costs there.
func (b *bench) describe() error {
	cpu := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	sync, err := b.syncTime()
	if err != nil {
		return err
	}
	fmt.Printf("%d × %s, %s; %s; a sync of 4 KiB takes %.2f ms (median of %d)\n", runtime.NumCPU(), cpu, runtime.Version(),
		fileSystem(b.work), sync.Seconds()*1e3, syncs)
	fmt.Printf("medians of %d rounds of %v, 100-byte payloads, mqttload; MB is a million bytes\n\n", b.runs, b.seconds)
	return nil
}

const syncs = 100

// syncTime is the median time of one 4 KiB write and fdatasync within a file that was written before.
func (b *bench) syncTime() (time.Duration, error) {
	f, err := os.Create(filepath.Join(b.work, "sync"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	if _, err := f.Write(make([]byte, syncs*len(block))); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	var took []float64
	for i := range int64(syncs) {
		begin := time.Now()
		if _, err := f.WriteAt(block, i*int64(len(block))); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begin)))
	}
	return time.Duration(median(took)), nil
}

// fileSystem names the kind of file system that dir is on.
func fileSystem(dir string) string {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "unknown file system"
	}
	names := map[int64]string{0xef53: "ext4", 0x01021994: "tmpfs (syncs cost nothing there)", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x794c7630: "overlayfs"}
	if name, ok := names[int64(s.Type)]; ok {
		return name
	}
	return fmt.Sprintf("file system %#x", s.Type)
}
