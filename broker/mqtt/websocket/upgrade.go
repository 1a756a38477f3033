package websocket

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

const (
	// MaxRequest bounds the opening request, in bytes.
	MaxRequest = 8 << 10
	maxFields  = 100
	guid       = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455 §1.3
)

// Rules say which requests are answered with an upgrade.
type Rules struct {
	// Path is the request's, without a query.
	Path string
	// Origins are the web pages that may connect, as browsers write them: https://example.org, without a path. "*" stands for
	// all of them. What isn't a browser sends no origin and may always.
	Origins []string
	// Secure says that the connection is TLS. Then, and where the client named the server by an address or as localhost, the
	// server's own origin may connect, too; some clients that aren't browsers send it. A name by itself proves nothing: an attacker's
	// own can be made to lead to a private address (DNS rebinding), and the user's browser is inside where the attacker isn't.
	Secure bool
	// Protocol is the sub-protocol that the client must offer.
	Protocol string
}

// RequestEnd is the length of the request at the start of b, or 0 while its end isn't there.
func RequestEnd(b []byte) int {
	if i := bytes.Index(b, []byte("\r\n\r\n")); i >= 0 {
		return i + 4
	}
	return 0
}

// Upgrade reads a client's opening request (RFC 6455 §4.2.1) and returns what to answer, also with an error, which is an
// *Error: then it isn't 101.
func Upgrade(request []byte, r Rules) (answer []byte, err error) {
	q, err := parseRequest(request)
	if err != nil {
		return refusal("400 Bad Request", ""), err
	}
	switch {
	case q.path != r.Path:
		return refusal("404 Not Found", ""), &Error{PolicyViolation, "WebSocket request for another path"}
	case !q.has("connection", "upgrade"), !q.has("upgrade", "websocket"):
		return refusal("426 Upgrade Required", "Upgrade: websocket\r\nConnection: Upgrade\r\n"), &Error{PolicyViolation, "HTTP request that isn't for WebSocket"}
	case q.field("sec-websocket-version") != "13":
		return refusal("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n"), &Error{PolicyViolation, "WebSocket version that isn't 13"}
	case !q.allowed(r):
		return refusal("403 Forbidden", ""), &Error{PolicyViolation, "WebSocket origin that isn't among the allowed ones"}
	case !slices.Contains(q.list("sec-websocket-protocol"), r.Protocol):
		return refusal("400 Bad Request", ""), &Error{PolicyViolation, "WebSocket request without the sub-protocol " + r.Protocol} // MQTT-6.0.0-3
	}
	key := q.field("sec-websocket-key")
	if nonce, err := base64.StdEncoding.DecodeString(key); err != nil || len(nonce) != 16 {
		return refusal("400 Bad Request", ""), &Error{PolicyViolation, "WebSocket request without a valid key"}
	}
	sum := sha1.Sum([]byte(key + guid))
	return fmt.Appendf(nil, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n"+
		"Sec-WebSocket-Protocol: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]), r.Protocol), nil // MQTT-6.0.0-4
}

func refusal(status, fields string) []byte {
	return []byte("HTTP/1.1 " + status + "\r\n" + fields + "Content-Length: 0\r\nConnection: close\r\n\r\n")
}

// request is an HTTP request without a body.
type request struct {
	path   string
	fields map[string][]string // by name in lower case
}

var errRequest error = &Error{PolicyViolation, "no valid HTTP request"}

// parseRequest is strict (RFC 9112): a proxy that is more generous may see another request in the same bytes.
func parseRequest(b []byte) (*request, error) {
	text, whole := strings.CutSuffix(string(b), "\r\n\r\n")
	if !whole || len(b) > MaxRequest {
		return nil, errRequest
	}
	lines := strings.Split(text, "\r\n")
	first := strings.Split(lines[0], " ")
	if len(first) != 3 || first[0] != "GET" || first[2] != "HTTP/1.1" || !strings.HasPrefix(first[1], "/") || len(lines) > maxFields {
		return nil, errRequest
	}
	q := &request{fields: make(map[string][]string)}
	q.path, _, _ = strings.Cut(first[1], "?")
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
			return nil, errRequest
		}
		name = strings.ToLower(name)
		q.fields[name] = append(q.fields[name], strings.Trim(value, " \t"))
	}
	for _, once := range []string{"host", "sec-websocket-key", "sec-websocket-version", "origin"} {
		if n := len(q.fields[once]); n > 1 || n == 0 && once == "host" {
			return nil, errRequest
		}
	}
	if len(q.fields["content-length"]) > 0 && q.field("content-length") != "0" || len(q.fields["transfer-encoding"]) > 0 {
		return nil, errRequest // what follows is WebSocket
	}
	return q, nil
}

// isToken: RFC 9110 §5.6.2.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// field is a field's only value.
func (q *request) field(name string) string {
	if len(q.fields[name]) != 1 {
		return ""
	}
	return q.fields[name][0]
}

// list is a field's values, which may be spread over several lines.
func (q *request) list(name string) (values []string) {
	for _, line := range q.fields[name] {
		for v := range strings.SplitSeq(line, ",") {
			values = append(values, strings.Trim(v, " \t"))
		}
	}
	return values
}

// has says whether a list has a token, in any case.
func (q *request) has(name, token string) bool {
	return slices.ContainsFunc(q.list(name), func(v string) bool { return strings.EqualFold(v, token) })
}

// allowed checks the origin, RFC 6454 §7.
func (q *request) allowed(r Rules) bool {
	if len(q.fields["origin"]) == 0 {
		return true
	}
	origin, host := q.field("origin"), q.field("host")
	if _, own, ok := strings.Cut(origin, "://"); ok && strings.EqualFold(own, host) && (r.Secure || isAddress(host)) {
		return true
	}
	return slices.ContainsFunc(r.Origins, func(o string) bool { return o == "*" || strings.EqualFold(o, origin) })
}

// isAddress says whether a host, with or without a port, is localhost or an IP address.
func isAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}
