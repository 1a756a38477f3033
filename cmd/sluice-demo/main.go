// Command sluice-demo is a first look: a gateway, a stand-in for the regional Kafka cluster and a few simulated sensors in
// one process. It prints what arrives in the region, and leaves nothing behind.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// options is the command line.
type options struct {
	Listen   string
	Sensors  int
	Every    time.Duration
	Duration time.Duration
}

func main() {
	var o options
	pflag.StringVar(&o.Listen, "listen", "127.0.0.1:1883", "where the gateway listens for MQTT; the next free port if that one is taken")
	pflag.IntVar(&o.Sensors, "sensors", 3, "how many sensors to simulate")
	pflag.DurationVar(&o.Every, "every", time.Second, "how often each sensor publishes")
	pflag.DurationVar(&o.Duration, "duration", 0, "end after this time; 0: run until interrupted")
	pflag.Parse()
	if pflag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "sluice-demo: takes no arguments; see --help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-demo:", err)
		os.Exit(1)
	}
}
