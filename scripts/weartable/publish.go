//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// published is what a stream of messages came to.
type published struct {
	messages      int
	p50, p99, max time.Duration // from when a message was due to its acknowledgement
}

// ackGrace is how long acknowledgements are waited for after the last message.
const ackGrace = 10 * time.Second

// publish sends perSecond messages in all, at QoS 1 (MQTT 3.1.1), whatever the broker takes for each. One that is not acknowledged
// is an error. fill is that of payload.
func publish(ctx context.Context, addr, fill string, clients int, perSecond float64, duration time.Duration) (published, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+ackGrace)
	defer cancel()
	interval := time.Duration(float64(clients) / perSecond * float64(time.Second))
	begin := time.Now()
	var wg sync.WaitGroup
	delays, errs := make([][]time.Duration, clients), make([]error, clients)
	for i := range clients {
		wg.Go(func() {
			p := publisher{id: i, fill: fill, first: begin.Add(interval * time.Duration(i) / time.Duration(clients)), interval: interval, end: begin.Add(duration)}
			if errs[i] = p.run(ctx, addr); errs[i] != nil {
				cancel()
			}
			delays[i] = p.delays
		})
	}
	wg.Wait()
	all := slices.Concat(delays...)
	if err := errors.Join(errs...); err != nil || len(all) == 0 {
		return published{}, fmt.Errorf("publish to %s: %d messages acknowledged: %w", addr, len(all), err)
	}
	slices.Sort(all)
	return published{len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1]}, nil
}

// publisher is one connection. Its messages are due at first and each interval from there on, until end.
type publisher struct {
	id         int
	fill       string
	first, end time.Time
	interval   time.Duration
	delays     []time.Duration // by message
}

func (p *publisher) run(ctx context.Context, addr string) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	name := fmt.Sprintf("p%d", p.id)
	connect := append([]byte{0x10, byte(12 + len(name)), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, byte(len(name))}, name...)
	if _, err := c.Write(connect); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	var packet [4]byte // CONNACK and PUBACK have four bytes
	if _, err := io.ReadFull(r, packet[:]); err != nil || packet[0] != 0x20 || packet[3] != 0 {
		return fmt.Errorf("connect: answer % x, %w", packet, err)
	}
	count := max(int(p.end.Sub(p.first)/p.interval), 0)
	sent := make(chan error, 1)
	go func() { sent <- p.send(ctx, c, count) }()
	for n := range count {
		if _, err = io.ReadFull(r, packet[:]); err != nil {
			break
		}
		if packet[0] != 0x40 || binary.BigEndian.Uint16(packet[2:]) != packetID(n) {
			err = fmt.Errorf("message %d: answer % x", n, packet)
			break
		}
		p.delays = append(p.delays, time.Since(p.due(n)))
	}
	if err != nil {
		c.Close()
	}
	return errors.Join(err, <-sent)
}

func (p *publisher) due(n int) time.Time { return p.first.Add(p.interval * time.Duration(n)) }

func packetID(n int) uint16 { return uint16(n%65535 + 1) }

func (p *publisher) send(ctx context.Context, c net.Conn, count int) error {
	topic := fmt.Sprintf("bench/%d", p.id)
	var value, packet []byte
	for n := range count {
		select {
		case <-time.After(time.Until(p.due(n))):
		case <-ctx.Done():
			return ctx.Err()
		}
		value = payload(value, p.fill, p.id+100*n)
		packet = binary.AppendUvarint(append(packet[:0], 0x32), uint64(4+len(topic)+len(value)))
		packet = append(binary.BigEndian.AppendUint16(packet, uint16(len(topic))), topic...)
		packet = append(binary.BigEndian.AppendUint16(packet, packetID(n)), value...)
		if _, err := c.Write(packet); err != nil {
			return err
		}
	}
	return nil
}
