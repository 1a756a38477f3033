//go:build linux

package main_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// testSessions kills the gateway at random moments under clients that keep their session state and resend, as MQTT asks of them: publishers
// at QoS 1 and 2, subscribers at QoS 1 and 2, and clients that leave delayed wills. No acknowledged message may be missing, and none of QoS 2
// come twice, in either direction. SLUICE_SESSION_ROUNDS and SLUICE_CRASH_SEED change how often and which.
func (r *rig) testSessions(t *testing.T) {
	rounds := envInt(t, "SLUICE_SESSION_ROUNDS", 4)
	seed := envInt(t, "SLUICE_CRASH_SEED", int(time.Now().UnixNano()&0xffffffff))
	t.Logf("SLUICE_CRASH_SEED=%d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	g := r.gateway(t, smallSizes)
	g.start(t)
	l := newSessionLoad(t, g)
	for round := range rounds {
		l.leaveWill(t, round)
		time.Sleep(time.Duration(100+random.IntN(700)) * time.Millisecond) //lint:sleep any moment may be the worst to be killed at
		g.kill9(t)
		g.start(t)
	}
	l.finish(t, rounds)
	g.stop(t)
}

// sessionLoad is the clients of testSessions.
type sessionLoad struct {
	g           *gateway
	subscribers [2]*lastingSubscriber
	publishers  []*lastingPublisher
	stop        chan struct{} // publishers begin no new message
	end         chan struct{} // subscribers end
	running     sync.WaitGroup
	receiving   sync.WaitGroup
}

func newSessionLoad(t *testing.T, g *gateway) *sessionLoad {
	l := &sessionLoad{g: g, stop: make(chan struct{}), end: make(chan struct{})}
	for i := range l.subscribers {
		s := &lastingSubscriber{lastingClient: lastingClient{g: g, id: fmt.Sprint("sub", i+1)}, qos: byte(i + 1), got: map[string]int{}, last: map[string]uint64{}, disorder: map[string]int{}, open: map[uint16]bool{}}
		l.subscribers[i] = s
		if err := s.begin(); err != nil {
			t.Fatal(err)
		}
		l.receiving.Go(func() { s.run(l.end) })
	}
	for i := range 4 {
		p := &lastingPublisher{lastingClient: lastingClient{g: g, id: fmt.Sprint("pub", i)}, qos: byte(i%2 + 1)}
		l.publishers = append(l.publishers, p)
		l.running.Go(func() { p.run(l.stop) })
	}
	return l
}

// leaveWill connects a client that leaves a will behind.
func (l *sessionLoad) leaveWill(t *testing.T, round int) {
	t.Helper()
	c := lastingClient{g: l.g, id: fmt.Sprint("will-", round)}
	will := fmt.Sprint("gone-", round)
	body := append([]byte{5, 24, 0, 0, 0, 1, 0, 4}, "will"...)
	body = append(append(body, 0, byte(len(will))), will...)
	if err := c.connect(0x04|2<<3, body); err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
}

func (l *sessionLoad) finish(t *testing.T, rounds int) {
	t.Helper()
	close(l.stop)
	l.running.Wait()
	last, since := -1, time.Now()
	wait(t, 90*time.Second, "all has come", func() bool {
		n := 0
		for _, s := range l.subscribers {
			n += s.count()
		}
		if n != last {
			last, since = n, time.Now()
		}
		wills := l.subscribers[1].wills()
		return time.Since(since) > 3*time.Second && wills >= rounds || time.Since(since) > 40*time.Second
	})
	close(l.end)
	l.receiving.Wait()
	for _, s := range l.subscribers {
		s.check(t, l.publishers, rounds)
	}
}

// lastingClient is a client whose session outlives its connections.
type lastingClient struct {
	g    *gateway
	id   string
	conn net.Conn
	in   *bufio.Reader
	been bool // connected before
	err  error
}

var errSessionLost = errors.New("the broker has lost the session")

// connect makes a connection, with flags and what follows the client id.
func (c *lastingClient) connect(flags byte, rest []byte) error {
	conn, err := net.Dial("tcp", c.g.addr)
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	c.conn, c.in = conn, bufio.NewReader(conn)
	body := []byte{0, 4, 'M', 'Q', 'T', 'T', 5, flags, 0, 0, 5, 17, 0, 0, 255, 255, 0, byte(len(c.id))}
	body = append(append(body, c.id...), rest...)
	if _, err := conn.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		return err
	}
	kind, answer, err := c.read()
	if err != nil {
		return err
	}
	if kind != 0x20 || answer[1] != 0 {
		return fmt.Errorf("CONNACK %x % x", kind, answer)
	}
	if c.been && answer[0] != 1 {
		return errSessionLost
	}
	c.been = true
	return nil
}

