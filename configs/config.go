package configs

import (
	"slices"
	"strings"
	"time"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/broker/mqtt"
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
	// MaxPerAddress counts connections from one address; an IPv6 network of 64 bits is one, and loopback isn't counted.
	MaxPerAddress int `yaml:"max_connections_per_address"`
	// ConnectRate is how many connections a second are taken, after as many at once; others wait.
	ConnectRate int `yaml:"connect_rate"`
	// MaxPacketBytes bounds one packet of a client, header included.
	MaxPacketBytes Size `yaml:"max_packet_bytes"`
	// ReceiveMaximum is how many unacknowledged QoS 1 and 2 messages an MQTT 5 client may have in flight.
	ReceiveMaximum int `yaml:"receive_maximum"`
	// Auth says who may connect and what they may do.
	Auth Auth `yaml:"auth"`
	// Sessions bounds the sessions that outlive their connection.
	Sessions Sessions `yaml:"sessions"`
	// Retained bounds what is retained.
	Retained Retained `yaml:"retained"`
	// TopicAliasMaximum is how many topic aliases an MQTT 5 client may set. 0: none.
	TopicAliasMaximum int `yaml:"topic_alias_maximum"`
	// MaxKeepAlive is the longest keepalive of an MQTT 5 client; one that asks for more, or for none, is told this. 0: any.
	MaxKeepAlive Duration `yaml:"max_keepalive"`
	// ResponsePrefix is told, with the client id behind it, an MQTT 5 client that asks where responses may go. Empty: nobody is.
	ResponsePrefix string `yaml:"response_prefix"`
	// SysInterval is the time between two updates of the $SYS topics. 0: there are none.
	SysInterval Duration `yaml:"sys_interval"`
}

// Sessions bounds what is kept of clients that are away. The messages are in the log: the bounds are on what a session is given of them.
type Sessions struct {
	// Max counts those of connected clients, too. A client that would need one more is refused.
	Max int `yaml:"max"`
	// MaxExpiry is how long one is kept at most while its client is away; of MQTT 3.1.1 clients without CleanSession always that long.
	MaxExpiry Duration `yaml:"max_expiry"`
	// MaxMessages, MaxBytes and MaxAge are what a client is given of what came while it was away: the oldest so many messages and bytes
	// of topic and payload, and none older. 0: no bound but what the log keeps.
	MaxMessages int      `yaml:"max_messages"`
	MaxBytes    Size     `yaml:"max_bytes"`
	MaxAge      Duration `yaml:"max_age"`
}

// Retained bounds the retained messages. Beyond it no topic gets one that has none, and none a larger one.
type Retained struct {
	MaxMessages int `yaml:"max_messages"`
	// MaxBytes is of topics, payloads and properties, and 250 bytes for each message.
	MaxBytes Size `yaml:"max_bytes"`
}

// Auth is mosquitto's two files, which are read again when they change.
type Auth struct {
	// PasswordFile has the users. Empty: passwords aren't checked, and only loopback listeners, and those that say so, let clients in.
	PasswordFile string `yaml:"password_file"`
	// ACLFile says what users may publish and receive. Empty: everything.
	ACLFile string `yaml:"acl_file"`
	// DeniedPublish is what becomes of a version 3.1.1 client that publishes what it may not: ack acknowledges the message and drops it,
	// close closes the connection. A version 5 client is told by a reason code.
	DeniedPublish string `yaml:"denied_publish"`
	// StrictSubscribe refuses subscriptions to what a client may not receive all of. Without it they are granted and each delivery checked.
	StrictSubscribe bool `yaml:"strict_subscribe"`
	// ArgonMemory bounds what checking one argon2 password may take. 0: a quarter of the machine's memory, 8 to 64 MiB.
	ArgonMemory Size `yaml:"argon2_memory"`
}

