package mirror

import (
	"math/rand/v2"
	"time"
)

// backoff spreads retries with full jitter: each delay is drawn from all of (0, bound], and the bound doubles from min to
// max. Thousands of gateways lose a region in the same second; drawing from the whole range is what keeps them from
// coming back in the same second, too.
type backoff struct {
	min, max time.Duration
	failures int
}

func (b *backoff) next() time.Duration {
	bound := b.max
	if b.failures < 32 && b.min<<b.failures < b.max && b.min<<b.failures > 0 {
		bound = b.min << b.failures
	}
	b.failures++
	if bound <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(bound))) + 1
}

func (b *backoff) reset() { b.failures = 0 }
