//go:build linux

package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"
)

// row is one line of the table.
type row struct {
	counters // at the device
	name     string
	messages int
	journal  int64         // bytes that the log says it wrote to its journal
	used     time.Duration // by a stream at its rate; 0: as fast as it went
	ackP50   time.Duration // 0: not measured
	ackP99   time.Duration
	ackMax   time.Duration
	limits   []bound
	note     string
}

// bound is a figure that must not be exceeded.
type bound struct {
	name           string
	measured, most float64
}

func (r row) failed() bool {
	for _, l := range r.limits {
		if l.measured > l.most {
			return true
		}
	}
	return false
}

// endurance of a 4 GB eMMC or SD card: 3,000 erase cycles, a third for the device's own rewriting.
const endurance = 4e12

func printTable(m *meter, rows []row) {
	fmt.Printf("%s, %g messages of %d bytes a second from %d clients (%s), streams of %v\n\n", m.stat, m.rate, payloadBytes, m.clients, m.fill, m.duration)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(w, "what\tbytes a payload byte\tbytes a message\tflushes a message\tGB a day\tyears of 4 TB\tack p50, ms\tp99\tmax\t\t")
	for _, r := range rows {
		if r.messages == 0 {
			fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\t\t%s\t\n", r.name, r.note)
			continue
		}
		n := float64(r.messages)
		day, years := "", ""
		if r.used > 0 {
			perDay := float64(r.bytes) / r.used.Seconds() * 86400
			day, years = fmt.Sprintf("%.2f", perDay/1e9), fmt.Sprintf("%.1f", endurance/perDay/365)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.0f\t%.3f\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.name, float64(r.bytes)/n/payloadBytes, float64(r.bytes)/n, float64(r.flushes)/n,
			day, years, ms(r.ackP50), ms(r.ackP99), ms(r.ackMax), r.note)
	}
	w.Flush()
	for _, r := range rows {
		for _, l := range r.limits {
			verdict := "ok"
			if l.measured > l.most {
				verdict = "FAILED"
			}
			fmt.Printf("%s: %s: %s: %.4g, at most %.4g\n", verdict, r.name, l.name, l.measured, l.most)
		}
	}
}

func ms(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond))
}
