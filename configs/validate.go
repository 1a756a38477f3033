package configs

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// The ranges of values, where the field's meaning doesn't give them.
const (
	maxCommitDelay     = Duration(time.Second)
	maxClockWait       = Duration(24 * time.Hour)
	maxDelayCeiling    = Duration(time.Minute)
	minWearBudget      = Size(segment.MinWearBudget)
	minEndurance       = 1 * GiB
	minCommitBytes     = 64 * KiB
	maxCommitBytes     = 16 * MiB
	minJournalBytes    = 1 * MiB
	maxJournalBytes    = 1 * GiB
	minBudgetBytes     = 16 * MiB
	maxConnections     = 100_000
	minPacketBytes     = 1 * KiB
	maxPacketBytes     = 16 * MiB
	maxPartitions      = 256
	maxListeners       = 16
	maxTopics          = 1000
	maxRoutes          = 1000
	maxMirrors         = 8
	maxNameLength      = 64
	minSegmentBytes    = 1 * MiB
	maxSegmentBytes    = 1 * GiB // positions in a segment's index have 32 bits
	framesPerJournal   = 8
	minArgonMemory     = 1 * MiB
	maxArgonMemory     = 1 * GiB
	minRetentionAge    = Duration(time.Second)
	maxRetentionAge    = Duration(100 * 365 * 24 * time.Hour)
	maxSessions        = 1_000_000
	maxSessionMessages = 1_000_000_000
	maxSessionBytes    = 1024 * GiB
	minExpiry          = Duration(time.Second)
	maxExpiry          = Duration(100 * 365 * 24 * time.Hour)
	maxRetained        = 100_000
	minRetainedBytes   = 64 * KiB
	maxRetainedBytes   = 16 * MiB // a quarter of what a state file may be
	maxTopicAliases    = 1024
	minKeepAlive       = Duration(5 * time.Second)
	maxKeepAlive       = Duration(65535 * time.Second)
	minSysInterval     = Duration(time.Second)
	maxSysInterval     = Duration(time.Hour)
)

// Compressions a topic may ask for, in the order in which they are listed.
var compressions = []string{"none", "snappy", "lz4", "zstd", "gzip"}

// validation is one Validate in hand.
type validation struct {
	*Config
	problems Problems
}

// Validate checks every value and what values mean for each other. The error is Problems, all of them; each names key, value,
// what is allowed and what to do.
func (c *Config) Validate() error {
	v := &validation{Config: c}
	if c.Version != Version {
		v.bad("version", "%d is not a version of this file; write version: %d", c.Version, Version)
	}
	if c.Gateway.ID != "" {
		v.name("gateway.id", c.Gateway.ID)
	}
	v.data()
	v.commit()
	v.mqtt()
	v.topics()
	v.routes()
	v.mirrors()
	v.budget()
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "text", "json")
	return v.problems.err()
}

// Warnings are what is allowed and probably not meant. The configuration must be valid.
func (c *Config) Warnings() []Problem {
	var ps Problems
	routes := make([]broker.Route, len(c.Routes))
	for i, r := range c.Routes {
		routes[i] = r.broker()
	}
	for later, earlier := range broker.Unreachable(routes) {
		path := fmt.Sprintf("routes[%d]", later)
		ps.add(c.position(path), path, "filter %q is never reached: routes[%d] with %q takes everything it would; move it up",
			routes[later].Filter, earlier, routes[earlier].Filter)
	}
	if a := c.MQTT.Auth; a.ACLFile != "" && a.PasswordFile == "" {
		ps.add(c.position("mqtt.auth.acl_file"), "mqtt.auth.acl_file", "goes by user names, which nothing checks without mqtt.auth.password_file: "+
			"a client may give itself any")
	}
	if _, set := c.source["version"]; c.file != "" && !set {
		ps.add(Position{Source: c.file}, "version", "is not set; write version: %d, so that a later release knows how to read this file", Version)
	}
	return ps.sorted()
}

