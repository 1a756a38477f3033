//go:build !linux

package mirror

import "syscall"

// limitUnacknowledged has no equivalent here: a dead connection is found by the request's deadline.
func limitUnacknowledged(_, _ string, _ syscall.RawConn) error { return nil }
