package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

// environment is what the tests expand.
func environment(name string) (string, bool) {
	values := map[string]string{
		"KAFKA": "kafka-1:9092", "LIMIT": "17", "DELAY": "20ms", "EMPTY": "", "TRICK": "x\ndata: {dir: /}", "TEXT": "plain",
	}
	v, ok := values[name]
	return v, ok
}

// read parses and validates.
func read(text string) (*Config, error) {
	c, err := Parse("gateway.yaml", []byte(text), environment)
	if err != nil {
		return nil, err
	}
	return c, c.Validate()
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if w := Default().Warnings(); len(w) > 0 {
		t.Error(w)
	}
}

// The commented file is what people read to learn the defaults, so it has to be the defaults.
func TestCommentedFileIsDefault(t *testing.T) {
	c, err := Load("gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Warnings(); len(w) > 0 {
		t.Error(w)
	}
	c.file, c.source = "", nil
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("gateway.yaml says\n%+v\nand Default is\n%+v", c, Default())
	}
}

// Every line that is commented out in the file has to work when the comment sign is taken away.
func TestCommentedExamples(t *testing.T) {
	data, err := os.ReadFile("gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		switch {
		case strings.HasPrefix(line, "#  - ") || strings.HasPrefix(line, "#    "):
			line = line[1:]
		case strings.HasSuffix(line, ": []\n"):
			line = strings.TrimSuffix(line, " []\n") + "\n"
		}
		// prose that is indented behind its comment sign
		if !strings.HasPrefix(line, "#") && strings.HasPrefix(strings.TrimSpace(line), "the filter's") {
			continue
		}
		lines = append(lines, line)
	}
	c, err := read(strings.Join(lines, ""))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.MQTT.Listeners) != 5 || len(c.Topics) != 1 || len(c.Routes) != 3 || len(c.Mirrors) != 1 || len(c.Mirrors[0].Region.Brokers) != 2 {
		t.Errorf("examples give %d listeners, %d topics, %d routes, %+v", len(c.MQTT.Listeners), len(c.Topics), len(c.Routes), c.Mirrors)
	}
}

func TestEverythingSet(t *testing.T) {
	c, err := read(`
version: 1
gateway: {id: plant-7}
data: {dir: /var/lib/sluice, budget: 2GiB, reserve: 64MiB, endurance: 4TB}
commit: {max_delay: "${DELAY}", max_bytes: 512KiB, journal_bytes: 32MiB, wear_budget: 1GiB, max_delay_ceiling: 2s}
mqtt:
  listeners:
    - {address: "127.0.0.1:1883", allow_anonymous: true, denied_publish: close}
    - {address: "[::1]:8883", tls: {cert: c.pem, key: k.pem, ca: ca.pem, crl: crl.pem, client_auth: require, user_from: san}}
    - {address: "127.0.0.1:8083", websocket: {origins: ["https://a.example", "*"]}, tls: {cert: c.pem, key: k.pem}}
    - {address: "unix:/run/mqtt.sock", mode: 0600, proxy_protocol: {}}
    - {address: "localhost:1884", proxy_protocol: {trusted: [10.0.0.7, "fd00::/8"]}}
  auth: {password_file: /etc/mosquitto/passwd, acl_file: /etc/mosquitto/acl, denied_publish: close, strict_subscribe: true, argon2_memory: 16MiB}
  max_connections: ${LIMIT}
  max_connections_per_address: 5
  connect_rate: 6
  max_packet_bytes: 100000
  receive_maximum: 20
  sessions: {max: 18, max_expiry: 7d, max_messages: 1000, max_bytes: 1MiB, max_age: 1d}
  retained: {max_messages: 5, max_bytes: 1MiB}
  topic_alias_maximum: 3
  max_keepalive: 5m
  response_prefix: response/
  sys_interval: 0
topics:
  - {name: telemetry, partitions: 8, compression: none, segment_bytes: 4MiB, priority: high, retention: {bytes: 512MiB, age: 168h}, on_full: reject}
  - name: alarms
routes:
  - {filter: "sensors/+/+", topic: telemetry, key: "{1}"}
  - {filter: "alarms/#", topic: alarms}
  - {filter: "local/#", log: none}
mirror:
  - {alias: p7, region: {name: eu, brokers: ["${KAFKA}", "kafka-2:9092"]}, topics: ["tele.*", "a$${b}"], clock_wait: 1h}
log: {level: debug, format: json}
`)
	if err != nil {
		t.Fatal(err)
	}
	c.file, c.source = "", nil
	want := &Config{
		Version: 1,
		Gateway: Gateway{ID: "plant-7"},
		Data:    Data{Dir: "/var/lib/sluice", Budget: 2 * GiB, Reserve: 64 * MiB, Endurance: 4e12},
		Commit: Commit{
			MaxDelay: Duration(20 * time.Millisecond), MaxBytes: 512 * KiB, JournalBytes: 32 * MiB,
			WearBudget: GiB, MaxDelayCeiling: Duration(2 * time.Second),
		},
		MQTT: MQTT{
			Listeners: []Listener{
				{Address: "127.0.0.1:1883", AllowAnonymous: true, DeniedPublish: "close"},
				{Address: "[::1]:8883", TLS: &TLS{Cert: "c.pem", Key: "k.pem", CA: "ca.pem", CRL: "crl.pem", ClientAuth: "require", UserFrom: "san"}},
				{Address: "127.0.0.1:8083", WebSocket: &WebSocket{Path: "/mqtt", Origins: []string{"https://a.example", "*"}},
					TLS: &TLS{Cert: "c.pem", Key: "k.pem", ClientAuth: "none", UserFrom: "none"}},
				{Address: "unix:/run/mqtt.sock", Mode: 0o600, ProxyProtocol: &ProxyProtocol{}},
				{Address: "localhost:1884", ProxyProtocol: &ProxyProtocol{Trusted: []string{"10.0.0.7", "fd00::/8"}}},
			},
			MaxConnections: 17, MaxPerAddress: 5, ConnectRate: 6, MaxPacketBytes: 100000, ReceiveMaximum: 20,
			Auth:     Auth{PasswordFile: "/etc/mosquitto/passwd", ACLFile: "/etc/mosquitto/acl", DeniedPublish: "close", StrictSubscribe: true, ArgonMemory: 16 * MiB},
			Sessions: Sessions{Max: 18, MaxExpiry: Duration(7 * 24 * time.Hour), MaxMessages: 1000, MaxBytes: MiB, MaxAge: Duration(24 * time.Hour)},
			Retained: Retained{MaxMessages: 5, MaxBytes: MiB}, TopicAliasMaximum: 3, MaxKeepAlive: Duration(5 * time.Minute), ResponsePrefix: "response/",
		},
		Topics: []Topic{
			{
				Name: "telemetry", Partitions: 8, Compression: "none", SegmentBytes: 4 * MiB, Priority: "high", OnFull: "reject",
				Retention: Retention{Bytes: 512 * MiB, Age: Duration(168 * time.Hour)},
			},
			{Name: "alarms", Partitions: 4, Compression: "zstd", Priority: "normal", OnFull: "drop-oldest"},
		},
		Routes: []Route{
			{Filter: "sensors/+/+", Topic: "telemetry", Key: "{1}"},
			{Filter: "alarms/#", Topic: "alarms", Key: "{topic}"},
			{Filter: "local/#", Key: "{topic}", Log: "none"},
		},
		Mirrors: []Mirror{{
			Alias:  "p7",
			Region: Region{Name: "eu", Brokers: []string{"kafka-1:9092", "kafka-2:9092"}},
			Topics: []string{"tele.*", "a${b}"}, ClockWait: Duration(time.Hour),
		}},
		Log: Log{Level: "debug", Format: "json"},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got\n%+v\nwant\n%+v", c, want)
	}
	if all := c.AllRoutes(); len(all) != 4 || all[3] != DefaultRoute() || len(c.Routes) != 3 {
		t.Errorf("the catch-all must come last: %v", all)
	}
	if all := c.AllTopics(); len(all) != 3 || all[2] != DefaultTopic("mqtt") {
		t.Errorf("a topic of a route only must get defaults: %v", all)
	}
}

