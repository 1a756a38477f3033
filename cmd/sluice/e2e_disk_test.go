//go:build linux

package main_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// diskSizes leave the disk, of 64 MiB, to be filled by somebody else before the budget is used up.
const diskSizes = `version: 1
data: {budget: 44MiB, reserve: 2MiB}
commit: {max_bytes: 64KiB, journal_bytes: 1MiB}
mqtt: {max_packet_bytes: 4KiB}
topics:
  - {name: mqtt, partitions: 4, segment_bytes: 1MiB, compression: none}
`

const diskBudget = 44 << 20

// testDisk runs the gateway on a small disk of its own and lets it happen to it what happens to disks.
func (r *rig) testDisk(t *testing.T) {
	needLoop(t)
	need(t, "mosquitto")
	t.Run("filled by us", r.testFilledByUs)
	t.Run("filled by others", r.testForeignFile)
	t.Run("read-only at the start", r.testReadOnlyAtStart)
	t.Run("turned read-only", r.testTurnedReadOnly)
	t.Run("hangs", r.testFrozen)
	t.Run("device errors", r.testDeviceErrors)
}

func needLoop(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, required("loop"), "loop: mounting a disk takes root")
	}
	for _, command := range []string{"mkfs.ext4", "mount", "umount", "fsfreeze"} {
		if _, err := exec.LookPath(command); err != nil {
			missing(t, required("loop"), "loop: %s is not in PATH", command)
		}
	}
	image := filepath.Join(t.TempDir(), "probe")
	if err := makeImage(image); err != nil {
		missing(t, required("loop"), "loop: %v", err)
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		missing(t, required("loop"), "loop: mount: %v %s", err, out)
	}
	unmount(t, dir)
}

func makeImage(image string, options ...string) error {
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(64<<20), f.Close())
	}
	if err != nil {
		return err
	}
	out, err := exec.Command("mkfs.ext4", append(options, "-q", "-F", "-m", "0", image)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w %s", err, out)
	}
	return nil
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	// A process that was just killed may still be letting go of it.
	wait(t, 20*time.Second, "unmount "+dir, func() bool { return exec.Command("umount", dir).Run() == nil })
}

// disk is a mounted file system of 64 MiB.
type disk struct{ image, dir string }

func newDisk(t *testing.T, options ...string) *disk {
	t.Helper()
	d := &disk{image: filepath.Join(t.TempDir(), "image"), dir: t.TempDir()}
	if err := makeImage(d.image, options...); err != nil {
		t.Fatal(err)
	}
	d.mount(t, "loop")
	t.Cleanup(func() { _ = exec.Command("umount", "-l", d.dir).Run() }) // already done where all went well
	return d
}

func (d *disk) mount(t *testing.T, options string) {
	t.Helper()
	args := []string{"-o", options, d.dir}
	if !strings.HasPrefix(options, "remount") {
		args = []string{"-o", options, d.image, d.dir}
	}
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Fatalf("mount %v: %v %s", args, err, out)
	}
}

// gateway prepares one with its data directory on the disk.
func (d *disk) gateway(t *testing.T, r *rig, config string) *gateway {
	t.Helper()
	g := r.gateway(t, config)
	g.dir = filepath.Join(d.dir, "data")
	g.args[2] = g.dir
	return g
}

// bytes is the size of the file system.
func (d *disk) bytes(t *testing.T) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Blocks) * int64(s.Bsize)
}

