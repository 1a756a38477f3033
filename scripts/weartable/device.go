//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// counters are a block device's, since the system started.
type counters struct {
	bytes, flushes int64
	at             time.Time
}

func (c counters) since(before counters) counters {
	return counters{c.bytes - before.bytes, c.flushes - before.flushes, c.at}
}

// Fields of /sys/block/*/stat (Documentation/block/stat.rst): 7 is sectors of 512 bytes written, 16 is flush requests completed.
const (
	fieldSectorsWritten = 7
	fieldFlushes        = 16
)

func (m *meter) counters() (c counters, err error) {
	b, err := os.ReadFile(m.stat)
	if err != nil {
		return c, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < fieldFlushes {
		return c, fmt.Errorf("%s has %d fields, no count of flushes: a kernel of 5.5 or later is needed", m.stat, len(fields))
	}
	sectors, err := strconv.ParseInt(fields[fieldSectorsWritten-1], 10, 64)
	if err != nil {
		return c, fmt.Errorf("%s: %w", m.stat, err)
	}
	c.flushes, err = strconv.ParseInt(fields[fieldFlushes-1], 10, 64)
	c.bytes, c.at = sectors*512, time.Now()
	return c, err
}

// settled are the counters once everything that was written has reached the device.
func (m *meter) settled() (counters, error) {
	d, err := os.Open(m.dir)
	if err != nil {
		return counters{}, err
	}
	defer d.Close()
	// The second finds what the first one dirtied.
	for range 2 {
		if err := unix.Syncfs(int(d.Fd())); err != nil {
			return counters{}, err
		}
	}
	return m.counters()
}