// position is where a key, or else what contains it, was set.
func (c *Config) position(path string) Position {
	for path != "" {
		if at, ok := c.source[path]; ok {
			return at
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return Position{}
}

// bad adds a problem with the value at path.
func (v *validation) bad(path, format string, args ...any) {
	v.problems.add(v.position(path), path, format, args...)
}

// inRange wants low ≤ value ≤ high.
func inRange[T interface {
	cmp.Ordered
	fmt.Stringer
}](v *validation, path string, value, low, high T) bool {
	ok := value >= low && value <= high
	if !ok {
		v.bad(path, "%s is out of range; allowed: %s to %s", value, low, high)
	}
	return ok
}

// number gives an int the String that inRange asks for.
type number int

func (n number) String() string { return strconv.Itoa(int(n)) }

func (v *validation) intRange(path string, value, low, high int) {
	inRange(v, path, number(value), number(low), number(high))
}

// length bounds a list.
func (v *validation) length(path string, n, limit int) {
	if n > limit {
		v.bad(path, "has %d entries; at most %d are allowed", n, limit)
	}
}

func (v *validation) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	hint := ""
	if s := suggest(value, allowed); s != "" {
		hint = fmt.Sprintf("; did you mean %q?", s)
	}
	v.bad(path, "%q is not known%s (allowed: %s)", value, hint, strings.Join(allowed, ", "))
}

// name checks what becomes a part of a remote topic's name, or of a key in the state.
func (v *validation) name(path, value string) {
	if len(value) > maxNameLength {
		v.bad(path, "%.20q… is %d characters long; at most %d are allowed", value, len(value), maxNameLength)
		return
	}
	if err := segment.ValidTopicName(value); err != nil {
		v.bad(path, "%q is not allowed; use letters, digits, '.', '_' and '-'", value)
	}
}

func (v *validation) data() {
	if v.Data.Dir == "" {
		v.bad("data.dir", "is empty; name a directory on flash or disk")
	}
	if v.Data.Budget != 0 && v.Data.Budget < minBudgetBytes {
		v.bad("data.budget", "%s is too small; allowed: %s or more, or 0 for 70 %% of the file system", v.Data.Budget, minBudgetBytes)
	}
	if e := v.Data.Endurance; e != 0 && e < minEndurance {
		v.bad("data.endurance", "%s is less than any flash takes in its life; allowed: %s or more, or 0 for 1000 times the size of the file system", e, minEndurance)
	}
}

// budget asks the log itself whether all topics fit beside journal and reserve, once the values by themselves are in order.
// Without a budget it depends on the file system, and is asked again when the log is opened.
func (v *validation) budget() {
	if v.Data.Budget == 0 || len(v.problems) > 0 {
		return
	}
	topics, err := v.Config.topics()
	if err == nil {
		err = v.segment().Validate()
	}
	if err == nil {
		var plan segment.Plan
		if plan, err = v.segment().Plan(0); err == nil {
			err = plan.Fit(topics)
		}
	}
	if err != nil {
		v.bad("data.budget", "%v", err)
	}
}

func (v *validation) commit() {
	inRange(v, "commit.max_delay", v.Commit.MaxDelay, 0, maxCommitDelay)
	inRange(v, "commit.max_delay_ceiling", v.Commit.MaxDelayCeiling, min(v.Commit.MaxDelay, maxCommitDelay), maxDelayCeiling)
	if b := v.Commit.WearBudget; b != 0 && b < minWearBudget {
		v.bad("commit.wear_budget", "%s a day is too small; allowed: %s or more, or 0 for none", b, minWearBudget)
	}
	known := inRange(v, "commit.max_bytes", v.Commit.MaxBytes, minCommitBytes, maxCommitBytes)
	known = inRange(v, "mqtt.max_packet_bytes", v.MQTT.MaxPacketBytes, minPacketBytes, maxPacketBytes) && known
	if v.Commit.JournalBytes == 0 {
		return // then it is made as large as they want it
	}
	known = inRange(v, "commit.journal_bytes", v.Commit.JournalBytes, minJournalBytes, maxJournalBytes) && known
	// A group is one frame and a frame never spans files: a journal file must hold several of the largest.
	if need := framesPerJournal * (v.Commit.MaxBytes + 2*v.MQTT.MaxPacketBytes); known && v.Commit.JournalBytes < need {
		path := "commit.journal_bytes"
		for _, p := range []string{path, "commit.max_bytes", "mqtt.max_packet_bytes"} {
			if _, set := v.source[p]; set {
				path = p
				break
			}
		}
		v.bad(path, "commit.journal_bytes %s is too small for commit.max_bytes %s and mqtt.max_packet_bytes %s: "+
			"it must be at least %d × (max_bytes + 2 × max_packet_bytes); set commit.journal_bytes to %s or more",
			v.Commit.JournalBytes, v.Commit.MaxBytes, v.MQTT.MaxPacketBytes, framesPerJournal, need)
	}
}

func (v *validation) mqtt() {
	v.listeners()
	v.oneOf("mqtt.auth.denied_publish", v.MQTT.Auth.DeniedPublish, deniedPublish...)
	if m := v.MQTT.Auth.ArgonMemory; m != 0 {
		inRange(v, "mqtt.auth.argon2_memory", m, minArgonMemory, maxArgonMemory)
	}
	v.intRange("mqtt.max_connections", v.MQTT.MaxConnections, 1, maxConnections)
	v.intRange("mqtt.max_connections_per_address", v.MQTT.MaxPerAddress, 1, maxConnections)
	v.intRange("mqtt.connect_rate", v.MQTT.ConnectRate, 1, maxConnections)
	v.intRange("mqtt.receive_maximum", v.MQTT.ReceiveMaximum, 1, 65535)
	v.sessions()
	v.intRange("mqtt.retained.max_messages", v.MQTT.Retained.MaxMessages, 1, maxRetained)
	inRange(v, "mqtt.retained.max_bytes", v.MQTT.Retained.MaxBytes, minRetainedBytes, maxRetainedBytes)
	v.intRange("mqtt.topic_alias_maximum", v.MQTT.TopicAliasMaximum, 0, maxTopicAliases)
	v.properties()
}

func (v *validation) sessions() {
	s := v.MQTT.Sessions
	v.intRange("mqtt.sessions.max", s.Max, 1, maxSessions)
	inRange(v, "mqtt.sessions.max_expiry", s.MaxExpiry, minExpiry, maxExpiry)
	v.intRange("mqtt.sessions.max_messages", s.MaxMessages, 0, maxSessionMessages)
	inRange(v, "mqtt.sessions.max_bytes", s.MaxBytes, 0, maxSessionBytes)
	inRange(v, "mqtt.sessions.max_age", s.MaxAge, 0, maxExpiry)
	if s.Max < v.MQTT.MaxConnections {
		v.bad("mqtt.sessions.max", "%d sessions are fewer than mqtt.max_connections %d; each connection has one, so raise it or lower the other", s.Max, v.MQTT.MaxConnections)
	}
}

// properties checks what MQTT 5 clients are told.
func (v *validation) properties() {
	if k := v.MQTT.MaxKeepAlive; k != 0 && (k < minKeepAlive || k > maxKeepAlive || k%Duration(time.Second) != 0) {
		v.bad("mqtt.max_keepalive", "%s is not possible; allowed: whole seconds from %s to %s, or 0 for any", k, minKeepAlive, maxKeepAlive)
	}
	if i := v.MQTT.SysInterval; i != 0 && (i < minSysInterval || i > maxSysInterval) {
		v.bad("mqtt.sys_interval", "%s is out of range; allowed: %s to %s, or 0 for no $SYS topics", i, minSysInterval, maxSysInterval)
	}
	p := v.MQTT.ResponsePrefix
	if p != "" && (topics.ValidTopic(p) != nil || p[0] == '$' || len(p) > maxNameLength) {
		v.bad("mqtt.response_prefix", "%.80q can't be what a topic begins with; use up to %d bytes without '+' and '#' and a leading '$', for example response/", p, maxNameLength)
	}
}

// exposed checks a listener that other machines reach: it has to know its clients, or say that it doesn't want to.
func (v *validation) exposed(path string, l Listener) {
	door, what := l.door(), "is not a loopback address"
	if door.Local() {
		what = "is open to whomever the proxy lets through"
	}
	if v.MQTT.Auth.PasswordFile == "" && !l.AllowAnonymous && !trusted(door) {
		v.bad(path, "%q %s, and nothing says who may connect; set mqtt.auth.password_file, write client_auth: require under tls, "+
			"or allow_anonymous: true at this listener to let anyone publish", l.Address, what)
	}
}

// trusted says whether whoever gets to a listener may be let in: it is on this machine, not behind a proxy, or showed a certificate.
func trusted(l mqtt.Listener) bool { return l.Local() && l.ProxyProtocol == nil || l.Certifies() }

// What a client of version 3.1.1 gets that publishes what it may not.
const closeDenied = "close"

var deniedPublish = []string{"ack", closeDenied}

// hostPort takes an address apart and checks its port.
func (v *validation) hostPort(path, address, example string, lowestPort int) (host string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		v.bad(path, "%q is not host:port; write for example %s", address, example)
		return "", false
	}
	if n, err := strconv.Atoi(port); err != nil || n < lowestPort || n > 65535 {
		v.bad(path, "%q: port %q is not a number from %d to 65535; write for example %s", address, port, lowestPort, example)
		return "", false
	}
	return host, true
}

