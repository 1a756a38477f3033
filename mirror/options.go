package mirror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/sluicemq/sluice/mirror/mm2"
	"github.com/sluicemq/sluice/segment/record"
)

// Options says what is mirrored where. A zero number, duration or list means its default (DefaultOptions).
type Options struct {
	// Alias is this gateway's name in the region: topic mqtt becomes <Alias>.mqtt. Two gateways with one alias write
	// into the same topics.
	Alias string
	// Region is the region's name: in log lines and status, and as the owner of the cursors. Renaming it starts the
	// mirror from the beginning of the log.
	Region string
	// Brokers are the addresses to begin with, HOST:PORT; the others are learned from the region.
	Brokers []string
	// Topics are regular expressions of the log topics to mirror, each matched against the whole name as MirrorMaker does.
	Topics []string
	// Exclude are regular expressions of log topics that are left out although Topics has them.
	Exclude []string
	// BatchBytes is the size that small batches are merged to. Keep it below the region's max.message.bytes.
	BatchBytes int
	// RequestBytes bounds all produce requests in flight together. Memory use is about twice as much.
	RequestBytes int
	// Compression of what is merged, and of what is stored uncompressed. None: sent as it is stored.
	Compression record.Codec
	// Linger is the shortest time between two requests to a broker while there is no backlog. A lone record never waits.
	Linger time.Duration
	// MinBackoff and MaxBackoff bound the random delay before another try.
	MinBackoff, MaxBackoff time.Duration
	// RequestTimeout is how long a request may take to be written, and its answer to come.
	RequestTimeout time.Duration
	// ClockWait is how long, from New on, records wait that were stamped by a clock that isn't trusted yet: once it is, their
	// timestamps are put right. Then they are sent as they are, and counted. Negative: they don't wait.
	ClockWait time.Duration
	// Dial opens connections; nil means TCP. Tests and tunnels use it.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Bounds of what Options accept.
const (
	minBatchBytes   = 4 << 10
	maxBatchBytes   = 16 << 20
	maxRequestBytes = 64 << 20
)

// DefaultOptions mirrors every topic. Alias and Brokers have no default.
func DefaultOptions() Options {
	return Options{
		Region:         "region",
		Topics:         []string{".*"},
		Exclude:        mm2.DefaultExclude,
		BatchBytes:     256 << 10,
		RequestBytes:   1 << 20,
		Compression:    record.Zstd,
		Linger:         20 * time.Millisecond,
		MinBackoff:     250 * time.Millisecond,
		MaxBackoff:     30 * time.Second,
		RequestTimeout: 2 * time.Minute,
		ClockWait:      10 * time.Minute,
	}
}

// withDefaults fills what is zero. Compression None is a choice, not an absence.
func (o Options) withDefaults() Options {
	d := DefaultOptions()
	setDefault(&o.Region, d.Region)
	setDefault(&o.BatchBytes, d.BatchBytes)
	setDefault(&o.RequestBytes, max(d.RequestBytes, o.BatchBytes))
	setDefault(&o.Linger, d.Linger)
	setDefault(&o.MinBackoff, d.MinBackoff)
	setDefault(&o.MaxBackoff, max(d.MaxBackoff, o.MinBackoff))
	setDefault(&o.RequestTimeout, d.RequestTimeout)
	setDefault(&o.ClockWait, d.ClockWait)
	if o.Topics == nil {
		o.Topics = d.Topics
	}
	if o.Exclude == nil {
		o.Exclude = d.Exclude
	}
	return o
}

// Filter says whether a topic of the log is mirrored, as a mirror with these options decides it. The error is one of Validate.
func (o Options) Filter() (func(topic string) bool, error) {
	o = o.withDefaults()
	f, err := newFilter(o.Topics, o.Exclude)
	return f.match, err
}

// Owner is the name under which the mirror's cursors are kept.
func (o Options) Owner() string { return o.withDefaults().Region }

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate reports the first thing that can't work, with its remedy. Zero values count as defaults.
func (o Options) Validate() error {
	o = o.withDefaults()
	if len(o.Brokers) == 0 {
		return errors.New("mirror: no brokers: name at least one as HOST:PORT")
	}
	for _, addr := range o.Brokers {
		if err := validAddress(addr); err != nil {
			return err
		}
	}
	if !mm2.ValidName(o.Alias) {
		return fmt.Errorf("mirror: alias %q: use 1 to %d letters, digits, '.', '_' or '-'", o.Alias, mm2.MaxTopicBytes)
	}
	switch {
	case o.BatchBytes < minBatchBytes || o.BatchBytes > maxBatchBytes:
		return fmt.Errorf("mirror: batch_bytes %d: choose %d to %d", o.BatchBytes, minBatchBytes, maxBatchBytes)
	case o.RequestBytes < o.BatchBytes || o.RequestBytes > maxRequestBytes:
		return fmt.Errorf("mirror: request_bytes %d: choose batch_bytes (%d) to %d", o.RequestBytes, o.BatchBytes, maxRequestBytes)
	case o.MinBackoff < 0 || o.MaxBackoff < o.MinBackoff:
		return fmt.Errorf("mirror: back-off %v to %v: the first must be positive and not above the second", o.MinBackoff, o.MaxBackoff)
	case o.RequestTimeout < 100*time.Millisecond || o.RequestTimeout > 15*time.Minute:
		return fmt.Errorf("mirror: request timeout %v: choose 100ms to 15m", o.RequestTimeout)
	}
	_, err := newFilter(o.Topics, o.Exclude)
	return err
}

func validAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil && host != "" {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			return nil
		}
	}
	return fmt.Errorf("mirror: broker address %q: write it as HOST:PORT, for example kafka:9092", addr)
}
