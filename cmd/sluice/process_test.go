//go:build linux

package main_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestProcess holds the real binary against what can go wrong at its start and around it: each gives one line that names
// the thing and the remedy, with the right exit code, or a running broker that says what it waits for.
func TestProcess(t *testing.T) {
	p := newProcessRig(t)
	t.Run("unknown key", p.testUnknownKey)
	t.Run("bad value", p.testBadValue)
	t.Run("port in use", p.testPortInUse)
	t.Run("directory locked", p.testLocked)
	t.Run("directory not writable", p.testNotWritable)
	t.Run("file system read-only", p.testReadOnly)
	t.Run("file in the way", p.testFileInTheWay)
	t.Run("partitions changed", p.testPartitionsChanged)
	t.Run("Kafka unreachable", p.testKafkaUnreachable)
	t.Run("Kafka refuses the topic", p.testKafkaRefuses)
	t.Run("signals", p.testSignals)
	t.Run("reload", p.testReload)
	t.Run("second signal", p.testSecondSignal)
}

// processRig is the binary, in a directory that every user may enter.
type processRig struct{ dir, sluice string }

func newProcessRig(t *testing.T) *processRig {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sluice-process")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &processRig{dir, filepath.Join(dir, "sluice")}
	args := []string{"build", "-o", p.sluice}
	if raceEnabled {
		args = append(args, "-race")
	}
	(&rig{}).build(t, root, append(args, "./cmd/sluice")...)
	return p
}

// small keeps the journal of a test's data directory small.
const small = "version: 1\ncommit: {max_bytes: 64KiB, journal_bytes: 1MiB}\nmqtt: {max_packet_bytes: 4KiB}\n"

