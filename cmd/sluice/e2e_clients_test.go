//go:build linux

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mqttJS is the version of MQTT.js that is tested.
const mqttJS = "mqtt@5.16.0"

// endpoints are where a broker under test is to be had: a port for each transport.
type endpoints struct {
	ports map[string]string // by transport: tcp, tls, ws, wss, mtls (client certificates)
	unix  string            // path of a socket
	ca    string            // file of the authority of its certificate, and of clients'
}

// allTransports in the order in which they are tried.
var allTransports = []string{"tcp", "tls", "ws", "wss"}

// testClients: clients that people use make a round trip at each QoS and send a large message, in both versions of MQTT, over each
// transport that they have. The very same against mosquitto shows that the test asks for nothing but MQTT.
func (r *rig) testClients(t *testing.T) {
	need(t, "mosquitto")
	brokers := []struct {
		name  string
		start func(t *testing.T) endpoints
	}{{"sluice", r.startEverywhere}, {"mosquittobroker", r.startMosquitto}}
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			at := b.start(t)
			t.Run("mosquitto", at.testMosquittoClients)
			t.Run("pahopy", func(t *testing.T) {
				need(t, "paho")
				at.testClient(t, allTransports, systemPython, "testdata/client_paho.py")
			})
			t.Run("pahogo", func(t *testing.T) {
				at.testClient(t, allTransports, r.pahoGo(t))
			})
			t.Run("mqttjs", func(t *testing.T) {
				need(t, "mqttjs")
				at.testClient(t, allTransports, "env", "NODE_PATH="+r.mqttJS(t), "node", "testdata/client_mqttjs.js")
			})
		})
	}
}

// testClient runs a client's own program for each transport and version; it prints OK.
func (e endpoints) testClient(t *testing.T, transports []string, name string, args ...string) {
	for _, transport := range transports {
		for _, version := range []string{"4", "5"} {
			t.Run(transport+"-"+version, func(t *testing.T) {
				t.Parallel() // mosquitto's WebSocket takes its time over a large message
				out := run(t, time.Minute, name, append(args[:len(args):len(args)], transport, e.ports[transport], version, e.ca)...)
				if !strings.HasSuffix(out, "OK\n") {
					t.Errorf("it printed %q", tail(out))
				}
			})
		}
	}
}

