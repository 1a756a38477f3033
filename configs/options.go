package configs

import (
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
	for _, t := range c.AllTopics() {
		codec, err := record.ParseCodec(t.Compression)
		if err != nil {
			return broker.Options{}, err
		}
		o.Topics = append(o.Topics, segment.TopicOptions{
			Name: t.Name, Partitions: int32(t.Partitions), Compression: codec, SegmentBytes: int64(t.SegmentBytes),
		})
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

func (c *Config) segment() segment.Options {
	o := segment.DefaultOptions()
	o.Dir = c.Data.Dir
	o.BudgetBytes = int64(c.Data.Budget)
	o.ReserveBytes = int64(c.Data.Reserve)
	o.MaxDelay = time.Duration(c.Commit.MaxDelay)
	o.MaxBytes = int(c.Commit.MaxBytes)
	o.JournalBytes = int64(c.Commit.JournalBytes)
	o.MaxRecordBytes = int(c.MQTT.MaxPacketBytes)
	return o
}
