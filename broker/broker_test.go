package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/mirror"
	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// testOptions are small and listen on a free port.
func testOptions(dir string) Options {
	log := segment.DefaultOptions()
	log.Dir = dir
	log.MaxBytes, log.MaxRecordBytes, log.JournalBytes = 64<<10, 4<<10, 1<<20
	door := mqtt.DefaultOptions()
	door.Listeners = []mqtt.Listener{{Address: "127.0.0.1:0"}}
	door.MaxPacketBytes = 4 << 10
	return Options{
		Log:    log,
		MQTT:   door,
		Topics: []segment.TopicOptions{{Name: "mqtt", Partitions: 4, Compression: record.None}},
		Routes: []Route{{Filter: "#", Topic: "mqtt", Key: "{topic}"}},
	}
}

// logs collects what a broker says. Safe for concurrent use.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newTestBroker(t *testing.T, o Options) (*Broker, *logs) {
	t.Helper()
	said := new(logs)
	b, err := New(o, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b, said
}

// publish sends one QoS 1 message with MQTT 3.1.1 by hand and waits for its PUBACK.
func publish(t *testing.T, address, topic, payload string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	connect := "\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a"
	body := string([]byte{byte(len(topic) >> 8), byte(len(topic))}) + topic + "\x00\x07" + payload
	if _, err := c.Write([]byte(connect + "\x32" + string(rune(len(body))) + body)); err != nil {
		t.Fatal(err)
	}
	var answer [8]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		t.Fatal(err)
	}
	if want := "\x20\x02\x00\x00\x40\x02\x00\x07"; string(answer[:]) != want {
		t.Fatalf("answer %x, want %x", answer, want)
	}
}

