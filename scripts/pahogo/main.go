// Command pahogo makes a round trip at each QoS and sends a large message with Eclipse's Go clients: paho.mqtt.golang for MQTT
// 3.1.1, paho.golang for MQTT 5. It prints OK. It is a module of its own, so that the broker doesn't depend on them.
//
//	pahogo TRANSPORT PORT VERSION CA
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"
)

// message is one that came back.
type message struct {
	topic   string
	payload []byte
	qos     byte
}

// client is either of the two.
type client interface {
	subscribe(filter string, qos byte) error
	publish(topic string, qos byte, payload []byte) error
	disconnect() error
}

const patience = 20 * time.Second

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: pahogo tcp|tls|ws|wss PORT 4|5 CA")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("OK")
}

func run(transport, port, version, ca string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	scheme := map[string]string{"tcp": "tcp", "tls": "ssl", "ws": "ws", "wss": "wss"}[transport]
	server := &url.URL{Scheme: scheme, Host: "127.0.0.1:" + port}
	if transport == "ws" || transport == "wss" {
		server.Path = "/mqtt"
	}
	received := make(chan message, 10)
	dial := dialV3
	if version == "5" {
		dial = dialV5
	}
	c, err := dial(ctx, server, config, received)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	base := "pahogo/" + transport + "/" + version
	if err := c.subscribe(base+"/+", 2); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for _, p := range [][]byte{[]byte("small"), nil, bytes.Repeat([]byte("0123456789"), 7_000)} {
		for qos := range byte(3) {
			if err := roundTrip(c, message{fmt.Sprint(base, "/", qos), p, qos}, received); err != nil {
				return err
			}
		}
	}
	return c.disconnect()
}

func roundTrip(c client, m message, received <-chan message) error {
	if err := c.publish(m.topic, m.qos, m.payload); err != nil {
		return fmt.Errorf("publish at QoS %d: %w", m.qos, err)
	}
	select {
	case got := <-received:
		if got.topic != m.topic || got.qos != m.qos || !bytes.Equal(got.payload, m.payload) {
			return fmt.Errorf("got %s at QoS %d with %d bytes, not %s at QoS %d with %d", got.topic, got.qos, len(got.payload), m.topic, m.qos, len(m.payload))
		}
		return nil
	case <-time.After(patience):
		return errors.New("message doesn't come back")
	}
}