func (v *validation) topics() {
	v.length("topics", len(v.Topics), maxTopics)
	seen := make(map[string]int)
	for i, t := range v.Topics {
		path := fmt.Sprintf("topics[%d]", i)
		if err := segment.ValidTopicName(t.Name); err != nil {
			v.bad(path+".name", "%v", err)
		} else if first, twice := seen[t.Name]; twice {
			v.bad(path+".name", "%q is the name of topics[%d], too; keep one", t.Name, first)
		}
		seen[t.Name] = i
		v.intRange(path+".partitions", t.Partitions, 1, maxPartitions)
		v.oneOf(path+".compression", t.Compression, compressions...)
		if t.SegmentBytes != 0 && (t.SegmentBytes < minSegmentBytes || t.SegmentBytes > maxSegmentBytes) {
			v.bad(path+".segment_bytes", "%s is out of range; allowed: %s to %s, or 0 to let the budget decide",
				t.SegmentBytes, minSegmentBytes, maxSegmentBytes)
		}
		v.retention(path, t)
	}
}

// retention checks what a topic keeps.
func (v *validation) retention(path string, t Topic) {
	v.oneOf(path+".priority", t.Priority, "low", "normal", "high", "critical")
	v.oneOf(path+".on_full", t.OnFull, "drop-oldest", "reject")
	if t.Retention.Age < 0 || t.Retention.Age != 0 && (t.Retention.Age < minRetentionAge || t.Retention.Age > maxRetentionAge) {
		v.bad(path+".retention.age", "%s is out of range; allowed: %s to %s, or 0 for ever", t.Retention.Age, minRetentionAge, maxRetentionAge)
	}
	least := 2 * Size(max(t.Partitions, 1)) * max(t.SegmentBytes, minSegmentBytes)
	if t.Retention.Bytes != 0 && t.Retention.Bytes < least {
		v.bad(path+".retention.bytes", "%s is less than two segments of each partition; allowed: %s or more, or 0 to let the budget decide",
			t.Retention.Bytes, least)
	}
}

