package configs

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/mirror"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// Broker turns a valid configuration into the broker's options.
func (c *Config) Broker() (broker.Options, error) {
	o := broker.Options{
		GatewayID: c.Gateway.ID,
		Log:       c.segment(),
		MQTT:      mqtt.DefaultOptions(),
	}
	o.Access, _ = c.Access()
	var err error
	if o.Topics, err = c.topics(); err != nil {
		return broker.Options{}, err
	}
	for _, r := range c.AllRoutes() {
		o.Routes = append(o.Routes, r.broker())
	}
	o.MQTT.Listeners = nil
	for _, l := range c.MQTT.Listeners {
		o.MQTT.Listeners = append(o.MQTT.Listeners, c.listener(l))
	}
	o.MQTT.MaxConnections = c.MQTT.MaxConnections
	o.MQTT.MaxPerAddress = c.MQTT.MaxPerAddress
	o.MQTT.ConnectRate = c.MQTT.ConnectRate
	o.MQTT.MaxPacketBytes = int(c.MQTT.MaxPacketBytes)
	o.MQTT.ReceiveMaximum = uint16(c.MQTT.ReceiveMaximum)
	sessions := c.MQTT.Sessions
	o.MQTT.MaxSessions, o.MQTT.MaxSessionExpiry = sessions.Max, uint32(time.Duration(sessions.MaxExpiry)/time.Second)
	o.MQTT.SessionMaxMessages, o.MQTT.SessionMaxBytes = int64(sessions.MaxMessages), int64(sessions.MaxBytes)
	o.MQTT.SessionMaxAge = time.Duration(sessions.MaxAge)
	o.MQTT.MaxRetainedMessages, o.MQTT.MaxRetainedBytes = c.MQTT.Retained.MaxMessages, int64(c.MQTT.Retained.MaxBytes)
	o.MQTT.MaxKeepAlive, o.MQTT.ResponsePrefix = time.Duration(c.MQTT.MaxKeepAlive), c.MQTT.ResponsePrefix
	// There 0 is the default.
	if o.MQTT.TopicAliasMaximum = c.MQTT.TopicAliasMaximum; o.MQTT.TopicAliasMaximum == 0 {
		o.MQTT.TopicAliasMaximum = -1
	}
	if o.MQTT.SysInterval = time.Duration(c.MQTT.SysInterval); o.MQTT.SysInterval == 0 {
		o.MQTT.SysInterval = -1
	}
	for _, m := range c.Mirrors {
		to := mirror.DefaultOptions()
		to.Alias, to.Region, to.Brokers, to.Topics = m.Alias, m.Region.Name, m.Region.Brokers, m.Topics
		if to.ClockWait = time.Duration(m.ClockWait); to.ClockWait == 0 {
			to.ClockWait = -1 // there 0 is the default
		}
		o.Mirrors = append(o.Mirrors, to)
	}
	return o, nil
}

// listener turns a listener into the door's options.
func (c *Config) listener(l Listener) mqtt.Listener {
	o := l.door()
	o.AllowAnonymous = l.AllowAnonymous || c.MQTT.Auth.PasswordFile == "" && trusted(o)
	o.CloseDenied = cmp.Or(l.DeniedPublish, c.MQTT.Auth.DeniedPublish) == closeDenied
	return o
}

// Access is the options of the two files that say who may do what. ok is false when there is neither.
func (c *Config) Access() (o auth.Options, ok bool) {
	a := c.MQTT.Auth
	o = auth.Options{PasswordFile: a.PasswordFile, ACLFile: a.ACLFile, StrictSubscribe: a.StrictSubscribe, ArgonMemory: int64(a.ArgonMemory), MaxWaiting: c.MQTT.MaxConnections}
	return o, a.PasswordFile != "" || a.ACLFile != ""
}

func (c *Config) topics() (list []segment.TopicOptions, err error) {
	for _, t := range c.AllTopics() {
		o := segment.TopicOptions{
			Name: t.Name, Partitions: int32(t.Partitions), SegmentBytes: int64(t.SegmentBytes),
			RetentionBytes: int64(t.Retention.Bytes), RetentionAge: time.Duration(t.Retention.Age),
		}
		var errs [3]error
		o.Compression, errs[0] = record.ParseCodec(t.Compression)
		o.Priority, errs[1] = segment.ParsePriority(t.Priority)
		o.OnFull, errs[2] = segment.ParseOnFull(t.OnFull)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("topic %s: %w", t.Name, err)
		}
		list = append(list, o)
	}
	return list, nil
}

func (c *Config) segment() segment.Options {
	o := segment.DefaultOptions()
	o.Dir = c.Data.Dir
	o.BudgetBytes = int64(c.Data.Budget)
	o.ReserveBytes = int64(c.Data.Reserve)
	o.MaxDelay = time.Duration(c.Commit.MaxDelay)
	o.WearBudget = int64(c.Commit.WearBudget)
	o.MaxDelayCeiling = time.Duration(c.Commit.MaxDelayCeiling)
	o.EnduranceBytes = int64(c.Data.Endurance)
	o.MaxBytes = int(c.Commit.MaxBytes)
	o.JournalBytes = int64(c.Commit.JournalBytes)
	o.MaxRecordBytes = int(c.MQTT.MaxPacketBytes)
	return o
}
