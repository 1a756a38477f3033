package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/mirror"
	"github.com/sluicemq/sluice/segment"
)

const machineIDFile = "/etc/machine-id"

// What each part gets to finish what it has in hand when the broker stops. The log needs no limit: it has its own.
const (
	stopConnections = 10 * time.Second
	stopMirror      = 5 * time.Second
)

// Broker is one gateway. Start, Stop and Run are called once, by one goroutine; the other methods are safe for concurrent
// use after Start.
type Broker struct {
	o      Options
	lg     *slog.Logger
	notify *notifier

	reloader *reloader
	watching sync.WaitGroup // the reloader's goroutine

	// set by Start
	unwatch context.CancelFunc
	id      string
	log     *segment.Log
	mirrors []*mirror.Mirror
	door    *mqtt.Server
	drops   admission.Drops
}

// Status is what an operator wants to know.
type Status struct {
	GatewayID string
	Log       segment.Status
	MQTT      mqtt.Stats
	Mirrors   []mirror.Status
	Dropped   []admission.Drop
}

// New makes a broker. Nothing is opened yet. The error is a *ConfigError.
func New(o Options, lg *slog.Logger) (*Broker, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Broker{o: o, lg: lg, notify: newNotifier(os.Getenv), reloader: newReloader(lg)}, nil
}

// Watch has reload called when one of the files has changed, and at each Reload. An error says which file is wrong and why, and
// that what was read before stays in use; it is logged. Call Watch before Start or Run.
func (b *Broker) Watch(what string, files []string, reload func() error) {
	b.reloader.register(what, files, reload)
}

// Reload has all files read again that may change while the broker runs. It returns at once; the log tells the outcome.
func (b *Broker) Reload() { b.reloader.all() }

// Run starts the broker, keeps it running until ctx is done, and stops it. While the disk is full, read-only or failing it
// says so and waits until that is over.
func (b *Broker) Run(ctx context.Context) error {
	if started, err := b.startPatiently(ctx); !started {
		return err
	}
	b.notify.send("READY=1\nSTATUS=" + b.summary())
	var tick <-chan time.Time
	if every := b.notify.interval(); every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	var report dropReport
	minute := time.NewTicker(dropsInterval)
	defer minute.Stop()
	wear := time.NewTicker(wearInterval)
	defer wear.Stop()
	for {
		select {
		case <-minute.C:
			report.log(b.lg, b.dropped())
			continue
		case <-wear.C:
			logWear(b.lg, b.log.Wear())
			continue
		case <-tick:
			// Asking the log takes its lock: when that is stuck there is no report, and the service manager starts us anew.
			b.notify.send("WATCHDOG=1\nSTATUS=" + b.summary())
			continue
		case <-ctx.Done():
		}
		b.lg.Info("stopping")
		b.notify.send("STOPPING=1\nSTATUS=stopping")
		err := b.Stop()
		report.log(b.lg, b.dropped())
		logWear(b.lg, b.log.Wear())
		return err
	}
}

// Start opens everything, in order. After an error everything that was opened is closed again. The error is one line with
// the remedy; a *ConfigError when starting again can't help.
func (b *Broker) Start() error {
	err := b.start()
	if err != nil {
		err = errors.Join(err, b.undo())
	}
	return err
}