func (c *lastingClient) read() (first byte, body []byte, err error) {
	if first, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(c.in, body)
	return first, body, err
}

// keep connects, again and again, and calls serve with each connection, until that returns nil.
func (c *lastingClient) keep(serve func() error) {
	for {
		err := c.connect(0, nil)
		if err == nil {
			err = serve()
		}
		if c.conn != nil {
			c.conn.Close()
		}
		if err == nil || errors.Is(err, errSessionLost) {
			c.err = err
			return
		}
		time.Sleep(20 * time.Millisecond) //lint:sleep the broker is being started
	}
}

type lastingSubscriber struct {
	lastingClient
	qos  byte
	open map[uint16]bool // QoS 2 messages that were taken and are not released

	mu       sync.Mutex
	got      map[string]int // by payload
	last     map[string]uint64
	disorder map[string]int // by topic
}

func (s *lastingSubscriber) begin() error {
	if err := s.connect(0, nil); err != nil {
		return err
	}
	defer s.conn.Close()
	if _, err := s.conn.Write([]byte{0x82, 7, 0, 1, 0, 0, 1, '#', s.qos}); err != nil {
		return err
	}
	_, answer, err := s.read()
	if err == nil && answer[3] != s.qos {
		err = fmt.Errorf("SUBACK % x", answer)
	}
	return err
}

func (s *lastingSubscriber) count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.got {
		n += c
	}
	return n
}

func (s *lastingSubscriber) wills() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for payload := range s.got {
		if payload[0] == 'g' {
			n++
		}
	}
	return n
}

func (s *lastingSubscriber) run(end chan struct{}) {
	s.keep(func() error {
		for {
			select {
			case <-end:
				return nil
			default:
			}
			s.conn.SetDeadline(time.Now().Add(time.Second))
			first, body, err := s.read()
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				continue
			}
			if err == nil {
				err = s.handle(first, body)
			}
			if err != nil {
				return err
			}
		}
	})
}

func (s *lastingSubscriber) handle(first byte, body []byte) (err error) {
	switch first >> 4 {
	case 3:
		n := int(binary.BigEndian.Uint16(body))
		topic, rest := string(body[2:2+n]), body[2+n:]
		qos := first >> 1 & 3
		id := binary.BigEndian.Uint16(rest)
		payload := string(rest[3+int(rest[2]):])
		switch {
		case qos == 1:
			s.take(topic, payload)
			_, err = s.conn.Write(ackPacket(0x40, id))
		case !s.open[id]:
			s.open[id] = true
			s.take(topic, payload)
			fallthrough
		default:
			_, err = s.conn.Write(ackPacket(0x50, id))
		}
	case 6:
		id := binary.BigEndian.Uint16(body)
		delete(s.open, id)
		_, err = s.conn.Write(ackPacket(0x70, id))
	}
	return err
}

func (s *lastingSubscriber) take(topic, payload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[payload]++
	var seq uint64
	if _, err := fmt.Sscanf(payload, topic+" %d", &seq); err == nil && s.qos == 2 {
		if seq <= s.last[topic] {
			s.disorder[topic]++
		}
		s.last[topic] = seq
	}
}

