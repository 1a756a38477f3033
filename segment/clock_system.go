package segment

import (
	"encoding/hex"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reading is what the system's clocks say at one moment.
type reading struct {
	wall   int64    // ms since 1970, as the wall clock has it
	mono   int64    // ms since the log was opened, however the wall clock moves meanwhile
	boot   int64    // ms since the machine started, 0 where that can't be asked
	bootID [16]byte // of this start of the machine, zero where that can't be asked
	synced bool     // a time daemon disciplines the wall clock
}

// systemClock reads the clocks of this machine. It is safe for concurrent use.
type systemClock struct {
	base   time.Time // when reading.mono was 0; immutable
	bootID [16]byte  // immutable
}

func newSystemClock() *systemClock {
	c := &systemClock{base: time.Now()}
	if text, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		if id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")); err == nil {
			copy(c.bootID[:], id)
		}
	}
	return c
}

func (c *systemClock) read() reading {
	now := time.Now()
	r := reading{wall: now.UnixMilli(), mono: now.Sub(c.base).Milliseconds(), bootID: c.bootID, synced: synchronised(now)}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err == nil {
		r.boot = boot.Nano() / int64(time.Millisecond)
	} else {
		r.bootID = [16]byte{}
	}
	return r
}

// synchronised asks the kernel (adjtimex(2)) whether a time daemon vouches for the wall clock. The kernel takes that back
// whenever somebody sets the clock, and after some nine hours without word from the daemon. Where it may not be asked, nobody
// vouches.
func synchronised(now time.Time) bool {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	if err != nil || state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0 {
		return false
	}
	// If the clock was set since now was read, the answer is about another time. The kernel gives its own with the answer;
	// on 32-bit machines only the low bits of it.
	apart := int32(tx.Time.Sec) - int32(now.Unix())
	return apart >= -1 && apart <= 1
}
