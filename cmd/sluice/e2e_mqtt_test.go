//go:build linux

package main_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// subscriber is a mosquitto_sub that prints one line a message, marked so that its debug lines can be told apart.
type subscriber struct{ *process }

const messageMark = "> "

// subscribe returns once the broker granted the subscription. Lines are "QOS TOPIC PAYLOAD".
func subscribe(t *testing.T, g *gateway, args ...string) subscriber {
	t.Helper()
	return listen(t, append([]string{"-p", g.port()}, args...)...)
}

// listen is subscribe with everything about the broker in args.
func listen(t *testing.T, args ...string) subscriber {
	t.Helper()
	all := append([]string{"-oL", "mosquitto_sub", "-d", "-F", messageMark + "%q %t %p"}, args...)
	s := subscriber{spawn(t, "stdbuf", all...)}
	wait(t, 20*time.Second, "SUBACK for mosquitto_sub", func() bool {
		if !s.alive() {
			t.Fatalf("mosquitto_sub ended: %v\n%s", s.err, s.stderr.String())
		}
		return strings.Contains(s.stdout.String(), "Subscribed (mid: 1)")
	})
	return s
}

func (s subscriber) messages() (lines []string) {
	for line := range strings.Lines(s.stdout.String()) {
		if m, ok := strings.CutPrefix(line, messageMark); ok {
			lines = append(lines, strings.TrimSuffix(m, "\n"))
		}
	}
	return lines
}

func publish(t *testing.T, g *gateway, args ...string) {
	t.Helper()
	run(t, 20*time.Second, "mosquitto_pub", append([]string{"-p", g.port()}, args...)...)
}

// testMosquitto: mosquitto's clients publish and subscribe at each QoS in both protocol versions, and everything
// that they published is in the log once.
func (r *rig) testMosquitto(t *testing.T) {
	need(t, "mosquitto")
	g := r.gateway(t, "")
	g.start(t)
	var stored []string
	for _, version := range []string{"mqttv311", "mqttv5"} {
		for qos := range 3 {
			t.Run(fmt.Sprintf("%s-qos%d", version, qos), func(t *testing.T) {
				base := fmt.Sprintf("%s/%d", version, qos)
				s := subscribe(t, g, "-V", version, "-q", fmt.Sprint(qos), "-t", base+"/+/temp", "-t", base+"/deep/#", "-C", "4")
				var want []string
				send := func(topic string, delivered bool) {
					payload := fmt.Sprintf("%s#%d", topic, len(stored))
					publish(t, g, "-V", version, "-q", fmt.Sprint(qos), "-t", topic, "-m", payload)
					stored = append(stored, payload)
					if delivered {
						want = append(want, fmt.Sprintf("%d %s %s", qos, topic, payload))
					}
				}
				send(base+"/a/temp", true)
				send(base+"/a/humidity", false)
				send(base+"/b/temp", true)
				send(base+"/b/temp/x", false)
				send(base+"/deep", true) // # matches its parent, MQTT 5 §4.7.1.2
				send(base+"/deep/er/still", true)
				if err := s.wait(t, 20*time.Second); err != nil {
					t.Fatalf("mosquitto_sub: %v", err)
				}
				if got := s.messages(); !slices.Equal(got, want) {
					t.Errorf("delivered %q, want %q", got, want)
				}
			})
		}
	}
	// QoS 0 has no acknowledgement to wait for: the log may be a group behind.
	wait(t, 10*time.Second, "each published message once in the dump", func() bool {
		lines := strings.Fields(run(t, time.Minute, r.sluice, "dump", g.dir, "--format", "hex"))
		slices.Sort(lines)
		want := make([]string, len(stored))
		for i, payload := range stored {
			want[i] = hex.EncodeToString([]byte(payload))
		}
		slices.Sort(want)
		return slices.Equal(lines, want)
	})
	g.stop(t)
}

// testWill: a client that dies leaves its will, one that says DISCONNECT doesn't, unless it asks for it (MQTT 5
// §3.14.2.1, reason 0x04: what mosquitto_sub says after SIGTERM when it speaks MQTT 5).
func (r *rig) testWill(t *testing.T) {
	need(t, "mosquitto")
	g := r.gateway(t, "")
	g.start(t)
	for _, version := range []string{"mqttv311", "mqttv5"} {
		t.Run(version, func(t *testing.T) {
			watch := subscribe(t, g, "-V", version, "-q", "1", "-t", "will/+")
			device := func(name string, args ...string) subscriber {
				return subscribe(t, g, append(args, "-V", version, "-i", name+version, "-t", name+version,
					"--will-topic", "will/"+name, "--will-payload", "gone", "--will-qos", "1")...)
			}
			leaves, terminated, dies := device("leaves", "-C", "1"), device("terminated"), device("dies")
			publish(t, g, "-q", "1", "-t", "leaves"+version, "-m", "the one message it waits for")
			if err := leaves.wait(t, 20*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := terminated.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			_ = terminated.wait(t, 20*time.Second) // mosquitto_sub's exit code after a signal says nothing
			var want []string
			if version == "mqttv5" {
				want = append(want, "1 will/terminated gone")
				wait(t, 20*time.Second, "the will that was asked for", func() bool { return len(watch.messages()) == len(want) })
			}
			dies.kill()
			want = append(want, "1 will/dies gone")
			wait(t, 20*time.Second, "the will of the dead", func() bool { return len(watch.messages()) >= len(want) })
			publish(t, g, "-V", version, "-q", "1", "-t", "will/end", "-m", "no more")
			want = append(want, "1 will/end no more")
			wait(t, 20*time.Second, "the last message", func() bool { return len(watch.messages()) >= len(want) })
			if got := watch.messages(); !slices.Equal(got, want) {
				t.Errorf("delivered %q, want %q", got, want)
			}
			watch.kill()
		})
	}
	g.stop(t)
}

// testPaho: Eclipse's Python client, MQTT 5 with properties and MQTT 3.1.1.
func (r *rig) testPaho(t *testing.T) {
	need(t, "paho")
	g := r.gateway(t, "")
	g.start(t)
	for _, version := range []string{"4", "5"} {
		out := run(t, time.Minute, systemPython, "testdata/paho_client.py", g.port(), version)
		if !strings.HasSuffix(out, "OK\n") {
			t.Errorf("MQTT %s: %s", version, out)
		}
	}
	g.stop(t)
}
