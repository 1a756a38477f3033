//go:build linux

package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testClear: what keeps a gateway from starting is said in one line that names the thing and the remedy, and a script
// can tell by the exit code whether another try may help (1) or only another configuration (2).
func (r *rig) testClear(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	running := r.gateway(t, "")
	running.start(t)
	file := filepath.Join(t.TempDir(), "a-file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		config string
		change func(g *gateway)
		code   int
		says   []string
	}{
		{"unknown key", "version: 1\nmqtt: {max_conections: 5}\n", nil, 2, []string{"gateway.yaml", "max_conections", "max_connections"}},
		{"bad value", "version: 1\ncommit: {max_delay: soon}\n", nil, 2, []string{"gateway.yaml", "commit.max_delay", "soon"}},
		{"newer version", "version: 99\n", nil, 2, []string{"version", "99"}},
		{"not loopback", "", func(g *gateway) { g.args[4] = "0.0.0.0:0" }, 2, []string{"0.0.0.0", "loopback"}},
		{"no such configuration", "", func(g *gateway) { g.args = append(g.args, "--config", "/nowhere.yaml") }, 2, []string{"/nowhere.yaml"}},
		{"port in use", "", func(g *gateway) { g.args[4] = taken.Addr().String() }, 1, []string{taken.Addr().String(), "in use"}},
		{"locked", "", func(g *gateway) { g.args[2] = running.dir }, 1, []string{running.dir, "locked by another broker"}},
		{"a file in the way", "", func(g *gateway) { g.args[2] = filepath.Join(file, "data") }, 1, []string{file}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := r.gateway(t, c.config)
			if c.change != nil {
				c.change(g)
			}
			wantRefusal(t, exec.Command(r.sluice, g.args...), c.code, c.says...)
		})
	}
	t.Run("not writable", r.testNotWritable)
	t.Run("read-only file system", r.testReadOnly)
	t.Run("region unreachable", r.testUnreachable)
	t.Run("region refuses the topic", r.testTopicRefused)
	running.stop(t)
}

// wantRefusal runs a command that has to end by itself with a code, its last line on stderr saying all that is in says.
func wantRefusal(t *testing.T, cmd *exec.Cmd, code int, says ...string) {
	t.Helper()
	p := spawnCommand(t, cmd)
	_ = p.wait(t, 20*time.Second) // the exit code is judged below
	stderr := strings.TrimRight(p.stderr.String(), "\n")
	line := stderr[strings.LastIndexByte(stderr, '\n')+1:]
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d; it said: %s", got, code, tail(stderr))
	}
	for _, s := range says {
		if !strings.Contains(line, s) {
			t.Errorf("the last line doesn't name %q: %s", s, line)
		}
	}
	if strings.Contains(stderr, "goroutine ") {
		t.Errorf("a stack trace: %s", tail(stderr))
	}
	t.Log(line)
}

// testNotWritable runs as nobody when the test is root, whom no mode keeps out.
func (r *rig) testNotWritable(t *testing.T) {
	parent := t.TempDir()
	cmd := exec.Command(r.sluice, "run", "--data-dir", filepath.Join(parent, "data"), "--listen", freeAddress(t))
	if os.Getuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		for _, dir := range []string{filepath.Dir(parent), parent, filepath.Dir(r.sluice), filepath.Dir(filepath.Dir(r.sluice))} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	} else if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, cmd, 1, parent, "not writable")
}

// testReadOnly: a file system may become writable, so the gateway says what it waits for and goes on by itself.
func (r *rig) testReadOnly(t *testing.T) {
	if os.Getuid() != 0 || exec.Command("unshare", "--mount", "true").Run() != nil {
		missing(t, required("namespaces"), "namespaces: mounting a file system takes root and unshare")
	}
	dir := t.TempDir()
	const script = `mount -t tmpfs -o ro none "$1" && exec "$2" run --data-dir "$1/data" --listen "$3"`
	p := spawnCommand(t, exec.Command("unshare", "--mount", "sh", "-c", script, "-", dir, r.sluice, freeAddress(t)))
	wait(t, 20*time.Second, "a line that says what it waits for", func() bool {
		return lineWith(p.stderr.String(), "waiting for the disk", dir, "read-only", "remount it") != ""
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t, 10*time.Second); err != nil {
		t.Errorf("a stop while waiting: %v", err)
	}
}

// testUnreachable: without a region the gateway starts, accepts, and says where it can't get to.
func (r *rig) testUnreachable(t *testing.T) {
	for _, broker := range []string{freeAddress(t), "no-such-host.invalid:9092"} {
		t.Run(broker, func(t *testing.T) {
			k := &region{bootstrap: broker}
			g := r.gateway(t, k.mirrorTo())
			g.start(t)
			r.publishSome(t, g)
			wait(t, 30*time.Second, "a warning that names the broker", func() bool { return lineWith(g.p.stderr.String(), "WARN", broker) != "" })
			t.Log(lineWith(g.p.stderr.String(), "WARN", broker))
			g.stop(t)
		})
	}
}

// testTopicRefused: a region that can't have the topic (three replicas on one broker) is waited for.
func (r *rig) testTopicRefused(t *testing.T) {
	need(t, "kafka")
	k := r.region(t)
	k.start(t, "--set", "default.replication.factor=3")
	g := r.gateway(t, k.mirrorTo())
	g.start(t)
	r.publishSome(t, g)
	wait(t, 30*time.Second, "a line that names the topic and why", func() bool {
		return lineWith(g.p.stderr.String(), remoteTopic, "INVALID_REPLICATION_FACTOR") != ""
	})
	t.Log(lineWith(g.p.stderr.String(), remoteTopic, "INVALID_REPLICATION_FACTOR"))
	r.publishSome(t, g)
	g.stop(t)
}

func (r *rig) publishSome(t *testing.T, g *gateway) {
	t.Helper()
	got := parseLoad(t, run(t, time.Minute, r.mqttload, "pub", "-addr", g.addr, "-clients", "2", "-warmup", "0s", "-duration", "200ms"))
	if got.Acked == 0 || got.Refused > 0 {
		t.Fatalf("acknowledged %d, refused %d", got.Acked, got.Refused)
	}
}

// lineWith is the first line that contains all words.
func lineWith(text string, words ...string) string {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return strings.TrimSuffix(line, "\n")
		}
	}
	return ""
}
