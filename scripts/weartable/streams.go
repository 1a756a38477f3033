//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// wearCase is one row to measure.
type wearCase struct {
	name    string
	measure func(ctx context.Context, dir string) (row, error)
}

const (
	governedBytes = 2 << 30 // a day
	governed      = "commit: {wear_budget: 2GiB}\n"
)

func (m *meter) cases() []wearCase {
	dayShare := float64(int64(governedBytes)) / (24 * time.Hour).Seconds() * m.duration.Seconds()
	within := func(r *row) {
		r.limits = []bound{
			{"bytes", float64(r.bytes), dayShare},
			{"slowest ack, ms", float64(r.ackMax.Milliseconds()), 1200},
		}
		r.note = fmt.Sprintf("%.0f %% of 2 GiB a day", 100*float64(r.bytes)/dayShare)
	}
	return []wearCase{
		{"commit of 1 message", m.commitCase(1, 4300)},
		{"commit of 1 message in each of 16 partitions", m.commitCase(16, 8500)},
		{"the latter as a stream, all included", m.longCase},
		{"stream, sluice, no budget", m.sluiceCase("", m.fill, nil)},
		// No setting is a fixed window: a group commits when the publishers of the last 50 ms are in it. A budget that is always
		// used up and a ceiling of 100 ms come to the same.
		{"stream, sluice, a window of 100 ms", m.sluiceCase("commit: {wear_budget: 16MiB, max_delay_ceiling: 100ms}\n", m.fill, nil)},
		{"stream, sluice, 2 GiB a day", m.sluiceCase(governed, m.fill, within)},
		{"stream, sluice, 2 GiB a day, random bytes", m.sluiceCase(governed, "random", func(r *row) {
			r.note = fmt.Sprintf("%.0f %% of 2 GiB a day", 100*float64(r.bytes)/dayShare)
		})},
		{"a message each second, sluice, 2 GiB a day", func(ctx context.Context, dir string) (row, error) {
			p, err := m.startSluice(ctx, dir, governed)
			if err != nil {
				return row{}, err
			}
			return m.stream(ctx, p, m.fill, 1, 1, min(m.duration, time.Minute))
		}},
		{"lone messages, package segment, 2 GiB a day", m.loneCase},
		{"stream, mosquitto, autosave_on_changes, subscriber online", m.mosquittoCase(true)},
		{"stream, mosquitto, autosave_on_changes, subscriber away", m.mosquittoCase(false)},
		{"stream, bbolt, a transaction a message", m.boltCase},
	}
}

// process is a running broker.
type process struct {
	cmd  *exec.Cmd
	said bytes.Buffer // read only after it ended
	addr string
}

func start(ctx context.Context, addr, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), addr: addr}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
			return p, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return nil, fmt.Errorf("%s doesn't accept connections on %s: %w\n%s", name, addr, err, p.stop())
		}
	}
}

// stop ends it cleanly and returns what it said.
func (p *process) stop() string {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait()
	killer.Stop()
	return p.said.String()
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// subscribe runs mqttload's durable subscriber.
func (m *meter) subscribe(ctx context.Context, addr string, duration time.Duration) error {
	cmd := exec.CommandContext(ctx, m.mqttload, "sub", "-addr", addr, "-persist", "-duration", duration.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// stream publishes and measures what that writes, with the broker's clean stop.
func (m *meter) stream(ctx context.Context, p *process, fill string, clients int, rate float64, duration time.Duration) (row, error) {
	defer func() { _ = p.cmd.Process.Kill() }()
	before, err := m.settled()
	if err != nil {
		return row{}, err
	}
	res, err := publish(ctx, p.addr, fill, clients, rate, duration)
	used := time.Since(before.at)
	said := p.stop()
	if err != nil {
		return row{}, fmt.Errorf("%w\n%s", err, said)
	}
	after, err := m.settled()
	if os.Getenv("WEAR_DEBUG") != "" {
		fmt.Fprintln(os.Stderr, said)
	}
	return row{counters: after.since(before), messages: res.messages, used: used, ackP50: res.p50, ackP99: res.p99, ackMax: res.max}, err
}

// startSluice starts the real binary on a data directory that has all its journal files.
func (m *meter) startSluice(ctx context.Context, dir, config string) (*process, error) {
	data := filepath.Join(dir, "data")
	if err := m.prepareLog(ctx, data, "mqtt", 4); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	file, err := writeFile(dir, "gateway.yaml", "version: 1\n"+config)
	if err != nil {
		return nil, err
	}
	return start(ctx, addr, m.sluice, "run", "--config", file, "--data-dir", data, "--listen", addr)
}

func (m *meter) sluiceCase(config, fill string, judge func(*row)) func(context.Context, string) (row, error) {
	return func(ctx context.Context, dir string) (row, error) {
		p, err := m.startSluice(ctx, dir, config)
		if err != nil {
			return row{}, err
		}
		r, err := m.stream(ctx, p, fill, m.clients, m.rate, m.duration)
		if err == nil && judge != nil {
			judge(&r)
		}
		return r, err
	}
}

const mosquittoConfig = `listener %s 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location %s/
autosave_on_changes true
autosave_interval 1
log_dest none
`

// mosquittoCase has a durable subscriber, so that there is something to save: all there is, anew after each change. If the subscriber
// is online a message is there only until it has acknowledged it. If it is away, they add up to mosquitto's default of 1,000, and then there
// are no changes any more: what is measured ends there.
func (m *meter) mosquittoCase(online bool) func(context.Context, string) (row, error) {
	return func(ctx context.Context, dir string) (row, error) {
		p, err := m.startMosquitto(ctx, dir)
		if err != nil {
			return row{}, err
		}
		duration, subscribed := min(m.duration, time.Duration(1000/m.rate*float64(time.Second))), 500*time.Millisecond
		if online {
			duration = m.duration
			subscribed = duration + 20*time.Second
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- m.subscribe(ctx, p.addr, subscribed) }()
		if !online {
			if err := <-done; err != nil {
				cancel()
				return row{}, fmt.Errorf("%w\n%s", err, p.stop())
			}
			done <- nil
		}
		r, err := m.stream(ctx, p, m.fill, m.clients, m.rate, duration)
		cancel()
		<-done
		return r, err
	}
}

func (m *meter) startMosquitto(ctx context.Context, dir string) (*process, error) {
	binary, err := exec.LookPath("mosquitto")
	if err != nil {
		binary = "/usr/sbin/mosquitto" // not in everybody's PATH on Debian
		if _, err := os.Stat(binary); err != nil {
			return nil, errors.New("no mosquitto: install it (Debian: mosquitto), or leave the row out with -only")
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	file, err := writeFile(dir, "mosquitto.conf", fmt.Sprintf(mosquittoConfig, port, dir))
	if err != nil {
		return nil, err
	}
	return start(ctx, addr, binary, "-c", file)
}
