// Command offlineload measures what sessions cost whose clients are away, and how they come back.
//
// It makes 1,000 persistent sessions at QoS 1 (900 on one topic each, 90 on ten by +, 10 on all by #), leaves, publishes 1,000 messages to
// each of 1,000 topics, and comes back within a few seconds while publishers go on. It checks that every session gets everything once and in
// order, and prints the broker's memory, the times, and the publishers' acknowledgement times.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

var (
	addr       = flag.String("addr", "127.0.0.1:1883", "the broker")
	pid        = flag.Int("pid", 0, "its process id, for its memory")
	each       = flag.Int("each", 1000, "messages for each of 1,000 topics")
	rate       = flag.Int("rate", 1000, "messages a second that go on to be published while sessions come back")
	within     = flag.Duration("within", 5*time.Second, "the time over which they come back")
	patient    = flag.Duration("patience", 120*time.Second, "the time for all to have everything")
	publishers = flag.Int("clients", 50, "clients that publish")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "offlineload:", err)
		os.Exit(1)
	}
}

func topic(i int) string { return fmt.Sprintf("d/%d/%d", i/10, i%10) }

// session is one subscriber.
type session struct {
	id, filter string
	want       int
	got        atomic.Int64
	next       map[string]uint64
	done       time.Time
	err        error
}

func sessions() []*session {
	var list []*session
	for i := range 900 {
		list = append(list, &session{id: fmt.Sprint("exact-", i), filter: topic(i), want: *each})
	}
	for i := range 90 {
		list = append(list, &session{id: fmt.Sprint("plus-", i), filter: fmt.Sprintf("d/%d/+", i), want: 10 * *each})
	}
	for i := range 10 {
		list = append(list, &session{id: fmt.Sprint("all-", i), filter: "#", want: 1000 * *each})
	}
	return list
}

func run() error {
	all := sessions()
	for _, s := range all {
		s.next = map[string]uint64{}
		c, _, err := dial(s.id, true)
		if err != nil {
			return err
		}
		if err := c.subscribe(s.filter); err != nil {
			return err
		}
		c.conn.Close()
	}
	time.Sleep(2 * time.Second)
	before := rss()
	began := time.Now()
	if err := publishAll(); err != nil {
		return err
	}
	took := time.Since(began)
	time.Sleep(2 * time.Second)
	fmt.Printf("published %d messages in %.1f s; rss %.1f MB before, %.1f MB after, %+.1f MB\n", 1000**each, took.Seconds(), before, rss(), rss()-before)

	stop := make(chan struct{})
	var acks latencies
	var steady sync.WaitGroup
	steady.Go(func() { acks.run(stop) })
	quiet := time.Now()
	time.Sleep(3 * time.Second)
	p99quiet := acks.since(quiet)

	began = time.Now()
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			time.Sleep(*within * time.Duration(i) / time.Duration(len(all)))
			s.err = s.comeBack(began.Add(*patient))
			s.done = time.Now()
		})
	}
	peak := 0.0
	watch := make(chan struct{})
	go func() {
		for {
			select {
			case <-watch:
				return
			case <-time.After(200 * time.Millisecond):
				peak = max(peak, rss())
			}
		}
	}()
	wg.Wait()
	close(watch)
	p99busy := acks.since(began)
	close(stop)
	steady.Wait()
	return report(all, began, p99quiet, p99busy, peak)
}

func report(all []*session, began time.Time, p99quiet, p99busy, peak float64) error {
	kinds := map[string]time.Duration{}
	failed, total := 0, int64(0)
	for _, s := range all {
		kind, _, _ := strings.Cut(s.id, "-")
		kinds[kind] = max(kinds[kind], s.done.Sub(began))
		total += s.got.Load()
		if s.err != nil {
			if failed++; failed < 5 {
				fmt.Printf("%s: %d of %d: %v\n", s.id, s.got.Load(), s.want, s.err)
			}
		}
	}
	fmt.Printf("back: exact within %.1f s, + within %.1f s, # within %.1f s; %d messages; rss at most %.1f MB\n", kinds["exact"].Seconds(),
		kinds["plus"].Seconds(), kinds["all"].Seconds(), total, peak)
	fmt.Printf("publishers at %d/s: ack p99 %.1f ms before, %.1f ms meanwhile\n", *rate, p99quiet, p99busy)
	if failed > 0 {
		return fmt.Errorf("%d sessions did not get everything", failed)
	}
	fmt.Println("ok: every session has everything, once and in order")
	return nil
}

// comeBack takes the session up and reads until it has everything.
func (s *session) comeBack(deadline time.Time) error {
	c, present, err := dial(s.id, false)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	if !present {
		return fmt.Errorf("no session was there")
	}
	c.conn.SetDeadline(deadline)
	var acks []byte
	for s.got.Load() < int64(s.want) {
		first, body, err := c.read()
		if err != nil {
			return err
		}
		if first>>4 != 3 {
			continue
		}
		n := int(binary.BigEndian.Uint16(body))
		name, rest := body[2:2+n], body[2+n:]
		id := binary.BigEndian.Uint16(rest)
		acks = wire.AppendPuback(acks, wire.V5, id, 0)
		if c.in.Buffered() == 0 {
			if _, err := c.conn.Write(acks); err != nil {
				return err
			}
			acks = acks[:0]
		}
		if string(name[:2]) != "d/" {
			continue
		}
		seq := binary.BigEndian.Uint64(rest[3+int(rest[2]):])
		if want := s.next[string(name)]; seq != want {
			return fmt.Errorf("%s: message %d where %d belongs", name, seq, want)
		}
		s.next[string(name)]++
		s.got.Add(1)
	}
	_, err = c.conn.Write(append(acks, 0xE0, 0))
	return err
}

