package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
	"github.com/sluicemq/sluice/segment"
)

// Route says where messages of MQTT topics are stored, or that they aren't.
type Route struct {
	// Filter is an MQTT topic filter. Topics that begin with $ are never stored, so no filter may.
	Filter string
	// Topic is the log's topic.
	Topic string
	// Key is the record key: text with {topic} for the MQTT topic and {1}, {2} … for what the filter's wildcards matched.
	// It is a function of the MQTT topic, and so is the partition: order per MQTT topic holds.
	Key string
	// NotStored takes what the filter matches out of the log: it goes to the subscribers that are connected and nowhere else. Topic and
	// Key are empty then.
	NotStored bool
}

// maxKeyParts bounds the pieces of a key's template.
const maxKeyParts = 16

// keyPart is literal text, or a placeholder when text is empty: 0 is the MQTT topic, n the nth wildcard.
type keyPart struct {
	text     string
	wildcard int
}

// Validate reports everything that is wrong with the route. Each error names value and remedy; its Field says which of
// filter, topic and key it is about.
func (r Route) Validate() []*RouteError {
	var errs []*RouteError
	wrong := func(field, format string, args ...any) {
		errs = append(errs, &RouteError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	wildcards := 0
	if err := topics.ValidFilter(r.Filter); err != nil {
		wrong("filter", "%q is not an MQTT topic filter: %v", r.Filter, err)
	} else if strings.HasPrefix(r.Filter, "$") {
		wrong("filter", "%q can never match: topics that begin with $ are not stored; take the route out", r.Filter)
	} else {
		wildcards = newFilter(r.Filter).wildcards
	}
	if r.NotStored {
		if r.Topic != "" {
			wrong("topic", "%q can't be where messages go that log: none keeps out of the log; take out topic, or log: none", r.Topic)
		}
		if r.Key != "" {
			wrong("key", "%q has no record to be the key of beside log: none; take out key, or log: none", r.Key)
		}
		return errs
	}
	if err := segment.ValidTopicName(r.Topic); err != nil {
		wrong("topic", "%v", err)
	}
	parts, err := parseKey(r.Key)
	if err != nil {
		wrong("key", "%v", err)
	}
	if len(errs) > 0 {
		return errs
	}
	for _, p := range parts {
		if p.wildcard > wildcards {
			wrong("key", "{%d} in %q: the filter %q has %s; use {topic}, or a number within that",
				p.wildcard, r.Key, r.Filter, count(wildcards, "wildcard"))
		}
	}
	return errs
}

// RouteError is one thing that is wrong with a route.
type RouteError struct{ Field, Message string }

func (e *RouteError) Error() string { return e.Field + ": " + e.Message }

// Unreachable returns for each route that can never be asked the index of the earlier one that takes all it would: later
// index → earlier index. The routes must be valid.
func Unreachable(routes []Route) map[int]int {
	hidden := make(map[int]int)
	filters := make([]filter, len(routes))
	for i, r := range routes {
		filters[i] = newFilter(r.Filter)
		for j := range i {
			if filters[j].covers(&filters[i]) {
				hidden[i] = j
				break
			}
		}
	}
	return hidden
}

func parseKey(s string) ([]keyPart, error) {
	const allowed = "use text with {topic} and {1}, {2} … for the filter's wildcards"
	if s == "" {
		return nil, errors.New("is empty, and records without a key have no order; " + allowed)
	}
	var parts []keyPart
	for rest := s; rest != ""; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			parts = append(parts, keyPart{text: rest})
			break
		}
		if i > 0 {
			parts = append(parts, keyPart{text: rest[:i]})
		}
		name, after, closed := strings.Cut(rest[i+1:], "}")
		if rest[i] == '}' || !closed {
			return nil, fmt.Errorf("%q has a brace without its partner; %s", s, allowed)
		}
		n, err := strconv.Atoi(name)
		switch {
		case name == "topic":
			parts = append(parts, keyPart{})
		case err == nil && n >= 1 && name == strconv.Itoa(n):
			parts = append(parts, keyPart{wildcard: n})
		default:
			return nil, fmt.Errorf("{%s} in %q is not known; %s", name, s, allowed)
		}
		rest = after
	}
	if len(parts) > maxKeyParts {
		return nil, fmt.Errorf("%.40q has more than %d parts; write a shorter one", s, maxKeyParts)
	}
	return parts, nil
}

// count writes "no wildcard", "1 wildcard", "3 wildcards".
func count(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun
	case 1:
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// table is the compiled routes. Immutable, and so safe for concurrent use.
type table struct{ routes []compiledRoute }

type compiledRoute struct {
	filter     filter
	partitions []*segment.Partition // none: not stored
	key        []keyPart
	keyIsTopic bool
}

// newTable compiles routes, which must be valid. partitions gives those of a topic of the log, none for an unknown one.
func newTable(routes []Route, partitions func(topic string) []*segment.Partition) (*table, error) {
	t := &table{routes: make([]compiledRoute, len(routes))}
	for i, r := range routes {
		if r.NotStored {
			t.routes[i] = compiledRoute{filter: newFilter(r.Filter)}
			continue
		}
		key, err := parseKey(r.Key)
		if err != nil {
			return nil, fmt.Errorf("route %q: key: %w", r.Filter, err)
		}
		to := partitions(r.Topic)
		if len(to) == 0 {
			return nil, fmt.Errorf("route %q: the log has no topic %q", r.Filter, r.Topic)
		}
		t.routes[i] = compiledRoute{
			filter:     newFilter(r.Filter),
			partitions: to,
			key:        key,
			keyIsTopic: len(key) == 1 && key[0] == keyPart{},
		}
	}
	return t, nil
}

// Route implements mqtt.Router: it says where a message is stored, nowhere if p is nil, and appends its key to dst unless the key is
// the topic itself. It allocates only when dst is too small.
func (t *table) Route(topic, dst []byte) (p *segment.Partition, key []byte, keyIsTopic, ok bool) {
	if len(topic) == 0 || topic[0] == '$' {
		return nil, dst, false, false
	}
	for i := range t.routes {
		r := &t.routes[i]
		if !r.filter.match(topic) {
			continue
		}
		if len(r.partitions) == 0 {
			return nil, dst, false, true
		}
		if r.keyIsTopic {
			return r.partitions[partitionOf(topic, len(r.partitions))], topic, true, true
		}
		start := len(dst)
		for _, part := range r.key {
			switch {
			case part.text != "":
				dst = append(dst, part.text...)
			case part.wildcard == 0:
				dst = append(dst, topic...)
			default:
				dst = append(dst, r.filter.wildcard(topic, part.wildcard)...)
			}
		}
		key = dst[start:]
		return r.partitions[partitionOf(key, len(r.partitions))], key, false, true
	}
	return nil, dst, false, false
}
