package mqtt

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Listener is one address to listen on, and what is spoken there.
type Listener struct {
	// Address is host:port or unix:PATH. A host is an IP address; "localhost" for 127.0.0.1 and, where there is one, ::1; or
	// nothing for all addresses of the machine. Port 0 takes a free one.
	Address string
	// Mode is the permissions of a unix socket's file. 0: 0660.
	Mode fs.FileMode
	// TLS, version 1.2 and up. Nil: none.
	TLS *TLS
	// WebSocket, over TLS if there is TLS. Nil: MQTT without it.
	WebSocket *WebSocket
	// ProxyProtocol, if nothing but a proxy connects. Nil: it isn't spoken.
	ProxyProtocol *ProxyProtocol
	// AllowAnonymous lets clients in that give no user name, and, where there is no password file, those that give one.
	AllowAnonymous bool
	// CloseDenied closes a version 3.1.1 client that publishes what it may not. Otherwise the message is acknowledged and dropped, as
	// a device that is closed would come back and try again for ever.
	CloseDenied bool
}

// TLS is a listener's files, PEM all of them (the CRL also DER), and what it wants of clients. Server.ReloadTLS reads them again.
type TLS struct {
	// Cert is the server's certificate with those between it and the authority; Key its key.
	Cert, Key string
	// CA holds the authorities that sign clients' certificates.
	CA string
	// CRL lists clients' certificates that were revoked. Each list must be signed by one of CA's authorities. Empty: none.
	CRL string
	// ClientAuth says whether clients show a certificate. Empty: NoClientAuth.
	ClientAuth ClientAuth
	// UserFrom says what of a client's certificate is its user name. Empty: UserFromNone.
	UserFrom UserFrom
}

// ClientAuth says whether clients show a certificate.
type ClientAuth string

const (
	NoClientAuth      ClientAuth = "none"    // they are not asked for one
	RequestClientAuth ClientAuth = "request" // they may; one that is shown must be good
	RequireClientAuth ClientAuth = "require" // they must
)

// UserFrom says what of a certificate is the user name.
type UserFrom string

const (
	UserFromNone UserFrom = "none" // nothing: user names come with CONNECT
	UserFromCN   UserFrom = "cn"   // the subject's common name
	UserFromSAN  UserFrom = "san"  // the first subject alternative name, of the first kind there is: DNS, e-mail, URI
)

// WebSocket is where and for whom MQTT over WebSocket is to be had.
type WebSocket struct {
	// Path is the request's. Empty: /mqtt.
	Path string
	// Origins are the web pages that may connect: scheme://host, with the port if it isn't the scheme's own; "*" for all. What isn't
	// a browser sends no origin and may always; for a page of the server itself see websocket.Rules.
	Origins []string
}

// ProxyProtocol says whose PROXY headers are believed.
type ProxyProtocol struct {
	// Trusted are the proxies. Other addresses can't connect. Of a unix socket the file's permissions decide.
	Trusted []netip.Prefix
}

const (
	defaultSocketMode = 0o660
	defaultPath       = "/mqtt"
	maxSocketPath     = 107 // bytes, sun_path of unix(7) less its NUL
	maxOrigins        = 100
	maxTrusted        = 100
)

// FieldError is what is wrong with a field, and what to do.
type FieldError struct {
	Field   string // as the configuration names it, such as tls.cert
	Message string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// withDefaults fills in what is zero.
func (l Listener) withDefaults() Listener {
	fill(&l.Mode, defaultSocketMode)
	if l.TLS != nil {
		t := *l.TLS
		fill(&t.ClientAuth, NoClientAuth)
		fill(&t.UserFrom, UserFromNone)
		l.TLS = &t
	}
	if l.WebSocket != nil {
		w := *l.WebSocket
		fill(&w.Path, defaultPath)
		l.WebSocket = &w
	}
	return l
}

// Validate says what is wrong, all of it. Files are not looked at.
func (l Listener) Validate() (errs []*FieldError) {
	given := l
	l = l.withDefaults()
	bad := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{field, fmt.Sprintf(format, args...)})
	}
	if _, isUnix := l.socketPath(); !isUnix && given.Mode != 0 {
		bad("mode", "is for unix sockets only; take it out")
	} else if l.Mode&^0o777 != 0 {
		bad("mode", "%#o is out of range; allowed: 0001 to 0777", l.Mode)
	}
	if _, err := l.addresses(); err != nil {
		bad("address", "%v", err)
	}
	if l.TLS != nil {
		l.TLS.validate(bad)
	}
	if l.WebSocket != nil {
		l.WebSocket.validate(bad)
	}
	if l.ProxyProtocol != nil {
		l.ProxyProtocol.validate(l, bad)
	}
	return errs
}

// Certifies says whether every client has shown a certificate that was verified.
func (l Listener) Certifies() bool { return l.TLS != nil && l.TLS.ClientAuth == RequireClientAuth }

