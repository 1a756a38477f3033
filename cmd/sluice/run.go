package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/configs"
)

type runCommand struct {
	Config   string   `help:"Configuration file. Without one everything is at its default." placeholder:"FILE"`
	DataDir  string   `help:"Data directory, in place of data.dir." placeholder:"DIR"`
	Listen   []string `help:"MQTT address, in place of mqtt.listeners; may be repeated." placeholder:"HOST:PORT"`
	MirrorTo []string `help:"Kafka broker to mirror everything to, in place of mirror; may be repeated for one cluster." placeholder:"HOST:PORT"`
	LogLevel string   `help:"debug, info, warn or error, in place of log.level." placeholder:"LEVEL"`
}

// Run runs the broker until SIGINT or SIGTERM. A second one ends the process at once, which is safe: what was acknowledged
// is durable.
func (r *runCommand) Run(o output) error {
	c, err := r.configuration()
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
	if r.Config != "" {
		b.Watch("configuration", []string{r.Config}, func() error { return r.reload(c, b, level, lg) })
	}
	ctx, stop := untilSignal(lg, b.Reload)
	defer stop()
	return b.Run(ctx)
}

// configuration is the file's with the flags over it.
func (r *runCommand) configuration() (*configs.Config, error) {
	c := configs.Default()
	if r.Config != "" {
		var err error
		if c, err = configs.Read(r.Config); err != nil {
			return nil, asUsage(err)
		}
	}
	if r.DataDir != "" {
		c.Data.Dir = r.DataDir
		c.Override("data.dir", "--data-dir")
	}
	if len(r.Listen) > 0 {
		c.MQTT.Listeners = nil
		for _, address := range r.Listen {
			c.MQTT.Listeners = append(c.MQTT.Listeners, configs.Listener{Address: address})
		}
		c.Override("mqtt.listeners", "--listen")
	}
	if len(r.MirrorTo) > 0 {
		m := configs.DefaultMirror()
		m.Region.Brokers = r.MirrorTo
		c.Mirrors = []configs.Mirror{m}
		c.Override("mirror", "--mirror-to")
	}
	if r.LogLevel != "" {
		c.Log.Level = r.LogLevel
		c.Override("log.level", "--log-level")
	}
	return c, c.Validate()
}

// reload reads the configuration again and takes up what a running broker can; c is what it was started with.
func (r *runCommand) reload(c *configs.Config, b *broker.Broker, level *slog.LevelVar, lg *slog.Logger) error {
	next, err := r.configuration()
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
