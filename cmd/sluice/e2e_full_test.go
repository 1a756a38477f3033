//go:build linux

package main_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// fullSizes leave the budget at its default, 70 % of the file system. One topic makes room for itself, the other keeps what the
// region has yet to get.
const fullSizes = `version: 1
commit: {max_bytes: 64KiB}
mqtt: {max_packet_bytes: 16KiB}
topics:
  - {name: mqtt, partitions: 2, compression: none}
  - {name: kept, partitions: 2, compression: none, retention: {bytes: 8MiB}, on_full: reject}
routes:
  - {filter: "disk/kept/#", topic: kept}
mirror:
  - {alias: edge, topics: [kept], region: {name: eu, brokers: [%q]}}
`

// testFilledByUs: the gateway fills its own budget. What may make room does, and is accepted all along; what may not is
// refused until the region has it. The directory stays within the budget, kill -9 and restarts included.
func (r *rig) testFilledByUs(t *testing.T) {
	d := newDisk(t)
	region := freeAddress(t)
	g := d.gateway(t, r, fmt.Sprintf(fullSizes, region))
	budget := d.bytes(t) / 10 * 7
	watched := watch(t, g.dir, budget)
	g.start(t)
	oldest := r.fillTopic(t, g, "", 25*time.Second)
	kept := r.fillTopic(t, g, "kept/", 12*time.Second)
	wantRefused(t, g, "disk/kept/probe")
	t.Log(lineWith(g.p.stderr.String(), "refusing records of a topic", "kept", "retention.bytes"))
	wantAccepted(t, g, "disk/probe")
	g.kill9(t)
	g.start(t)
	wantRefused(t, g, "disk/kept/probe")
	wantAccepted(t, g, "disk/probe")
	kept.end(t, r, g)

	g.kill9(t) // so that the mirror looks for its region often
	g.start(t)
	wantRefused(t, g, "disk/kept/probe")
	_, port, _ := net.SplitHostPort(region)
	n, _ := strconv.Atoi(port)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(n))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	wantAccepted(t, g, "disk/kept/probe")
	if acked := oldest.neverRefused(t); acked*fullPayload < budget {
		t.Errorf("%d messages of %d bytes don't fill the budget of %d: nothing was tested", acked, fullPayload, budget)
	}
	g.stop(t)
	most, looks := watched()
	t.Logf("at most %d bytes of the budget's %d, looked at %d times", most, budget, looks)
	g.verify(t)
	unmount(t, d.dir)
}

const fullPayload = 1000

// neverRefused waits for the clients, wants no message of theirs refused, and says how many were acknowledged.
func (l *load) neverRefused(t *testing.T) (acked int64) {
	t.Helper()
	for _, p := range l.processes {
		if err := p.wait(t, 2*time.Minute); err != nil {
			t.Fatalf("mqttload: %v", err)
		}
		got := parseLoad(t, p.stdout.String())
		acked += int64(got.Acked)
		if got.Refused > 0 {
			t.Errorf("%d refused: %s", got.Refused, p.stdout.String())
		}
		p.dull = true
	}
	return acked
}

// fillTopic is clients of both protocol versions that publish to what lies below disk/ and place.
func (r *rig) fillTopic(t *testing.T, g *gateway, place string, length time.Duration) *load {
	t.Helper()
	l := &load{}
	for i, proto := range []string{"4", "5"} {
		name := strings.Trim(place, "/") + proto
		file := filepath.Join(t.TempDir(), "acked-"+name)
		l.files = append(l.files, file)
		l.processes = append(l.processes, spawn(t, r.mqttload, "pub", "-addr", g.addr, "-clients", "10", "-window", "10", "-size", fmt.Sprint(fullPayload),
			"-rate", "1500", "-proto", proto, "-id", "f"+name, "-topic", "disk/"+place+proto+"/%d", "-run", fmt.Sprint(len(place)+i+1), "-seq", file,
			"-reconnect", "-warmup", "0s", "-duration", length.String()))
	}
	return l
}

// watch looks at a directory again and again until stop, and fails the test when it holds more than limit bytes.
func watch(t *testing.T, dir string, limit int64) (stop func() (most, looks int64)) {
	t.Helper()
	var most, looks atomic.Int64
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := os.Stat(dir); err == nil {
				most.Store(max(most.Load(), used(t, dir)))
				looks.Add(1)
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	finish := func() (int64, int64) {
		select {
		case <-end:
		default:
			close(end)
		}
		<-done
		if n := most.Load(); n > limit {
			t.Errorf("%s held %d bytes, the budget is %d", dir, n, limit)
		}
		return most.Load(), looks.Load()
	}
	t.Cleanup(func() { finish() })
	return finish
}