func (p *processRig) config(t *testing.T, text string) string {
	t.Helper()
	f, err := os.CreateTemp(p.dir, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// fails runs a command that has to end by itself: with that exit code, and one line on stderr that begins with "sluice: " and
// holds all the parts.
func (p *processRig) fails(t *testing.T, code int, cmd *exec.Cmd, parts ...string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // the exit code says it
	said := stderr.String()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	if strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "sluice: ") {
		t.Errorf("not one line of sluice's own: %q", said)
	}
	for _, part := range parts {
		if !strings.Contains(said, part) {
			t.Errorf("%q doesn't say %q", said, part)
		}
	}
}

func (p *processRig) testUnknownKey(t *testing.T) {
	file := p.config(t, "version: 1\ndata:\n  directory: /tmp\n")
	p.fails(t, 2, exec.Command(p.sluice, "run", "--config", file), file+`:3:3: unknown key "directory" in data`, "(allowed: dir, budget, reserve, endurance)")
}

func (p *processRig) testBadValue(t *testing.T) {
	file := p.config(t, "version: 1\ncommit:\n  max_delay: 1h\n")
	p.fails(t, 2, exec.Command(p.sluice, "run", "--config", file), file+`:3:14: commit.max_delay: 1h is out of range; allowed: 0 to 1s`)
}

func (p *processRig) testPortInUse(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	address := busy.Addr().String()
	p.fails(t, 1, exec.Command(p.sluice, "run", "--config", p.config(t, small), "--data-dir", t.TempDir(), "--listen", address), address, "in use")
}

func (p *processRig) testLocked(t *testing.T) {
	b := p.start(t, t.TempDir(), small)
	p.fails(t, 1, exec.Command(p.sluice, "run", "--config", p.config(t, small), "--data-dir", b.dir, "--listen", "127.0.0.1:0"),
		"data directory "+b.dir+" is locked by another broker", "stop that one")
	b.stop(t)
}

func (p *processRig) testNotWritable(t *testing.T) {
	parent := filepath.Join(p.dir, "closed")
	if err := os.Mkdir(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "data")
	cmd := exec.Command(p.sluice, "run", "--config", p.config(t, small), "--data-dir", dir, "--listen", "127.0.0.1:0")
	uid := os.Getuid()
	if uid == 0 { // the superuser may write anywhere
		uid = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	p.fails(t, 1, cmd, "data directory "+dir+fmt.Sprintf(" is not writable for user id %d", uid), "change its owner or mode")
}

func (p *processRig) testReadOnly(t *testing.T) {
	needNamespaces(t)
	mount := filepath.Join(p.dir, "read-only")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(mount, "data")
	script := fmt.Sprintf("mount -t tmpfs -o ro none %s && exec %s run --config %s --data-dir %s --listen 127.0.0.1:0", mount, p.sluice, p.config(t, small), dir)
	b := &running{dir: dir, process: spawnCommand(t, unshare("sh", "-c", script))}
	b.says(t, "waiting for the disk", "data directory "+dir+" is on a read-only file system", "remount it read-write")
	b.stop(t) // at once, and cleanly
}

// unshare runs a command where it may mount: in a mount namespace of its own, which ends with it.
func unshare(args ...string) *exec.Cmd {
	flags := []string{"--mount"}
	if os.Getuid() != 0 {
		flags = []string{"--map-root-user", "--mount"}
	}
	return exec.Command("unshare", append(flags, args...)...)
}

func needNamespaces(t *testing.T) {
	t.Helper()
	if out, err := unshare("true").CombinedOutput(); err != nil {
		required := strings.Contains(","+os.Getenv("SLUICE_REQUIRE")+",", ",namespaces,")
		missing(t, required, "namespaces: unshare: %v %s", err, out)
	}
}

func (p *processRig) testFileInTheWay(t *testing.T) {
	file := p.config(t, small)
	p.fails(t, 1, exec.Command(p.sluice, "run", "--config", file, "--data-dir", file, "--listen", "127.0.0.1:0"),
		"data directory "+file, "a file is in its way")
}

func (p *processRig) testPartitionsChanged(t *testing.T) {
	b := p.start(t, t.TempDir(), small)
	b.stop(t)
	changed := p.config(t, small+"topics: [{name: mqtt, partitions: 7}]\n")
	p.fails(t, 2, exec.Command(p.sluice, "run", "--config", changed, "--data-dir", b.dir, "--listen", "127.0.0.1:0"),
		"topic mqtt has 4 partitions on disk and 7 in the configuration", "write partitions: 4")
}

// running is a broker in the background.
type running struct {
	*process
	dir, address string
}

// start starts a broker and waits until it answers a CONNECT.
func (p *processRig) start(t *testing.T, dir, config string, args ...string) *running {
	t.Helper()
	b := &running{dir: dir, address: freeAddress(t)}
	b.process = spawn(t, p.sluice, append([]string{"run", "--config", p.config(t, config), "--data-dir", dir, "--listen", b.address}, args...)...)
	wait(t, 30*time.Second, "the broker accepts connections", func() bool {
		if !b.alive() {
			t.Fatalf("it ended: %v", b.err)
		}
		return accepts(b.address)
	})
	return b
}

func (b *running) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := b.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (b *running) stop(t *testing.T) {
	t.Helper()
	b.signal(t, syscall.SIGTERM)
	if err := b.wait(t, 30*time.Second); err != nil {
		t.Errorf("a clean stop ended with %v: %s", err, b.stderr.String())
	}
}

func (b *running) says(t *testing.T, parts ...string) {
	t.Helper()
	wait(t, 30*time.Second, fmt.Sprintf("one line with %q", parts), func() bool { return b.lines(parts...) > 0 })
}

// lines counts the log lines that hold all parts.
func (b *running) lines(parts ...string) (n int) {
	for line := range strings.Lines(b.stderr.String()) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			n++
		}
	}
	return n
}

// publish sends a QoS 1 message by hand and wants its PUBACK.
func (b *running) publish(t *testing.T) {
	t.Helper()
	c, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a" + "\x32\x08\x00\x03a/b\x00\x07x")); err != nil {
		t.Fatal(err)
	}
	const want = "\x20\x02\x00\x00\x40\x02\x00\x07"
	var got []byte
	for len(got) < len(want) {
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil {
			t.Fatalf("after %x: %v", got, err)
		}
		got = append(got, buf[:n]...)
	}
	if string(got) != want {
		t.Fatalf("answer %x, want %x", got, want)
	}
}

// A region that isn't there, or whose name doesn't resolve, is no reason not to start, accept and keep.
func (p *processRig) testKafkaUnreachable(t *testing.T) {
	for _, region := range []string{freeAddress(t), "kafka.invalid:9092"} {
		b := p.start(t, t.TempDir(), small, "--mirror-to", region)
		b.publish(t)
		b.says(t, "level=WARN", "region unreachable, records are kept and sent later", region)
		b.publish(t)
		b.stop(t)
		if n := b.lines("region unreachable"); n != 1 {
			t.Errorf("said %d times that the region is away, want once:\n%s", n, b.stderr.String())
		}
	}
}

func (p *processRig) testKafkaRefuses(t *testing.T) {
	region, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	region.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: "plant.mqtt", Err: kerr.TopicAuthorizationFailed, Count: -1})
	b := p.start(t, t.TempDir(), small+"gateway: {id: plant}\n", "--mirror-to", region.ListenAddrs()[0])
	b.publish(t)
	b.says(t, "level=WARN", "topic waits, its records are kept", "plant.mqtt", "TOPIC_AUTHORIZATION_FAILED")
	b.publish(t)
	b.stop(t)
}

