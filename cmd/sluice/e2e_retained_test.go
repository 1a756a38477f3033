//go:build linux

package main_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// testRetained: mosquitto's clients see what is retained as they do at mosquitto itself, restarts included.
func (r *rig) testRetained(t *testing.T) {
	need(t, "mosquitto")
	g := r.gateway(t, "")
	g.start(t)
	for _, version := range []string{"mqttv311", "mqttv5"} {
		for qos := range 3 {
			topic := fmt.Sprintf("r/%s/%d", version, qos)
			publish(t, g, "-V", version, "-q", strconv.Itoa(qos), "-r", "-t", topic, "-m", "old")
			publish(t, g, "-V", version, "-q", strconv.Itoa(qos), "-r", "-t", topic, "-m", "new")
			publish(t, g, "-V", version, "-q", strconv.Itoa(qos), "-r", "-t", topic+"/gone", "-m", "x")
			publish(t, g, "-V", version, "-q", strconv.Itoa(qos), "-r", "-t", topic+"/gone", "-n")
		}
	}
	var want []string
	for _, version := range []string{"mqttv311", "mqttv5"} {
		for qos := range 3 {
			want = append(want, fmt.Sprintf("1 %d r/%s/%d new", qos, version, qos))
		}
	}
	check := func(when string) {
		t.Helper()
		for _, version := range []string{"mqttv311", "mqttv5"} {
			got := strings.Split(run(t, 20*time.Second, "mosquitto_sub", "-p", g.port(), "-V", version, "-q", "2", "-t", "r/#", "-C", "6", "-F", "%r %q %t %p"), "\n")
			slices.Sort(got) // QoS 2 takes longer
			if got = got[1:]; !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("%s, %s: %q, not %q", when, version, got, want)
			}
		}
	}
	check("at first")
	g.kill9(t)
	g.start(t)
	check("after kill -9")
	g.stop(t)
	g.start(t)
	check("after a clean stop")
	up := run(t, 20*time.Second, "mosquitto_sub", "-p", g.port(), "-t", "$SYS/broker/retained messages/count", "-C", "1", "-v")
	if up != "$SYS/broker/retained messages/count 6\n" {
		t.Errorf("$SYS says %q", up)
	}
	g.stop(t)
}

// testRetainedCrash kills the gateway at random moments while clients set retained messages, and finds of each topic the last
// acknowledged one, or one that was sent after it. SLUICE_CRASH_ROUNDS and SLUICE_CRASH_SEED as in testCrash.
func (r *rig) testRetainedCrash(t *testing.T) {
	rounds := envInt(t, "SLUICE_CRASH_ROUNDS", 3)
	seed := envInt(t, "SLUICE_CRASH_SEED", int(time.Now().UnixNano()&0xffffffff))
	t.Logf("SLUICE_CRASH_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	g := r.gateway(t, smallSizes)
	g.start(t)
	writers := make([]*retainedWriter, 12)
	for i := range writers {
		writers[i] = &retainedWriter{topic: fmt.Sprintf("state/%d", i), qos: byte(1 + i%2)}
	}
	for round := 1; round <= rounds; round++ {
		var running sync.WaitGroup
		for _, w := range writers {
			running.Go(func() { w.run(g.addr) })
		}
		time.Sleep(time.Duration(50+rng.IntN(800)) * time.Millisecond) //lint:sleep any moment may be the worst to be killed at
		g.kill9(t)
		running.Wait()
		if rng.IntN(3) == 0 { // again, while it recovers
			g.p = spawn(t, r.sluice, g.args...)
			time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond) //lint:sleep as above
			g.kill9(t)
		}
		g.start(t)
		found := readRetained(t, g.addr, len(writers))
		total := 0
		for _, w := range writers {
			if got := found[w.topic]; got < w.acked || got > w.sent {
				t.Errorf("round %d: %s at QoS %d is %d; acknowledged %d, sent %d", round, w.topic, w.qos, got, w.acked, w.sent)
			}
			total += w.acked
		}
		t.Logf("round %d: %d acknowledged so far", round, total)
	}
	g.stop(t)
}

// retainedWriter counts up in one topic, one message at a time.
type retainedWriter struct {
	topic       string
	qos         byte
	acked, sent int
}

// run goes on until the connection ends.
func (w *retainedWriter) run(addr string) {
	conn, in, err := mqttDial(addr, w.topic)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		w.sent++
		body := append([]byte{0, byte(len(w.topic))}, w.topic...)
		body = append(append(body, 0, 1), strconv.Itoa(w.sent)...)
		if _, err := conn.Write(append([]byte{0x31 | w.qos<<1, byte(len(body))}, body...)); err != nil {
			return
		}
		kind, _, err := mqttRead(in)
		if err != nil {
			return
		}
		w.acked = w.sent // PUBACK, or PUBREC
		if kind == 0x50 {
			if _, err := conn.Write([]byte{0x62, 2, 0, 1}); err != nil {
				return
			}
			if _, _, err := mqttRead(in); err != nil {
				return
			}
		}
	}
}

// readRetained subscribes to state/# and takes n retained messages.
func readRetained(t *testing.T, addr string, n int) map[string]int {
	t.Helper()
	conn, in, err := mqttDial(addr, "reader")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("\x82\x0c\x00\x01\x00\x07state/#\x00")); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for len(found) < n {
		kind, body, err := mqttRead(in)
		if err != nil {
			t.Fatalf("%d retained messages of %d: %v", len(found), n, err)
		}
		if kind != 0x31 {
			continue
		}
		size := 2 + int(binary.BigEndian.Uint16(body))
		value, err := strconv.Atoi(string(body[size:]))
		if err != nil {
			t.Fatalf("payload %q", body[size:])
		}
		found[strings.Clone(string(body[2:size]))] = value
	}
	return found
}

// mqttDial connects an MQTT 3.1.1 client with a clean session.
func mqttDial(addr, id string) (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	in := bufio.NewReader(conn)
	hello := append([]byte{0x10, byte(12 + len(id)), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, byte(len(id))}, id...)
	if _, err = conn.Write(hello); err == nil {
		_, _, err = mqttRead(in)
	}
	if err != nil {
		conn.Close()
	}
	return conn, in, err
}

// mqttRead reads a packet.
func mqttRead(in *bufio.Reader) (first byte, body []byte, err error) {
	if first, err = in.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(in, body)
	return first, body, err
}
