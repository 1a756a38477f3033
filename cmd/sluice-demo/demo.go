package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/configs"
	"github.com/sluicemq/sluice/mirror"
)

const (
	gatewayID = "demo"
	portsMore = 50 // ports tried beyond the one asked for
)

// run is the whole demo, until ctx or the asked-for time is over.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return fmt.Errorf("no room for the demo's data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("stand-in"))
	if err != nil {
		return fmt.Errorf("stand-in region: %w", err)
	}
	defer cluster.Close()

	address, err := freeAddress(o.Listen)
	if err != nil {
		return err
	}
	gateway, err := newGateway(filepath.Join(dir, "data"), address, cluster.ListenAddrs(), stderr)
	if err != nil {
		return err
	}
	if err := gateway.Start(); err != nil {
		return fmt.Errorf("start the gateway: %w", err)
	}
	welcome(stdout, address, cluster.ListenAddrs()[0])
	arrived, err := play(ctx, o, address, cluster.ListenAddrs(), stdout)
	err = errors.Join(err, gateway.Stop())
	fmt.Fprintf(stdout, "\n%d records arrived in the region. The demo's data is removed.\n", arrived)
	return err
}

// play has the sensors publish and prints what arrives, until ctx is done.
func play(ctx context.Context, o options, address string, region []string, out io.Writer) (arrived int, err error) {
	p, err := newPrinter(out, gatewayID, region)
	if err != nil {
		return 0, err
	}
	defer p.close()
	var sensors sync.WaitGroup
	for i := range o.Sensors {
		sensors.Go(func() {
			if err := newSensor(i, o.Every).run(ctx, address); err != nil {
				p.say("sensor %d stopped: %v", i, err)
			}
		})
	}
	arrived, err = p.run(ctx)
	sensors.Wait()
	return arrived, err
}

// newGateway is a gateway as `sluice run` makes it, but with a small journal, since it won't live long.
func newGateway(dir, address string, region []string, stderr io.Writer) (*broker.Broker, error) {
	o, err := configs.Default().Broker()
	if err != nil {
		return nil, err
	}
	o.GatewayID = gatewayID
	o.Log.Dir = dir
	o.Log.MaxBytes = 256 << 10
	o.Log.MaxRecordBytes = 64 << 10
	o.Log.JournalBytes = 4 << 20
	o.MQTT.MaxPacketBytes = o.Log.MaxRecordBytes
	o.MQTT.Listeners = []mqtt.Listener{{Address: address}}
	to := mirror.DefaultOptions()
	to.Region, to.Brokers = "stand-in", region
	o.Mirrors = []mirror.Options{to}
	return broker.New(o, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
}

// freeAddress is the address asked for, or the same with the next port that nobody listens on.
func freeAddress(want string) (string, error) {
	host, portText, err := net.SplitHostPort(want)
	if err != nil {
		return "", fmt.Errorf("--listen %s: write it as HOST:PORT", want)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return "", fmt.Errorf("--listen %s: the port is not a number", want)
	}
	for p := port; p <= port+portsMore && p <= 65535; p++ {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(p))); err == nil {
			address := l.Addr().String()
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("--listen %s: neither that port nor the next %d are free: %w", want, portsMore, err)
}

func welcome(out io.Writer, address, region string) {
	host, port, _ := net.SplitHostPort(address)
	fmt.Fprintf(out, `A gateway listens for MQTT on %s, and mirrors to a stand-in Kafka cluster on %s.
Below is what arrives there: topic, partition and offset, key, value. Publish to it yourself:

    mosquitto_pub -h %s -p %s -q 1 -t hello/world -m 'Hi there'

^C ends it.

`, address, region, host, port)
}
