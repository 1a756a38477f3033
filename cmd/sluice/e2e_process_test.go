//go:build linux

package main_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// output collects what a process writes. Safe for concurrent use.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a child in the background. Its test ends it, and the kernel does if the test dies.
type process struct {
	cmd    *exec.Cmd
	stdout output
	stderr output
	ended  chan struct{} // closed once the process is gone; err is set before
	err    error
	dull   bool // what it said doesn't matter should the test fail later
}

func spawn(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return spawnCommand(t, exec.Command(name, args...))
}

func spawnCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = time.Second
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && !p.dull {
			t.Logf("%s %s\nstdout: %s\nstderr: %s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), tail(p.stdout.String()), tail(p.stderr.String()))
		}
	})
	return p
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has ended already
	<-p.ended
}

// wait waits for a process that ends by itself.
func (p *process) wait(t *testing.T, limit time.Duration) error {
	t.Helper()
	select {
	case <-p.ended:
		return p.err
	case <-time.After(limit):
		t.Fatalf("%s still runs after %v", filepath.Base(p.cmd.Path), limit)
		return nil
	}
}

// freeAddress is a loopback address on which nothing listens at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// gateway is a sluice on a data directory of its own that outlives the process.
type gateway struct {
	rig  *rig
	dir  string // data directory
	addr string
	args []string // of sluice run
	p    *process // nil when not running
}

// gateway prepares one; config is YAML without a data section and listeners, or empty. Not started yet.
func (r *rig) gateway(t *testing.T, config string) *gateway {
	t.Helper()
	base := r.dir(t)
	g := &gateway{rig: r, dir: filepath.Join(base, "data"), addr: freeAddress(t)}
	g.args = []string{"run", "--data-dir", g.dir, "--listen", g.addr}
	if config != "" {
		file := filepath.Join(base, "gateway.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		g.args = append(g.args, "--config", file)
	}
	return g
}

// start starts the gateway and returns how long it took to accept connections.
func (g *gateway) start(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	g.p = spawn(t, g.rig.sluice, g.args...)
	wait(t, 60*time.Second, "the gateway accepts connections", func() bool {
		if !g.p.alive() {
			t.Fatalf("the gateway ended at its start: %v\n%s", g.p.err, tail(g.p.stderr.String()))
		}
		return accepts(g.addr)
	})
	return time.Since(begin)
}

func accepts(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// kill9 ends the process wherever it is. It must not have ended by itself before.
func (g *gateway) kill9(t *testing.T) {
	t.Helper()
	g.mustRun(t)
	g.p.kill()
	g.p.dull = true
	g.p = nil
}

// mustRun fails the test if the gateway ended.
func (g *gateway) mustRun(t *testing.T) {
	t.Helper()
	if !g.p.alive() {
		t.Fatalf("the gateway ended by itself: %v\n%s", g.p.err, tail(g.p.stderr.String()))
	}
}

// stop is a clean stop: SIGTERM, exit code 0.
func (g *gateway) stop(t *testing.T) {
	t.Helper()
	if err := g.p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := g.p.wait(t, 30*time.Second); err != nil {
		t.Fatalf("stop: %v\n%s", err, tail(g.p.stderr.String()))
	}
	g.p = nil
}

// host and port are the address's parts, as the mosquitto clients want them.
func (g *gateway) port() string {
	_, port, _ := net.SplitHostPort(g.addr)
	return port
}

// found dumps the log and has mqttload list the messages in it; the gateway may be running.
func (g *gateway) found(t *testing.T, file string) {
	t.Helper()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	dump := exec.CommandContext(t.Context(), g.rig.sluice, "dump", g.dir, "--format", "hex")
	list := exec.CommandContext(t.Context(), g.rig.mqttload, "hex")
	var dumpSaid, listSaid bytes.Buffer
	dump.Stderr, list.Stderr, list.Stdout = &dumpSaid, &listSaid, out
	if list.Stdin, err = dump.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := list.Start(); err != nil {
		t.Fatal(err)
	}
	dumpErr := dump.Run()
	listErr := list.Wait()
	if dumpErr != nil || listErr != nil {
		t.Fatalf("sluice dump: %v\n%s\nmqttload hex: %v\n%s", dumpErr, tail(dumpSaid.String()), listErr, tail(listSaid.String()))
	}
}

// check compares what was acknowledged with what was found, both as mqttload writes them.
func (r *rig) check(t *testing.T, acked, found string) loadResult {
	t.Helper()
	out, errOut, err := tryRun(t, 5*time.Minute, r.mqttload, "check", "-acked", acked, "-found", found)
	if out == "" {
		t.Fatalf("mqttload check: %v\n%s", err, errOut)
	}
	return parseLoad(t, out)
}

// region is one Apache Kafka broker, by scripts/kafka.
type region struct {
	script    string
	dir       string
	bootstrap string
}

// region prepares a broker's address; it isn't running yet.
func (r *rig) region(t *testing.T) *region {
	t.Helper()
	k := &region{script: filepath.Join(r.root, "scripts", "kafka"), dir: filepath.Join(r.dir(t), "kafka"), bootstrap: freeAddress(t)}
	run(t, 10*time.Minute, k.script, "fetch")
	return k
}

// start starts the broker; args go to scripts/kafka.
func (k *region) start(t *testing.T, args ...string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(k.bootstrap)
	t.Cleanup(func() {
		// The broker outlives this process otherwise, at most for a second (--owner). t.Context is over here.
		if out, err := exec.Command(k.script, "kill", "--dir", k.dir).CombinedOutput(); err != nil {
			t.Errorf("kill the region: %v\n%s", err, out)
		}
	})
	run(t, 2*time.Minute, k.script, append([]string{"start", "--dir", k.dir, "--port", port, "--owner", strconv.Itoa(os.Getpid())}, args...)...)
}

func (k *region) kill9(t *testing.T) {
	t.Helper()
	run(t, time.Minute, k.script, "kill", "--dir", k.dir)
}

func (k *region) restart(t *testing.T) {
	t.Helper()
	run(t, 2*time.Minute, k.script, "restart", "--dir", k.dir)
}

// tool runs one of Kafka's own tools.
func (k *region) tool(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return tryRun(t, 5*time.Minute, k.script, append([]string{"tool"}, args...)...)
}

// mirrorTo is the configuration of a gateway that mirrors everything to k under the alias edge.
func (k *region) mirrorTo() string {
	return fmt.Sprintf("version: 1\nmirror:\n  - alias: edge\n    region: {name: eu, brokers: [%q]}\n", k.bootstrap)
}