// Listener is one address to accept connections at.
type Listener struct {
	// Address is host:port or unix:PATH; localhost means both loopback addresses.
	Address string `yaml:"address"`
	// AllowAnonymous lets clients in that give no user name.
	AllowAnonymous bool `yaml:"allow_anonymous"`
	// DeniedPublish is this listener's, in place of mqtt.auth.denied_publish. Empty: that.
	DeniedPublish string `yaml:"denied_publish"`
	// Mode is the permissions of a unix socket's file. 0: 0660.
	Mode FileMode `yaml:"mode"`
	// TLS, 1.2 and up. Nil: none.
	TLS *TLS `yaml:"tls"`
	// WebSocket, in TLS if there is TLS. Nil: MQTT without it.
	WebSocket *WebSocket `yaml:"websocket"`
	// ProxyProtocol, if all connections come from proxies that say whose they are. Nil: none do.
	ProxyProtocol *ProxyProtocol `yaml:"proxy_protocol"`
}

// TLS names the files of a listener's TLS, all PEM (the CRL also DER), and says what is asked of clients.
type TLS struct {
	Cert string `yaml:"cert"` // with the certificates between it and the authority
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"`  // authorities of clients' certificates
	CRL  string `yaml:"crl"` // revoked ones; empty: none
	// ClientAuth is none, request or require.
	ClientAuth string `yaml:"client_auth"`
	// UserFrom is what of a client's certificate is the user name: none, cn or san.
	UserFrom string `yaml:"user_from"`
}

// WebSocket is where MQTT over WebSocket is to be had, and which web pages may.
type WebSocket struct {
	Path    string   `yaml:"path"`
	Origins []string `yaml:"origins"`
}

// ProxyProtocol says whose PROXY headers are believed.
type ProxyProtocol struct {
	// Trusted are addresses and networks.
	Trusted []string `yaml:"trusted"`
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
	// Log is none for messages that are not stored and not mirrored: connected subscribers get them, and nobody later. Such a route
	// has neither Topic nor Key. Empty: they are stored.
	Log string `yaml:"log"`
}

// logNone is the only word that Route.Log takes.
const logNone = "none"

// stores says whether what the route takes goes to a topic of the log.
func (r Route) stores() bool { return r.Log != logNone }

// broker is the route for the broker's options. The key of one that stores nothing is the default's, and left out.
func (r Route) broker() broker.Route {
	if !r.stores() {
		return broker.Route{Filter: r.Filter, NotStored: true}
	}
	return broker.Route{Filter: r.Filter, Topic: r.Topic, Key: r.Key}
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
			MaxPerAddress:  1000,
			ConnectRate:    1000,
			MaxPacketBytes: 256 * KiB,
			ReceiveMaximum: 64,
			Auth:           Auth{DeniedPublish: "ack"},

			Sessions:          Sessions{Max: 10000, MaxExpiry: Duration(30 * 24 * time.Hour)},
			Retained:          Retained{MaxMessages: 10000, MaxBytes: 4 * MiB},
			TopicAliasMaximum: 16,
			SysInterval:       Duration(10 * time.Second),
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

// DefaultRoute stores every message that no other route takes: what was acknowledged is never quietly left out of the log.
func DefaultRoute() Route { return Route{Filter: "#", Topic: "mqtt", Key: "{topic}"} }

// DefaultMirror is a mirror of everything.
func DefaultMirror() Mirror {
	return Mirror{Region: Region{Name: "region"}, Topics: []string{".*"}, ClockWait: Duration(10 * time.Minute)}
}

// setDefaults gives the elements of lists their defaults before the file's keys are read into them.
func (t *Topic) setDefaults()  { *t = DefaultTopic("") }
func (r *Route) setDefaults()  { *r = Route{Key: "{topic}"} }
func (m *Mirror) setDefaults() { *m = DefaultMirror() }
func (t *TLS) setDefaults() {
	*t = TLS{ClientAuth: string(mqtt.NoClientAuth), UserFrom: string(mqtt.UserFromNone)}
}
func (w *WebSocket) setDefaults() { *w = WebSocket{Path: "/mqtt"} }

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
		if r.stores() && !slices.ContainsFunc(all, func(t Topic) bool { return t.Name == r.Topic }) {
			all = append(all, DefaultTopic(r.Topic))
		}
	}
	return all
}