func TestEmptyFilesAreDefault(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# nothing\n", "---\n", "---\n# nothing\n", "{}\n"} {
		c, err := read(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		c.file, c.source = "", nil
		if !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q isn't the default: %+v", text, c)
		}
	}
}

// A variable's text is a value, never structure.
func TestExpansionCannotAddKeys(t *testing.T) {
	c, err := read("data:\n  dir: ${TRICK}\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Data.Dir != "x\ndata: {dir: /}" {
		t.Errorf("dir is %q", c.Data.Dir)
	}
}

func TestExpand(t *testing.T) {
	for in, want := range map[string]string{
		"plain":              "plain",
		"$SYS and $ and $$":  "$SYS and $ and $$",
		"${TEXT}":            "plain",
		"a${TEXT}b${EMPTY}c": "aplainbc",
		"$${TEXT}":           "${TEXT}",
		"$$${TEXT}":          "$${TEXT}",
		"$${TEXT}-${TEXT}":   "${TEXT}-plain",
	} {
		if got, err := expand(in, environment); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

// Each message has the exact place, the value, and what to do. The texts are part of what a user sees: they change on purpose
// or not at all.
func TestErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "version: 1\ncommit:\n  max_dealy: 5ms\n",
			`gateway.yaml:3:3: unknown key "max_dealy" in commit; did you mean "max_delay"? (allowed: max_delay, wear_budget, max_delay_ceiling, max_bytes, journal_bytes)`},
		{"unknown key at the top", "verbose: true\n",
			`gateway.yaml:1:1: unknown key "verbose" (allowed: version, gateway, data, commit, mqtt, topics, routes, mirror, log)`},
		{"unknown key in a list", "topics:\n  - name: a\n    cleanup: 7d\n",
			`gateway.yaml:3:5: unknown key "cleanup" in topics[0] (allowed: name, partitions, compression, segment_bytes, priority, retention, on_full)`},
		{"unknown key in flow style", "log: {levle: info}\n",
			`gateway.yaml:1:7: unknown key "levle" in log; did you mean "level"? (allowed: level, format)`},
		{"duplicate key", "log:\n  level: info\n  format: text\n  level: debug\n",
			`gateway.yaml:4:3: log.level: is set twice, the first time in line 2; keep one`},
		{"duplicate section", "log: {level: info}\nlog: {format: text}\n",
			`gateway.yaml:2:1: log: is set twice, the first time in line 1; keep one`},
		{"text for a number", "mqtt:\n  max_connections: many\n",
			`gateway.yaml:2:20: mqtt.max_connections: the text "many" where a whole number belongs`},
		{"quoted number", "mqtt:\n  max_connections: \"17\"\n",
			`gateway.yaml:2:20: mqtt.max_connections: the text "17" where a whole number belongs`},
		{"fraction", "mqtt: {receive_maximum: 1.5}\n",
			`gateway.yaml:1:25: mqtt.receive_maximum: the number 1.5 where a whole number belongs`},
		{"octal", "mqtt: {receive_maximum: 010}\n",
			`gateway.yaml:1:25: mqtt.receive_maximum: the number 010 where a whole number belongs`},
		{"number for a text", "gateway:\n  id: 7\n",
			`gateway.yaml:2:7: gateway.id: the number 7 where text belongs; put it in quotes`},
		{"truth value for a text", "gateway: {id: true}\n",
			`gateway.yaml:1:15: gateway.id: the truth value true where text belongs; put it in quotes`},
		{"list for a text", "data:\n  dir: [a]\n",
			`gateway.yaml:2:8: data.dir: a list where text belongs`},
		{"list for a number", "mqtt: {max_connections: [1]}\n",
			`gateway.yaml:1:25: mqtt.max_connections: a list where a whole number belongs`},
		{"mapping for a list", "mqtt:\n  listeners:\n    address: localhost:1883\n",
			`gateway.yaml:3:5: mqtt.listeners: a mapping where a list of entries with address, allow_anonymous, denied_publish, mode, tls, websocket, proxy_protocol belongs`},
		{"text for a list", "mirror:\n  - region: {brokers: kafka:9092}\n",
			`gateway.yaml:2:23: mirror[0].region.brokers: the text "kafka:9092" where a list of texts belongs`},
		{"text for a mapping", "log: debug\n",
			`gateway.yaml:1:6: log: the text "debug" where a mapping of level, format belongs`},
		{"text for the file", "hello\n",
			`gateway.yaml:1:1: the text "hello" where the file should have keys; allowed: version, gateway, data, commit, mqtt, topics, routes, mirror, log`},
		{"no value", "data:\n  dir:\nlog: {level: info}\n",
			`gateway.yaml:2:3: data.dir: has no value; give it text, or take the key out`},
		{"no value for a list", "version: 1\ntopics:\n",
			`gateway.yaml:2:1: topics: has no value; give it a list of entries with name, partitions, compression, segment_bytes, priority, retention, on_full, or take the key out`},
		{"no entry", "topics:\n  - name: a\n  -\n",
			`gateway.yaml:3:5: topics[1]: has no value; give it a mapping of name, partitions, compression, segment_bytes, priority, retention, on_full, or take the entry out`},
		{"alias", "log: &l {level: info}\n",
			`gateway.yaml:1:6: log: anchors, aliases and tags are not read here; write the value out`},
		{"second document", "version: 1\n---\nversion: 1\n",
			`gateway.yaml:3:1: a second document begins here; a configuration is one document`},
		{"newer version", "version: 2\nhttp: {port: 1}\n",
			`gateway.yaml:1:10: version: this file is of version 2 and this release reads up to 1; use a newer sluice, or a file of version 1`},
		{"version 0", "version: 0\n",
			`gateway.yaml:1:10: version: 0 is not a version of this file; write version: 1`},
		{"unset variable", "version: 1\ndata:\n  dir: /data/${NOT_SET}\n",
			`gateway.yaml:3:8: data.dir: environment variable NOT_SET is not set; set it, or write $${ for a literal ${`},
		{"unset variable for a number", "mqtt: {max_connections: \"${NOT_SET}\"}\n",
			`gateway.yaml:1:25: mqtt.max_connections: environment variable NOT_SET is not set; set it, or write $${ for a literal ${`},
		{"open brace", "data: {dir: \"a${TEXT\"}\n",
			`gateway.yaml:1:13: data.dir: "${TEXT" has no closing brace; write ${NAME}, or $${ for a literal ${`},
		{"bad variable name", "data: {dir: \"${1}\"}\n",
			`gateway.yaml:1:13: data.dir: ${1} is not a variable's name (letters, digits and _); write $${ for a literal ${`},
		{"variable is no number", "mqtt: {max_connections: \"${TEXT}\"}\n",
			`gateway.yaml:1:25: mqtt.max_connections: the text "${TEXT}" where a whole number belongs`},
		{"duration without a unit", "commit:\n  max_delay: 5\n",
			`gateway.yaml:2:14: commit.max_delay: "5" has no unit; write it with ms, s, m, h or d, such as 5ms, 168h or 7d`},
		{"bad duration", "commit:\n  max_delay: soon\n",
			`gateway.yaml:2:14: commit.max_delay: "soon" is not a duration; write a number with ms, s, m, h or d, such as 5ms, 168h or 7d`},
		{"mapping for a duration", "commit: {max_delay: {ms: 5}}\n",
			`gateway.yaml:1:21: commit.max_delay: a mapping where a duration such as 5ms belongs`},
		{"bad size", "commit:\n  max_bytes: big\n",
			`gateway.yaml:2:14: commit.max_bytes: "big" is not a size; write bytes, or a number with KB, MB, GB, KiB, MiB or GiB, such as 256KiB`},
		{"unknown unit", "data: {budget: 3 quarts}\n",
			`gateway.yaml:1:16: data.budget: "3 quarts" has the unknown unit "quarts"; use B, KB, MB, GB, TB, KiB, MiB, GiB or TiB`},
		{"negative size", "data: {budget: -1}\n",
			`gateway.yaml:1:16: data.budget: "-1" is negative; a size is 0 or more`},

		{"gateway id", "gateway: {id: plant/7}\n",
			`gateway.yaml:1:15: gateway.id: "plant/7" is not allowed; use letters, digits, '.', '_' and '-'`},
		{"empty directory", "data: {dir: \"${EMPTY}\"}\n",
			`gateway.yaml:1:13: data.dir: is empty; name a directory on flash or disk`},
		{"small budget", "data: {budget: 1MiB}\n",
			`gateway.yaml:1:16: data.budget: 1MiB is too small; allowed: 16MiB or more, or 0 for 70 % of the file system`},
		{"budget without room for records", "data: {budget: 64MiB}\n", `gateway.yaml:1:16: data.budget: `},
		{"reserve as large as the budget", "data:\n  budget: 256MiB\n  reserve: 200MiB\n", `gateway.yaml:2:11: data.budget: `},
		{"partitions that don't fit", "data: {budget: 512MiB}\ntopics: [{name: t, partitions: 200}]\n",
			`gateway.yaml:1:16: data.budget: disk budget is too small: 204 partitions of 2 topics need 427819008 bytes for 2 segments each, and of 536870912 bytes 365330432 are left beside journal, reserve and state: raise data.budget, or lower topics[].partitions or topics[].segment_bytes`},
		{"segments that don't fit", "data: {budget: 2GiB}\ntopics: [{name: t, segment_bytes: 256MiB}]\n",
			`gateway.yaml:1:16: data.budget: disk budget is too small: 8 partitions of 2 topics need 2415919104 bytes for 2 segments each, and of 2147483648 bytes 1875279872 are left beside journal, reserve and state: raise data.budget, or lower topics[].partitions or topics[].segment_bytes`},
		{"priority", "topics:\n  - {name: t, priority: urgent}\n",
			`gateway.yaml:2:25: topics[0].priority: "urgent" is not known (allowed: low, normal, high, critical)`},
		{"on_full", "topics:\n  - {name: t, on_full: rejects}\n",
			`gateway.yaml:2:24: topics[0].on_full: "rejects" is not known; did you mean "reject"? (allowed: drop-oldest, reject)`},
		{"retention bytes", "topics:\n  - {name: t, retention: {bytes: 4MiB}}\n",
			`gateway.yaml:2:34: topics[0].retention.bytes: 4MiB is less than two segments of each partition; allowed: 8MiB or more, or 0 to let the budget decide`},
		{"retention age", "topics:\n  - {name: t, retention: {age: 10ms}}\n",
			`gateway.yaml:2:32: topics[0].retention.age: 10ms is out of range; allowed: 1s to 876000h, or 0 for ever`},
		{"retention key", "topics:\n  - {name: t, retention: {time: 1h}}\n", `gateway.yaml:2:27: unknown key "time" in topics[0].retention (allowed: bytes, age)`},
		{"long delay", "commit:\n  max_delay: 7d\n",
			`gateway.yaml:2:14: commit.max_delay: 168h is out of range; allowed: 0 to 1s`},
		{"small wear budget", "commit:\n  wear_budget: 1MiB\n",
			`gateway.yaml:2:16: commit.wear_budget: 1MiB a day is too small; allowed: 16MiB or more, or 0 for none`},
		{"ceiling below the delay", "commit:\n  max_delay: 20ms\n  max_delay_ceiling: 10ms\n",
			`gateway.yaml:3:22: commit.max_delay_ceiling: 10ms is out of range; allowed: 20ms to 1m`},
		{"small endurance", "data: {endurance: 1MiB}\n",
			`gateway.yaml:1:19: data.endurance: 1MiB is less than any flash takes in its life; allowed: 1GiB or more, or 0 for 1000 times the size of the file system`},
		{"small group", "commit:\n  max_bytes: 1KiB\n",
			`gateway.yaml:2:14: commit.max_bytes: 1KiB is out of range; allowed: 64KiB to 16MiB`},
		{"journal too small", "commit:\n  journal_bytes: 8MiB\n",
			`gateway.yaml:2:18: commit.journal_bytes: commit.journal_bytes 8MiB is too small for commit.max_bytes 1MiB and mqtt.max_packet_bytes 256KiB: it must be at least 8 × (max_bytes + 2 × max_packet_bytes); set commit.journal_bytes to 12MiB or more`},
		{"packets too large for the journal", "mqtt:\n  max_packet_bytes: 4MiB\ncommit: {journal_bytes: 16MiB}\n",
			`gateway.yaml:3:25: commit.journal_bytes: commit.journal_bytes 16MiB is too small for commit.max_bytes 1MiB and mqtt.max_packet_bytes 4MiB: it must be at least 8 × (max_bytes + 2 × max_packet_bytes); set commit.journal_bytes to 72MiB or more`},
		{"packet size", "mqtt: {max_packet_bytes: 256MiB}\n",
			`gateway.yaml:1:26: mqtt.max_packet_bytes: 256MiB is out of range; allowed: 1KiB to 16MiB`},
		{"no listeners", "mqtt:\n  listeners: []\n",
			`gateway.yaml:2:14: mqtt.listeners: is empty; give one address, such as localhost:1883`},
		{"listener for everyone", "mqtt:\n  listeners:\n    - address: \"0.0.0.0:1883\"\n",
			`gateway.yaml:3:16: mqtt.listeners[0].address: "0.0.0.0:1883" is not a loopback address, and nothing says who may connect; set mqtt.auth.password_file, write client_auth: require under tls, or allow_anonymous: true at this listener to let anyone publish`},
		{"listener on all interfaces", "mqtt:\n  listeners: [{address: \":1883\"}]\n",
			`gateway.yaml:2:25: mqtt.listeners[0].address: ":1883" is not a loopback address, and nothing says who may connect; set mqtt.auth.password_file, write client_auth: require under tls, or allow_anonymous: true at this listener to let anyone publish`},
		{"denied publish", "mqtt:\n  auth: {denied_publish: drop}\n",
			`gateway.yaml:2:26: mqtt.auth.denied_publish: "drop" is not known (allowed: ack, close)`},
		{"denied publish at a listener", "mqtt:\n  listeners: [{address: \"localhost:1\", denied_publish: clos}]\n",
			`gateway.yaml:2:56: mqtt.listeners[0].denied_publish: "clos" is not known; did you mean "close"? (allowed: ack, close)`},
		{"argon2 memory", "mqtt: {auth: {argon2_memory: 2GiB}}\n",
			`gateway.yaml:1:30: mqtt.auth.argon2_memory: 2GiB is out of range; allowed: 1MiB to 1GiB`},
		{"anonymous perhaps", "mqtt:\n  listeners: [{address: \"localhost:1\", allow_anonymous: yes}]\n",
			`gateway.yaml:2:57: mqtt.listeners[0].allow_anonymous: the text "yes" where true or false belongs`},
		{"listener without a port", "mqtt:\n  listeners: [{address: localhost}]\n",
			`gateway.yaml:2:25: mqtt.listeners[0].address: "localhost" is not host:port; write for example localhost:1883`},
		{"listener without an address", "mqtt:\n  listeners:\n    - {}\n",
			`gateway.yaml:3:7: mqtt.listeners[0].address: "" is not host:port; write for example localhost:1883`},
		{"port", "mqtt:\n  listeners: [{address: \"localhost:65536\"}]\n",
			`gateway.yaml:2:25: mqtt.listeners[0].address: "localhost:65536": port "65536" is not a number from 0 to 65535; write for example localhost:1883`},
		{"host that is no address", "mqtt:\n  listeners: [{address: \"gateway:1883\"}]\n",
			`gateway.yaml:2:25: mqtt.listeners[0].address: "gateway:1883": host "gateway" is not an IP address; write for example localhost:1883`},
		{"unix socket", "mqtt:\n  listeners: [{address: \"unix:mqtt.sock\"}]\n",
			`gateway.yaml:2:25: mqtt.listeners[0].address: "unix:mqtt.sock" is not a unix socket's address: the path must begin with / and have at most 107 bytes; write for example unix:/run/sluice/mqtt.sock`},
		{"mode", "mqtt:\n  listeners: [{address: \"unix:/run/a\", mode: 0999}]\n",
			`gateway.yaml:2:46: mqtt.listeners[0].mode: "0999" is not a file's permissions; write three octal digits, such as 0660`},
		{"mode of an address", "mqtt:\n  listeners: [{address: \"localhost:1\", mode: 0600}]\n",
			`gateway.yaml:2:46: mqtt.listeners[0].mode: is for unix sockets only; take it out`},
		{"TLS without files", "mqtt:\n  listeners:\n    - address: localhost:8883\n      tls: {}\n",
			`gateway.yaml:4:12: mqtt.listeners[0].tls.cert: is empty; name the file of the server's certificate (PEM)
gateway.yaml:4:12: mqtt.listeners[0].tls.key: is empty; name the file of the certificate's key (PEM, without a passphrase)`},
		{"TLS without a value", "mqtt:\n  listeners:\n    - address: localhost:8883\n      tls:\n",
			`gateway.yaml:4:7: mqtt.listeners[0].tls: has no value; give it a mapping of cert, key, ca, crl, client_auth, user_from, or take the key out`},
		{"unknown key in TLS", "mqtt:\n  listeners: [{address: localhost:1, tls: {cert: a, key: b, ciphers: c}}]\n",
			`gateway.yaml:2:61: unknown key "ciphers" in mqtt.listeners[0].tls (allowed: cert, key, ca, crl, client_auth, user_from)`},
		{"client certificates without an authority", "mqtt:\n  listeners: [{address: localhost:1, tls: {cert: a, key: b, client_auth: request}}]\n",
			`gateway.yaml:2:43: mqtt.listeners[0].tls.ca: is empty; name the file of the authority that signs clients' certificates (PEM)`},
		{"authority without client certificates", "mqtt:\n  listeners: [{address: localhost:1, tls: {cert: a, key: b, ca: c}}]\n",
			`gateway.yaml:2:43: mqtt.listeners[0].tls.client_auth: is none, so ca, crl and user_from do nothing; write request or require, or take them out`},
		{"client_auth", "mqtt:\n  listeners: [{address: localhost:1, tls: {cert: a, key: b, client_auth: maybe}}]\n",
			`gateway.yaml:2:74: mqtt.listeners[0].tls.client_auth: "maybe" is not allowed; use none, request or require`},
		{"user_from", "mqtt:\n  listeners: [{address: localhost:1, tls: {cert: a, key: b, ca: c, client_auth: require, user_from: dn}}]\n",
			`gateway.yaml:2:101: mqtt.listeners[0].tls.user_from: "dn" is not allowed; use none, cn or san`},
		{"WebSocket path", "mqtt:\n  listeners: [{address: localhost:1, websocket: {path: mqtt}}]\n",
			`gateway.yaml:2:56: mqtt.listeners[0].websocket.path: "mqtt" is not the path of a URL; write for example /mqtt`},
		{"WebSocket origin", "mqtt:\n  listeners: [{address: localhost:1, websocket: {origins: [example.org]}}]\n",
			`gateway.yaml:2:60: mqtt.listeners[0].websocket.origins[0]: "example.org" is not an origin; write for example https://example.org, without a path, or "*" for all`},
		{"PROXY protocol of nobody", "mqtt:\n  listeners: [{address: localhost:1, proxy_protocol: {}}]\n",
			`gateway.yaml:2:54: mqtt.listeners[0].proxy_protocol.trusted: is empty, so nobody could connect; name the proxies' addresses, such as 10.0.0.7 or 10.0.0.0/24`},
		{"PROXY protocol of a name", "mqtt:\n  listeners: [{address: localhost:1, proxy_protocol: {trusted: [lb.example]}}]\n",
			`gateway.yaml:2:65: mqtt.listeners[0].proxy_protocol.trusted[0]: is not an address or network; write for example 10.0.0.7 or 10.0.0.0/24`},
		{"connect rate", "mqtt: {connect_rate: 0}\n",
			`gateway.yaml:1:22: mqtt.connect_rate: 0 is out of range; allowed: 1 to 100000`},
		{"listener twice", "mqtt:\n  listeners: [{address: \"localhost:1\"}, {address: \"localhost:1\"}]\n",
			`gateway.yaml:2:51: mqtt.listeners[1].address: "localhost:1" is given twice; keep one`},
		{"connections", "mqtt: {max_connections: 0}\n",
			`gateway.yaml:1:25: mqtt.max_connections: 0 is out of range; allowed: 1 to 100000`},
		{"receive maximum", "mqtt: {receive_maximum: 65536}\n",
			`gateway.yaml:1:25: mqtt.receive_maximum: 65536 is out of range; allowed: 1 to 65535`},
		{"unknown key of retained", "mqtt:\n  retained: {max_message: 1}\n",
			`gateway.yaml:2:14: unknown key "max_message" in mqtt.retained; did you mean "max_messages"? (allowed: max_messages, max_bytes)`},
		{"retained messages", "mqtt: {retained: {max_messages: 0}}\n",
			`gateway.yaml:1:33: mqtt.retained.max_messages: 0 is out of range; allowed: 1 to 100000`},
		{"retained bytes", "mqtt: {retained: {max_bytes: 1GiB}}\n",
			`gateway.yaml:1:30: mqtt.retained.max_bytes: 1GiB is out of range; allowed: 64KiB to 16MiB`},
		{"topic aliases", "mqtt: {topic_alias_maximum: 65536}\n",
			`gateway.yaml:1:29: mqtt.topic_alias_maximum: 65536 is out of range; allowed: 0 to 1024`},
		{"keepalive", "mqtt: {max_keepalive: 1500ms}\n",
			`gateway.yaml:1:23: mqtt.max_keepalive: 1.5s is not possible; allowed: whole seconds from 5s to 18h12m15s, or 0 for any`},
		{"response prefix", "mqtt: {response_prefix: \"a/+/\"}\n",
			`gateway.yaml:1:25: mqtt.response_prefix: "a/+/" can't be what a topic begins with; use up to 64 bytes without '+' and '#' and a leading '$', for example response/`},
		{"$SYS interval", "mqtt: {sys_interval: 1ms}\n",
			`gateway.yaml:1:22: mqtt.sys_interval: 1ms is out of range; allowed: 1s to 1h, or 0 for no $SYS topics`},
		{"topic name", "topics:\n  - name: \"a/b\"\n",
			`gateway.yaml:2:11: topics[0].name: "a/b" is not a topic name: '/' is not allowed; use letters, digits, '.', '_' and '-'`},
		{"topic without a name", "topics:\n  - partitions: 2\n",
			`gateway.yaml:2:5: topics[0].name: a topic needs a name`},
		{"topic twice", "topics:\n  - name: a\n  - name: a\n",
			`gateway.yaml:3:11: topics[1].name: "a" is the name of topics[0], too; keep one`},
		{"partitions", "topics:\n  - name: a\n    partitions: 0\n",
			`gateway.yaml:3:17: topics[0].partitions: 0 is out of range; allowed: 1 to 256`},
		{"compression", "topics:\n  - name: a\n    compression: zstandard\n",
			`gateway.yaml:3:18: topics[0].compression: "zstandard" is not known (allowed: none, snappy, lz4, zstd, gzip)`},
		{"compression misspelt", "topics: [{name: a, compression: ztsd}]\n",
			`gateway.yaml:1:33: topics[0].compression: "ztsd" is not known; did you mean "zstd"? (allowed: none, snappy, lz4, zstd, gzip)`},
		{"segment size", "topics:\n  - name: a\n    segment_bytes: 2GiB\n",
			`gateway.yaml:3:20: topics[0].segment_bytes: 2GiB is out of range; allowed: 1MiB to 1GiB, or 0 to let the budget decide`},
		{"route filter", "routes:\n  - {filter: \"a#\", topic: t}\n",
			`gateway.yaml:2:14: routes[0].filter: "a#" is not an MQTT topic filter: `},
		{"route for $", "routes:\n  - filter: \"$SYS/#\"\n    topic: t\n",
			`gateway.yaml:2:13: routes[0].filter: "$SYS/#" can never match: topics that begin with $ are not stored; take the route out`},
		{"route without a filter", "routes:\n  - topic: t\n",
			`gateway.yaml:2:5: routes[0].filter: "" is not an MQTT topic filter: `},
		{"route topic", "routes:\n  - filter: a\n    topic: \"t/{1}\"\n",
			`gateway.yaml:3:12: routes[0].topic: "t/{1}" is not a topic name: '/' is not allowed; use letters, digits, '.', '_' and '-'`},
		{"route key", "routes:\n  - filter: a/+\n    topic: t\n    key: \"{2}\"\n",
			`gateway.yaml:4:10: routes[0].key: {2} in "{2}": the filter "a/+" has 1 wildcard; use {topic}, or a number within that`},
		{"route without a log and with a topic", "routes:\n  - filter: a\n    log: none\n    topic: t\n",
			`gateway.yaml:4:12: routes[0].topic: "t" can't be where messages go that log: none keeps out of the log; take out topic, or log: none`},
		{"route without a log and with a key", "routes:\n  - {filter: a, key: \"{topic}\", log: none}\n",
			`gateway.yaml:2:22: routes[0].key: "{topic}" has no record to be the key of beside log: none; take out key, or log: none`},
		{"route without a log and with a bad filter", "routes:\n  - {filter: \"a#\", log: none}\n",
			`gateway.yaml:2:14: routes[0].filter: "a#" is not an MQTT topic filter: `},
		{"route with another log", "routes:\n  - {filter: a, log: nnoe, topic: t}\n",
			`gateway.yaml:2:22: routes[0].log: "nnoe" is not known; did you mean "none"? (allowed: none)`},
		{"route with an empty log", "routes:\n  - {filter: a, log: \"\", topic: t}\n",
			`gateway.yaml:2:22: routes[0].log: "" is not known (allowed: none)`},
		{"route without a value for log", "routes:\n  - {filter: a, log: , topic: t}\n",
			`gateway.yaml:2:17: routes[0].log: has no value; give it text, or take the key out`},
		{"route without topic or log", "routes:\n  - {filter: a}\n",
			`gateway.yaml:2:5: routes[0].topic: a topic needs a name`},
		{"mirror without brokers", "mirror:\n  - region: {name: eu}\n",
			`gateway.yaml:2:13: mirror[0].region.brokers: is empty; name at least one Kafka broker as host:port`},
		{"broker without a port", "mirror:\n  - region: {brokers: [kafka]}\n",
			`gateway.yaml:2:24: mirror[0].region.brokers[0]: "kafka" is not host:port; write for example kafka:9092`},
		{"broker without a host", "mirror:\n  - region: {brokers: [\":9092\"]}\n",
			`gateway.yaml:2:24: mirror[0].region.brokers[0]: ":9092" has no host; write for example kafka:9092`},
		{"region twice", "mirror:\n  - region: {brokers: [\"k:1\"]}\n  - region: {brokers: [\"k:2\"]}\n",
			`gateway.yaml:3:13: mirror[1].region.name: "region" is the name of mirror[0]'s region, too; give each region a name of its own`},
		{"mirror alias", "mirror:\n  - {alias: \"a b\", region: {brokers: [\"k:1\"]}}\n",
			`gateway.yaml:2:13: mirror[0].alias: "a b" is not allowed; use letters, digits, '.', '_' and '-'`},
		{"mirror of nothing", "mirror:\n  - {region: {brokers: [\"k:1\"]}, topics: []}\n",
			`gateway.yaml:2:42: mirror[0].topics: is empty, so nothing would be mirrored; write [".*"] for everything, or take the entry out`},
		{"mirror clock", "mirror:\n  - {region: {brokers: [\"k:1\"]}, clock_wait: 2d}\n",
			`gateway.yaml:2:46: mirror[0].clock_wait: 48h is out of range; allowed: 0 to 24h`},
		{"mirror expression", "mirror:\n  - {region: {brokers: [\"k:1\"]}, topics: [\"a(\"]}\n",
			`gateway.yaml:2:43: mirror[0].topics[0]: "a(" is not a regular expression: `},
		{"remote topic name", "topics: [{name: " + strings.Repeat("x", 240) + "}]\nmirror:\n  - {alias: plant-number-7, region: {brokers: [\"k:1\"]}, topics: [\"y\", \"x+\"]}\n",
			`gateway.yaml:3:71: mirror[0].topics[1]: topic xxxxxxxxxxxxxxxxxxxx… would be 255 characters long in the region as <alias>.<topic>; at most 249 are allowed: use a shorter alias or name`},
		{"log level", "log:\n  level: verbose\n",
			`gateway.yaml:2:10: log.level: "verbose" is not known (allowed: debug, info, warn, error)`},
		{"log format", "log:\n  format: jsn\n",
			`gateway.yaml:2:11: log.format: "jsn" is not known; did you mean "json"? (allowed: text, json)`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := read(test.text)
			if err == nil {
				t.Fatalf("no error; want\n%s", test.want)
			}
			got := err.Error()
			if strings.HasSuffix(test.want, ": ") { // the rest is another package's text
				got = got[:min(len(got), len(test.want))]
			}
			if got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestSyntaxErrorsHaveAPlace(t *testing.T) {
	for text, want := range map[string]string{
		"log: {level: info\n":          "gateway.yaml:1:6: not valid YAML: ",
		"version: 1\ndata: [1\n":       "gateway.yaml:2:7: not valid YAML: ",
		"version: 1\n\tlog: 1\n":       "gateway.yaml:2:1: not valid YAML: ",
		"data:\n  dir: \"open\nlog: 1": "gateway.yaml:2:8: not valid YAML: ",
	} {
		_, err := read(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// One run tells everything: nobody wants to fix a gateway's file one restart at a time.
func TestAllErrorsTogether(t *testing.T) {
	_, err := Parse("gateway.yaml", []byte("vresion: 1\nlog: {level: 1}\ncommit: {max_delay: 5}\n"), environment)
	if n := strings.Count(err.Error(), "\n") + 1; n != 3 {
		t.Errorf("want 3 lines:\n%v", err)
	}
	_, err = read("mqtt: {max_connections: 0}\ngateway: {id: \" \"}\nlog: {level: x}\n")
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "gateway.yaml:1:") || !strings.HasPrefix(lines[2], "gateway.yaml:3:") {
		t.Errorf("want 3 lines in the order of the file:\n%v", err)
	}
}

func TestRestartFor(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"log: {level: debug}": "",
		"log: {format: json}": "log",
		"mqtt: {max_connections: 7, max_connections_per_address: 5, connect_rate: 3}": "",
		"mqtt: {receive_maximum: 7}\ndata: {dir: x}":                                  "data mqtt",
		"mqtt: {listeners: [{address: localhost:1883, websocket: {}}]}":               "mqtt",
	} {
		c, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(Default().RestartFor(c), " "); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestWarnings(t *testing.T) {
	c, err := read("routes:\n  - {filter: \"#\", topic: a}\n  - {filter: \"x/+\", topic: b}\n")
	if err != nil {
		t.Fatal(err)
	}
	w := c.Warnings()
	if len(w) != 2 {
		t.Fatalf("got %v", w)
	}
	if got, want := w[0].Error(), "gateway.yaml: version: is not set; write version: 1, so that a later release knows how to read this file"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := w[1].Error(), `gateway.yaml:3:5: routes[1]: filter "x/+" is never reached: routes[0] with "#" takes everything it would; move it up`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoadFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml: no such file or directory; check the path") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("directory: %v", err)
	}
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxFileBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), "is it the right file?") {
		t.Errorf("large file: %v", err)
	}
	if runtime.GOOS == "linux" && os.Getuid() != 0 {
		closed := filepath.Join(dir, "closed.yaml")
		if err := os.WriteFile(closed, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(closed); err == nil || !strings.Contains(err.Error(), "let this user read it") {
			t.Errorf("unreadable file: %v", err)
		}
	}
}

func TestSuggest(t *testing.T) {
	keys := []string{"max_delay", "max_bytes", "journal_bytes"}
	for in, want := range map[string]string{
		"max_dealy": "max_delay", "maxdelay": "max_delay", "MAX_BYTES": "max_bytes", "journal_byte": "journal_bytes", "zebra": "", "": "",
	} {
		if got := suggest(in, keys); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Whatever a file holds: no crash, and each message on one line.
func FuzzParse(f *testing.F) {
	if data, err := os.ReadFile("gateway.yaml"); err == nil {
		f.Add(string(data))
	}
	for _, s := range []string{"a: &x 1\nb: *x", "version: 2", "? a\n: b", "topics: [{name: a}, {}]", "data: {dir: \"${X}\"}", "<<: {a: 1}", "- - -", "a: !!int 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f", []byte(text), environment)
		if err == nil {
			err = c.Validate()
		}
		if err == nil {
			c.Warnings()
			return
		}
		for _, p := range err.(Problems) {
			if strings.ContainsAny(p.Error(), "\n\r") {
				t.Errorf("a message of several lines: %q", p.Error())
			}
		}
	})
}

func TestWearOptions(t *testing.T) {
	c := Default()
	if o := c.segment(); o.WearBudget != 0 || o.MaxDelayCeiling != time.Second || o.EnduranceBytes != 0 {
		t.Errorf("by default: budget %d, ceiling %v, endurance %d", o.WearBudget, o.MaxDelayCeiling, o.EnduranceBytes)
	}
	c.Commit.WearBudget, c.Commit.MaxDelayCeiling, c.Data.Endurance = 2*GiB, Duration(3*time.Second), 4e12
	if o := c.segment(); o.WearBudget != 2<<30 || o.MaxDelayCeiling != 3*time.Second || o.EnduranceBytes != 4e12 {
		t.Errorf("budget %d, ceiling %v, endurance %d", o.WearBudget, o.MaxDelayCeiling, o.EnduranceBytes)
	}
}

// TestDefaultDeny: a listener that other machines reach knows its clients, or says that it doesn't want to.
func TestDefaultDeny(t *testing.T) {
	for _, tt := range []struct {
		mqtt      string
		bad       int  // line of the problem, 0 for none
		anonymous bool // may clients without a name connect at the first listener?
	}{
		{`listeners: [{address: "localhost:1"}]`, 0, true},
		{`listeners: [{address: "127.0.0.9:1"}]`, 0, true},
		{`listeners: [{address: "[::1]:1"}]`, 0, true},
		{`listeners: [{address: "0.0.0.0:1"}]`, 2, false},
		{`listeners: [{address: ":1"}]`, 2, false},
		{`listeners: [{address: "192.168.1.1:1"}]`, 2, false},
		{`listeners: [{address: "0.0.0.0:1", allow_anonymous: true}]`, 0, true},
		{`listeners: [{address: "0.0.0.0:1", allow_anonymous: false}]`, 2, false},
		{"listeners: [{address: \"0.0.0.0:1\"}]\n  auth: {password_file: passwd}", 0, false},
		{"listeners: [{address: \"0.0.0.0:1\"}]\n  auth: {acl_file: acl}", 2, false},
		{`listeners: [{address: "unix:/run/x"}]`, 0, true},
		{`listeners: [{address: "unix:/run/x", proxy_protocol: {}}]`, 2, false},
		{`listeners: [{address: "localhost:1", proxy_protocol: {trusted: [127.0.0.1]}}]`, 2, false},
		{`listeners: [{address: ":1", tls: {cert: c, key: k, ca: a, client_auth: require}}]`, 0, true},
		{`listeners: [{address: ":1", tls: {cert: c, key: k, ca: a, client_auth: request}}]`, 2, false},
		{`listeners: [{address: ":1", tls: {cert: c, key: k}}]`, 2, false},
		{"listeners: [{address: \"localhost:1\"}]\n  auth: {password_file: passwd}", 0, false},
		{"listeners: [{address: \"localhost:1\"}]\n  auth: {acl_file: acl}", 0, true},
		{"listeners: [{address: \"localhost:1\", allow_anonymous: true}]\n  auth: {password_file: passwd}", 0, true},
	} {
		c, err := read("mqtt:\n  " + tt.mqtt + "\n")
		if tt.bad != 0 {
			if err == nil || !strings.HasPrefix(err.Error(), "gateway.yaml:2:") || !strings.Contains(err.Error(), "allow_anonymous: true") {
				t.Errorf("%s: %v", tt.mqtt, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.mqtt, err)
			continue
		}
		o, err := c.Broker()
		if err != nil || o.MQTT.Listeners[0].AllowAnonymous != tt.anonymous {
			t.Errorf("%s: anonymous %v, %v", tt.mqtt, o.MQTT.Listeners[0].AllowAnonymous, err)
		}
	}
}

func TestDeniedPublish(t *testing.T) {
	c, err := read("version: 1\nmqtt:\n  listeners: [{address: \"localhost:1\"}, {address: \"localhost:2\", denied_publish: ack}]\n" +
		"  auth: {acl_file: acl, denied_publish: close}\n")
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.Broker()
	if err != nil || !o.MQTT.Listeners[0].CloseDenied || o.MQTT.Listeners[1].CloseDenied {
		t.Errorf("%+v, %v", o.MQTT.Listeners, err)
	}
	if w := c.Warnings(); len(w) != 1 || !strings.HasPrefix(w[0].Error(), "gateway.yaml:4:20: mqtt.auth.acl_file: goes by user names") {
		t.Errorf("%v", w)
	}
}
