package mqtt

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// handshake dials and speaks TLS.
func (b *broker) handshake(config *tls.Config) (*tls.Conn, error) {
	conn, err := net.Dial("tcp", b.Addrs()[0].String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	c := tls.Client(conn, config)
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	// In TLS 1.3 the server looks at the client's certificate after the client's handshake is over.
	cl := b.over(c)
	cl.version = wire.V5
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(connectOptions{version: wire.V5}.encode()); err != nil {
		return nil, err
	}
	if _, err := cl.next(patience); err != nil {
		return nil, err
	}
	return c, nil
}

// users are the names from the certificates of those who are connected.
func (b *broker) users() (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		if c.established.Load() {
			names = append(names, c.tlsUser)
		}
	}
	return names
}

func TestClientCertificates(t *testing.T) {
	a, stranger := newAuthority(t, "authority"), newAuthority(t, "authority")
	plain := a.issue("device-7")
	named := a.issue("device-8", withDNS("eight.example", "other.example"))
	mail := a.issue("device-9", func(c *x509.Certificate) { c.EmailAddresses = []string{"nine@example.org"} })
	uri := a.issue("device-10", withURI("urn:device:10"))
	nameless := a.issue("", withDNS("x.example"))
	odd := a.issue("line\nbreak")
	expired := a.issue("expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	forServers := a.issue("for-servers", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	revoked := a.issue("revoked")
	foreign := stranger.issue("device-7")
	a.revoke(revoked)
	none := tls.Certificate{}
	tests := []struct {
		name string
		auth ClientAuth
		from UserFrom
		cert tls.Certificate
		user string
		bad  bool
	}{
		{"none asked, shown", NoClientAuth, UserFromNone, plain, "", false},
		{"requested, none shown", RequestClientAuth, UserFromCN, none, "", false},
		{"requested, shown", RequestClientAuth, UserFromCN, plain, "device-7", false},
		{"requested, not its user", RequestClientAuth, UserFromNone, plain, "", false},
		{"requested, stranger's", RequestClientAuth, UserFromCN, foreign, "", true},
		{"requested, revoked", RequestClientAuth, UserFromCN, revoked, "", true},
		{"required, none shown", RequireClientAuth, UserFromCN, none, "", true},
		{"required, shown", RequireClientAuth, UserFromCN, named, "device-8", false},
		{"required, stranger's", RequireClientAuth, UserFromCN, foreign, "", true},
		{"required, revoked", RequireClientAuth, UserFromCN, revoked, "", true},
		{"required, expired", RequireClientAuth, UserFromCN, expired, "", true},
		{"required, for servers only", RequireClientAuth, UserFromCN, forServers, "", true},
		{"required, without a common name", RequireClientAuth, UserFromCN, nameless, "", true},
		{"required, with a control character", RequireClientAuth, UserFromCN, odd, "", true},
		{"required, DNS name", RequireClientAuth, UserFromSAN, named, "eight.example", false},
		{"required, e-mail", RequireClientAuth, UserFromSAN, mail, "nine@example.org", false},
		{"required, URI", RequireClientAuth, UserFromSAN, uri, "urn:device:10", false},
		{"required, without an alternative name", RequireClientAuth, UserFromSAN, plain, "", true},
	}
	brokers := make(map[string]*broker)
	brokerFor := func(auth ClientAuth, from UserFrom) *broker {
		b := brokers[string(auth)+string(from)]
		if b == nil {
			o := a.mutual(auth, from)
			if o.CRL = a.file("crl.pem"); auth == NoClientAuth {
				o.CA, o.CRL = "", ""
			}
			b = startAt(t, Listener{Address: "127.0.0.1:0", TLS: o})
			brokers[string(auth)+string(from)] = b
		}
		return b
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				b := brokerFor(tt.auth, tt.from)
				eventually(t, func() bool { return b.Stats().Connections == 0 })
				failed := b.Stats().FailedTLS
				config := a.client()
				if tt.cert.Certificate != nil {
					config.Certificates = []tls.Certificate{tt.cert}
					config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tt.cert, nil }
				}
				config.MaxVersion = version
				c, err := b.handshake(config)
				if (err != nil) != tt.bad {
					t.Fatalf("%s: %v", tls.VersionName(version), err)
				}
				if tt.bad {
					eventually(t, func() bool { return b.Stats().FailedTLS == failed+1 })
				} else if users := b.users(); len(users) != 1 || users[0] != tt.user {
					t.Errorf("%s: users %q", tls.VersionName(version), users)
				}
				if c != nil {
					c.Close()
				}
			}
		})
	}
}

