//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// broker is a running sluice or mosquitto.
type broker struct {
	cmd  *exec.Cmd
	said bytes.Buffer // read only after the process ended
	addr string
	dir  string // removed at the end
}

// Cores for pinned measurements.
const (
	brokerCore    = "0"
	generatorCore = "1"
)

// mosquittoConfig keeps nothing on disk and limits nothing that is in flight: mosquitto at its fastest.
const mosquittoConfig = `listener %s 127.0.0.1
allow_anonymous true
persistence false
max_inflight_messages 0
max_queued_messages 0
log_dest none
`

func pinned(pin bool, core, name string, args ...string) (string, []string) {
	if !pin {
		return name, args
	}
	return "taskset", append([]string{"-c", core, name}, args...)
}

func (b *bench) startMosquitto(ctx context.Context, pin bool) (*broker, error) {
	return b.start(ctx, pin, func(dir, port string) (string, []string, error) {
		file := filepath.Join(dir, "mosquitto.conf")
		err := os.WriteFile(file, fmt.Appendf(nil, mosquittoConfig, port), 0o644)
		return b.mosquitto, []string{"-c", file}, err
	})
}

// startSluice starts one with its defaults; extra is YAML on top, or empty.
func (b *bench) startSluice(ctx context.Context, pin bool, extra string) (*broker, error) {
	return b.start(ctx, pin, func(dir, port string) (string, []string, error) {
		args := []string{"run", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:" + port}
		if extra == "" {
			return b.sluice, args, nil
		}
		file := filepath.Join(dir, "gateway.yaml")
		return b.sluice, append(args, "--config", file), os.WriteFile(file, []byte("version: 1\n"+extra), 0o644)
	})
}

// start starts a broker in a directory of its own and waits until it accepts connections.
func (b *bench) start(ctx context.Context, pin bool, command func(dir, port string) (string, []string, error)) (*broker, error) {
	dir, err := os.MkdirTemp(b.work, "broker-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	name, args, err := command(dir, port)
	if err != nil {
		return nil, err
	}
	name, args = pinned(pin, brokerCore, name, args...)
	r := &broker{cmd: exec.CommandContext(ctx, name, args...), addr: "127.0.0.1:" + port, dir: dir}
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	// The kernel ends the broker when this program dies.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", r.addr, time.Second)
		if err == nil {
			c.Close()
			return r, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			r.stop()
			return nil, fmt.Errorf("%s doesn't accept connections on %s: %w\n%s", name, r.addr, err, r.said.String())
		}
	}
}

// stop ends the broker and removes what it stored.
func (r *broker) stop() {
	_ = r.cmd.Process.Kill() // it may have ended by itself; Wait tells
	_ = r.cmd.Wait()
	_ = os.RemoveAll(r.dir)
}

func (r *broker) pid() int { return r.cmd.Process.Pid }

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// result is what mqttload prints, as far as this program looks at it.
type result struct {
	Rate     float64        `json:"rate"` // acknowledged messages a second
	Secs     float64        `json:"secs"`
	CPU      float64        `json:"srv_cpu_s"` // of the broker, in Secs
	RSS      float64        `json:"srv_rss_kb"`
	Open     int            `json:"open"` // of conns
	Live     int            `json:"live"` // of pub: publishers that connected
	Refused  int            `json:"refused"`
	AckP99   float64        `json:"ack_p99_us"`
	Errors   map[string]int `json:"errors"`
	PeakRSS  float64        `json:"-"` // kB, the highest of the samples taken meanwhile
	CPUPerMs float64        `json:"-"` // seconds per million messages
}

// load runs mqttload against a broker. Errors that it saw are this program's errors: a figure with them means nothing.
func (b *bench) load(ctx context.Context, r *broker, pin bool, args ...string) (res result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*b.seconds+time.Minute)
	defer cancel()
	subcommand, rest := args[0], args[1:]
	name, all := pinned(pin, generatorCore, b.mqttload, append([]string{subcommand, "-addr", r.addr, "-pid", strconv.Itoa(r.pid())}, rest...)...)
	cmd := exec.CommandContext(ctx, name, all...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stop := make(chan struct{})
	peak := make(chan float64)
	go func() { peak <- peakRSS(r.pid(), stop) }()
	err = cmd.Run()
	close(stop)
	highest := <-peak
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &res)
	}
	if err == nil && (len(res.Errors) > 0 || res.Refused > 0) {
		err = fmt.Errorf("%d refused, errors %v", res.Refused, res.Errors)
	}
	if err != nil {
		return res, fmt.Errorf("mqttload %s: %w\n%s%s", strings.Join(args, " "), err, said.String(), out.String())
	}
	res.PeakRSS = highest
	if n := res.Rate * res.Secs; n > 0 {
		res.CPUPerMs = res.CPU / n * 1e6
	}
	return res, nil
}

// peakRSS samples a process's resident set until stop is closed and returns the highest, in kB.
func peakRSS(pid int, stop <-chan struct{}) (highest float64) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		highest = max(highest, rss(pid))
		select {
		case <-stop:
			return highest
		case <-tick.C:
		}
	}
}

// rss is a process's resident set in kB (of 1,024 bytes), 0 when it is gone.
func rss(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "VmRSS:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb
		}
	}
	return 0
}
