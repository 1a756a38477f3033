//go:build linux

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/auth"
)

const (
	stormClients   = 2000
	stormObservers = 20
	stormLimit     = 60 * time.Second // for all to be in
	stormAck       = time.Second      // p99 of clients that are in already
	ackInterval    = 50 * time.Millisecond
)

// stormUsers is how many users the clients of a storm share, half of them with PBKDF2 at 100,000 iterations and half with argon2id.
// SLUICE_STORM_USERS=2000 gives each client its own: then the first storm costs 2,000 slow hashes, which no one core computes
// within the limit, and no limit holds.
func stormUsers() (n int, limited bool) {
	if n, err := strconv.Atoi(os.Getenv("SLUICE_STORM_USERS")); err == nil && n > 0 {
		return n, n <= 200
	}
	return 40, true
}

// testStorm: 2,000 clients with TLS and passwords come at once and try again without a pause, to a broker on one core, and again once
// their passwords are known; then somebody guesses passwords. Clients that are in already hardly notice.
func (r *rig) testStorm(t *testing.T) {
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Skip("taskset is not in PATH")
	}
	dir := r.dir(t)
	users, limited := stormUsers()
	limit := 2 * stormLimit
	if !limited {
		limit = 10 * stormLimit
	}
	g := r.stormGateway(t, dir, users)
	o := newObservers(t, g.addr)
	o.measure(t, "before", 2*time.Second)
	for _, wave := range []string{"cold", "warm", "warm again"} {
		in := o.during(t, wave, func() time.Duration { return stormWave(t, g.addr, users, limit) })
		if (limited || wave != "cold") && in > stormLimit {
			t.Errorf("%s: it took %v until all were in", wave, in)
		}
	}
	o.during(t, "wrong passwords", func() time.Duration {
		stop := make(chan struct{})
		tried := guess(t, g.addr, stop)
		in := stormWave(t, g.addr, users, limit)
		close(stop)
		t.Logf("%d wrong passwords meanwhile", tried())
		if in > stormLimit {
			t.Errorf("with wrong passwords: it took %v until all were in", in)
		}
		return in
	})
	o.close(t)
	g.stop(t)
}

