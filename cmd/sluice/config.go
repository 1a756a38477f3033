package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluicemq/sluice/configs"
)

type configCommand struct {
	Check checkCommand `cmd:"" help:"Check a configuration file, and say what it comes to."`
}

type checkCommand struct {
	File string `arg:"" help:"Configuration file." placeholder:"FILE"`
}

// Run prints what is in effect on stdout and warnings on stderr.
func (c *checkCommand) Run(o output) error {
	config, err := configs.Load(c.File)
	if err != nil {
		return asUsage(err)
	}
	for _, w := range config.Warnings() {
		fmt.Fprintf(o.err, "sluice: warning: %v\n", w)
	}
	summarize(o.out, config)
	return nil
}

func summarize(w io.Writer, c *configs.Config) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("gateway", "%s", orElse(c.Gateway.ID, "a hash of the machine id"))
	budget, reserve := "70 % of the file system", "an eighth of the budget, at most 64MiB"
	if c.Data.Budget > 0 {
		budget = c.Data.Budget.String()
	}
	if c.Data.Reserve > 0 {
		reserve = c.Data.Reserve.String()
	}
	line("data", "%s, budget %s, reserve %s", c.Data.Dir, budget, reserve)
	journal := "up to 16MiB"
	if c.Commit.JournalBytes > 0 {
		journal = c.Commit.JournalBytes.String()
	}
	wear := "no wear budget"
	if c.Commit.WearBudget > 0 {
		wear = fmt.Sprintf("wear budget %s a day, for up to %s", c.Commit.WearBudget, c.Commit.MaxDelayCeiling)
	}
	line("commit", "within %s or at %s, journal files of %s, %s", c.Commit.MaxDelay, c.Commit.MaxBytes, journal, wear)
	var addresses []string
	for _, l := range c.MQTT.Listeners {
		addresses = append(addresses, l.Address)
	}
	line("mqtt", "%s, %d connections, packets up to %s, receive maximum %d",
		strings.Join(addresses, ", "), c.MQTT.MaxConnections, c.MQTT.MaxPacketBytes, c.MQTT.ReceiveMaximum)
	for _, t := range c.AllTopics() {
		segments := "segments by the budget"
		if t.SegmentBytes > 0 {
			segments = "segments of " + t.SegmentBytes.String()
		}
		line("topic", "%s, %d partitions, %s, %s, %s priority, %s", t.Name, t.Partitions, t.Compression, segments, t.Priority, kept(t))
	}
	for _, r := range c.AllRoutes() {
		line("route", "%s → %s, key %s", r.Filter, r.Topic, r.Key)
	}
	for _, m := range c.Mirrors {
		line("mirror", "region %s at %s, topics %s as %s.<topic>", m.Region.Name, strings.Join(m.Region.Brokers, ", "),
			strings.Join(m.Topics, ", "), orElse(m.Alias, orElse(c.Gateway.ID, "<gateway>")))
	}
	line("log", "%s and above, as %s", c.Log.Level, c.Log.Format)
}

// kept says what a topic keeps.
func kept(t configs.Topic) string {
	text := "keeps what the budget allows"
	if t.Retention.Bytes > 0 {
		text = "keeps " + t.Retention.Bytes.String()
	}
	if t.Retention.Age > 0 {
		text += " for " + t.Retention.Age.String()
	}
	return text + ", then " + t.OnFull
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
