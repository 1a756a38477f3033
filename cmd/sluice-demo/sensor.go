package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// What the simulated sensors measure.
var kinds = []struct {
	device, quantity, unit string
	base, spread           float64
}{
	{"pump", "temperature", "C", 61, 4},
	{"greenhouse", "humidity", "%", 55, 10},
	{"meter", "power", "W", 1200, 600},
}

// sensor is a device that publishes at QoS 1 over MQTT 3.1.1. It knows just enough of the protocol for that, so that the
// demo doesn't test the gateway's codec with itself.
type sensor struct {
	client, topic string
	kind          int
	every         time.Duration
}

func newSensor(i int, every time.Duration) *sensor {
	k := i % len(kinds)
	device := fmt.Sprintf("%s-%d", kinds[k].device, i/len(kinds)+1)
	return &sensor{client: "sensor-" + device, topic: "sensors/" + device + "/" + kinds[k].quantity, kind: k, every: max(every, time.Millisecond)}
}

func (s *sensor) payload() []byte {
	k := kinds[s.kind]
	return fmt.Appendf(nil, `{"value":%.1f,"unit":"%s"}`, k.base+k.spread*(2*rand.Float64()-1), k.unit)
}

// run publishes until ctx is done, each message after the one before was acknowledged.
func (s *sensor) run(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now().Add(time.Second)) })()
	in := bufio.NewReader(conn)
	if err := exchange(conn, in, s.connect(), 0x20, []byte{0, 0}); err != nil {
		return ignoreEnd(ctx, fmt.Errorf("connect: %w", err))
	}
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for id := uint16(1); ; id = max(id+1, 1) {
		if err := exchange(conn, in, s.publish(id), 0x40, binary.BigEndian.AppendUint16(nil, id)); err != nil {
			return ignoreEnd(ctx, fmt.Errorf("publish: %w", err))
		}
		select {
		case <-ctx.Done():
			_, err := conn.Write([]byte{0xe0, 0}) // DISCONNECT
			return ignoreEnd(ctx, err)
		case <-tick.C:
		}
	}
}

// ignoreEnd drops errors that come from being told to end.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// exchange sends a packet and expects the given answer (MQTT 3.1.1 §3.2, §3.4).
func exchange(w io.Writer, r io.Reader, packet []byte, kind byte, body []byte) error {
	if _, err := w.Write(packet); err != nil {
		return err
	}
	answer := make([]byte, 2+len(body))
	if _, err := io.ReadFull(r, answer); err != nil {
		return err
	}
	if answer[0] != kind || answer[1] != byte(len(body)) || string(answer[2:]) != string(body) {
		return errors.New("the gateway refuses it")
	}
	return nil
}

// connect is a CONNECT with a clean session and no keepalive (MQTT 3.1.1 §3.1).
func (s *sensor) connect() []byte {
	body := append(text("MQTT"), 4, 0x02, 0, 0)
	return packet(0x10, append(body, text(s.client)...))
}

// publish is a PUBLISH at QoS 1 (MQTT 3.1.1 §3.3).
func (s *sensor) publish(id uint16) []byte {
	body := binary.BigEndian.AppendUint16(text(s.topic), id)
	return packet(0x32, append(body, s.payload()...))
}

func text(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

// packet puts a fixed header before a body; the remaining length has 7 bits a byte, lowest first, as a uvarint has.
func packet(kind byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{kind}, uint64(len(body))), body...)
}
