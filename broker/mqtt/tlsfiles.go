package mqtt

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of the files, in bytes: a larger one is some other file.
const (
	maxPEMBytes = 1 << 20
	maxCRLBytes = 16 << 20
)

// tlsFiles is what a listener's TLS is made of: its files, and what they said when they were last good. Safe for concurrent use.
type tlsFiles struct {
	options TLS
	current atomic.Pointer[tlsState]
}

// tlsState is the content of the files. Immutable.
type tlsState struct {
	config  *tls.Config
	ca      *x509.CertPool // nil: clients show no certificate
	caPEM   []byte
	revoked revocations
	began   time.Time // no clock that is right is before it
	notes   []string  // what is allowed and probably not meant
}

// load reads the files. With an error, which names the file, the former state stays.
func (f *tlsFiles) load() (*tlsState, error) {
	s := &tlsState{}
	certificate, err := f.keyPair()
	if err != nil {
		return nil, err
	}
	s.began = certificate.Leaf.NotBefore
	if end := certificate.Leaf.NotAfter; s.now().After(end) {
		s.note("tls.cert %s is valid until %s only: clients will refuse it", f.options.Cert, end.UTC().Format(time.RFC3339))
	}
	s.config = &tls.Config{
		Certificates:                []tls.Certificate{certificate},
		MinVersion:                  tls.VersionTLS12,
		DynamicRecordSizingDisabled: true, // packets are small as it is
		Time:                        s.now,
	}
	if f.options.ClientAuth != NoClientAuth {
		if err := f.loadClientAuth(s); err != nil {
			return nil, err
		}
	}
	f.current.Store(s)
	return s, nil
}

// keyPair reads the server's certificate and key.
func (f *tlsFiles) keyPair() (c tls.Certificate, err error) {
	cert, err := readBounded(f.options.Cert, maxPEMBytes)
	if err != nil {
		return c, fmt.Errorf("tls.cert: %w", err)
	}
	key, err := readBounded(f.options.Key, maxPEMBytes)
	if err != nil {
		return c, fmt.Errorf("tls.key: %w", err)
	}
	if c, err = tls.X509KeyPair(cert, key); err != nil {
		return c, fmt.Errorf("tls.cert %s with tls.key %s: %w; both must be PEM, without a passphrase, and belong together", f.options.Cert, f.options.Key, err)
	}
	return c, nil
}

