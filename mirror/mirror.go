package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicemq/sluice/mirror/mm2"
)

// Mirror ships the log to one region. Its methods are safe for concurrent use.
//
// Goroutines: one manager (metadata, topics, leaders) and one sender for each broker that leads a lane, all ended by Close.
type Mirror struct {
	opts   Options
	log    Source
	lg     *slog.Logger
	region *region
	filter filter

	stop       chan struct{}   // closed when Close begins: nothing new is started
	stopping   context.Context // done with stop: for what needn't be waited for
	cancelStop context.CancelFunc
	sending    context.Context // done when Close gives up on requests in flight
	cancelSend context.CancelFunc
	once       sync.Once
	wg         sync.WaitGroup
	look       chan struct{} // capacity 1: look at the metadata again

	cutting sync.Mutex // held while a batch is made: all senders share one set of compressors
	cutter  *cutter

	diskPatience time.Duration // immutable but for tests

	clockUntil time.Time // immutable: no record waits for the clock after that

	mu      sync.Mutex
	topics  []*topic
	lanes   int               // their number
	byName  map[string]*topic // by name in the region
	senders map[int32]*sender
	cluster string
	brokers map[int32]string // addresses by node, as the region advertises them
	state   State
	since   time.Time
	problem string    // of the region as a whole
	asked   time.Time // last metadata
	totals  Totals
}

// newMirror is New for any source.
func newMirror(o Options, log Source, lg *slog.Logger) (*Mirror, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	f, err := newFilter(o.Topics, o.Exclude)
	if err != nil {
		return nil, err
	}
	r, err := newRegion(o)
	if err != nil {
		return nil, err
	}
	m := &Mirror{
		opts: o, log: log, lg: lg.With("region", o.Region), region: r, filter: f,
		stop: make(chan struct{}), look: make(chan struct{}, 1), cutter: newCutter(o.Compression),
		byName: map[string]*topic{}, senders: map[int32]*sender{}, state: Connecting, since: time.Now(),
	}
	m.cutter.correction = log.Correction
	m.clockUntil, m.diskPatience = time.Now().Add(o.ClockWait), diskPatience
	m.stopping, m.cancelStop = context.WithCancel(context.Background())
	m.sending, m.cancelSend = context.WithCancel(context.Background())
	return m, nil
}

// Start begins to connect and to send, and returns at once.
func (m *Mirror) Start() {
	m.mu.Lock()
	m.adoptLocked()
	m.mu.Unlock()
	m.lg.Info("mirror: connecting", "brokers", m.opts.Brokers, "alias", m.opts.Alias)
	m.wg.Add(1)
	go m.manage()
}

// TopicsChanged has the mirror look for topics that the log got since Start.
func (m *Mirror) TopicsChanged() { m.lookAgain() }

// Close ends the mirror. It waits for the answers to requests in flight until ctx is done, and returns ctx's error if
// that came first: what was in flight then goes again at the next start. Call it before the log is closed, which is what
// makes the cursors durable.
func (m *Mirror) Close(ctx context.Context) error {
	var err error
	m.once.Do(func() {
		close(m.stop)
		m.cancelStop()
		done := make(chan struct{})
		go func() {
			m.wg.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-ctx.Done():
			err = fmt.Errorf("mirror: close: %w", ctx.Err())
			m.cancelSend()
			<-done
		}
		m.cancelSend()
		m.region.close()
	})
	return err
}

func (m *Mirror) lookAgain() { signal(m.look) }

func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// pause waits for d, or wake, and tells whether to go on: false when the mirror closes. Negative: for wake only.
func (m *Mirror) pause(d time.Duration, wake <-chan struct{}) bool {
	var after <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-m.stop:
		return false
	case <-after:
	case <-wake:
	}
	return true
}

// adoptLocked makes lanes for the log's topics that have none yet.
func (m *Mirror) adoptLocked() {
	for _, src := range m.log.Topics() {
		remote := mm2.RemoteTopic(m.opts.Alias, src.Name)
		if m.byName[remote] != nil || !m.filter.match(src.Name) {
			continue
		}
		t := &topic{name: src.Name, remote: remote, retry: m.newBackoff(), logged: map[string]struct{}{}}
		for i, p := range src.Partitions {
			t.lanes = append(t.lanes, m.newLane(t, int32(i), p))
		}
		m.topics = append(m.topics, t)
		m.byName[remote] = t
	}
}

// newLane (under mu) begins where the cursor is, with a new producer: what of the old one's last batch landed isn't known.
func (m *Mirror) newLane(t *topic, id int32, p Partition) *lane {
	l := &lane{topic: t, id: id, order: m.lanes, part: p, leader: -1, retry: m.newBackoff()}
	m.lanes++
	l.size = size{limit: m.opts.BatchBytes, raw: m.opts.BatchBytes}
	next, data, ok, err := p.Cursor(m.opts.Region)
	if err != nil {
		m.lg.Error("mirror: the cursor can't be read; sending the whole partition, records may arrive twice",
			"topic", t.name, "partition", id, "error", err)
	}
	if !ok || err != nil {
		l.next = p.StartOffset()
		return l
	}
	l.next = next
	if l.producer, _, err = parseCursor(data); err != nil { // not used for sending: it tells whether cluster or topic changed
		m.lg.Warn("mirror: cursor data is of another release or damaged; going on from its offset",
			"topic", t.name, "partition", id, "offset", next)
	}
	return l
}

func (m *Mirror) newBackoff() backoff {
	return backoff{min: m.opts.MinBackoff, max: m.opts.MaxBackoff}
}