// Local says whether only what runs on this machine can connect: a loopback address or a unix socket.
func (l Listener) Local() bool {
	if _, ok := l.socketPath(); ok {
		return true
	}
	addrs, err := l.addresses()
	return err == nil && !slices.ContainsFunc(addrs, func(a netip.AddrPort) bool { return !a.Addr().Unmap().IsLoopback() })
}

func (t *TLS) validate(bad func(field, format string, args ...any)) {
	if t.Cert == "" {
		bad("tls.cert", "is empty; name the file of the server's certificate (PEM)")
	}
	if t.Key == "" {
		bad("tls.key", "is empty; name the file of the certificate's key (PEM, without a passphrase)")
	}
	switch t.ClientAuth {
	case NoClientAuth:
		if t.CA != "" || t.CRL != "" || t.UserFrom != UserFromNone {
			bad("tls.client_auth", "is none, so ca, crl and user_from do nothing; write request or require, or take them out")
		}
	case RequestClientAuth, RequireClientAuth:
		if t.CA == "" {
			bad("tls.ca", "is empty; name the file of the authority that signs clients' certificates (PEM)")
		}
	default:
		bad("tls.client_auth", "%q is not allowed; use none, request or require", t.ClientAuth)
	}
	if t.UserFrom != UserFromNone && t.UserFrom != UserFromCN && t.UserFrom != UserFromSAN {
		bad("tls.user_from", "%q is not allowed; use none, cn or san", t.UserFrom)
	}
}

func (w *WebSocket) validate(bad func(field, format string, args ...any)) {
	if !strings.HasPrefix(w.Path, "/") || strings.ContainsFunc(w.Path, func(r rune) bool { return r <= ' ' || r == '?' || r == '#' || r > '~' }) {
		bad("websocket.path", "%q is not the path of a URL; write for example /mqtt", w.Path)
	}
	if len(w.Origins) > maxOrigins {
		bad("websocket.origins", "has %d entries; at most %d are allowed", len(w.Origins), maxOrigins)
	}
	for i, o := range w.Origins {
		scheme, host, ok := strings.Cut(o, "://")
		if o != "*" && (!ok || scheme == "" || host == "" || strings.ContainsAny(host, "/?# ")) {
			bad(fmt.Sprintf("websocket.origins[%d]", i), "%q is not an origin; write for example https://example.org, without a path, or \"*\" for all", o)
		}
	}
}

func (p *ProxyProtocol) validate(l Listener, bad func(field, format string, args ...any)) {
	_, isUnix := l.socketPath()
	switch {
	case len(p.Trusted) > maxTrusted:
		bad("proxy_protocol.trusted", "has %d entries; at most %d are allowed", len(p.Trusted), maxTrusted)
	case isUnix && len(p.Trusted) > 0:
		bad("proxy_protocol.trusted", "is for addresses; of a unix socket the mode decides: take it out")
	case !isUnix && len(p.Trusted) == 0:
		bad("proxy_protocol.trusted", "is empty, so nobody could connect; name the proxies' addresses, such as 10.0.0.7 or 10.0.0.0/24")
	}
	for i, prefix := range p.Trusted {
		if !prefix.IsValid() {
			bad(fmt.Sprintf("proxy_protocol.trusted[%d]", i), "is not an address or network; write for example 10.0.0.7 or 10.0.0.0/24")
		}
	}
}

// trusts says whether ip is a proxy's.
func (p *ProxyProtocol) trusts(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(p.Trusted, func(prefix netip.Prefix) bool { return prefix.Contains(ip) })
}

// socketPath is the path of a unix socket.
func (l Listener) socketPath() (path string, ok bool) { return strings.CutPrefix(l.Address, "unix:") }

// addresses are what l stands for: the first must be there, others need not. Those of a unix socket are none.
func (l Listener) addresses() ([]netip.AddrPort, error) {
	const remedy = "write for example localhost:1883"
	if path, ok := l.socketPath(); ok {
		if !strings.HasPrefix(path, "/") || len(path) > maxSocketPath {
			return nil, fmt.Errorf("%q is not a unix socket's address: the path must begin with / and have at most %d bytes; write for example unix:/run/sluice/mqtt.sock", l.Address, maxSocketPath)
		}
		return nil, nil
	}
	host, service, err := net.SplitHostPort(l.Address)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port; %s", l.Address, remedy)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%q: port %q is not a number from 0 to 65535; %s", l.Address, service, remedy)
	}
	at := func(ips ...netip.Addr) (list []netip.AddrPort, err error) {
		for _, ip := range ips {
			list = append(list, netip.AddrPortFrom(ip, uint16(port)))
		}
		return list, nil
	}
	switch host {
	case "localhost":
		return at(netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	case "":
		return at(netip.IPv4Unspecified(), netip.IPv6Unspecified())
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("%q: host %q is not an IP address; %s", l.Address, host, remedy)
	}
	return at(ip.Unmap())
}
