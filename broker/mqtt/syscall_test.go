package mqtt

import (
	"net"
)

// controlTCP calls fn with a connection's descriptor.
func controlTCP[T any](conn net.Conn, fn func(fd int) (T, error)) (result T, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return result, err
	}
	if e := raw.Control(func(fd uintptr) { result, err = fn(int(fd)) }); e != nil {
		return result, e
	}
	return result, err
}