// loadClientAuth reads what clients' certificates are checked with.
func (f *tlsFiles) loadClientAuth(s *tlsState) (err error) {
	if s.caPEM, err = readBounded(f.options.CA, maxPEMBytes); err != nil {
		return fmt.Errorf("tls.ca: %w", err)
	}
	authorities, err := parseCertificates(s.caPEM)
	if err != nil {
		return fmt.Errorf("tls.ca %s: %w", f.options.CA, err)
	}
	s.ca = x509.NewCertPool()
	for _, c := range authorities {
		s.ca.AddCert(c)
	}
	if f.options.CRL != "" {
		var due time.Time
		if s.revoked, due, err = loadRevocations(f.options.CRL, authorities); err != nil {
			return fmt.Errorf("tls.crl %s: %w", f.options.CRL, err)
		}
		if !due.IsZero() && s.now().After(due) {
			s.note("tls.crl %s should have been followed by a newer one at %s; it is used all the same", f.options.CRL, due.UTC().Format(time.RFC3339))
		}
	}
	s.config.ClientCAs = s.ca
	s.config.ClientAuth = tls.VerifyClientCertIfGiven
	if f.options.ClientAuth == RequireClientAuth {
		s.config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	s.config.VerifyConnection = func(c tls.ConnectionState) error {
		// With the present state: a session may be resumed with what was good when it began, and the files be read in between.
		now := f.current.Load()
		return now.check(c, now != s || c.DidResume)
	}
	return nil
}

func (s *tlsState) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// now is the time that certificates are checked at. A clock that is before the begin of our own certificate is wrong, on a gateway
// that boots in 1970 say, and no reason to let nobody in.
func (s *tlsState) now() time.Time {
	if now := time.Now(); now.After(s.began) {
		return now
	}
	return s.began
}

// errRevoked says that the client's certificate, or one above it, is in the revocation list.
var errRevoked = errors.New("certificate is revoked")

// check says whether the certificate that a client showed is good: not revoked and, for anew, signed by an authority of this state.
// A client that showed none is none of its business.
func (s *tlsState) check(c tls.ConnectionState, anew bool) error {
	if s.ca == nil || len(c.PeerCertificates) == 0 {
		return nil
	}
	chains := c.VerifiedChains
	if anew {
		var err error
		if chains, err = s.verify(c.PeerCertificates); err != nil {
			return err
		}
	}
	for _, chain := range chains {
		if !s.revoked.has(chain) {
			return nil
		}
	}
	return errRevoked
}

// verify builds the chains from a client's certificate to the authorities. A certificate that ran out while the client was connected
// is still one: files that are read again are no reason to look at the clock.
func (s *tlsState) verify(certificates []*x509.Certificate) ([][]*x509.Certificate, error) {
	o := x509.VerifyOptions{
		Roots: s.ca, Intermediates: x509.NewCertPool(), CurrentTime: s.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if end := certificates[0].NotAfter; o.CurrentTime.After(end) {
		o.CurrentTime = end
	}
	for _, c := range certificates[1:] {
		o.Intermediates.AddCert(c)
	}
	return certificates[0].Verify(o)
}

// userOf is the user name that a client's certificate stands for; empty when it showed none.
func (o *TLS) userOf(c tls.ConnectionState) (string, error) {
	if len(c.PeerCertificates) == 0 || o.UserFrom == UserFromNone {
		return "", nil
	}
	leaf := c.PeerCertificates[0]
	name := leaf.Subject.CommonName
	if o.UserFrom == UserFromSAN {
		switch {
		case len(leaf.DNSNames) > 0:
			name = leaf.DNSNames[0]
		case len(leaf.EmailAddresses) > 0:
			name = leaf.EmailAddresses[0]
		case len(leaf.URIs) > 0:
			name = leaf.URIs[0].String()
		default:
			name = ""
		}
	}
	if name == "" || len(name) > maxUserName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return "", fmt.Errorf("certificate without a %s that could be a user name", o.UserFrom)
	}
	return name, nil
}

// maxUserName is in bytes.
const maxUserName = 1 << 10

// revocations are serial numbers of revoked certificates, by issuer.
type revocations map[revocation]struct{}

type revocation struct{ issuer, serial string }

// has says whether a certificate of a chain is revoked; its last is the authority that is trusted.
func (r revocations) has(chain []*x509.Certificate) bool {
	if len(r) == 0 {
		return false
	}
	for _, c := range chain {
		if _, revoked := r[revocation{string(c.RawIssuer), string(c.SerialNumber.Bytes())}]; revoked {
			return true
		}
	}
	return false
}

// loadRevocations reads lists (RFC 5280 §5), PEM or DER, each signed by one of the authorities. One that is past its next update
// still counts: a gateway may be without a link for longer than that, and what is revoked stays so. due is the earliest of those
// times, if there is one.
func loadRevocations(file string, authorities []*x509.Certificate) (all revocations, due time.Time, err error) {
	data, err := readBounded(file, maxCRLBytes)
	if err != nil {
		return nil, due, err
	}
	blocks := [][]byte{data}
	if bytes.Contains(data, []byte("-----BEGIN")) {
		if blocks, err = pemBlocks(data, "X509 CRL"); err != nil {
			return nil, due, err
		}
	}
	all = make(revocations)
	for _, der := range blocks {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, due, fmt.Errorf("not a revocation list: %w", err)
		}
		if err := signedBy(list, authorities); err != nil {
			return nil, due, err
		}
		if next := list.NextUpdate; !next.IsZero() && (due.IsZero() || next.Before(due)) {
			due = next
		}
		for _, e := range list.RevokedCertificateEntries {
			all[revocation{string(list.RawIssuer), string(e.SerialNumber.Bytes())}] = struct{}{}
		}
	}
	return all, due, nil
}

func signedBy(list *x509.RevocationList, authorities []*x509.Certificate) error {
	for _, c := range authorities {
		if bytes.Equal(c.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(c) == nil {
			return nil
		}
	}
	return fmt.Errorf("the list of issuer %q isn't signed by an authority in tls.ca", list.Issuer)
}

func parseCertificates(data []byte) (list []*x509.Certificate, err error) {
	blocks, err := pemBlocks(data, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	for _, der := range blocks {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// pemBlocks are the blocks of a kind, at least one.
func pemBlocks(data []byte, kind string) (blocks [][]byte, err error) {
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			break
		}
		if b.Type == kind {
			blocks = append(blocks, b.Bytes)
		}
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("no PEM block %q in it", kind)
	}
	return blocks, nil
}

// readBounded reads a file of at most limit bytes. The error names it.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes; is it the right file?", name, limit)
	}
	return data, nil
}
