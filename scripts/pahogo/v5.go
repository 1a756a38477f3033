package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

type v5 struct {
	ctx context.Context
	cm  *autopaho.ConnectionManager
}

func dialV5(ctx context.Context, server *url.URL, config *tls.Config, received chan<- message) (client, error) {
	failed := make(chan error, 1)
	cm, err := autopaho.NewConnection(ctx, autopaho.ClientConfig{
		ServerUrls:                    []*url.URL{server},
		TlsCfg:                        config,
		KeepAlive:                     10,
		ConnectTimeout:                patience,
		CleanStartOnInitialConnection: true,
		OnConnectError: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
		ClientConfig: paho.ClientConfig{
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
				received <- message{p.Packet.Topic, p.Packet.Payload, p.Packet.QoS}
				return true, nil
			}},
		},
	})
	if err != nil {
		return nil, err
	}
	connected := make(chan error, 1)
	go func() { connected <- cm.AwaitConnection(ctx) }()
	select {
	case err = <-connected:
	case err = <-failed:
	}
	return v5{ctx, cm}, err
}

func (c v5) subscribe(filter string, qos byte) error {
	ack, err := c.cm.Subscribe(c.ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	if err == nil && ack.Reasons[0] != qos {
		err = fmt.Errorf("granted %d", ack.Reasons[0])
	}
	return err
}

func (c v5) publish(topic string, qos byte, payload []byte) error {
	_, err := c.cm.Publish(c.ctx, &paho.Publish{Topic: topic, QoS: qos, Payload: payload})
	return err
}

func (c v5) disconnect() error { return c.cm.Disconnect(c.ctx) }
