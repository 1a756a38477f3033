//go:build linux

package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// codecs are all that a topic may be compressed with; each gets a topic of its name and the MQTT topics below it.
var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// codecTopics is configuration for them, with segments as small as they may be.
func codecTopics() string {
	var topics, routes strings.Builder
	for _, c := range codecs {
		fmt.Fprintf(&topics, "  - {name: %s, partitions: 2, compression: %s, segment_bytes: 1MiB}\n", c, c)
		fmt.Fprintf(&routes, "  - {filter: %s/#, topic: %s}\n", c, c)
	}
	return "topics:\n" + topics.String() + "routes:\n" + routes.String()
}

// testDumpLog has Kafka's own tool verify each segment and index file that the gateway wrote, with a kill -9, a
// recovery and a clean stop behind them.
func (r *rig) testDumpLog(t *testing.T) {
	need(t, "kafka")
	g := r.gateway(t, "version: 1\n"+codecTopics())
	g.start(t)
	load := func(codec, run string) *process {
		return spawn(t, r.mqttload, "pub", "-addr", g.addr, "-clients", "10", "-window", "50", "-size", "200", "-rate", "10000",
			"-topic", codec+"/%d", "-id", codec, "-run", run, "-seq", filepath.Join(filepath.Dir(g.dir), codec+run),
			"-reconnect", "-warmup", "0s", "-duration", "4s")
	}
	for kill := range 2 {
		var loads []*process
		for _, c := range codecs {
			loads = append(loads, load(c, strconv.Itoa(kill+1)))
		}
		time.Sleep(3 * time.Second) //lint:sleep the load is to be in full flow
		if kill == 0 {
			g.kill9(t)
			g.start(t)
		}
		for _, p := range loads {
			if err := p.wait(t, 30*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.stop(t)
	foundFile := filepath.Join(filepath.Dir(g.dir), "found")
	g.found(t, foundFile)
	k := r.region(t) // for its tools; no broker runs
	logs, err := filepath.Glob(filepath.Join(g.dir, "topics", "*", "*.log"))
	if err != nil || len(logs) < 2*len(codecs) {
		t.Fatalf("%d segments in %s: %v", len(logs), g.dir, err)
	}
	v := verifyLogs(t, k, logs)
	for _, complaint := range v.complaints {
		t.Error(complaint)
	}
	b, err := os.ReadFile(foundFile)
	if err != nil {
		t.Fatal(err)
	}
	if dumped := strings.Count(string(b), "\n"); v.records != dumped {
		t.Errorf("Kafka reads %d records, sluice dump finds %d", v.records, dumped)
	}
	t.Logf("%d segments, %d batches (%v), %d records, %d offset and %d time index entries", len(logs), v.batches, v.codecs, v.records, v.offsetEntries, v.timeEntries)
	for _, c := range codecs {
		if v.codecs[c] == 0 {
			t.Errorf("no batch is compressed with %s", c)
		}
	}
	t.Run("notices", func(t *testing.T) { testDumpLogNotices(t, k, logs) })
}

// testDumpLogNotices proves that the verification can fail: one wrong byte in a copy of each kind of file.
func testDumpLogNotices(t *testing.T, k *region, logs []string) {
	i := slices.IndexFunc(logs, func(log string) bool {
		info, err := os.Stat(indexOf(log, ".index"))
		return err == nil && info.Size() >= 16
	})
	if i < 0 {
		t.Fatal("no segment has two index entries")
	}
	for suffix, at := range map[string]int64{".log": 100, ".index": 3, ".timeindex": 7} {
		dir := t.TempDir()
		copyLog := filepath.Join(dir, filepath.Base(logs[i]))
		for _, s := range []string{".log", ".index", ".timeindex"} {
			b, err := os.ReadFile(indexOf(logs[i], s))
			if err != nil {
				t.Fatal(err)
			}
			if s == suffix {
				b[at] ^= 1
			}
			if err := os.WriteFile(indexOf(copyLog, s), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if v := verifyLogs(t, k, []string{copyLog}); len(v.complaints) == 0 {
			t.Errorf("a wrong byte in the %s file was not noticed", suffix)
		}
	}
}

func indexOf(log, suffix string) string { return strings.TrimSuffix(log, ".log") + suffix }

// verdict is what DumpLogSegments said of some segments, and what of it is wrong.
type verdict struct {
	batches, records, offsetEntries, timeEntries int
	codecs                                       map[string]int // batches
	complaints                                   []string
}

func (v *verdict) complain(format string, args ...any) {
	if len(v.complaints) < 20 {
		v.complaints = append(v.complaints, fmt.Sprintf(format, args...))
	}
}

var (
	batchLine  = regexp.MustCompile(`^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* compresscodec: (\w+) .*isvalid: true$`)
	recordLine = regexp.MustCompile(`^\| offset: (\d+) `)
	indexLine  = regexp.MustCompile(`^offset: (\d+) position: (\d+)$`)
	timeLine   = regexp.MustCompile(`^timestamp: (\d+) offset: (\d+)$`)
	emptyLine  = regexp.MustCompile(`^(Dumping |Log starting offset: |.* is empty\.$|$)`)
)

// verifyLogs runs DumpLogSegments over segments and their indexes. Every line that is not of a form that it prints
// for sound files is a complaint, and so is an index entry in the file that it didn't get to.
func verifyLogs(t *testing.T, k *region, logs []string) (v verdict) {
	t.Helper()
	v.codecs = map[string]int{}
	var offsetEntries, timeEntries int64
	var files, indexes []string
	for _, log := range logs {
		offsetEntries += sizeOf(t, indexOf(log, ".index")) / 8
		timeEntries += sizeOf(t, indexOf(log, ".timeindex")) / 12
		indexes = append(indexes, indexOf(log, ".index"), indexOf(log, ".timeindex"))
		files = append(files, log)
	}
	v.read(k.tool(t, "dump-log", "--deep-iteration", "--files", strings.Join(append(files, indexes...), ",")))
	v.read(k.tool(t, "dump-log", "--verify-index-only", "--files", strings.Join(indexes, ",")))
	if _, stderr, err := k.tool(t, "dump-log", "--print-data-log", "--files", logs[0]); err != nil || stderr != "" {
		v.complain("printing the data of %s: %v\n%s", logs[0], err, tail(stderr))
	}
	if int64(v.offsetEntries) != offsetEntries || int64(v.timeEntries) != timeEntries {
		v.complain("verified %d offset and %d time index entries, the files have %d and %d", v.offsetEntries, v.timeEntries, offsetEntries, timeEntries)
	}
	stdout, stderr, err := k.tool(t, "dump-log", "--index-sanity-check", "--files", strings.Join(indexes, ","))
	if err != nil || stderr != "" {
		v.complain("index sanity check: %v\n%s", err, tail(stderr))
	}
	for line := range strings.Lines(stdout) {
		line = strings.TrimSuffix(line, "\n")
		if !emptyLine.MatchString(line) && !strings.HasSuffix(line, " passed sanity check.") {
			v.complain("index sanity check: %s", line)
		}
	}
	return v
}

func sizeOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// firstOffsets takes out what the tool of Kafka 4 says of every sound segment that doesn't start at 0, Kafka's own too:
// that its first offset doesn't follow -1.
func firstOffsets(stderr string) string {
	lines := strings.SplitAfter(stderr, "\n")
	var rest strings.Builder
	for i := 0; i < len(lines); i++ {
		file, ok := strings.CutPrefix(lines[i], "Non-consecutive offsets in ")
		if ok && i+1 < len(lines) {
			base := strings.TrimLeft(strings.TrimSuffix(filepath.Base(file), ".log\n"), "0")
			alone := i+2 >= len(lines) || !strings.HasPrefix(lines[i+2], "  ")
			if lines[i+1] == "  -1 is followed by "+base+"\n" && alone {
				i++
				continue
			}
		}
		rest.WriteString(lines[i])
	}
	return rest.String()
}

// read counts and judges one run's output.
func (v *verdict) read(stdout, stderr string, err error) {
	if stderr = firstOffsets(stderr); err != nil || stderr != "" {
		v.complain("DumpLogSegments: %v\n%s", err, tail(stderr))
	}
	next := int64(-1)
	file := ""
	for line := range strings.Lines(stdout) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "Dumping "); ok {
			if filepath.Dir(name) != filepath.Dir(file) {
				next = -1
			}
			file = name
		}
		switch m := batchLine.FindStringSubmatch(line); {
		case m != nil:
			base, _ := strconv.ParseInt(m[1], 10, 64)
			last, _ := strconv.ParseInt(m[2], 10, 64)
			if next >= 0 && base != next {
				v.complain("%s: batch at %d, the one before ended at %d", file, base, next-1)
			}
			next = last + 1
			v.batches++
			v.codecs[m[4]]++
		case recordLine.MatchString(line):
			v.records++
		case indexLine.MatchString(line):
			v.offsetEntries++
		case timeLine.MatchString(line):
			v.timeEntries++
		case !emptyLine.MatchString(line):
			v.complain("%s: %s", filepath.Base(file), line)
		}
	}
}

// testReaders: what mosquitto_pub published is what Kafka's console consumer and kcat read from a real Kafka.
func (r *rig) testReaders(t *testing.T) {
	need(t, "mosquitto", "kcat", "kafka")
	k := r.region(t)
	k.start(t)
	g := r.gateway(t, k.mirrorTo()+codecTopics())
	g.start(t)
	const topics, each = 4, 25
	want := map[string][]string{} // by key: MQTT topic
	for _, c := range codecs {
		for n := range topics {
			topic := fmt.Sprintf("%s/sensor-%d", c, n)
			for i := range each {
				value := fmt.Sprintf("%s reading %d", topic, i)
				want[topic] = append(want[topic], value)
			}
			publishLines(t, g, topic, n%3, want[topic])
		}
	}
	for _, c := range codecs {
		t.Run(c, func(t *testing.T) {
			wanted := map[string][]string{}
			for topic, values := range want {
				if strings.HasPrefix(topic, c+"/") {
					wanted[topic] = values
				}
			}
			remote := "edge." + c
			var got map[string][]string
			wait(t, 60*time.Second, "kcat reads everything", func() bool {
				out, _, err := tryRun(t, 30*time.Second, "kcat", "-b", k.bootstrap, "-C", "-t", remote, "-e", "-q", "-f", `%k\t%s\n`)
				got = byKey(out)
				return err == nil && strings.Count(out, "\n") >= topics*each
			})
			compareByKey(t, "kcat", got, wanted)
			out, stderr, err := k.tool(t, "console-consumer", "--bootstrap-server", k.bootstrap, "--topic", remote, "--from-beginning",
				"--max-messages", strconv.Itoa(topics*each), "--timeout-ms", "30000", "--formatter-property", "print.key=true")
			if err != nil {
				t.Fatalf("console consumer: %v\n%s", err, stderr)
			}
			compareByKey(t, "Kafka's console consumer", byKey(out), wanted)
		})
	}
	g.stop(t)
}

// publishLines sends values in order over one connection.
func publishLines(t *testing.T, g *gateway, topic string, qos int, values []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(strings.Join(values, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, time.Minute, "bash", "-c", `exec mosquitto_pub -p "$1" -t "$2" -q "$3" -l <"$4"`, "-", g.port(), topic, strconv.Itoa(qos), file)
}

func byKey(out string) map[string][]string {
	m := map[string][]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		m[key] = append(m[key], value)
	}
	return m
}

func compareByKey(t *testing.T, reader string, got, want map[string][]string) {
	t.Helper()
	for key, values := range want {
		if !slices.Equal(got[key], values) {
			t.Errorf("%s: key %s: %d values %.300q…, want %d", reader, key, len(got[key]), got[key], len(values))
		}
	}
	for key := range got {
		if want[key] == nil {
			t.Errorf("%s: unexpected key %q", reader, key)
		}
	}
}