// What isn't TLS, or not as much as is asked for, ends and is counted; a connection that is only looked at isn't.
func TestTLSRefused(t *testing.T) {
	a := newAuthority(t, "authority")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.server()})
	old := a.client()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := b.handshake(old); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v", err)
	}
	distrust := a.client()
	distrust.RootCAs = x509.NewCertPool()
	if _, err := b.handshake(distrust); err == nil {
		t.Error("a client that doesn't trust us is in")
	}
	plain := b.dial()
	plain.send(connectOptions{version: wire.V5, id: "a"}.encode())
	plain.expectEnd(0)
	b.dial().conn.Close()
	eventually(t, func() bool { return b.Stats().FailedTLS == 3 && b.Stats().Connections == 0 })
}

// A session that is resumed is checked with what the files say now.
func TestResumedSessionOfARevokedCertificate(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		a := newAuthority(t, "authority")
		cert := a.issue("device")
		a.revoke()
		o := a.mutual(RequireClientAuth, UserFromCN)
		o.CRL = a.file("crl.pem")
		b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: o})
		config := a.client(cert)
		config.MaxVersion = version
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		for i := range 2 {
			c, err := b.handshake(config)
			if err != nil || c.ConnectionState().DidResume != (i > 0) {
				t.Fatalf("%s, connection %d: %v", tls.VersionName(version), i, err)
			}
		}
		if users := b.users(); len(users) != 2 || users[0] != "device" || users[1] != "device" {
			t.Errorf("users %q", users)
		}
		a.revoke(cert)
		// The files are read, but with the configuration that the tickets are for.
		files := b.listeners[0].tls
		before := files.current.Load()
		if _, err := files.load(); err != nil {
			t.Fatal(err)
		}
		files.current.Load().config = before.config
		if _, err := b.handshake(config); err == nil {
			t.Errorf("%s: in again", tls.VersionName(version))
		}
	}
}

// certificateOf is the certificate that a server shows.
func (b *broker) certificateOf(a *authority, cert ...tls.Certificate) string {
	b.t.Helper()
	c, err := b.handshake(a.client(cert...))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestReloadTLS(t *testing.T) {
	a := newAuthority(t, "authority")
	kept, revoked := a.issue("kept"), a.issue("revoked")
	a.revoke()
	o := a.mutual(RequestClientAuth, UserFromCN)
	o.CRL = a.file("crl.pem")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: o})
	if files := b.TLSFiles(); len(files) != 4 {
		t.Error(files)
	}
	clients := map[string]*client{}
	for name, certs := range map[string][]tls.Certificate{"kept": {kept}, "revoked": {revoked}, "without": nil} {
		clients[name] = b.over(tls.Client(dialPlain(t, a, b.Addrs()[0]), a.client(certs...))).hello(connectOptions{id: name})
	}
	first := b.certificateOf(a)

	// A bad file changes nothing, and the error names it.
	for _, bad := range []struct{ file, text, want string }{
		{"server.pem", "no certificate", "tls.cert"},
		{"server.key", "no key", "tls.key"},
		{"ca.pem", "no authority", "tls.ca"},
		{"crl.pem", "no list", "tls.crl"},
	} {
		good, err := os.ReadFile(a.file(bad.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{bad.text, strings.Repeat("x", maxCRLBytes+1), ""} {
			if err := os.WriteFile(a.file(bad.file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := b.ReloadTLS(); err == nil || !strings.Contains(err.Error(), bad.want) || !strings.Contains(err.Error(), a.file(bad.file)) {
				t.Errorf("%s: %v", bad.file, err)
			}
		}
		os.Remove(a.file(bad.file))
		if err := b.ReloadTLS(); err == nil || !strings.Contains(err.Error(), a.file(bad.file)) {
			t.Errorf("%s is gone: %v", bad.file, err)
		}
		if got := b.certificateOf(a, kept); got != first {
			t.Errorf("with a bad %s: certificate %s", bad.file, got)
		}
		if err := os.WriteFile(a.file(bad.file), good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A key that belongs to another certificate is bad, too.
	a.server()
	key, _ := os.ReadFile(a.file("kept.key"))
	os.WriteFile(a.file("server.key"), key, 0o600)
	if err := b.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "belong together") {
		t.Error(err)
	}
	if got := b.certificateOf(a); got != first {
		t.Errorf("certificate %s", got)
	}

	// Good ones are for new connections.
	a.server()
	a.revoke(revoked)
	if err := b.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	if got := b.certificateOf(a); got == first {
		t.Error("still the old certificate")
	}
	clients["revoked"].expectEnd(wire.NotAuthorized)
	clients["kept"].ping()
	clients["without"].ping()
	if _, err := b.handshake(a.client(revoked)); err == nil {
		t.Error("the revoked certificate lets in")
	}
	if s := b.Stats(); s.Revoked != 1 {
		t.Errorf("%+v", s)
	}

	// Another authority: its clients are in, those of the former one aren't any more.
	other := newAuthority(t, "another authority")
	pem, _ := os.ReadFile(other.file("ca.pem"))
	os.WriteFile(a.file("ca.pem"), pem, 0o600)
	if err := b.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "isn't signed by an authority") {
		t.Errorf("a list of another authority: %v", err)
	}
	clients["kept"].ping()
	other.revoke()
	list, _ := os.ReadFile(other.file("crl.pem"))
	os.WriteFile(a.file("crl.pem"), list, 0o600)
	if err := b.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	clients["kept"].expectEnd(wire.NotAuthorized)
	clients["without"].ping()
	c := b.over(tls.Client(dialPlain(t, a, b.Addrs()[0]), a.client(other.issue("theirs"))))
	c.hello(connectOptions{id: "theirs"})
}

// A certificate that ran out while its client was connected is no reason to close it when files are read again.
func TestReloadTLSKeepsExpired(t *testing.T) {
	a := newAuthority(t, "authority")
	cert := a.issue("short", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(2 * time.Second) })
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.mutual(RequireClientAuth, UserFromCN)})
	c := b.over(tls.Client(dialPlain(t, a, b.Addrs()[0]), a.client(cert))).hello(connectOptions{id: "a"})
	eventually(t, func() bool { return time.Now().After(cert.Leaf.NotAfter) })
	if err := b.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	c.ping()
}

