package configs

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluicemq/sluice/broker"
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
	var err error
	if o.Topics, err = c.topics(); err != nil {
		return broker.Options{}, err
	}
	for _, r := range c.AllRoutes() {
		o.Routes = append(o.Routes, broker.Route(r))
	}
	o.MQTT.Listeners = nil
	for _, l := range c.MQTT.Listeners {
		o.MQTT.Listeners = append(o.MQTT.Listeners, mqtt.Listener(l))
	}
	o.MQTT.MaxConnections = c.MQTT.MaxConnections
	o.MQTT.MaxPacketBytes = int(c.MQTT.MaxPacketBytes)
	o.MQTT.ReceiveMaximum = uint16(c.MQTT.ReceiveMaximum)
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