// fill makes a foreign file that takes all the space there is, however often some comes free.
func (d *disk) fill(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(d.dir, "foreign")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := 1 << 20; chunk >= 512; {
		if _, err := f.Write(make([]byte, chunk)); errors.Is(err, syscall.ENOSPC) {
			chunk /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// verify has the stopped gateway's directory checked: no damage, no fault.
func (g *gateway) verify(t *testing.T) {
	t.Helper()
	t.Log(tail(run(t, time.Minute, g.rig.sluice, "verify", g.dir)))
}

// used is what a directory's files take.
func used(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // it was removed since
		}
		if info, err := e.Info(); err == nil {
			bytes += max(info.Size(), info.Sys().(*syscall.Stat_t).Blocks*512)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// load is clients that publish, of both protocol versions, and what they saw acknowledged.
type load struct {
	processes []*process
	files     []string
}

func (r *rig) load(t *testing.T, g *gateway, length time.Duration) *load {
	t.Helper()
	l := &load{}
	for _, proto := range []string{"4", "5"} {
		file := filepath.Join(t.TempDir(), "acked-"+proto)
		l.files = append(l.files, file)
		l.processes = append(l.processes, spawn(t, r.mqttload, "pub", "-addr", g.addr, "-clients", "10", "-window", "5", "-size", "200",
			"-rate", "1500", "-proto", proto, "-id", "d"+proto, "-topic", "disk/"+proto+"/%d", "-run", proto, "-seq", file,
			"-reconnect", "-warmup", "0s", "-duration", length.String()))
	}
	return l
}

// end waits for the clients and finds everything that was acknowledged in the log.
func (l *load) end(t *testing.T, r *rig, g *gateway) {
	t.Helper()
	all := filepath.Join(t.TempDir(), "acked")
	var content []byte
	for i, p := range l.processes {
		if err := p.wait(t, 2*time.Minute); err != nil {
			t.Fatalf("mqttload: %v", err)
		}
		b, err := os.ReadFile(l.files[i])
		if err != nil {
			t.Fatal(err)
		}
		content = append(content, b...)
		t.Logf("mqttload: %s", strings.TrimSpace(p.stdout.String()))
		p.dull = true
	}
	if err := os.WriteFile(all, content, 0o600); err != nil {
		t.Fatal(err)
	}
	found := filepath.Join(t.TempDir(), "found")
	g.found(t, found)
	got := r.check(t, all, found)
	if got.Lost > 0 || got.Duplicates > 0 || got.Disorder > 0 || got.Acked == 0 {
		t.Errorf("acknowledged %d, found %d, missing %d (first %q), twice %d, out of order %d", got.Acked, got.Found, got.Lost, got.FirstLost, got.Duplicates, got.Disorder)
	} else {
		t.Logf("acknowledged %d, found %d, missing 0", got.Acked, got.Found)
	}
}

var probes atomic.Uint32

// probe is a file with a message that mqttload knows for one of its own.
func probe(t *testing.T) string {
	t.Helper()
	b := []byte("MQL1")
	b = binary.BigEndian.AppendUint32(b, 1000) // run
	b = binary.BigEndian.AppendUint32(b, probes.Add(1))
	b = binary.BigEndian.AppendUint64(b, 1) // sequence
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint32(b, 36) // bytes
	b = binary.BigEndian.AppendUint32(b, 0)  // no checksum
	file := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// publishOnce tries one QoS 1 message and says whether it was acknowledged, and what the client said.
func publishOnce(t *testing.T, g *gateway, topic, version string, limit time.Duration) (acked bool, said string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(g.addr)
	out, errOut, err := tryRun(t, limit, "mosquitto_pub", "-h", "127.0.0.1", "-p", port, "-V", version, "-q", "1", "-t", topic, "-f", probe(t))
	return err == nil && !strings.Contains(out+errOut, "failed"), out + errOut
}

// wantRefused: a client of version 5 is told with 0x97, an older one gets no acknowledgement.
func wantRefused(t *testing.T, g *gateway, topic string) {
	t.Helper()
	wait(t, 30*time.Second, "publishes are refused with quota exceeded", func() bool {
		acked, said := publishOnce(t, g, topic, "5", 10*time.Second)
		return !acked && strings.Contains(said, "Quota exceeded")
	})
	if acked, said := publishOnce(t, g, topic, "311", 2*time.Second); acked {
		t.Errorf("a version 3.1.1 publish was acknowledged: %s", said)
	}
}

// wantAccepted: publishes are taken again within 10 s.
func wantAccepted(t *testing.T, g *gateway, topic string) {
	t.Helper()
	begin := time.Now()
	wait(t, 10*time.Second, "publishes are accepted", func() bool { acked, _ := publishOnce(t, g, topic, "5", 10*time.Second); return acked })
	t.Logf("accepted again after %v", time.Since(begin).Round(10*time.Millisecond))
}

// manager is a service manager's socket; status is the last line that it was told.
type serviceManager struct {
	mu     sync.Mutex
	status string
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "2000000")
	m := &serviceManager{}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			_, status, _ := strings.Cut(string(buf[:n]), "STATUS=")
			m.mu.Lock()
			m.status = status
			m.mu.Unlock()
		}
	}()
	return m
}

func (m *serviceManager) says(t *testing.T, words ...string) {
	t.Helper()
	wait(t, 20*time.Second, fmt.Sprintf("the summary says %q", words), func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return lineWith(m.status, words...) != ""
	})
}

// testForeignFile: a file that isn't ours fills the disk under load. The gateway stays up and refuses, says why, survives
// kill -9 meanwhile, and accepts again by itself.
func (r *rig) testForeignFile(t *testing.T) {
	manager := newServiceManager(t)
	d := newDisk(t)
	g := d.gateway(t, r, diskSizes)
	g.start(t)
	clients := r.load(t, g, 25*time.Second)
	wait(t, 20*time.Second, "segments", func() bool { return used(t, g.dir) > 8<<20 })
	foreign := d.fill(t)
	wait(t, 30*time.Second, "a line that says why", func() bool {
		return lineWith(g.p.stderr.String(), "refusing writes", "no space left", "make room") != ""
	})
	t.Log(lineWith(g.p.stderr.String(), "refusing writes", "no space left"))
	wantRefused(t, g, "disk/probe")
	manager.says(t, "refusing publishes", "no space left")
	if n := used(t, g.dir); n > diskBudget {
		t.Errorf("%d bytes, the budget is %d", n, diskBudget)
	}
	g.kill9(t)
	g.p = spawn(t, r.sluice, g.args...)
	wait(t, 30*time.Second, "it starts, or says what it waits for", func() bool {
		g.mustRun(t)
		return accepts(g.addr) || lineWith(g.p.stderr.String(), "waiting for the disk", "no space left") != ""
	})
	if line := lineWith(g.p.stderr.String(), "waiting for the disk"); line != "" {
		t.Log(line)
	} else {
		t.Log("it starts on the full disk")
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	wantAccepted(t, g, "disk/probe")
	clients.end(t, r, g)
	if n := used(t, g.dir); n > diskBudget {
		t.Errorf("%d bytes, the budget is %d", n, diskBudget)
	}
	g.stop(t)
	g.verify(t)
	unmount(t, d.dir)
}

// testReadOnlyAtStart: the gateway waits, and starts by itself after a remount.
func (r *rig) testReadOnlyAtStart(t *testing.T) {
	manager := newServiceManager(t)
	d := newDisk(t)
	d.mount(t, "remount,ro")
	g := d.gateway(t, r, diskSizes)
	g.p = spawn(t, r.sluice, g.args...)
	manager.says(t, "waiting for the disk", "read-only")
	g.mustRun(t)
	d.mount(t, "remount,rw")
	wait(t, 10*time.Second, "it starts", func() bool { return accepts(g.addr) })
	wantAccepted(t, g, "disk/probe")
	g.stop(t)
	unmount(t, d.dir)
}

// testTurnedReadOnly: ext4 gives up after an error, as with errors=remount-ro. The gateway stays up and refuses. This kernel
// makes such a file system writable by unmounting it only, so that is what is done here; a log that goes on after a
// remount is tested in package segment. (mount -o remount,ro doesn't work while files are open for writing.)
func (r *rig) testTurnedReadOnly(t *testing.T) {
	d := newDisk(t)
	g := d.gateway(t, r, diskSizes)
	g.start(t)
	clients := r.load(t, g, 12*time.Second)
	wait(t, 20*time.Second, "segments", func() bool { return used(t, g.dir) > 6<<20 })
	if exec.Command("mount", "-o", "remount,ro", d.dir).Run() == nil {
		t.Error("the kernel remounts read-only while files are open for writing: test that")
	}
	d.mount(t, "remount,abort")
	wait(t, 30*time.Second, "a line that says why", func() bool { return lineWith(g.p.stderr.String(), "refusing writes") != "" })
	t.Log(lineWith(g.p.stderr.String(), "refusing writes"))
	wantRefused(t, g, "disk/probe")
	g.mustRun(t)
	g.kill9(t)
	unmount(t, d.dir)
	d.mount(t, "loop")
	g.start(t)
	wantAccepted(t, g, "disk/probe")
	clients.end(t, r, g)
	g.stop(t)
	unmount(t, d.dir)
}

// testFrozen: a disk on which nothing moves. Whoever connects is served, what is published waits, and goes on.
func (r *rig) testFrozen(t *testing.T) {
	d := newDisk(t)
	g := d.gateway(t, r, diskSizes)
	g.start(t)
	wantAccepted(t, g, "disk/probe")
	run(t, 10*time.Second, "fsfreeze", "-f", d.dir)
	defer func() { _ = exec.Command("fsfreeze", "-u", d.dir).Run() }()
	waiting := spawn(t, "mosquitto_pub", "-h", "127.0.0.1", "-p", g.port(), "-V", "5", "-q", "1", "-t", "disk/frozen", "-m", "x")
	for range 8 {
		if !accepts(g.addr) {
			t.Error("no connection while the disk hangs")
		}
		time.Sleep(time.Second) //lint:sleep a disk that hangs does so for a while
	}
	if !waiting.alive() {
		t.Error("acknowledged, or given up, while nothing can be written")
	}
	run(t, 10*time.Second, "fsfreeze", "-u", d.dir)
	if err := waiting.wait(t, 10*time.Second); err != nil {
		t.Errorf("the message that waited: %v %s", err, waiting.stderr.String())
	}
	wantAccepted(t, g, "disk/probe")
	g.stop(t)
	unmount(t, d.dir)
}

// testDeviceErrors: the device itself fails writes for a while: its image lies on a file system that is full.
func (r *rig) testDeviceErrors(t *testing.T) {
	host := t.TempDir()
	run(t, 10*time.Second, "mount", "-t", "tmpfs", "-o", "size=16m", "none", host)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", host).Run() })
	d := &disk{image: filepath.Join(host, "image"), dir: t.TempDir()}
	if err := makeImage(d.image, "-O", "^has_journal"); err != nil { // a journal would give up at the first error
		t.Fatal(err)
	}
	d.mount(t, "loop,errors=continue")
	t.Cleanup(func() { _ = exec.Command("umount", "-l", d.dir).Run() })
	g := d.gateway(t, r, diskSizes)
	g.start(t)
	clients := r.load(t, g, 20*time.Second)
	wait(t, 40*time.Second, "a line that says why", func() bool { return lineWith(g.p.stderr.String(), "refusing writes") != "" })
	t.Log(lineWith(g.p.stderr.String(), "refusing writes"))
	g.mustRun(t) // what has its blocks already can be written, so it may accept again and refuse again meanwhile
	run(t, 10*time.Second, "mount", "-o", "remount,size=100m", host)
	wantAccepted(t, g, "disk/probe")
	clients.end(t, r, g)
	g.stop(t)
	unmount(t, d.dir)
}
