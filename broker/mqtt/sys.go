package mqtt

import (
	"math"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/retained"
	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

// The $SYS topics, by the names and in the formats of mosquitto 2 (man page mosquitto(8), "Broker status"): what its
// dashboards read is there. They are retained messages of QoS 0 that no log and no state ever sees.
const (
	sysLevel  = "$SYS"
	sysPrefix = sysLevel + "/broker/"
)

// isSys says whether a filter or topic is one of $SYS.
func isSys(filter string) bool {
	rest, ok := strings.CutPrefix(filter, sysLevel)
	return ok && (rest == "" || rest[0] == '/')
}

// sys publishes the $SYS topics: what somebody subscribes to, when it has changed, each Options.SysInterval. All else is made when it
// is subscribed to. While nobody does, an interval costs a few counters.
type sys struct {
	srv   *Server
	store *retained.Store // of its own: the limits are for what clients publish

	mu       sync.Mutex
	delivery delivery // under mu
	at       int64    // under mu: when the averages were last brought up to date, on the server's clock in ns
	loads    [len(loadNames)]load
	heapMost uint64 // under mu: bytes
}

// load is a rate, averaged over the last 1, 5 and 15 minutes.
type load struct {
	count   int64 // when last looked at
	average [3]float64
}

// loadNames are what averages there are, in the order of counts.
var loadNames = [...]string{
	"messages/received", "messages/sent", "publish/dropped", "publish/received", "publish/sent",
	"bytes/received", "bytes/sent", "sockets", "connections",
}

var loadMinutes = [3]struct {
	name  string
	value float64
}{{"1min", 1}, {"5min", 5}, {"15min", 15}}

func newSys(s *Server) *sys {
	return &sys{srv: s, store: retained.New(retained.Limits{Messages: math.MaxInt, Bytes: math.MaxInt64})}
}

// counts are the present values of what loadNames lists.
func (s *Server) counts() [len(loadNames)]int64 {
	c := &s.counters
	sent := c.delivered.Load()
	return [...]int64{
		c.packetsReceived.Load(), sent + c.packetsSent.Load(), s.drops.Total(), c.received.Load(), sent,
		c.bytesReceived.Load(), c.bytesSent.Load(), c.accepted.Load(), c.connects.Load(),
	}
}

// tick brings the averages up to date and publishes what somebody subscribes to.
func (y *sys) tick() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.averageLocked()
	if !y.srv.tree.Under(sysLevel) {
		return
	}
	y.eachLocked(func(m *retained.Message, wanted bool) {
		if wanted {
			y.publishLocked(m)
		}
	})
	y.srv.flushTouched(&y.delivery)
}

// prepare makes what filters match and nobody has subscribed to so far, for somebody who is about to.
func (y *sys) prepare(filters []wire.SubscribeFilter) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.eachLocked(func(m *retained.Message, wanted bool) {
		if !wanted && slices.ContainsFunc(filters, func(f wire.SubscribeFilter) bool { return topics.Match(f.Filter, m.Topic) }) {
			y.store.Set(m)
		}
	})
}

// prepareSys is called before filters are subscribed to.
func (s *Server) prepareSys(filters []wire.SubscribeFilter) {
	if s.options.SysInterval > 0 && slices.ContainsFunc(filters, func(f wire.SubscribeFilter) bool { return isSys(f.Filter) }) {
		s.sys.prepare(filters)
	}
}

// publishLocked makes m the topic's value and tells those who subscribe to it, in one step for a subscription that begins.
func (y *sys) publishLocked(m *retained.Message) {
	k := y.srv.keeper
	k.handing.Lock()
	defer k.handing.Unlock()
	if y.store.Set(m) {
		y.srv.deliver(&y.delivery, &incoming{topic: []byte(m.Topic), payload: m.Payload, retain: true, offset: noOffset})
	}
}