func (v *validation) routes() {
	v.length("routes", len(v.Routes), maxRoutes)
	for i, r := range v.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		for _, err := range v.route(path, r).Validate() {
			v.bad(path+"."+err.Field, "%s", err.Message)
		}
	}
}

// route is what of a route the broker is to check: with log: none also a topic or key that was written beside it.
func (v *validation) route(path string, r Route) broker.Route {
	if _, set := v.source[path+".log"]; set || r.Log != "" {
		v.oneOf(path+".log", r.Log, logNone)
		to := broker.Route{Filter: r.Filter, NotStored: true}
		if r.stores() {
			return to // whatever it is to mean
		}
		to.Topic = r.Topic
		if _, set := v.source[path+".key"]; set {
			to.Key = r.Key
		}
		return to
	}
	return r.broker()
}

func (v *validation) mirrors() {
	v.length("mirror", len(v.Mirrors), maxMirrors)
	seen := make(map[string]int)
	for i, m := range v.Mirrors {
		path := fmt.Sprintf("mirror[%d]", i)
		if m.Alias != "" {
			v.name(path+".alias", m.Alias)
		}
		v.name(path+".region.name", m.Region.Name)
		if first, twice := seen[m.Region.Name]; twice {
			v.bad(path+".region.name", "%q is the name of mirror[%d]'s region, too; give each region a name of its own", m.Region.Name, first)
		}
		seen[m.Region.Name] = i
		if len(m.Region.Brokers) == 0 {
			v.bad(path+".region.brokers", "is empty; name at least one Kafka broker as host:port")
		}
		for j, b := range m.Region.Brokers {
			brokerPath := fmt.Sprintf("%s.region.brokers[%d]", path, j)
			if host, ok := v.hostPort(brokerPath, b, "kafka:9092", 1); ok && host == "" {
				v.bad(brokerPath, "%q has no host; write for example kafka:9092", b)
			}
		}
		if len(m.Topics) == 0 {
			v.bad(path+".topics", "is empty, so nothing would be mirrored; write [\".*\"] for everything, or take the entry out")
		}
		inRange(v, path+".clock_wait", m.ClockWait, 0, maxClockWait)
		for j, expression := range m.Topics {
			v.mirrored(fmt.Sprintf("%s.topics[%d]", path, j), m, expression)
		}
	}
}

// mirrored checks one expression of a mirror, and that the region can have the names of the topics that it takes.
func (v *validation) mirrored(path string, m Mirror, expression string) {
	_, err := regexp.Compile(expression) // for its message
	whole, wholeErr := regexp.Compile("^(?:" + expression + ")$")
	if err = cmp.Or(err, wholeErr); err != nil {
		v.bad(path, "%q is not a regular expression: %v", expression, err)
		return
	}
	alias := cmp.Or(m.Alias, v.Gateway.ID, "0123456789abcdef") // a hash has 16 digits
	for _, t := range v.AllTopics() {
		if name := alias + "." + t.Name; whole.MatchString(t.Name) && len(name) > segment.MaxTopicNameLength {
			v.bad(path, "topic %.20s… would be %d characters long in the region as <alias>.<topic>; at most %d are allowed: use a shorter alias or name",
				t.Name, len(name), segment.MaxTopicNameLength)
		}
	}
}
