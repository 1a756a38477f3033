package mqtt

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluicemq/sluice/broker/admission"
)

func TestListenerAddresses(t *testing.T) {
	tests := []struct {
		address string
		want    string // part of the error; empty: valid
	}{
		{"localhost:1883", ""},
		{"127.0.0.1:0", ""},
		{"127.8.8.8:1883", ""},
		{"[::1]:1883", ""},
		{"0.0.0.0:1883", "not a loopback"},
		{":1883", "not a loopback"},
		{"[::]:1883", "not a loopback"},
		{"192.168.1.1:1883", "not a loopback"},
		{"gateway:1883", "not an IP address"},
		{"unix:/run/mqtt.sock", ""},
		{"unix:mqtt.sock", "must begin with /"},
		{"unix:/" + strings.Repeat("x", maxSocketPath), "at most 107"},
		{"localhost", "host:port"},
		{"localhost:mqtt", "not a number"},
		{"localhost:70000", "not a number"},
	}
	for _, tt := range tests {
		err := Options{Listeners: []Listener{{Address: tt.address}}}.Validate()
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.address, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.address) {
			t.Errorf("%s: %v", tt.address, err)
		}
	}
}

func TestLocalhostMeansBothLoopbacks(t *testing.T) {
	b := start(t, func(s *setup) { s.options.Listeners = []Listener{{Address: "localhost:0"}} })
	addrs := b.Addrs()
	if len(addrs) == 2 && addrs[0].(*net.TCPAddr).Port != addrs[1].(*net.TCPAddr).Port {
		t.Errorf("%v", addrs)
	}
	for range addrs {
		b.connect(connectOptions{id: "c"}).ping()
	}
}

func TestPortInUse(t *testing.T) {
	b := start(t)
	address := b.Addrs()[0].String()
	s, err := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0"}, {Address: address}}}, b.log, b.router, new(admission.Drops), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Listen()
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "another port") {
		t.Errorf("%v", err)
	}
	if len(s.Addrs()) != 0 {
		t.Error("half of the listeners are bound")
	}
}

// The listener survives a time without file descriptors.
func TestOutOfDescriptors(t *testing.T) {
	b := start(t)
	before := b.connect(connectOptions{id: "before"})
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// The client has its descriptor before there are none left.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	none := limit
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	restore := func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }
	defer restore()
	addr := b.Addrs()[0].(*net.TCPAddr)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return b.warnLimits[warnAccept].next.Load() > 0 })
	before.ping()
	restore()
	b.connect(connectOptions{id: "after"}).ping()
}

func TestTooManySockets(t *testing.T) {
	b := start(t, func(s *setup) { s.options.MaxConnections = 1 })
	for range 1 + spareConnections {
		b.dial()
	}
	eventually(t, func() bool { return b.Stats().Connections == 1+spareConnections })
	c := b.dial()
	c.expectEnd(0)
	if b.Stats().Refused != 1 {
		t.Errorf("%+v", b.Stats())
	}
}