type client struct {
	conn net.Conn
	in   *bufio.Reader
	buf  []byte
}

func dial(id string, clean bool) (c *client, present bool, err error) {
	conn, err := net.Dial("tcp", *addr)
	if err != nil {
		return nil, false, err
	}
	c = &client{conn: conn, in: bufio.NewReaderSize(conn, 8<<10)}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	flags := byte(0)
	if clean {
		flags = 2
	}
	body := []byte{0, 4, 'M', 'Q', 'T', 'T', 5, flags, 0, 0, 5, 17, 0, 0, 255, 255, 0, byte(len(id))}
	body = append(body, id...)
	if _, err = conn.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		return nil, false, err
	}
	first, answer, err := c.read()
	if err != nil || first != 0x20 || answer[1] != 0 {
		return nil, false, fmt.Errorf("CONNACK %x % x: %w", first, answer, err)
	}
	return c, answer[0] == 1, nil
}

func (c *client) subscribe(filter string) error {
	body := append([]byte{0, 1, 0, 0, byte(len(filter))}, filter...)
	body = append(body, 1)
	if _, err := c.conn.Write(append([]byte{0x82, byte(len(body))}, body...)); err != nil {
		return err
	}
	first, answer, err := c.read()
	if err != nil || first != 0x90 || answer[3] != 1 {
		return fmt.Errorf("SUBACK %x % x: %w", first, answer, err)
	}
	return nil
}

// read returns the next packet; the body is valid until the next call.
func (c *client) read() (first byte, body []byte, err error) {
	if first, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, nil, err
	}
	if cap(c.buf) < int(n) {
		c.buf = make([]byte, n)
	}
	c.buf = c.buf[:n]
	_, err = io.ReadFull(c.in, c.buf)
	return first, c.buf, err
}

// publishAll publishes each topic's messages in order, by several clients with 20 in flight each.
func publishAll() error {
	var wg sync.WaitGroup
	errs := make([]error, *publishers)
	for w := range *publishers {
		wg.Go(func() { errs[w] = publishSome(w) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func publishSome(w int) error {
	c, _, err := dial(fmt.Sprint("pub-", w), true)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	c.conn.SetDeadline(time.Now().Add(5 * time.Minute))
	const window = 20
	open, sent := 0, 0
	var topics []string
	for i := w; i < 1000; i += *publishers {
		topics = append(topics, topic(i))
	}
	total := len(topics) * *each
	var out []byte
	payload := make([]byte, 100)
	for acked := 0; acked < total; {
		out = out[:0]
		for open < window && sent < total {
			binary.BigEndian.PutUint64(payload, uint64(sent/len(topics)))
			out = wire.AppendPublish(out, wire.V5, &wire.Outgoing{Topic: []byte(topics[sent%len(topics)]), Payload: payload, QoS: 1, PacketID: uint16(sent%60000 + 1)})
			sent++
			open++
		}
		if _, err := c.conn.Write(out); err != nil {
			return err
		}
		for first := true; first || c.in.Buffered() > 0; first = false {
			kind, body, err := c.read()
			if err != nil || kind != 0x40 || len(body) > 2 && body[2] >= 0x80 {
				return fmt.Errorf("PUBACK %x % x: %w", kind, body, err)
			}
			acked++
			open--
		}
	}
	return nil
}

// latencies are those of publishers at a steady rate.
type latencies struct {
	mu   sync.Mutex
	list []sample
}

type sample struct {
	at time.Time
	ms float64
}

// run publishes from ten clients until stop is closed.
func (l *latencies) run(stop chan struct{}) {
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			c, _, err := dial(fmt.Sprint("steady-", w), true)
			if err != nil {
				return
			}
			defer c.conn.Close()
			c.conn.SetDeadline(time.Now().Add(10 * time.Minute))
			tick := time.NewTicker(10 * time.Second / time.Duration(*rate))
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				began := time.Now()
				c.conn.Write(wire.AppendPublish(nil, wire.V5, &wire.Outgoing{Topic: []byte("steady/" + strconv.Itoa(w)), Payload: make([]byte, 100), QoS: 1, PacketID: 1}))
				if _, _, err := c.read(); err != nil {
					return
				}
				l.mu.Lock()
				l.list = append(l.list, sample{began, float64(time.Since(began).Microseconds()) / 1000})
				l.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// since is the 99th percentile of what began since a time, in ms.
func (l *latencies) since(t time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ms []float64
	for _, s := range l.list {
		if !s.at.Before(t) {
			ms = append(ms, s.ms)
		}
	}
	if len(ms) == 0 {
		return 0
	}
	slices.Sort(ms)
	return ms[len(ms)*99/100]
}

// rss is the broker's resident memory in MB.
func rss() float64 {
	if *pid == 0 {
		return 0
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", *pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.Atoi(strings.Fields(rest)[0])
			return float64(kb) / 1000
		}
	}
	return 0
}