// testMosquittoClients: mosquitto_pub, mosquitto_sub and mosquitto_rr, which have no WebSocket in these versions.
func (e endpoints) testMosquittoClients(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, []byte(strings.Repeat("0123456789", 7_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"tcp", "tls", "mtls", "unix"} {
		for _, version := range []string{"mqttv311", "mqttv5"} {
			t.Run(transport+"-"+version, func(t *testing.T) {
				args := []string{"-V", version}
				switch transport {
				case "unix":
					args = append(args, "--unix", e.unix)
				case "mtls":
					args = append(args, "--cert", e.file("client.pem"), "--key", e.file("client.key"))
					fallthrough
				case "tls":
					args = append(args, "-h", "127.0.0.1", "--cafile", e.ca)
					fallthrough
				default:
					args = append(args, "-p", e.ports[transport])
				}
				e.mosquittoRoundTrip(t, args, "mosquitto/"+transport+"/"+version, large)
				e.mosquittoRequest(t, args, "mosquitto/"+transport+"/"+version)
			})
		}
	}
}

func (e endpoints) mosquittoRoundTrip(t *testing.T, args []string, base, large string) {
	for qos := range 3 {
		topic := fmt.Sprintf("%s/%d", base, qos)
		s := listen(t, append(args, "-q", fmt.Sprint(qos), "-t", topic, "-C", "2")...)
		send := append(append([]string{}, args...), "-q", fmt.Sprint(qos), "-t", topic)
		run(t, 20*time.Second, "mosquitto_pub", append(send, "-m", "small")...)
		run(t, 20*time.Second, "mosquitto_pub", append(send, "-f", large)...)
		if err := s.wait(t, 20*time.Second); err != nil {
			t.Fatalf("mosquitto_sub: %v", err)
		}
		got := s.messages()
		if len(got) != 2 || got[0] != fmt.Sprintf("%d %s small", qos, topic) || len(got[1]) != len(got[0])-len("small")+70_000 {
			t.Errorf("QoS %d: %.200q", qos, got)
		}
	}
}

// mosquittoRequest: a request and its answer.
func (e endpoints) mosquittoRequest(t *testing.T, args []string, base string) {
	s := listen(t, append(args, "-q", "1", "-t", base+"/request", "-C", "1")...)
	rr := spawn(t, "mosquitto_rr", append(args, "-q", "1", "-t", base+"/request", "-e", base+"/response", "-m", "ask")...)
	if err := s.wait(t, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := s.messages(); len(got) != 1 || !strings.HasSuffix(got[0], " ask") {
		t.Errorf("request %q", got)
	}
	run(t, 20*time.Second, "mosquitto_pub", append(args, "-q", "1", "-t", base+"/response", "-m", "answer")...)
	if err := rr.wait(t, 20*time.Second); err != nil || strings.TrimSpace(rr.stdout.String()) != "answer" {
		t.Errorf("mosquitto_rr: %v, %q", err, rr.stdout.String())
	}
}

// startEverywhere starts a gateway with a listener for each transport.
func (r *rig) startEverywhere(t *testing.T) endpoints {
	e := newEndpoints(t)
	var b strings.Builder
	b.WriteString("version: 1\nmqtt:\n  listeners:\n")
	fmt.Fprintf(&b, "    - address: unix:%s\n    - address: 127.0.0.1:%s\n      tls: {cert: %s, key: %s, ca: %s, client_auth: require, user_from: cn}\n",
		e.unix, e.ports["mtls"], e.file("server.pem"), e.file("server.key"), e.ca)
	for _, transport := range allTransports {
		fmt.Fprintf(&b, "    - address: 127.0.0.1:%s\n", e.ports[transport])
		if transport == "tls" || transport == "wss" {
			fmt.Fprintf(&b, "      tls: {cert: %s, key: %s}\n", e.file("server.pem"), e.file("server.key"))
		}
		if transport == "ws" || transport == "wss" {
			b.WriteString("      websocket: {}\n")
		}
	}
	g := &gateway{rig: r, dir: filepath.Join(r.dir(t), "data"), addr: "127.0.0.1:" + e.ports["tcp"]}
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.args = []string{"run", "--data-dir", g.dir, "--config", file}
	g.start(t)
	t.Cleanup(func() {
		if !t.Failed() {
			g.stop(t)
		}
	})
	return e
}

// startMosquitto starts mosquitto with the same listeners.
func (r *rig) startMosquitto(t *testing.T) endpoints {
	e := newEndpoints(t)
	var b strings.Builder
	b.WriteString("allow_anonymous true\nper_listener_settings false\n")
	fmt.Fprintf(&b, "listener 0 %s\nlistener %s 127.0.0.1\ncertfile %s\nkeyfile %s\ncafile %s\nrequire_certificate true\n",
		e.unix, e.ports["mtls"], e.file("server.pem"), e.file("server.key"), e.ca)
	for _, transport := range allTransports {
		fmt.Fprintf(&b, "listener %s 127.0.0.1\n", e.ports[transport])
		if transport == "tls" || transport == "wss" {
			fmt.Fprintf(&b, "certfile %s\nkeyfile %s\n", e.file("server.pem"), e.file("server.key"))
		}
		if transport == "ws" || transport == "wss" {
			b.WriteString("protocol websockets\n")
		}
	}
	file := filepath.Join(t.TempDir(), "mosquitto.conf")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "mosquitto", "-c", file)
	for _, transport := range allTransports {
		wait(t, 20*time.Second, "mosquitto listens for "+transport, func() bool {
			if !p.alive() {
				t.Fatalf("mosquitto ended: %v\n%s", p.err, p.stderr.String())
			}
			return accepts("127.0.0.1:" + e.ports[transport])
		})
	}
	return e
}

// newEndpoints chooses free ports and makes a certificate.
func newEndpoints(t *testing.T) endpoints {
	t.Helper()
	e := endpoints{ports: make(map[string]string)}
	for _, transport := range append([]string{"mtls"}, allTransports...) {
		_, e.ports[transport], _ = net.SplitHostPort(freeAddress(t))
	}
	dir, err := os.MkdirTemp("", "certificates")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// mosquitto may have given up root by the time it reads them and makes its socket.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	e.unix = filepath.Join(dir, "mqtt.sock")
	e.ca = filepath.Join(dir, "ca.pem")
	e.certify(t)
	return e
}

// certify makes an authority and the certificates of the broker and of a client, in place of those that are there.
func (e endpoints) certify(t *testing.T) {
	t.Helper()
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true,
		}
	}
	authority, server := template(1, "test authority"), template(time.Now().UnixNano(), "localhost")
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	server.DNSNames, server.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	key := writeCertificate(t, e.ca, "", authority, authority, nil)
	writeCertificate(t, e.file("server.pem"), e.file("server.key"), server, authority, key)
	client := template(3, "device-7")
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	writeCertificate(t, e.file("client.pem"), e.file("client.key"), client, authority, key)
}

func (e endpoints) file(name string) string { return filepath.Join(filepath.Dir(e.ca), name) }

// writeCertificate signs a certificate with signer, or with its own key if that is nil, and returns its key.
func writeCertificate(t *testing.T, certFile, keyFile string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "EC PRIVATE KEY", Bytes: der}} {
		if file == "" {
			continue
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

// pahoGo builds the program with Eclipse's Go clients, a module of its own. Without a network its modules must be in the cache.
func (r *rig) pahoGo(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pahogo")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Dir = filepath.Join(r.root, "scripts", "pahogo")
	if out, err := cmd.CombinedOutput(); err != nil {
		missing(t, required("pahogo"), "pahogo: %s", tail(string(out)))
	}
	return program
}

// mqttJS installs MQTT.js, once, and returns the directory of its modules.
func (r *rig) mqttJS(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(r.root, "scripts", ".cache", strings.ReplaceAll(mqttJS, "@", "-"))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(filepath.Join(modules, ".package-lock.json")); err == nil {
		return modules
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, errOut, err := tryRun(t, 5*time.Minute, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", mqttJS); err != nil {
		missing(t, required("mqttjs"), "mqttjs: %s can't be installed: %s", mqttJS, tail(errOut))
	}
	return modules
}
