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

	"github.com/alecthomas/kong"
)

// options is the command line.
type options struct {
	Listen   string        `default:"127.0.0.1:1883" help:"Where the gateway listens for MQTT; the next free port if that one is taken."`
	Sensors  int           `default:"3" help:"How many sensors to simulate."`
	Every    time.Duration `default:"1s" help:"How often each sensor publishes."`
	Duration time.Duration `help:"End after this time. 0: run until interrupted."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("sluice-demo"),
		kong.Description("A gateway, a stand-in Kafka region and simulated sensors in one process."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-demo:", err)
		os.Exit(1)
	}
}
