package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

type v3 struct{ mqtt.Client }

func dialV3(_ context.Context, server *url.URL, config *tls.Config, received chan<- message) (client, error) {
	o := mqtt.NewClientOptions().AddBroker(server.String()).SetTLSConfig(config).SetProtocolVersion(4).SetCleanSession(true).
		SetAutoReconnect(false).SetConnectTimeout(patience)
	o.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { received <- message{m.Topic(), m.Payload(), m.Qos()} })
	c := v3{mqtt.NewClient(o)}
	return c, done(c.Connect())
}

// done waits for an action.
func done(t mqtt.Token) error {
	if !t.WaitTimeout(patience) {
		return errors.New("no answer")
	}
	return t.Error()
}

func (c v3) subscribe(filter string, qos byte) error {
	t := c.Client.Subscribe(filter, qos, nil)
	if err := done(t); err != nil {
		return err
	}
	if granted := t.(*mqtt.SubscribeToken).Result()[filter]; granted != qos {
		return fmt.Errorf("granted %d", granted)
	}
	return nil
}

func (c v3) publish(topic string, qos byte, payload []byte) error {
	return done(c.Client.Publish(topic, qos, false, payload))
}

func (c v3) disconnect() error {
	c.Client.Disconnect(100)
	return nil
}