// averageLocked moves each average towards the rate since it was last called: after a minute at a new rate, that of 1 minute has
// come 63 % of the way.
func (y *sys) averageLocked() {
	now := y.srv.clock()
	minutes := time.Duration(now - y.at).Minutes()
	if minutes <= 0 {
		return
	}
	y.at = now
	for i, count := range y.srv.counts() {
		l := &y.loads[i]
		rate := float64(count-l.count) / minutes
		l.count = count
		for j := range l.average {
			l.average[j] = rate + (l.average[j]-rate)*math.Exp(-minutes/loadMinutes[j].value)
		}
	}
}

// eachLocked calls f for each topic, and says whether somebody subscribes to it.
func (y *sys) eachLocked(f func(m *retained.Message, wanted bool)) {
	s, c := y.srv, &y.srv.counters
	stamp := time.Now().UnixMilli()
	give := func(name, value string) {
		m := &retained.Message{Topic: sysPrefix + name, Payload: []byte(value), Stamp: stamp}
		y.delivery.hits = s.tree.Match([]byte(m.Topic), y.delivery.hits[:0])
		wanted := len(y.delivery.hits) > 0
		clear(y.delivery.hits)
		f(m, wanted)
	}
	number := func(name string, n int64) { give(name, strconv.FormatInt(n, 10)) }
	give("version", strings.TrimSpace("sluice version "+s.options.Version))
	give("uptime", strconv.FormatInt(s.clock()/1e9, 10)+" seconds")
	connected, total := s.clients()
	number("clients/total", total)
	number("clients/connected", connected)
	number("clients/active", connected) // the two names that went before
	number("clients/disconnected", total-connected)
	number("clients/inactive", total-connected)
	number("clients/maximum", c.most.Load())
	number("clients/expired", c.expired.Load())
	counts := s.counts()
	number("messages/received", counts[0])
	number("messages/sent", counts[1])
	number("publish/messages/dropped", counts[2])
	number("publish/messages/received", counts[3])
	number("publish/messages/sent", counts[4])
	number("publish/bytes/received", c.payloadReceived.Load())
	number("publish/bytes/sent", c.payloadSent.Load())
	number("bytes/received", counts[5])
	number("bytes/sent", counts[6])
	for i := range y.loads {
		for j, m := range loadMinutes {
			give("load/"+loadNames[i]+"/"+m.name, strconv.FormatFloat(y.loads[i].average[j], 'f', 2, 64))
		}
	}
	messages, bytes := s.keeper.store.Len()
	own, shared := s.subscriptions()
	number("subscriptions/count", own)
	number("shared_subscriptions/count", shared)
	number("retained messages/count", int64(messages))
	number("messages/stored", int64(messages))
	number("store/messages/count", int64(messages))
	number("store/messages/bytes", bytes)
	heap := heapBytes()
	y.heapMost = max(y.heapMost, heap)
	number("heap/current", int64(heap))
	number("heap/maximum", int64(y.heapMost))
}

// clients counts those that are connected, and all that have a session.
func (s *Server) clients() (connected, total int64) {
	s.mu.Lock()
	total = int64(len(s.sessions))
	s.mu.Unlock()
	connected = s.counters.connected.Load()
	return connected, max(connected, total)
}

// subscriptions counts the clients' subscriptions: those of their own, and memberships in shared ones.
func (s *Server) subscriptions() (own, shared int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.tree.Len() - len(s.shares)), int64(s.shared)
}

// heapBytes is what live and not yet collected objects take. Reading it stops nobody.
func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// expireInterval is how often expired retained messages are removed for good.
const expireInterval = 30 * time.Second

// tend is the goroutine of what is to be done now and then.
func (s *Server) tend() {
	expire := time.NewTicker(expireInterval)
	defer expire.Stop()
	var update <-chan time.Time
	if s.options.SysInterval > 0 {
		t := time.NewTicker(s.options.SysInterval)
		defer t.Stop()
		update = t.C
	}
	w := s.log.NewWriter(nil)
	for {
		select {
		case <-s.stop:
			return
		case <-update:
			s.sys.tick()
		case <-expire.C:
			s.keeper.expire(w)
		}
	}
}
