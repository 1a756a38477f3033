package configs

import (
	"slices"
	"strings"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// Version is the newest layout of the configuration file that this release reads.
const Version = 1

// Config is everything that can be set. The yaml tags are the keys of the file; a zero value is NOT a usable
// configuration, Default is. A Config is not safe for concurrent use while it is being changed.
type Config struct {
	Version int      `yaml:"version"`
	Gateway Gateway  `yaml:"gateway"`
	Data    Data     `yaml:"data"`
	Commit  Commit   `yaml:"commit"`
	MQTT    MQTT     `yaml:"mqtt"`
	Topics  []Topic  `yaml:"topics"`
	Routes  []Route  `yaml:"routes"`
	Mirrors []Mirror `yaml:"mirror"`
	Log     Log      `yaml:"log"`

	// file is the path that it was read from, empty when it wasn't.
	file string
	// source says where each key path was set ("topics[1].name" → file, line, column), for messages.
	source map[string]Position
}

// Gateway says who this machine is.
type Gateway struct {
	// ID is the name under which the gateway's topics appear in a region, unless a mirror has an alias of its own.
	// Empty: a hash of the machine id. Changing it later starts new remote topics.
	ID string `yaml:"id"`
}

// Data is the data directory.
type Data struct {
	// Dir is made if it does not exist. One broker at a time may use it.
	Dir string `yaml:"dir"`
	// Budget bounds what everything in Dir may take, in bytes; before that the oldest segments are evicted. 0: 70 % of the
	// file system.
	Budget Size `yaml:"budget"`
	// Reserve is what of the budget is kept for state and cursors, in bytes: a file that makes room when others fill the disk.
	// 0: an eighth of it, at most 64 MiB.
	Reserve Size `yaml:"reserve"`
	// Endurance is how many bytes the flash takes in its life, to tell how long that is. 0: 1,000 times the file system's size.
	Endurance Size `yaml:"endurance"`
}

// Commit bounds a commit group: what one journal write and one sync carry.
type Commit struct {
	// MaxDelay is how long the first message of a group waits at most for others to share its sync.
	MaxDelay Duration `yaml:"max_delay"`
	// WearBudget is how many bytes a day may be written to the flash; messages then share commits, with a delay of up to
	// MaxDelayCeiling. 0: no budget.
	WearBudget Size `yaml:"wear_budget"`
	// MaxDelayCeiling is how long an acknowledgement waits at most for the wear budget, with a usual sync.
	MaxDelayCeiling Duration `yaml:"max_delay_ceiling"`
	// MaxBytes seals a group.
	MaxBytes Size `yaml:"max_bytes"`
	// JournalBytes is the size of one journal file. There are up to four, zero-filled at the first start. 0: 16 MiB, less where
	// four of them would take more than an eighth of the file system or the budget, but what MaxBytes and MaxPacketBytes need.
	JournalBytes Size `yaml:"journal_bytes"`
}

// MQTT is the door for sensors.
type MQTT struct {
	Listeners []Listener `yaml:"listeners"`
	// MaxConnections counts connected clients over all listeners. Some more may be on their way to CONNACK.
	MaxConnections int `yaml:"max_connections"`
	// MaxPacketBytes bounds one packet of a client, header included.
	MaxPacketBytes Size `yaml:"max_packet_bytes"`
	// ReceiveMaximum is how many unacknowledged QoS 1 and 2 messages an MQTT 5 client may have in flight.
	ReceiveMaximum int `yaml:"receive_maximum"`
}

// Listener is one address to accept connections at.
type Listener struct {
	// Address is host:port; localhost means both loopback addresses.
	Address string `yaml:"address"`
}

// Topic is one topic of the log.
type Topic struct {
	Name string `yaml:"name"`
	// Partitions can't be changed once the topic exists: the key of a message decides its partition.
	Partitions int `yaml:"partitions"`
	// Compression of what is stored: none, snappy, lz4, zstd or gzip.
	Compression string `yaml:"compression"`
	// SegmentBytes is when a segment file is followed by a new one. 0: by the budget.
	SegmentBytes Size `yaml:"segment_bytes"`
	// Priority decides which topic gives way first when the budget is used up: low, normal, high or critical.
	Priority string `yaml:"priority"`
	// Retention says how much is kept, and for how long.
	Retention Retention `yaml:"retention"`
	// OnFull is what happens when Retention.Bytes or the budget is used up: drop-oldest or reject.
	OnFull string `yaml:"on_full"`
}

// Retention bounds what a topic keeps. Segments go whole, the oldest first.
type Retention struct {
	// Bytes are of all partitions together. 0: bounded by the budget only.
	Bytes Size `yaml:"bytes"`
	// Age is of a segment's newest record. 0: for ever.
	Age Duration `yaml:"age"`
}

// Route says where messages of MQTT topics go. The first route whose filter matches wins.
type Route struct {
	// Filter is an MQTT topic filter.
	Filter string `yaml:"filter"`
	// Topic is the log's topic; one that has no entry under topics gets DefaultTopic's settings.
	Topic string `yaml:"topic"`
	// Key is the record key: text with {topic} for the MQTT topic and {1}, {2} … for what the filter's wildcards matched.
	Key string `yaml:"key"`
}

// Mirror is one Kafka cluster that gets the log's topics.
type Mirror struct {
	// Alias is the prefix of the remote topics, <alias>.<topic>. Empty: the gateway's id.
	Alias  string `yaml:"alias"`
	Region Region `yaml:"region"`
	// Topics are regular expressions; a topic is mirrored when one of them matches its whole name.
	Topics []string `yaml:"topics"`
	// ClockWait is how long after a start records wait that were stamped while the clock couldn't be trusted. 0: they don't.
	ClockWait Duration `yaml:"clock_wait"`
}

// Region is a Kafka cluster.
type Region struct {
	// Name tells regions apart, in messages and in what is remembered of each one's progress.
	Name string `yaml:"name"`
	// Brokers are host:port to ask first; the cluster tells the rest.
	Brokers []string `yaml:"brokers"`
}

// Log is what the broker says on stderr.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// Default is the configuration of a broker started without a file. configs/gateway.yaml says the same, with comments.
func Default() *Config {
	return &Config{
		Version: Version,
		Data:    Data{Dir: "./sluice-data"},
		Topics:  []Topic{},
		Commit: Commit{
			MaxDelay:        Duration(5 * time.Millisecond),
			MaxDelayCeiling: Duration(time.Second),
			MaxBytes:        1 * MiB,
		},
		MQTT: MQTT{
			Listeners:      []Listener{{Address: "localhost:1883"}},
			MaxConnections: 2000,
			MaxPacketBytes: 256 * KiB,
			ReceiveMaximum: 64,
		},
		Routes:  []Route{DefaultRoute()},
		Mirrors: []Mirror{},
		Log:     Log{Level: "info", Format: "text"},
	}
}

// DefaultTopic is a topic that was named and nothing else.
func DefaultTopic(name string) Topic {
	return Topic{
		Name: name, Partitions: 4, Compression: "zstd", Priority: segment.Normal.String(), OnFull: segment.DropOldest.String(),
	}
}

// DefaultRoute stores every message that no other route takes: what was acknowledged is never quietly left out.
func DefaultRoute() Route { return Route{Filter: "#", Topic: "mqtt", Key: "{topic}"} }

// DefaultMirror is a mirror of everything.
func DefaultMirror() Mirror {
	return Mirror{Region: Region{Name: "region"}, Topics: []string{".*"}, ClockWait: Duration(10 * time.Minute)}
}

// setDefaults gives the elements of lists their defaults before the file's keys are read into them.
func (t *Topic) setDefaults()  { *t = DefaultTopic("") }
func (r *Route) setDefaults()  { *r = Route{Key: "{topic}"} }
func (m *Mirror) setDefaults() { *m = DefaultMirror() }

// Override notes that the value at a key path was set by something else than the file, such as a flag, for messages.
func (c *Config) Override(path, source string) {
	if c.source == nil {
		c.source = make(map[string]Position)
	}
	for key := range c.source {
		if key == path || strings.HasPrefix(key, path+".") || strings.HasPrefix(key, path+"[") {
			delete(c.source, key)
		}
	}
	c.source[path] = Position{Source: source}
}

// AllRoutes is Routes with DefaultRoute behind them, unless one of them takes everything anyway.
func (c *Config) AllRoutes() []Route {
	for _, r := range c.Routes {
		if r.Filter == "#" {
			return c.Routes
		}
	}
	return append(slices.Clone(c.Routes), DefaultRoute())
}

// AllTopics is Topics with those that only routes name behind them, as DefaultTopic has them.
func (c *Config) AllTopics() []Topic {
	all := slices.Clone(c.Topics)
	for _, r := range c.AllRoutes() {
		if !slices.ContainsFunc(all, func(t Topic) bool { return t.Name == r.Topic }) {
			all = append(all, DefaultTopic(r.Topic))
		}
	}
	return all
}