// A clock that is before our certificate's begin is wrong, and lets clients in all the same.
func TestClockBeforeTheCertificate(t *testing.T) {
	s := &tlsState{began: time.Now().Add(time.Hour)}
	if got := s.now(); !got.Equal(s.began) {
		t.Error(got)
	}
	s.began = time.Now().Add(-time.Hour)
	if got := s.now(); got.Before(s.began.Add(time.Minute)) {
		t.Error(got)
	}
}

// The listener's start fails with the file's name.
func TestListenWithoutCertificate(t *testing.T) {
	b := start(t)
	a := newAuthority(t, "authority")
	o := a.server()
	os.Remove(o.Key)
	s, err := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0"}, {Address: "127.0.0.1:0", TLS: o}}}, b.log, b.router, b.drops, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err == nil || !strings.Contains(err.Error(), o.Key) || len(s.Addrs()) != 0 {
		t.Error(err)
	}
}

// Handshakes that hang don't keep others from being accepted, and don't take turns.
func TestHangingHandshakes(t *testing.T) {
	a := newAuthority(t, "authority")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.server()})
	for range 50 {
		b.dial().conn.Write([]byte("\x16\x03\x01\x02\x00\x01"))
	}
	eventually(t, func() bool { return b.Stats().Connections == 50 })
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := b.handshake(a.client()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// The reason of a refusal is logged in one line, quoted, whatever the client's certificate says.
func TestRefusalIsLogged(t *testing.T) {
	a, stranger := newAuthority(t, "authority"), newAuthority(t, "evil\nlevel=ERROR")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.mutual(RequireClientAuth, UserFromCN)})
	var out lockedBuilder
	b.logger = slog.New(slog.NewTextHandler(&out, nil))
	config := a.client()
	cert := stranger.issue("x\ny")
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	if _, err := b.handshake(config); err == nil {
		t.Fatal("in")
	}
	eventually(t, func() bool { return out.String() != "" })
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "TLS: ") || !strings.Contains(s, "unknown authority") {
		t.Errorf("%q", s)
	}
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Closing the broker while handshakes are under way ends them.
func TestCloseDuringHandshakes(t *testing.T) {
	a := newAuthority(t, "authority")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.server(), WebSocket: &WebSocket{}})
	for range 20 {
		b.dial().conn.Write([]byte("\x16\x03\x01\x02\x00\x01"))
	}
	eventually(t, func() bool { return b.Stats().Connections == 20 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Server.Close(ctx); err != nil {
		t.Error(err)
	}
	b.end()
}

// A large message's buffer isn't kept, and what is behind it is read all the same.
func TestTLSBuffersAreReleased(t *testing.T) {
	if tlsBuffers.records == 0 || tlsBuffers.messages == 0 {
		t.Fatal("crypto/tls has other fields: see where its buffers are now")
	}
	a := newAuthority(t, "authority")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: a.server()})
	raw := dialPlain(t, a, b.Addrs()[0])
	cut := &cutConn{Conn: raw}
	c := b.over(tls.Client(cut, a.client())).hello(connectOptions{id: "a"})
	var ts *tlsStream
	b.mu.Lock()
	for conn := range b.conns {
		ts = conn.stream.(*tlsStream)
	}
	b.mu.Unlock()
	buffer := func(place uintptr) *bytes.Buffer { return (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(ts.conn), place)) }
	for id := range uint16(5) {
		c.publish(outMessage{topic: "t", payload: strings.Repeat("x", 100_000), qos: 1, id: id + 1})
		c.expectAck(wire.PUBACK, id+1, 0)
		c.ping()
	}
	cut.hold = 10 // bytes of a record, while the rest is to come
	c.send([]byte{0xC0, 0})
	eventually(t, func() bool { return b.allIdle() })
	cut.flush()
	c.expect(wire.PINGRESP)
	eventually(t, func() bool { return b.allIdle() }) // it has looked for more, and found nothing
	c.conn.Close()
	eventually(t, func() bool { return b.Stats().Connections == 0 })
	if n, m := buffer(tlsBuffers.records).Cap(), buffer(tlsBuffers.messages).Cap(); n > keepRecordBytes || m > 0 {
		t.Errorf("%d and %d bytes are kept", n, m)
	}
}

