//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// cell is one load that both brokers get, and what sluice owes in it.
type cell struct {
	name     string
	load     []string   // of mqttload pub
	longer   int        // times the usual duration: CPU is counted in steps of 10 ms
	rate     [2]float64 // required ratio of rates, unpinned and pinned; 0: none
	cpu      float64    // allowed ratio of CPU a message; 0: any
	ownExtra string     // compare sluice with itself under this configuration instead of with mosquitto
}

var cells = []cell{
	{name: "QoS 1, 100 clients × window 20", load: publishers(1, 100, 20), rate: [2]float64{6, 4}, cpu: 0.25},
	{name: "QoS 1, 10 × 20", load: publishers(1, 10, 20), rate: [2]float64{2.5, 1.8}},
	{name: "QoS 1, 100 × 1", load: publishers(1, 100, 1), rate: [2]float64{0.5, 0.4}},
	{name: "QoS 0, 10 clients", load: publishers(0, 10, 1), rate: [2]float64{3, 2}},
	{name: "QoS 1, open loop, 1,000/s over 100", load: append(publishers(1, 100, 20), "-rate", "1000"), longer: 3, cpu: 3.5},
	{name: "64 partitions against 4, QoS 1, 100 × 20", load: publishers(1, 100, 20), rate: [2]float64{0.8, 0.8},
		ownExtra: "topics:\n  - {name: mqtt, partitions: 64}\n"},
}

func publishers(qos, clients, window int) []string {
	return []string{"pub", "-qos", strconv.Itoa(qos), "-clients", strconv.Itoa(clients), "-window", strconv.Itoa(window), "-size", "100", "-warmup", "1s"}
}

// side is the results of one broker in one cell, one a round.
type side []result

func (s side) median(of func(result) float64) float64 {
	v := make([]float64, len(s))
	for i, r := range s {
		v[i] = of(r)
	}
	return median(v)
}

func median(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// measured is a cell as it was run.
type measured struct {
	cell
	pin        bool
	ours, base side
}

// measureSpeed runs all cells once a round, so that a slow minute of the machine falls on all of them.
func (b *bench) measureSpeed(ctx context.Context) ([]row, error) {
	var ms []*measured
	for _, c := range cells {
		for _, pin := range []bool{false, true} {
			m := &measured{cell: c, pin: pin}
			if b.wanted(m.title()) && (b.pin || !pin) {
				ms = append(ms, m)
			}
		}
	}
	for round := range b.runs {
		fmt.Fprintf(os.Stderr, "speed, round %d of %d: %d cells\n", round+1, b.runs, len(ms))
		for i, m := range ms {
			if err := b.measureCell(ctx, m, (round+i)%2 == 1); err != nil {
				return nil, fmt.Errorf("%s: %w", m.title(), err)
			}
		}
	}
	var rows []row
	for _, m := range ms {
		rows = append(rows, m.rows()...)
	}
	return rows, nil
}

func (m *measured) title() string {
	if m.pin {
		return m.name + ", pinned"
	}
	return m.name
}

// measureCell measures both brokers, the other one first if told so.
func (b *bench) measureCell(ctx context.Context, m *measured, baseFirst bool) error {
	ours := func() error {
		return b.measureOne(ctx, m, &m.ours, func() (*broker, error) { return b.startSluice(ctx, m.pin, m.ownExtra) })
	}
	base := func() error {
		return b.measureOne(ctx, m, &m.base, func() (*broker, error) {
			if m.ownExtra != "" {
				return b.startSluice(ctx, m.pin, "")
			}
			return b.startMosquitto(ctx, m.pin)
		})
	}
	order := []func() error{ours, base}
	if baseFirst {
		slices.Reverse(order)
	}
	for _, measure := range order {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureOne(ctx context.Context, m *measured, to *side, start func() (*broker, error)) error {
	r, err := start()
	if err != nil {
		return err
	}
	defer r.stop()
	duration := b.seconds * time.Duration(max(m.longer, 1))
	res, err := b.load(ctx, r, m.pin, append(slices.Clone(m.load), "-duration", duration.String())...)
	if err != nil {
		return err
	}
	*to = append(*to, res)
	return nil
}

func (m *measured) rows() (rows []row) {
	required := m.rate[0]
	if m.pin {
		required = m.rate[1]
	}
	rate := func(r result) float64 { return r.Rate }
	cpu := func(r result) float64 { return r.CPUPerMs }
	p99 := func(r result) float64 { return r.AckP99 }
	note := fmt.Sprintf("p99 %.1f / %.1f ms", m.ours.median(p99)/1e3, m.base.median(p99)/1e3)
	if required > 0 {
		rows = append(rows, ratio(m.title()+": rate", required, false, m.ours.median(rate), m.base.median(rate), "/s", note))
	}
	// CPU of a cell without a limit of its own is shown all the same.
	return append(rows, ratio(m.title()+": CPU a message", m.cpu, true, m.ours.median(cpu), m.base.median(cpu), " s/M", ""))
}
