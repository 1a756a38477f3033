package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/configs"
)

var runCommand = subcommand{name: "run", help: "Run the broker.", new: func(f *pflag.FlagSet) runner {
	var s settings
	f.StringVar(&s.config, "config", "", "configuration `FILE`; without one everything is at its default")
	f.StringVar(&s.dataDir, "data-dir", "", "data directory `DIR`, in place of data.dir")
	f.StringSliceVar(&s.listen, "listen", nil, "where to listen for MQTT, `HOST:PORT`, in place of mqtt.listeners; may be repeated")
	f.StringSliceVar(&s.mirrorTo, "mirror-to", nil, "mirror everything to the Kafka broker at `HOST:PORT`, in place of mirror; may be repeated for one cluster")
	f.StringVar(&s.logLevel, "log-level", "", "log `LEVEL`, in place of log.level: debug, info, warn or error")
	return func(o output, _ []string) error { return s.run(o) }
}}

// settings are what the broker is started with: a file, and flags over it.
type settings struct {
	config, dataDir, logLevel string
	listen, mirrorTo          []string
}

// run runs the broker until SIGINT or SIGTERM. A second one ends the process at once, which is safe: what was acknowledged
// is durable.
func (s *settings) run(o output) error {
	c, err := s.configuration()
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	lg := newLogger(o.err, c.Log, level)
	for _, w := range c.Warnings() {
		lg.Warn("configuration", "warning", w.Error())
	}
	broker.LimitMemory(os.Getenv, lg)
	options, err := c.Broker()
	if err != nil {
		return usageError{err}
	}
	options.MQTT.Version = versionName()
	b, err := broker.New(options, lg)
	if err != nil {
		return err
	}
	if s.config != "" {
		b.Watch("configuration", []string{s.config}, func() error { return s.reload(c, b, level, lg) })
	}
	ctx, stop := untilSignal(lg, b.Reload)
	defer stop()
	go broker.UseProcessors(ctx, os.Getenv, lg)
	return b.Run(ctx)
}

// configuration is the file's with the flags over it.
func (s *settings) configuration() (*configs.Config, error) {
	c := configs.Default()
	if s.config != "" {
		var err error
		if c, err = configs.Read(s.config); err != nil {
			return nil, asUsage(err)
		}
	}
	if s.dataDir != "" {
		c.Data.Dir = s.dataDir
		c.Override("data.dir", "--data-dir")
	}
	if len(s.listen) > 0 {
		c.MQTT.Listeners = nil
		for _, address := range s.listen {
			c.MQTT.Listeners = append(c.MQTT.Listeners, configs.Listener{Address: address})
		}
		c.Override("mqtt.listeners", "--listen")
	}
	if len(s.mirrorTo) > 0 {
		m := configs.DefaultMirror()
		m.Region.Brokers = s.mirrorTo
		c.Mirrors = []configs.Mirror{m}
		c.Override("mirror", "--mirror-to")
	}
	if s.logLevel != "" {
		c.Log.Level = s.logLevel
		c.Override("log.level", "--log-level")
	}
	return c, c.Validate()
}

// reload reads the configuration again and takes up what a running broker can; c is what it was started with.
func (s *settings) reload(c *configs.Config, b *broker.Broker, level *slog.LevelVar, lg *slog.Logger) error {
	next, err := s.configuration()
	if err != nil {
		return err
	}
	options, err := next.Broker()
	if err != nil {
		return err
	}
	setLevel(level, next.Log.Level)
	b.SetLimits(options.MQTT)
	if sections := c.RestartFor(next); len(sections) > 0 {
		lg.Warn("configuration has changes that need a restart", "sections", strings.Join(sections, ", "))
	}
	return nil
}

// untilSignal's context ends at the first SIGINT or SIGTERM. SIGHUP calls reload.
func untilSignal(lg *slog.Logger, reload func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		stopping := false
		for s := range signals {
			switch {
			case s == syscall.SIGHUP:
				lg.Info("SIGHUP, reading files again")
				reload()
			case stopping:
				lg.Warn("second signal, ending at once", "signal", s.String())
				os.Exit(exitFailed)
			default:
				stopping = true
				lg.Info("signal", "signal", s.String())
				cancel()
			}
		}
	}()
	return ctx, cancel
}

func newLogger(w io.Writer, c configs.Log, level *slog.LevelVar) *slog.Logger {
	setLevel(level, c.Level)
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func setLevel(level *slog.LevelVar, name string) {
	_ = level.UnmarshalText([]byte(name)) // valid: Validate has seen it
}

// asUsage: whatever is wrong with reading a configuration file ends in exit code 2.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}