// cutConn holds back all but the first bytes of a write.
type cutConn struct {
	net.Conn
	hold int // of the next write; 0: nothing is held back
	rest []byte
}

func (c *cutConn) Write(p []byte) (int, error) {
	n := len(p)
	if c.hold > 0 {
		c.rest = append([]byte(nil), p[c.hold:]...)
		p, c.hold = p[:c.hold], 0
	}
	_, err := c.Conn.Write(p)
	return n, err
}

func (c *cutConn) flush() { c.Conn.Write(c.rest) }

// allIdle says whether no connection has work in hand.
func (b *broker) allIdle() bool {
	b.workspaces.mu.Lock()
	defer b.workspaces.mu.Unlock()
	return b.workspaces.left == b.options.ReadBuffers
}

// What is out of date is used, and said.
func TestOutOfDateIsSaid(t *testing.T) {
	a := newAuthority(t, "authority")
	a.revoke() // a list that should have been followed by now
	o := a.mutual(RequireClientAuth, UserFromCN)
	o.CRL = a.file("crl.pem")
	a.issue("server", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	state, err := (&tlsFiles{options: *o}).load()
	if err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(state.notes, "|"); len(state.notes) != 2 || !strings.Contains(said, o.Cert) || !strings.Contains(said, o.CRL) {
		t.Errorf("%q", said)
	}
}

// A client that doesn't read the server's part of the handshake doesn't keep others from theirs.
func TestHandshakeThatIsNotRead(t *testing.T) {
	free := make(chan struct{}, 1)
	c := &conn{srv: &Server{epoch: time.Now()}}
	client, server := socketPair(t)
	s := new(socket)
	if err := s.init(server); err != nil {
		t.Fatal(err)
	}
	ts := &tlsStream{socket: s, turns: &turns{free, c.srv.clock, &c.waiting}}
	ts.turns.enter()
	done := make(chan error, 1)
	flight := make([]byte, 8<<20) // more than the sockets hold
	go func() {
		_, err := (*tlsSocket)(ts).Write(flight)
		done <- err
	}()
	free <- struct{}{} // others have their turn
	<-free
	if n, err := io.CopyN(io.Discard, client, int64(len(flight))); err != nil {
		t.Error(n, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// socketPair is two ends of a TCP connection.
func socketPair(t *testing.T) (client net.Conn, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); accepted.Close() })
	return client, accepted.(*net.TCPConn)
}

// A certificate that is revoked while its client's handshake is under way doesn't slip through.
func TestRevokedDuringTheHandshake(t *testing.T) {
	a := newAuthority(t, "authority")
	cert := a.issue("device")
	a.revoke()
	o := a.mutual(RequireClientAuth, UserFromCN)
	o.CRL = a.file("crl.pem")
	b := startAt(t, Listener{Address: "127.0.0.1:0", TLS: o})
	config := b.listeners[0].tls.current.Load().config
	verify := config.VerifyConnection
	config.VerifyConnection = func(c tls.ConnectionState) error {
		err := verify(c)
		a.revoke(cert)
		if e := b.ReloadTLS(); e != nil {
			t.Error(e)
		}
		return err
	}
	if _, err := b.handshake(a.client(cert)); err == nil {
		t.Error("in")
	}
}
