//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// megabytes turns kB of 1,024 bytes into MB of a million.
func megabytes(kb float64) float64 { return kb * 1024 / 1e6 }

// measureMemory measures sluice's resident set, each row once a round on a fresh broker.
func (b *bench) measureMemory(ctx context.Context) (rows []row, err error) {
	duration := b.seconds.String()
	underLoad := func(args ...string) func(context.Context, *broker) (float64, error) {
		return func(ctx context.Context, r *broker) (float64, error) {
			res, err := b.load(ctx, r, false, append(args, "-warmup", "1s", "-duration", duration)...)
			return megabytes(res.PeakRSS), err
		}
	}
	for _, m := range []struct {
		row
		measure func(context.Context, *broker) (float64, error)
	}{
		{row{name: "RSS idle", limit: 14}, idleRSS},
		{row{name: "RSS with 1,000 idle connections", limit: 20}, b.connectedRSS},
		{row{name: "RSS at its highest, QoS 1, 100 × 20, 100 bytes", limit: 40},
			underLoad("pub", "-qos", "1", "-clients", "100", "-window", "20", "-size", "100")},
		{row{name: "RSS at its highest, QoS 1, 100 × 20, 1,024 bytes", limit: 40},
			underLoad("pub", "-qos", "1", "-clients", "100", "-window", "20", "-size", "1024")},
		{row{name: "RSS at its highest, QoS 0, 10 clients", limit: 40},
			underLoad("pub", "-qos", "0", "-clients", "10", "-size", "100")},
	} {
		if !b.wanted(m.name) {
			continue
		}
		m.most, m.unit = true, "MB"
		var all []float64
		fmt.Fprintln(os.Stderr, m.name)
		for range b.runs {
			v, err := b.once(ctx, m.measure)
			if err != nil {
				return rows, fmt.Errorf("%s: %w", m.name, err)
			}
			all = append(all, v)
		}
		m.measured = median(all)
		rows = append(rows, m.row)
	}
	waves := row{name: "RSS after the 10th wave of 1,000 connections against the 2nd", limit: 1.1, most: true}
	if !b.wanted(waves.name) {
		return rows, nil
	}
	var note string
	waves.measured, err = b.once(ctx, func(ctx context.Context, r *broker) (float64, error) {
		second, tenth, err := b.waves(ctx, r)
		note = fmt.Sprintf("%.1f MB / %.1f MB", tenth, second)
		return tenth / second, err
	})
	waves.note = note
	return append(rows, waves), err
}

// once measures on a fresh sluice.
func (b *bench) once(ctx context.Context, measure func(context.Context, *broker) (float64, error)) (float64, error) {
	r, err := b.startSluice(ctx, false, "")
	if err != nil {
		return 0, err
	}
	defer r.stop()
	return measure(ctx, r)
}

func idleRSS(ctx context.Context, r *broker) (float64, error) {
	if err := pause(ctx, 3*time.Second); err != nil {
		return 0, err
	}
	return megabytes(rss(r.pid())), nil
}

func (b *bench) connectedRSS(ctx context.Context, r *broker) (float64, error) {
	res, err := b.load(ctx, r, false, "conns", "-clients", "1000", "-settle", "3s", "-hold", "4s")
	if err == nil && res.Open != 1000 {
		err = fmt.Errorf("only %d of 1,000 connections opened", res.Open)
	}
	return megabytes(res.RSS), err
}

// waves connects and disconnects 1,000 clients ten times and returns the resident set in MB after the 2nd and the 10th.
func (b *bench) waves(ctx context.Context, r *broker) (second, tenth float64, err error) {
	for wave := 1; wave <= 10; wave++ {
		if _, err := b.load(ctx, r, false, "conns", "-clients", "1000", "-settle", "500ms", "-hold", "1s"); err != nil {
			return 0, 0, err
		}
		if err := pause(ctx, time.Second); err != nil {
			return 0, 0, err
		}
		tenth = megabytes(rss(r.pid()))
		if wave == 2 {
			second = tenth
		}
	}
	return second, tenth, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