// check compares what came with what was acknowledged.
func (s *lastingSubscriber) check(t *testing.T, publishers []*lastingPublisher, rounds int) {
	t.Helper()
	if s.err != nil {
		t.Errorf("%s: %v", s.id, s.err)
	}
	acked, missing, twice, repeated, disorder := 0, 0, 0, 0, 0
	for _, p := range publishers {
		if p.err != nil {
			t.Errorf("%s: %v", p.id, p.err)
		}
		if p.qos == 2 && s.qos == 2 { // others may be repeated, and so be late
			disorder += s.disorder[p.topic()]
		}
		for seq := uint64(1); seq <= p.seq; seq++ {
			n := s.got[p.payload(seq)]
			if p.acked[seq] {
				acked++
				if n == 0 {
					if missing++; missing < 4 {
						t.Logf("%s: %q is missing", s.id, p.payload(seq))
					}
				}
			}
			switch {
			case n > 1 && p.qos == 2 && s.qos == 2:
				if twice++; twice < 4 {
					t.Logf("%s: %q came %d times", s.id, p.payload(seq), n)
				}
			case n > 1:
				repeated++
			}
		}
	}
	wills, willsTwice := 0, 0
	for i := range rounds {
		n := s.got[fmt.Sprint("gone-", i)]
		if n > 0 {
			wills++
		}
		if n > 1 && s.qos == 2 {
			willsTwice++
		}
	}
	t.Logf("subscriber at QoS %d: %d acknowledged, %d missing, %d of QoS 2 twice, %d of QoS 1 repeated, %d wills of %d, %d twice, %d out of order",
		s.qos, acked, missing, twice, repeated, wills, rounds, willsTwice, disorder)
	if missing > 0 || twice > 0 || wills != rounds || willsTwice > 0 || disorder > 0 {
		t.Errorf("subscriber at QoS %d did not get what it should", s.qos)
	}
}

type lastingPublisher struct {
	lastingClient
	qos   byte
	seq   uint64
	acked map[uint64]bool
	open  []openMessage // in order
}

type openMessage struct {
	id       uint16
	seq      uint64
	released bool // PUBREC has come
	sent     bool
}

func (p *lastingPublisher) topic() string             { return "load/" + p.id }
func (p *lastingPublisher) payload(seq uint64) string { return fmt.Sprintf("load/%s %d", p.id, seq) }

// run publishes with 20 messages in flight until stop is closed, and then until all are acknowledged.
func (p *lastingPublisher) run(stop chan struct{}) {
	p.acked = map[uint64]bool{}
	p.keep(func() error {
		if err := p.resend(); err != nil {
			return err
		}
		for {
			stopped := false
			select {
			case <-stop:
				stopped = true
			default:
			}
			if stopped && len(p.open) == 0 {
				return nil
			}
			for !stopped && len(p.open) < 20 {
				p.seq++
				p.open = append(p.open, openMessage{id: uint16(p.seq%60000 + 1), seq: p.seq})
				if err := p.send(&p.open[len(p.open)-1]); err != nil {
					return err
				}
			}
			p.conn.SetDeadline(time.Now().Add(20 * time.Second))
			first, body, err := p.read()
			if err == nil {
				err = p.handle(first, body)
			}
			if err != nil {
				return err
			}
		}
	})
}

// resend sends again what is not acknowledged (MQTT 5 §4.4).
func (p *lastingPublisher) resend() error {
	for i := range p.open {
		if err := p.send(&p.open[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *lastingPublisher) send(m *openMessage) error {
	var b []byte
	if m.released {
		b = ackPacket(0x62, m.id)
	} else {
		b = p.publishPacket(m)
	}
	m.sent = true
	_, err := p.conn.Write(b)
	return err
}

// publishPacket is the message, at most 127 bytes.
func (p *lastingPublisher) publishPacket(m *openMessage) []byte {
	topic := p.topic()
	body := append([]byte{0, byte(len(topic))}, topic...)
	body = append(binary.BigEndian.AppendUint16(body, m.id), 0)
	body = append(body, p.payload(m.seq)...)
	first := 0x30 | p.qos<<1
	if m.sent {
		first |= 8
	}
	return append([]byte{first, byte(len(body))}, body...)
}

// ackPacket is a PUBACK, PUBREC, PUBREL or PUBCOMP.
func ackPacket(first byte, id uint16) []byte { return []byte{first, 2, byte(id >> 8), byte(id)} }

func (p *lastingPublisher) handle(first byte, body []byte) error {
	if first>>4 == 14 {
		return io.EOF
	}
	id := binary.BigEndian.Uint16(body)
	for i := range p.open {
		m := &p.open[i]
		if m.id != id {
			continue
		}
		if len(body) > 2 && body[2] >= 0x80 && first>>4 != 7 { // a PUBREL that is repeated may find nothing
			return fmt.Errorf("message refused: % x", body)
		}
		p.acked[m.seq] = true
		if first>>4 == 5 {
			m.released = true
			return p.send(m)
		}
		p.open = append(p.open[:i], p.open[i+1:]...)
		return nil
	}
	return nil
}
