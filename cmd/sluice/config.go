package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/configs"
)

var checkCommand = subcommand{
	name: "config check", arguments: []string{"FILE"}, help: "Check a configuration file, and say what it comes to.",
	new: func(*pflag.FlagSet) runner {
		return func(o output, args []string) error { return checkConfig(o, args[0]) }
	},
}

// checkConfig prints what is in effect on stdout and warnings on stderr.
func checkConfig(o output, file string) error {
	config, err := configs.Load(file)
	if err != nil {
		return asUsage(err)
	}
	for _, w := range config.Warnings() {
		fmt.Fprintf(o.err, "sluice: warning: %v\n", w)
	}
	access, err := checkAccess(o.err, config)
	if err != nil {
		return usageError{err}
	}
	summarize(o.out, config, access)
	return nil
}

// checkAccess reads the files that say who may do what, and says what they come to.
func checkAccess(warnings io.Writer, c *configs.Config) (summary string, err error) {
	options, ok := c.Access()
	if !ok {
		return "everybody may do everything", nil
	}
	access, skipped, err := broker.OpenAccess(options)
	if err != nil {
		return "", err
	}
	for _, w := range skipped {
		fmt.Fprintf(warnings, "sluice: warning: %v\n", w)
	}
	return access.Summary() + ", denied publishes: " + c.MQTT.Auth.DeniedPublish, nil
}

func summarize(w io.Writer, c *configs.Config, access string) {
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
	for _, l := range c.MQTT.Listeners {
		line("listener", "%s", describeListener(l))
	}
	line("mqtt", "%d connections, %d of one address, %d a second, packets up to %s, receive maximum %d",
		c.MQTT.MaxConnections, c.MQTT.MaxPerAddress, c.MQTT.ConnectRate, c.MQTT.MaxPacketBytes, c.MQTT.ReceiveMaximum)
	line("sessions", "%d, kept for %s, %s", c.MQTT.Sessions.Max, c.MQTT.Sessions.MaxExpiry, backlog(c.MQTT.Sessions))
	line("mqtt", "retains %d messages in %s, %d topic aliases, %s, %s", c.MQTT.Retained.MaxMessages, c.MQTT.Retained.MaxBytes,
		c.MQTT.TopicAliasMaximum, orNone(c.MQTT.MaxKeepAlive, "keepalive up to %s", "any keepalive"), orNone(c.MQTT.SysInterval, "$SYS every %s", "no $SYS"))
	line("access", "%s", access)
	for _, t := range c.AllTopics() {
		segments := "segments by the budget"
		if t.SegmentBytes > 0 {
			segments = "segments of " + t.SegmentBytes.String()
		}
		line("topic", "%s, %d partitions, %s, %s, %s priority, %s", t.Name, t.Partitions, t.Compression, segments, t.Priority, kept(t))
	}
	for _, r := range c.AllRoutes() {
		if r.Log == "" {
			line("route", "%s → %s, key %s", r.Filter, r.Topic, r.Key)
		} else {
			line("route", "%s → connected subscribers only, log %s", r.Filter, r.Log)
		}
	}
	for _, m := range c.Mirrors {
		line("mirror", "region %s at %s, topics %s as %s.<topic>", m.Region.Name, strings.Join(m.Region.Brokers, ", "),
			strings.Join(m.Topics, ", "), orElse(m.Alias, orElse(c.Gateway.ID, "<gateway>")))
	}
	line("log", "%s and above, as %s", c.Log.Level, c.Log.Format)
}

// describeListener says what is spoken where.
func describeListener(l configs.Listener) string {
	text := l.Address
	if strings.HasPrefix(l.Address, "unix:") {
		mode := l.Mode
		if mode == 0 {
			mode = 0o660
		}
		text += ", mode " + mode.String()
	}
	if l.AllowAnonymous {
		text += ", clients without a name, too"
	}
	if p := l.ProxyProtocol; p != nil {
		text += ", PROXY header from " + orElse(strings.Join(p.Trusted, ", "), "whoever may open the socket")
	}
	if t := l.TLS; t != nil {
		text += ", TLS with " + t.Cert + " and " + t.Key
		if t.ClientAuth != "none" {
			text += fmt.Sprintf(", client certificates: %s, by %s, revoked: %s, user name from: %s", t.ClientAuth, t.CA, orElse(t.CRL, "none"), t.UserFrom)
		}
	}
	if w := l.WebSocket; w != nil {
		text += ", WebSocket at " + w.Path + ", web pages: " + orElse(strings.Join(w.Origins, ", "), "none")
	}
	return text
}

// backlog says what a client is given of what came while it was away.
func backlog(s configs.Sessions) string {
	var limits []string
	if s.MaxMessages > 0 {
		limits = append(limits, fmt.Sprintf("%d messages", s.MaxMessages))
	}
	if s.MaxBytes > 0 {
		limits = append(limits, s.MaxBytes.String())
	}
	if s.MaxAge > 0 {
		limits = append(limits, "none older than "+s.MaxAge.String())
	}
	if len(limits) == 0 {
		return "given all that the log still has"
	}
	return "given up to " + strings.Join(limits, ", ") + " of the log"
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

// orNone is a duration in words, or none where it is 0.
func orNone(d configs.Duration, words, none string) string {
	if d == 0 {
		return none
	}
	return fmt.Sprintf(words, d)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