// stormGateway runs a broker on one core, with TLS and a password for each user.
func (r *rig) stormGateway(t *testing.T, dir string, users int) *gateway {
	t.Helper()
	passwords := filepath.Join(dir, "passwd")
	for i := range users {
		algorithm := auth.PBKDF2
		if i%2 == 1 {
			algorithm = auth.Argon2id
		}
		if err := auth.SetPassword(passwords, fmt.Sprint("storm", i), algorithm, 100_000, fmt.Append(nil, "password", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := auth.SetPassword(passwords, "observer", auth.PBKDF2, 1000, []byte("observer")); err != nil {
		t.Fatal(err)
	}
	cert, key := selfSigned(t, dir)
	g := &gateway{rig: r, dir: filepath.Join(dir, "data"), addr: freeAddress(t)}
	file := filepath.Join(dir, "gateway.yaml")
	config := fmt.Sprintf("version: 1\nmqtt:\n  listeners: [{address: %q, tls: {cert: %q, key: %q}}]\n  max_connections: 2100\n  auth: {password_file: %q}\n",
		g.addr, cert, key, passwords)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("taskset", "-c", "0", r.sluice, "run", "--data-dir", g.dir, "--config", file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	g.p = spawnCommand(t, cmd)
	wait(t, 60*time.Second, "the gateway accepts connections", func() bool {
		if !g.p.alive() {
			t.Fatalf("the gateway ended at its start: %v\n%s", g.p.err, tail(g.p.stderr.String()))
		}
		return accepts(g.addr)
	})
	return g
}

func selfSigned(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

var errRefused = errors.New("CONNACK says no")

// secureConnect makes a session of version 3.1.1 over TLS.
func secureConnect(addr, id, user, password string) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: stormLimit}, Config: &tls.Config{InsecureSkipVerify: true}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(stormLimit))
	body := []byte("\x00\x04MQTT\x04\xC2\x00\x00")
	for _, field := range []string{id, user, password} {
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(field))), field...)
	}
	var ack [4]byte
	if _, err = c.Write(append([]byte{0x10, byte(len(body))}, body...)); err == nil {
		_, err = io.ReadFull(c, ack[:])
	}
	if err == nil && ack[3] != 0 {
		err = errRefused
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// stormWave connects all clients at once, each until it is in, and returns how long that took. Then all leave.
func stormWave(t *testing.T, addr string, users int, limit time.Duration) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	failures := make(map[string]int)
	conns := make([]net.Conn, stormClients)
	for i := range conns {
		wg.Go(func() {
			for t.Context().Err() == nil && time.Since(began) < limit {
				c, err := secureConnect(addr, fmt.Sprint("storm", i), fmt.Sprint("storm", i%users), fmt.Sprint("password", i%users))
				if err == nil {
					conns[i] = c
					return
				}
				mu.Lock()
				failures[failure(err)]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if len(failures) > 0 {
		t.Logf("attempts that failed and were repeated at once: %v", failures)
	}
	for i, c := range conns {
		if c == nil {
			t.Errorf("client %d didn't get in", i)
			break
		}
	}
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	return took
}

// failure is what an attempt ended with, without the addresses.
func failure(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// guess tries wrong passwords until stop is closed, from as many connections as somebody may have.
func guess(t *testing.T, addr string, stop chan struct{}) (tried func() int64) {
	var wg sync.WaitGroup
	var n atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			for j := 0; t.Context().Err() == nil; j++ {
				select {
				case <-stop:
					return
				default:
				}
				if c, err := secureConnect(addr, "guess", fmt.Sprint("storm", i%20), fmt.Sprint("guess", i, "-", j)); err == nil {
					c.Close()
					t.Error("a guess was right")
				}
				n.Add(1)
			}
		})
	}
	return func() int64 { wg.Wait(); return n.Load() }
}

// observers are clients that are in: each publishes at QoS 1 and waits for its acknowledgement, again and again. They are a process
// of their own: in the storm's they would wait for its handshakes.
type observers struct {
	p     *process
	input io.Closer
	seen  int // bytes of what it said
}

const observeEnv = "SLUICE_STORM_OBSERVE"

func newObservers(t *testing.T, addr string) *observers {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestStormObservers$", "-test.v")
	cmd.Env = append(os.Environ(), observeEnv+"="+addr)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	o := &observers{p: spawnCommand(t, cmd), input: input}
	o.p.dull = true
	wait(t, 30*time.Second, "the first acknowledgement", func() bool { return len(o.acks(t)) > 0 })
	return o
}

// TestStormObservers is the process of the observers; by itself it does nothing. It prints each acknowledgement's time in ns.
func TestStormObservers(t *testing.T) {
	addr := os.Getenv(observeEnv)
	if addr == "" {
		return // it is a part of TestE2E
	}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	var wg sync.WaitGroup
	for i := range stormObservers {
		c, err := secureConnect(addr, fmt.Sprint("observer", i), "observer", "observer")
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { observe(t, c, stop) })
	}
	wg.Wait()
}

func observe(t *testing.T, c net.Conn, stop chan struct{}) {
	defer c.Close()
	tick := time.NewTicker(ackInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		began := time.Now()
		_ = c.SetDeadline(began.Add(stormLimit))
		_, err := c.Write([]byte("\x32\x0A\x00\x04ackt\x00\x01xx"))
		var ack [4]byte
		if err == nil {
			_, err = io.ReadFull(c, ack[:])
		}
		if err != nil {
			t.Errorf("lost: %v", err)
			return
		}
		fmt.Printf("ack %d\n", time.Since(began).Nanoseconds())
	}
}

// acks are the times since the last call, in order of length.
func (o *observers) acks(t *testing.T) (all []time.Duration) {
	t.Helper()
	if !o.p.alive() {
		t.Fatalf("clients that were in were lost:\n%s%s", tail(o.p.stdout.String()), tail(o.p.stderr.String()))
	}
	text := o.p.stdout.String()
	text = text[o.seen : strings.LastIndexByte(text, '\n')+1]
	o.seen += len(text)
	for line := range strings.Lines(text) {
		if ns, ok := strings.CutPrefix(strings.TrimSpace(line), "ack "); ok {
			n, err := strconv.ParseInt(ns, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Duration(n))
		} else if strings.Contains(line, "lost: ") {
			t.Fatal(line)
		}
	}
	slices.Sort(all)
	return all
}

// during reports what the observers saw while f ran.
func (o *observers) during(t *testing.T, what string, f func() time.Duration) time.Duration {
	t.Helper()
	o.acks(t)
	took := f()
	acks := o.acks(t)
	if len(acks) == 0 {
		t.Fatalf("%s: nothing was acknowledged", what)
	}
	p99 := acks[len(acks)*99/100]
	t.Logf("%s: %v; %d acknowledgements of those who are in: median %v, p99 %v, longest %v", what, took.Round(time.Millisecond), len(acks),
		acks[len(acks)/2].Round(10*time.Microsecond), p99.Round(10*time.Microsecond), acks[len(acks)-1].Round(10*time.Microsecond))
	if p99 > stormAck {
		t.Errorf("%s: p99 %v", what, p99)
	}
	return took
}

func (o *observers) measure(t *testing.T, what string, d time.Duration) {
	t.Helper()
	o.during(t, what, func() time.Duration {
		<-time.After(d)
		return d
	})
}

func (o *observers) close(t *testing.T) {
	t.Helper()
	o.acks(t)
	o.input.Close()
	if err := o.p.wait(t, 30*time.Second); err != nil {
		t.Errorf("the observers: %v\n%s", err, tail(o.p.stdout.String()))
	}
}
