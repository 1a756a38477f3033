package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
)

// The PROXY protocol, versions 1 and 2 (HAProxy, proxy-protocol.txt): what a proxy sends ahead of a connection's own bytes, to say
// whose connection it is.
//
//	1: "PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n"; TCP6; or UNKNOWN with anything behind it
//	2: signature (12) | version 2, command (1) | family, transport (1) | length (2, big endian) | addresses, TLVs (length)

const (
	proxySignature = "\r\n\r\n\x00\r\nQUIT\n"
	proxyFixed     = 16      // bytes of a version 2 header before its addresses
	maxProxyLine   = 107     // bytes of a version 1 header, line end included
	maxProxyHeader = 2 << 10 // bytes of a version 2 header: addresses take 216 at most, the rest is for TLVs
)

// errProxyHeader is for whatever isn't a PROXY header.
var errProxyHeader = errors.New("no valid PROXY header")

// parseProxyHeader takes the header at the start of b apart. size is its length in bytes, or 0 when b is too short to tell. client
// is the zero value where the header names none: then the connection is the proxy's own, a health check say.
func parseProxyHeader(b []byte) (client netip.AddrPort, size int, err error) {
	switch {
	case startsLike(b, proxySignature):
		return parseProxyBinary(b)
	case startsLike(b, "PROXY "):
		return parseProxyLine(b)
	}
	return client, 0, errProxyHeader
}

// startsLike says whether b begins with prefix, or is the begin of it.
func startsLike(b []byte, prefix string) bool {
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n]
}

func parseProxyLine(b []byte) (client netip.AddrPort, size int, err error) {
	end := bytes.IndexByte(b[:min(len(b), maxProxyLine)], '\n')
	switch {
	case end < 0 && len(b) >= maxProxyLine:
		return client, 0, errProxyHeader
	case end < 0:
		return client, 0, nil
	case b[end-1] != '\r':
		return client, 0, errProxyHeader
	}
	fields := strings.Split(string(b[:end-1]), " ")
	if fields[1] == "UNKNOWN" {
		return client, end + 1, nil
	}
	if len(fields) != 6 {
		return client, 0, errProxyHeader
	}
	client, ok := proxyEndpoint(fields[1], fields[2], fields[4])
	_, also := proxyEndpoint(fields[1], fields[3], fields[5])
	if !ok || !also {
		return netip.AddrPort{}, 0, errProxyHeader
	}
	return client, end + 1, nil
}

// proxyEndpoint reads one end of a version 1 header.
func proxyEndpoint(family, address, port string) (netip.AddrPort, bool) {
	ip, err := netip.ParseAddr(address)
	n, e := strconv.ParseUint(port, 10, 16)
	ok := err == nil && e == nil && ip.Zone() == "" && strconv.FormatUint(n, 10) == port &&
		(family == "TCP4" && ip.Is4() || family == "TCP6" && ip.Is6())
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), ok
}

func parseProxyBinary(b []byte) (client netip.AddrPort, size int, err error) {
	if len(b) < proxyFixed {
		return client, 0, nil
	}
	size = proxyFixed + int(binary.BigEndian.Uint16(b[14:]))
	command, family := b[12], b[13]
	if size > maxProxyHeader || command != 0x20 && command != 0x21 {
		return client, 0, errProxyHeader
	}
	need := map[byte]int{0x00: 0, 0x11: 12, 0x21: 36, 0x31: 216} // unspecified, TCP over IPv4 and IPv6, unix stream
	least, known := need[family]
	if command == 0x21 && (!known || size < proxyFixed+least) {
		return client, 0, errProxyHeader
	}
	if len(b) < size {
		return client, 0, nil
	}
	if command == 0x21 {
		a := b[proxyFixed:size]
		switch family {
		case 0x11:
			client = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])), binary.BigEndian.Uint16(a[8:]))
		case 0x21:
			client = netip.AddrPortFrom(netip.AddrFrom16([16]byte(a[:16])).Unmap(), binary.BigEndian.Uint16(a[32:]))
		}
	}
	return client, size, nil
}

// readProxyHeader takes the header off a connection and nothing behind it: until it is complete it stays in the socket.
func (s *socket) readProxyHeader() (client netip.AddrPort, err error) {
	buf := make([]byte, maxProxyHeader)
	waitErr := s.await(func() bool {
		var n, size int
		n, err = s.peek(buf)
		if n > 0 && err == nil {
			client, size, err = parseProxyHeader(buf[:n])
		}
		if size > 0 && err == nil {
			_, err = s.read(buf[:size]) // all of it is there
		}
		return err != nil || size > 0
	})
	if err == nil {
		err = waitErr
	}
	return client, err
}

// peek is read, but what it reads is still there afterwards.
func (s *socket) peek(p []byte) (n int, err error) {
	for {
		if n, _, err = syscall.Recvfrom(int(s.fd), p, syscall.MSG_PEEK); err != syscall.EINTR {
			return taken(n, err)
		}
	}
}