func (b *Broker) start() (err error) {
	began := time.Now()
	b.o.Log.Logger = b.lg
	if b.o.Log.Followers, err = followers(b.o.Mirrors); err != nil {
		return &ConfigError{err.Error()}
	}
	for _, t := range b.o.Topics {
		b.o.Log.Partitions += int(t.Partitions)
	}
	if b.log, err = segment.Open(b.o.Log); err != nil {
		return explain(b.o.Log.Dir, err)
	}
	b.reportRecovery()
	table, err := b.openTopics()
	if err != nil {
		return err
	}
	var source string
	if b.id, source, err = gatewayID(b.o.GatewayID, machineIDFile, b.log); err != nil {
		return explain(b.o.Log.Dir, err)
	}
	if err := b.startMirrors(); err != nil {
		return err
	}
	if err := b.openAccess(); err != nil {
		return err
	}
	b.o.MQTT.Incarnation = newIncarnation()
	if b.door, err = mqtt.New(b.o.MQTT, b.log, table, &b.drops, b.lg); err != nil {
		return &ConfigError{err.Error()}
	}
	if err := b.door.Listen(); err != nil {
		return err
	}
	b.door.Serve()
	if files := b.door.TLSFiles(); len(files) > 0 {
		b.reloader.register("certificates", files, b.door.ReloadTLS)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.unwatch = cancel
	b.watching.Go(func() { b.reloader.run(ctx) })
	b.lg.Info("ready", "gateway", b.id, "id_from", source, "data", b.o.Log.Dir, "mqtt", addresses(b.door.Addrs()),
		"topics", len(b.log.Topics()), "mirrors", len(b.mirrors), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// undo closes what start had opened when it failed, so that it can be called again.
func (b *Broker) undo() error {
	err := b.Stop()
	b.log, b.mirrors, b.door, b.unwatch = nil, nil, nil, nil
	return err
}

// openTopics makes the topics and compiles the routes.
func (b *Broker) openTopics() (*table, error) {
	for _, t := range b.o.Topics {
		if existing := b.log.Topic(t.Name); existing != nil && len(existing.Partitions()) != int(t.Partitions) {
			n := len(existing.Partitions())
			return nil, &ConfigError{fmt.Sprintf("topic %s has %d partitions on disk and %d in the configuration, and changing that would break the order of its keys; write partitions: %d, or use another topic",
				t.Name, n, t.Partitions, n)}
		}
		if _, err := b.log.CreateTopic(t); err != nil {
			return nil, explain(b.o.Log.Dir, err)
		}
	}
	return newTable(b.o.Routes, func(topic string) []*segment.Partition {
		if t := b.log.Topic(topic); t != nil {
			return t.Partitions()
		}
		return nil
	})
}

// reportRecovery says what the last stop left behind. Damage is loss, and loss is never silent.
func (b *Broker) reportRecovery() {
	r := b.log.Recovered()
	for _, damage := range r.Damages {
		b.lg.Error("damage in the data directory", "what", damage)
	}
	for _, note := range r.Notes {
		b.lg.Warn("recovery", "note", note)
	}
	if r.Frames > 0 || r.CutBytes > 0 {
		b.lg.Info("recovered", "frames", r.Frames, "records", r.Records, "torn", r.Torn, "cut_bytes", r.CutBytes, "took", r.Took.Round(time.Millisecond))
	}
}

// followers tells the log which mirrors follow a topic: what they have is the first to make room.
func followers(mirrors []mirror.Options) (func(topic string) []string, error) {
	filters := make([]func(string) bool, len(mirrors))
	for i, o := range mirrors {
		var err error
		if filters[i], err = o.Filter(); err != nil {
			return nil, err
		}
	}
	return func(topic string) (owners []string) {
		for i, follows := range filters {
			if follows(topic) {
				owners = append(owners, mirrors[i].Owner())
			}
		}
		return owners
	}, nil
}

func (b *Broker) startMirrors() error {
	for _, o := range b.o.Mirrors {
		if o.Alias == "" {
			o.Alias = b.id
		}
		m, err := mirror.New(o, b.log, b.lg)
		if err != nil {
			return &ConfigError{err.Error()}
		}
		m.Start()
		b.mirrors = append(b.mirrors, m)
	}
	return nil
}

// Stop closes everything, in reverse order. What was acknowledged is durable already; the checkpoint makes the next start
// quick. Errors name what could not be finished.
func (b *Broker) Stop() error {
	var errs []error
	if b.unwatch != nil {
		b.unwatch()
		b.watching.Wait()
	}
	if b.door != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopConnections)
		errs = append(errs, b.door.Close(ctx))
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopMirror)
	defer cancel()
	for _, m := range b.mirrors {
		if err := m.Close(ctx); err != nil {
			b.lg.Warn("mirror stopped with requests in flight, they go again at the next start", "error", err)
		}
	}
	if b.log != nil {
		if err := b.log.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the log in %s: %w", b.o.Log.Dir, err))
		}
	}
	return errors.Join(errs...)
}

// SetLimits changes how many connections there may be, as mqtt.Server.SetLimits says. It is for functions given to Watch.
func (b *Broker) SetLimits(o mqtt.Options) { b.door.SetLimits(o) }

// Addrs are the addresses at which the MQTT door listens.
func (b *Broker) Addrs() []net.Addr { return b.door.Addrs() }

// Status is the present state of all parts.
func (b *Broker) Status() Status {
	s := Status{GatewayID: b.id, Log: b.log.Status(), MQTT: b.door.Stats(), Dropped: b.dropped()}
	for _, m := range b.mirrors {
		s.Mirrors = append(s.Mirrors, m.Status())
	}
	return s
}

// summary is one line for the service manager.
func (b *Broker) summary() string {
	log := b.log.Status()
	if log.Refusing != nil {
		return "refusing publishes: " + log.Refusing.Error()
	}
	text := "listening on " + addresses(b.door.Addrs())
	if !log.ClockTrusted {
		text += "; the clock is not trusted"
	}
	for _, t := range log.Refused {
		text += "; refusing publishes to " + t.Topic
	}
	for _, m := range b.mirrors {
		s := m.Status()
		text += fmt.Sprintf("; region %s %s, %d records behind", s.Region, s.State, s.LagRecords)
	}
	return text + wearText(log.Wear)
}

func addresses(all []net.Addr) string {
	text := ""
	for i, a := range all {
		if i > 0 {
			text += ", "
		}
		text += a.String()
	}
	return text
}
