package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// command runs one command line in this process.
func command(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = execute(args, &out, &err)
	return code, out.String(), err.String()
}

// configFile writes a configuration to a file.
func configFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Whatever is wrong with the command line or the configuration: exit code 2, nothing on stdout, one line on stderr for
// each thing, and no data directory.
func TestUsageAndConfigurationErrors(t *testing.T) {
	typo := configFile(t, "version: 1\nmqtt:\n  max_conections: 5\n")
	two := configFile(t, "version: 1\nmqtt: {max_connections: 0}\nlog: {level: loud}\n")
	fine := configFile(t, "version: 1\n")
	data := filepath.Join(t.TempDir(), "data")
	tests := []struct {
		name string
		args []string
		want []string // the lines
	}{
		{"nothing", nil, []string{"sluice: no command; one of: run, dump, verify, repair, config check, passwd, version; see sluice --help"}},
		{"unknown command", []string{"rnu"}, []string{"sluice: rnu is no command; one of: run, dump, verify, repair, config check, passwd, version; see sluice --help"}},
		{"half a command", []string{"config"}, []string{"sluice: config is no command; one of: config check; see sluice --help"}},
		{"no argument", []string{"config", "check"}, []string{"sluice: FILE is missing; see sluice config check --help"}},
		{"two arguments", []string{"config", "check", fine, typo}, []string{
			`sluice: "` + typo + `" is one argument too many; see sluice config check --help`}},
		{"unknown flag", []string{"run", "--lisen", "x"}, []string{"sluice: unknown flag: --lisen; see sluice run --help"}},
		{"unknown key", []string{"run", "--data-dir", data, "--config", typo}, []string{
			"sluice: " + typo + `:3:3: unknown key "max_conections" in mqtt; did you mean "max_connections"? (allowed: listeners, max_connections, max_connections_per_address, connect_rate, max_packet_bytes, receive_maximum, auth, sessions, retained, topic_alias_maximum, max_keepalive, response_prefix, sys_interval)`}},
		{"two values", []string{"run", "--data-dir", data, "--config", two}, []string{
			"sluice: " + two + `:2:25: mqtt.max_connections: 0 is out of range; allowed: 1 to 100000`,
			"sluice: " + two + `:3:14: log.level: "loud" is not known (allowed: debug, info, warn, error)`}},
		{"no such file", []string{"run", "--data-dir", data, "--config", typo + ".old"}, []string{
			"sluice: configuration " + typo + ".old: no such file or directory; check the path"}},
		{"flag for everyone", []string{"run", "--data-dir", data, "--listen", "0.0.0.0:1883"}, []string{
			`sluice: --listen: mqtt.listeners[0].address: "0.0.0.0:1883" is not a loopback address, and nothing says who may connect; set mqtt.auth.password_file, write client_auth: require under tls, or allow_anonymous: true at this listener to let anyone publish`}},
		{"flag over the file", []string{"run", "--data-dir", data, "--config", fine, "--log-level", "trace"}, []string{
			`sluice: --log-level: log.level: "trace" is not known (allowed: debug, info, warn, error)`}},
		{"region without a port", []string{"run", "--data-dir", data, "--mirror-to", "kafka"}, []string{
			`sluice: --mirror-to: mirror[0].region.brokers[0]: "kafka" is not host:port; write for example kafka:9092`}},
		{"check", []string{"config", "check", typo}, []string{
			"sluice: " + typo + `:3:3: unknown key "max_conections" in mqtt; did you mean "max_connections"? (allowed: listeners, max_connections, max_connections_per_address, connect_rate, max_packet_bytes, receive_maximum, auth, sessions, retained, topic_alias_maximum, max_keepalive, response_prefix, sys_interval)`}},
		{"dump format", []string{"dump", data, "--format", "xml"}, []string{
			`sluice: invalid argument "xml" for "--format" flag: allowed: text, json, hex; see sluice dump --help`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := command(test.args...)
			want := strings.Join(test.want, "\n") + "\n"
			if code != exitConfig || stdout != "" || stderr != want {
				t.Errorf("exit code %d, stdout %q, stderr\n%swant %d and\n%s", code, stdout, stderr, exitConfig, want)
			}
			if _, err := os.Stat(data); err == nil {
				t.Error("a data directory was made")
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"config", "--help"}, {"run", "--help"}, {"run", "--config", "x", "-h"}, {"config", "check", "--help"}, {"verify", "--help"}, {"repair", "--help"}, {"dump", "--help"}, {"passwd", "--help"}} {
		code, stdout, stderr := command(args...)
		if code != exitOK || !strings.HasPrefix(stdout, "Usage: sluice") || stderr != "" {
			t.Errorf("%q: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	defer func(old string) { version = old }(version)
	version = "v1.2.3"
	code, stdout, _ := command("version")
	if code != exitOK || !strings.HasPrefix(stdout, "sluice v1.2.3, go1.") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

func TestConfigCheck(t *testing.T) {
	name := configFile(t, `
gateway: {id: plant-7}
routes: [{filter: "a/+", topic: alarms, key: "{1}"}, {filter: a/b, topic: never}, {filter: "local/#", log: none}, {filter: a/c, log: none}]
mirror: [{region: {name: eu, brokers: ["kafka:9092"]}}]
`)
	code, stdout, stderr := command("config", "check", name)
	want := `gateway    plant-7
data       ./sluice-data, budget 70 % of the file system, reserve an eighth of the budget, at most 64MiB
commit     within 5ms or at 1MiB, journal files of up to 16MiB, no wear budget
listener   localhost:1883
mqtt       2000 connections, 1000 of one address, 1000 a second, packets up to 256KiB, receive maximum 64
sessions   10000, kept for 720h, given all that the log still has
mqtt       retains 10000 messages in 4MiB, 16 topic aliases, any keepalive, $SYS every 10s
access     everybody may do everything
topic      alarms, 4 partitions, zstd, segments by the budget, normal priority, keeps what the budget allows, then drop-oldest
topic      never, 4 partitions, zstd, segments by the budget, normal priority, keeps what the budget allows, then drop-oldest
topic      mqtt, 4 partitions, zstd, segments by the budget, normal priority, keeps what the budget allows, then drop-oldest
route      a/+ → alarms, key {1}
route      a/b → never, key {topic}
route      local/# → connected subscribers only, log none
route      a/c → connected subscribers only, log none
route      # → mqtt, key {topic}
mirror     region eu at kafka:9092, topics .* as plant-7.<topic>
log        info and above, as text
`
	if code != exitOK || stdout != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, stdout, want)
	}
	warnings := "sluice: warning: " + name + ": version: is not set; write version: 1, so that a later release knows how to read this file\n" +
		"sluice: warning: " + name + `:3:54: routes[1]: filter "a/b" is never reached: routes[0] with "a/+" takes everything it would; move it up` + "\n" +
		"sluice: warning: " + name + `:3:115: routes[3]: filter "a/c" is never reached: routes[0] with "a/+" takes everything it would; move it up` + "\n"
	if stderr != warnings {
		t.Errorf("warnings\n%s\nwant\n%s", stderr, warnings)
	}
}

// writeLog makes a data directory with some records, partly in segments (what was there at a clean stop) and partly only in
// the journal of a log that is still open.
func writeLog(t *testing.T, dir string) {
	t.Helper()
	o := segment.DefaultOptions()
	o.Dir = dir
	o.MaxBytes, o.MaxRecordBytes, o.JournalBytes = 64<<10, 4<<10, 1<<20
	put := func(log *segment.Log, r *record.Record) {
		t.Helper()
		ticket, err := log.Append(log.Topic("t").Partitions()[0], r)
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	log, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.CreateTopic(segment.TopicOptions{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	envelope := record.Envelope{QoS: 1, Retain: true, Incarnation: 9, ClientID: []byte("cli\x1b[2J"), HasExpiry: true, ExpirySeconds: 60}
	put(log, &record.Record{Timestamp: 1700000000123, Key: []byte("a/b"), Value: []byte("hello\n"),
		Headers: []record.Header{{Key: record.EnvelopeKey, Value: envelope.Append(nil)}}})
	reopen := func() {
		t.Helper()
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if log, err = segment.Open(o); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	t.Cleanup(func() { log.Close() })
	put(log, &record.Record{Timestamp: 1700000000124, Value: []byte{0xff, 0x00}, Headers: []record.Header{{Key: "h", Value: []byte("v")}}})
	reopen()
	put(log, &record.Record{Timestamp: 1700000000125, Key: []byte("k")})
}

func TestDump(t *testing.T) {
	dir := t.TempDir()
	writeLog(t, dir)

	code, stdout, stderr := command("dump", dir, "--format", "hex")
	if code != exitOK || stdout != "68656c6c6f0a\nff00\n\n" || stderr != "" {
		t.Errorf("hex: exit code %d, %q, %q", code, stdout, stderr)
	}

	code, stdout, stderr = command("dump", dir)
	for _, want := range []string{
		"t-0 offsets 0-0: 1 records, ", ", none, crc ok, ", "00000000000000000000.log:0\n", "t-0 offsets 1-1: 1 records, ", "t-0 offsets 2-2: 1 records, ", "crc ok, journal\n",
		`  0 2023-11-14T22:13:20.123Z key="a/b" value="hello\n" qos=1 client="cli\x1b[2J" retain expiry=60s` + "\n",
		`  1 2023-11-14T22:13:20.124Z key=null value="\xff\x00" "h"="v"` + "\n",
		`  2 2023-11-14T22:13:20.125Z key="k" value=null` + "\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("text lacks %q:\n%s", want, stdout)
		}
	}
	if code != exitOK || stderr != "" {
		t.Errorf("text: exit code %d, %q", code, stderr)
	}

	code, stdout, _ = command("dump", dir, "--format", "json")
	if code != exitOK {
		t.Errorf("json: exit code %d", code)
	}
	var records []jsonRecord
	decoder := json.NewDecoder(strings.NewReader(stdout))
	for decoder.More() {
		var b jsonBatch
		if err := decoder.Decode(&b); err != nil {
			t.Fatal(err)
		}
		if b.Topic != "t" || b.CRC != "ok" || b.LastOffset-b.BaseOffset+1 != int64(len(b.Records)) {
			t.Errorf("batch %+v", b)
		}
		records = append(records, b.Records...)
	}
	if len(records) != 3 {
		t.Fatalf("%d records", len(records))
	}
	if r := records[0]; *r.Key != "a/b" || *r.Value != "hello\n" || r.MQTT == nil || r.MQTT.Client != "cli\x1b[2J" || *r.MQTT.Expiry != 60 || !r.MQTT.Retain || r.MQTT.Incarnation != 9 {
		t.Errorf("first %+v", r)
	}
	if r := records[1]; r.Key != nil || r.Value != nil || r.ValueBase64 != "/wA=" || len(r.Headers) != 1 || *r.Headers[0].Value != "v" {
		t.Errorf("second %+v", r)
	}
	if r := records[2]; *r.Key != "k" || r.Value != nil || r.ValueBase64 != "" {
		t.Errorf("third %+v", r)
	}
}

// A flipped bit is found, said with its place, and ends in exit code 1.
func TestDumpDamaged(t *testing.T) {
	dir := t.TempDir()
	writeLog(t, dir)
	name := filepath.Join(dir, "topics", "t-0", "00000000000000000000.log")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[record.HeaderBytes+5] ^= 1 // in the first batch
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command("dump", dir, "--format", "hex")
	if code != exitFailed || !strings.Contains(stderr, "sluice: damage: ") || !strings.Contains(stderr, name) || !strings.Contains(stderr, errDamaged.Error()) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if stdout != "ff00\n\n" {
		t.Errorf("what is behind the damage is missing: %q, stderr %s", stdout, stderr)
	}
}

func TestDumpNothing(t *testing.T) {
	code, _, stderr := command("dump", t.TempDir())
	if code != exitFailed || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "is not a data directory") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

func TestConfigCheckReadsAccessFiles(t *testing.T) {
	dir := t.TempDir()
	passwords, acl := filepath.Join(dir, "passwd"), filepath.Join(dir, "acl")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const sum = "yhgfLi/pM5IMdB043NriBNd74xLnz32DHAAgUMWwmbA1XpVbOHW6eScTkMI6CZwM+1l+dQZLz0lZ8qruRRLZ3A=="
	write(passwords, "alice:$7$101$/O0yDH0A0Oa34GQS$"+sum+"\nbob:\n")
	write(acl, "user alice\ntopic a/#\n")
	name := configFile(t, "version: 1\nmqtt: {auth: {password_file: "+passwords+", acl_file: "+acl+"}}\n")
	code, stdout, stderr := command("config", "check", name)
	want := "access     1 users in " + passwords + ", rules of 1 users in " + acl + ", denied publishes: ack\n"
	if code != exitOK || !strings.Contains(stdout, want) || !strings.HasPrefix(stderr, "sluice: warning: "+passwords+`:2: user "bob" has no password`) {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	write(passwords, "\nalice:$7$101$/O0yDH0A0Oa34GQS$"+sum[:20]+"\n")
	write(acl, "topic rw a\n")
	code, stdout, stderr = command("config", "check", name)
	lines := strings.Split(stderr, "\n")
	if code != exitConfig || stdout != "" || len(lines) != 3 || !strings.HasPrefix(lines[0], "sluice: "+passwords+`:2: user "alice": `) ||
		!strings.HasPrefix(lines[1], "sluice: "+acl+`:1: access type "rw"`) {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}