// stored reads a partition's values through a log of its own.
func stored(t *testing.T, dir string) (values []string) {
	t.Helper()
	o := testOptions(dir).Log
	log, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	decoder := record.NewDecoder(0)
	for _, p := range log.Topic("mqtt").Partitions() {
		buf, err := p.Read(nil, p.StartOffset(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for len(buf) > 0 {
			var batch record.Batch
			if batch, buf, err = record.Next(buf); err != nil {
				t.Fatal(err)
			}
			if err := decoder.Records(batch, func(r *record.Record) error {
				values = append(values, string(r.Key)+"="+string(r.Value))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return values
}

func TestRunStoresAndStops(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 { // the second time it opens what the first one left
		b, said := newTestBroker(t, testOptions(dir))
		ctx, cancel := context.WithCancel(t.Context())
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		publish(t, b.Addrs()[0].String(), "a/b", fmt.Sprint("value ", i))
		if s := b.Status(); s.GatewayID == "" || s.Log.Refusing != nil || s.Log.Commits == 0 {
			t.Errorf("status %+v", s)
		}
		cancel()
		<-ctx.Done()
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(said.String(), "msg=ready") || strings.Contains(said.String(), "level=ERROR") {
			t.Errorf("it said:\n%s", said)
		}
	}
	if got, want := fmt.Sprint(stored(t, dir)), "[a/b=value 0 a/b=value 1]"; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
}

// Routes may keep everything out of the log: there is no topic then, and nothing to store.
func TestRunStoresNothing(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Topics, o.Routes = nil, []Route{{Filter: "#", NotStored: true}}
	b, said := newTestBroker(t, o)
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	publish(t, b.Addrs()[0].String(), "a/b", "value")
	s, topics := b.Status(), b.log.Topics()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if s.MQTT.NotStored != 1 || len(s.Dropped) != 0 || len(topics) != 0 {
		t.Errorf("status %+v", s)
	}
	if strings.Contains(said.String(), "level=WARN") || strings.Contains(said.String(), "level=ERROR") {
		t.Errorf("it said:\n%s", said)
	}
}

// A start that fails late leaves nothing behind: the directory can be opened at once, no goroutine is left (TestMain).
func TestStartFailsAtListener(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	o := testOptions(t.TempDir())
	o.MQTT.Listeners[0].Address = busy.Addr().String()
	o.Mirrors = []mirror.Options{{Brokers: []string{"127.0.0.1:1"}}}
	b, _ := newTestBroker(t, o)
	err = b.Start()
	if err == nil || !strings.Contains(err.Error(), busy.Addr().String()) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v", err)
	}
	var config *ConfigError
	if errors.As(err, &config) {
		t.Error("a busy port is no configuration error: it may be free at the next start")
	}
	again, _ := newTestBroker(t, testOptions(o.Log.Dir))
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
}

func TestStartLocked(t *testing.T) {
	dir := t.TempDir()
	first, _ := newTestBroker(t, testOptions(dir))
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	second, _ := newTestBroker(t, testOptions(dir))
	want := fmt.Sprintf("data directory %s is locked by another broker; stop that one, or give this one a data.dir of its own", dir)
	if err := second.Start(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestStartPartitionsChanged(t *testing.T) {
	dir := t.TempDir()
	b, _ := newTestBroker(t, testOptions(dir))
	if err := errors.Join(b.Start(), b.Stop()); err != nil {
		t.Fatal(err)
	}
	o := testOptions(dir)
	o.Topics[0].Partitions = 8
	changed, _ := newTestBroker(t, o)
	err := changed.Start()
	var config *ConfigError
	if !errors.As(err, &config) || !strings.Contains(err.Error(), "topic mqtt has 4 partitions on disk and 8 in the configuration") {
		t.Errorf("got %v", err)
	}
}

func TestRunEndsWithContext(t *testing.T) {
	b, said := newTestBroker(t, testOptions(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "msg=stopping") {
		t.Errorf("it said:\n%s", said)
	}
}

func TestOptionsValidate(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Routes = []Route{{Filter: "a#", Topic: "mqtt", Key: "{topic}"}, {Filter: "local/#", NotStored: true}, {Filter: "#", Topic: "elsewhere", Key: "{topic}"}}
	_, err := New(o, slog.New(slog.DiscardHandler))
	var config *ConfigError
	if !errors.As(err, &config) {
		t.Fatalf("got %v", err)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "route 0: filter: ") || lines[1] != `route 2: topic "elsewhere" is not among the topics` {
		t.Errorf("got %q", lines)
	}
}

// Each trouble with the directory is one line that names it and says what to do.
func TestExplain(t *testing.T) {
	at := func(err error) error {
		return fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "/data/journal/0", Err: err})
	}
	tests := []struct {
		err    error
		want   []string
		config bool
	}{
		{fmt.Errorf("x: %w", segment.ErrLocked), []string{"locked by another broker", "stop that one"}, false},
		{at(syscall.EROFS), []string{"read-only file system", "remount", "open /data/journal/0"}, false},
		{at(syscall.EACCES), []string{"not writable for user id", "change its owner", "open /data/journal/0"}, false},
		{at(syscall.EPERM), []string{"not writable for user id"}, false},
		{at(syscall.ENOSPC), []string{"no space left", "make room"}, false},
		{at(syscall.EDQUOT), []string{"no space left"}, false},
		{at(syscall.ENOTDIR), []string{"a file is in its way"}, false},
		{fmt.Errorf("%w: version 9", segment.ErrNewerFormat), []string{"newer release", "left untouched", "version 9"}, true},
		{at(syscall.EIO), []string{"input/output error"}, false},
	}
	for _, test := range tests {
		err := explain("/data", test.err)
		for _, want := range append(test.want, "/data") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %q doesn't say %q", test.err, err, want)
			}
		}
		var config *ConfigError
		if errors.As(err, &config) != test.config || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %q", test.err, err)
		}
	}
}

func openLog(t *testing.T, dir string) *segment.Log {
	t.Helper()
	log, err := segment.Open(testOptions(dir).Log)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestGatewayID(t *testing.T) {
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine-id")
	if err := os.WriteFile(machine, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := openLog(t, filepath.Join(dir, "data"))
	ask := func(configured, file string) string {
		t.Helper()
		id, _, err := gatewayID(configured, file, log)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if id := ask("plant-7", machine); id != "plant-7" {
		t.Errorf("configured: %q", id)
	}
	// Pinned: another hash would rename every gateway's topics in its region.
	if id := ask("", machine); id != "22176fe0694ffe2a" {
		t.Errorf("from the machine id: %q", id)
	}
	made := ask("", filepath.Join(dir, "none"))
	if len(made) != 16 {
		t.Errorf("made up: %q", made)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	log = openLog(t, filepath.Join(dir, "data"))
	defer log.Close()
	if id := ask("", machine); id != made {
		t.Errorf("after a restart %q, and %q before: it must stay", id, made)
	}
}

func TestMachineID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine-id")
	for _, text := range []string{"", "uninitialized\n", "0123", "0123456789abcdef0123456789abcdeg", strings.Repeat("0", 64)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, ok := hashMachineID(file); ok {
			t.Errorf("%q gave %q", text, id)
		}
	}
}

func TestIncarnation(t *testing.T) {
	if a, b := newIncarnation(), newIncarnation(); a == b || a == 0 || b == 0 {
		t.Errorf("incarnations %d and %d", a, b)
	}
}