func (p *processRig) testSignals(t *testing.T) {
	b := p.start(t, t.TempDir(), small)
	b.says(t, "level=INFO", "msg=ready", b.address)
	b.signal(t, syscall.SIGHUP)
	b.says(t, "SIGHUP, reading files again")
	b.publish(t)
	b.signal(t, syscall.SIGINT)
	if err := b.wait(t, 30*time.Second); err != nil {
		t.Errorf("SIGINT: %v", err)
	}
	b = p.start(t, b.dir, small)
	b.stop(t)
	if n := b.lines("msg=recovered"); n > 0 {
		t.Errorf("the stop before wasn't clean:\n%s", b.stderr.String())
	}
	if out := b.stdout.String(); out != "" {
		t.Errorf("stdout got %q: logs belong on stderr", out)
	}
}

// While a stop takes its time, a second signal ends the process at once. What makes the stop slow here is a service manager
// that doesn't read: its socket is full.
// testReload: what may change while the broker runs is taken up, by itself or at SIGHUP; what is bad is said and isn't.
func (p *processRig) testReload(t *testing.T) {
	e := newEndpoints(t)
	text := fmt.Sprintf("version: 1\ncommit: {max_bytes: 64KiB, journal_bytes: 1MiB}\nmqtt:\n  max_packet_bytes: 4KiB\n  listeners:\n"+
		"    - {address: \"127.0.0.1:%s\", tls: {cert: %s, key: %s}}\n", e.ports["tls"], e.file("server.pem"), e.file("server.key"))
	b := &running{dir: t.TempDir(), address: "127.0.0.1:" + e.ports["tls"]}
	config := p.config(t, text)
	b.process = spawn(t, p.sluice, "run", "--config", config, "--data-dir", b.dir)
	b.says(t, "msg=ready")
	first, held := certificateAt(t, b.address)
	defer held.Close()

	e.certify(t)
	b.says(t, "msg=reloaded", "what=certificates")
	second, _ := certificateAt(t, b.address)
	if second == first {
		t.Error("the certificate that changed is not in use")
	}
	rewrite(t, e.file("server.pem"), "no certificate")
	b.signal(t, syscall.SIGHUP)
	b.says(t, "level=ERROR", "reload failed", "what=certificates", "tls.cert "+e.file("server.pem"), "stays in use")
	if third, _ := certificateAt(t, b.address); third != second {
		t.Error("a bad file took the certificate away")
	}

	rewrite(t, config, text+"log: {level: debug}\n")
	b.signal(t, syscall.SIGHUP)
	b.says(t, "msg=reloaded", "what=configuration")
	if _, err := held.Write([]byte{0x10}); err != nil {
		t.Error("the reload closed a connection:", err)
	}
	held.Close()
	b.says(t, "level=DEBUG", "mqtt connection closed")
	rewrite(t, config, text+"gateway: {id: other}\n")
	b.signal(t, syscall.SIGHUP)
	b.says(t, "level=WARN", "need a restart", "sections=gateway")
	rewrite(t, config, text+"gatway: {id: other}\n")
	b.signal(t, syscall.SIGHUP)
	b.says(t, "level=ERROR", "reload failed", "what=configuration", "unknown key")
	b.stop(t)
}

func rewrite(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// certificateAt is the serial number of the certificate that is shown at an address, and the connection.
func certificateAt(t *testing.T, address string) (string, *tls.Conn) {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), c
}

func (p *processRig) testSecondSignal(t *testing.T) {
	name := filepath.Join(p.dir, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	b := p.start(t, t.TempDir(), small)
	buf := make([]byte, 1024)
	if n, err := manager.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "READY=1\n") {
		t.Fatalf("the service manager got %q, %v", buf[:n], err)
	}
	fill(t, name)
	b.signal(t, syscall.SIGTERM)
	b.says(t, "msg=stopping")
	b.signal(t, syscall.SIGTERM)
	_ = b.wait(t, 30*time.Second)
	if code := b.cmd.ProcessState.ExitCode(); code != 1 || b.lines("second signal, ending at once") != 1 {
		t.Errorf("exit code %d, said:\n%s", code, b.stderr.String())
	}
}

// fill writes datagrams until the socket takes no more.
func fill(t *testing.T, name string) {
	t.Helper()
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 100_000 {
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := c.Write(make([]byte, 1)); err != nil {
			return
		}
	}
	t.Fatal("the socket never fills")
}
