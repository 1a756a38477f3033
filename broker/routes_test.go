package broker

import (
	"strings"
	"testing"

	"github.com/sluicemq/sluice/segment"
)

func TestFilterMatch(t *testing.T) {
	tests := []struct {
		filter, topic string
		want          bool
		captures      string // of all wildcards, joined by a bar
	}{
		{"a", "a", true, ""},
		{"a", "b", false, ""},
		{"a", "a/b", false, ""},
		{"a", "ab", false, ""},
		{"a/b", "a/b", true, ""},
		{"a/b", "a", false, ""},
		{"+", "a", true, "a"},
		{"+", "a/b", false, ""},
		{"+", "", true, ""},
		{"+/+", "a/b", true, "a|b"},
		{"+/+", "/b", true, "|b"},
		{"/+", "/b", true, "b"},
		{"+/b", "a/b", true, "a"},
		{"a/+/c", "a/b/c", true, "b"},
		{"a/+/c", "a//c", true, ""},
		{"a/+", "a", false, ""},
		{"a/+", "a/", true, ""},
		{"#", "a", true, "a"},
		{"#", "a/b/c", true, "a/b/c"},
		{"a/#", "a", true, ""},
		{"a/#", "a/", true, ""},
		{"a/#", "a/b/c", true, "b/c"},
		{"a/#", "ab", false, ""},
		{"+/#", "a", true, "a|"},
		{"a/+/#", "a/b", true, "b|"},
		{"sensors/+/+/#", "sensors/7/t/x/y", true, "7|t|x/y"},
	}
	for _, test := range tests {
		f := newFilter(test.filter)
		if got := f.match([]byte(test.topic)); got != test.want {
			t.Errorf("%q takes %q: %v, want %v", test.filter, test.topic, got, test.want)
			continue
		}
		if !test.want {
			continue
		}
		var got []string
		for n := range f.wildcards {
			got = append(got, string(f.wildcard([]byte(test.topic), n+1)))
		}
		if s := strings.Join(got, "|"); s != test.captures {
			t.Errorf("%q on %q captured %q, want %q", test.filter, test.topic, s, test.captures)
		}
	}
}

// A filter that covers another must take every topic the other takes; checked against all small topics.
func TestFilterCovers(t *testing.T) {
	levels := []string{"a", "b", ""}
	var topics []string
	for _, x := range levels {
		topics = append(topics, x)
		for _, y := range levels {
			topics = append(topics, x+"/"+y)
			for _, z := range levels {
				topics = append(topics, x+"/"+y+"/"+z)
			}
		}
	}
	filters := []string{"#", "+", "a", "a/#", "a/+", "+/a", "+/+", "a/b", "+/#", "a/+/#", "a/b/+", "+/b/#", "a/+/b", "b/#"}
	covered := 0
	for _, x := range filters {
		for _, y := range filters {
			fx, fy := newFilter(x), newFilter(y)
			if !fx.covers(&fy) {
				continue
			}
			covered++
			for _, topic := range topics {
				if fy.match([]byte(topic)) && !fx.match([]byte(topic)) {
					t.Errorf("%q is said to cover %q, but does not take %q", x, y, topic)
				}
			}
		}
	}
	if covered < len(filters)+13 { // each covers itself, and # all others
		t.Errorf("only %d pairs covered", covered)
	}
}

func TestUnreachable(t *testing.T) {
	got := Unreachable([]Route{
		{Filter: "a/b"}, {Filter: "a/+"}, {Filter: "a/c"}, {Filter: "a/d", NotStored: true}, {Filter: "l/#", NotStored: true}, {Filter: "l/x"},
		{Filter: "#"}, {Filter: "x/#", NotStored: true}, {Filter: "#"},
	})
	want := map[int]int{2: 1, 3: 1, 5: 4, 7: 6, 8: 6}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for later, earlier := range want {
		if got[later] != earlier {
			t.Errorf("route %d hidden by %d, want %d", later, got[later], earlier)
		}
	}
}

func TestRouteValidate(t *testing.T) {
	tests := []struct {
		route Route
		want  string // part of the error; empty: valid
	}{
		{Route{Filter: "#", Topic: "mqtt", Key: "{topic}"}, ""},
		{Route{Filter: "sensors/+/#", Topic: "t.e-l_e", Key: "{1}/{2}-{topic}"}, ""},
		{Route{Filter: "a", Topic: "x", Key: "constant"}, ""},
		{Route{Filter: "local/+/#", NotStored: true}, ""},
		{Route{Filter: "#", NotStored: true}, ""},
		{Route{Filter: "a#", NotStored: true}, `filter: "a#"`},
		{Route{Filter: "$SYS/#", NotStored: true}, "topics that begin with $ are not stored"},
		{Route{Filter: "a", Topic: "x", NotStored: true}, `topic: "x" can't be where messages go that log: none keeps out of the log; take out topic, or log: none`},
		{Route{Filter: "a", Key: "{9}", NotStored: true}, `key: "{9}" has no record to be the key of beside log: none; take out key, or log: none`},
		{Route{Filter: "", Topic: "x", Key: "{topic}"}, "filter: "},
		{Route{Filter: "a#", Topic: "x", Key: "{topic}"}, `filter: "a#"`},
		{Route{Filter: "a/#/b", Topic: "x", Key: "{topic}"}, `filter: "a/#/b"`},
		{Route{Filter: "$SYS/#", Topic: "x", Key: "{topic}"}, "topics that begin with $ are not stored"},
		{Route{Filter: "#", Topic: "", Key: "{topic}"}, "topic: a topic needs a name"},
		{Route{Filter: "#", Topic: "..", Key: "{topic}"}, "topic: "},
		{Route{Filter: "#", Topic: "a/b", Key: "{topic}"}, `'/' is not allowed`},
		{Route{Filter: "#", Topic: "tele{1}", Key: "{topic}"}, `'{' is not allowed`},
		{Route{Filter: "#", Topic: "mqtt", Key: ""}, "key: is empty"},
		{Route{Filter: "a", Topic: "mqtt", Key: "{1}"}, "has no wildcard"},
		{Route{Filter: "a/+", Topic: "mqtt", Key: "{2}"}, "has 1 wildcard"},
		{Route{Filter: "#", Topic: "mqtt", Key: "{0}"}, "{0}"},
		{Route{Filter: "#", Topic: "mqtt", Key: "{01}"}, "{01}"},
		{Route{Filter: "#", Topic: "mqtt", Key: "{client}"}, "{client}"},
		{Route{Filter: "#", Topic: "mqtt", Key: "{1"}, "a brace without its partner"},
		{Route{Filter: "#", Topic: "mqtt", Key: "1}"}, "a brace without its partner"},
		{Route{Filter: "#", Topic: "mqtt", Key: strings.Repeat("{1}", 17)}, "more than 16 parts"},
	}
	for _, test := range tests {
		errs := test.route.Validate()
		if test.want == "" {
			if len(errs) > 0 {
				t.Errorf("%+v: %v", test.route, errs)
			}
			continue
		}
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), test.want) {
			t.Errorf("%+v: got %v, want one error with %q", test.route, errs, test.want)
		}
	}
	if errs := (Route{Filter: "a/#/b", Topic: "", Key: ""}).Validate(); len(errs) != 3 {
		t.Errorf("three wrong fields gave %v", errs)
	}
	if errs := (Route{Filter: "a/#/b", Topic: "x", Key: "y", NotStored: true}).Validate(); len(errs) != 3 {
		t.Errorf("three wrong fields without a log gave %v", errs)
	}
}

// testTable makes a table over topics of the given partition counts. The partitions are told apart by address only.
func testTable(t testing.TB, counts map[string]int, routes ...Route) (*table, map[string][]*segment.Partition) {
	t.Helper()
	all := make(map[string][]*segment.Partition)
	for name, n := range counts {
		for range n {
			all[name] = append(all[name], new(segment.Partition))
		}
	}
	table, err := newTable(routes, func(name string) []*segment.Partition { return all[name] })
	if err != nil {
		t.Fatal(err)
	}
	return table, all
}

func TestRoute(t *testing.T) {
	table, partitions := testTable(t, map[string]int{"telemetry": 4, "alarms": 1, "mqtt": 4},
		Route{Filter: "sensors/+/alarm", Topic: "alarms", Key: "{1}"},
		Route{Filter: "sensors/+/+", Topic: "telemetry", Key: "{1}:{2}"},
		Route{Filter: "plant/#", Topic: "telemetry", Key: "p-{1}"},
		Route{Filter: "fixed", Topic: "telemetry", Key: "constant"},
		Route{Filter: "#", Topic: "mqtt", Key: "{topic}"},
	)
	tests := []struct {
		topic, log, key string
		keyIsTopic      bool
	}{
		{"sensors/7/alarm", "alarms", "7", false},
		{"sensors/7/temp", "telemetry", "7:temp", false},
		{"sensors//temp", "telemetry", ":temp", false},
		{"plant", "telemetry", "p-", false},
		{"plant/a/b", "telemetry", "p-a/b", false},
		{"fixed", "telemetry", "constant", false},
		{"sensors/7", "mqtt", "sensors/7", true},
		{"sensors/7/temp/x", "mqtt", "sensors/7/temp/x", true},
		{"x$/y", "mqtt", "x$/y", true},
	}
	for _, test := range tests {
		dst := []byte("before")
		p, key, keyIsTopic, ok := table.Route([]byte(test.topic), dst)
		if !ok || string(key) != test.key || keyIsTopic != test.keyIsTopic {
			t.Errorf("%q: key %q, is topic %v, ok %v; want %q, %v", test.topic, key, keyIsTopic, ok, test.key, test.keyIsTopic)
			continue
		}
		want := partitions[test.log][partitionOf([]byte(test.key), len(partitions[test.log]))]
		if p != want {
			t.Errorf("%q: wrong partition", test.topic)
		}
		if string(dst) != "before" {
			t.Errorf("%q: dst was overwritten: %q", test.topic, dst)
		}
	}
	for _, topic := range []string{"$SYS/x", "$share/g/a", "$", ""} {
		if _, _, _, ok := table.Route([]byte(topic), nil); ok {
			t.Errorf("%q was routed; it must never be stored", topic)
		}
	}
}

// A route that keeps messages out of the log takes its turn like any other: the first that matches wins. What no route takes is something else.
func TestRouteNotStored(t *testing.T) {
	table, partitions := testTable(t, map[string]int{"alarms": 1, "telemetry": 1},
		Route{Filter: "local/alarm", Topic: "alarms", Key: "{topic}"},
		Route{Filter: "local/#", NotStored: true},
		Route{Filter: "local/never", Topic: "alarms", Key: "{topic}"},
		Route{Filter: "+/private", NotStored: true},
		Route{Filter: "sensors/#", Topic: "telemetry", Key: "{1}"},
	)
	for _, test := range []struct {
		topic, log string // log is empty: not stored
		ok         bool
	}{
		{"local/alarm", "alarms", true},
		{"local/alarm/x", "", true},
		{"local", "", true},
		{"local/never", "", true},
		{"sensors/private", "", true},
		{"sensors/7", "telemetry", true},
		{"elsewhere", "", false},
		{"$local/x", "", false},
	} {
		p, key, keyIsTopic, ok := table.Route([]byte(test.topic), []byte("before"))
		var want *segment.Partition
		if test.log != "" {
			want = partitions[test.log][0]
		}
		if p != want || ok != test.ok {
			t.Errorf("%q: partition %p, ok %v; want %p, %v", test.topic, p, ok, want, test.ok)
		}
		if p == nil && (string(key) != "before" || keyIsTopic) {
			t.Errorf("%q has no record, but the key %q", test.topic, key)
		}
	}
}

func TestRouteUnknownTopic(t *testing.T) {
	_, err := newTable([]Route{{Filter: "#", Topic: "nowhere", Key: "{topic}"}}, func(string) []*segment.Partition { return nil })
	if err == nil || !strings.Contains(err.Error(), `no topic "nowhere"`) {
		t.Errorf("got %v", err)
	}
}

func TestRouteDoesNotAllocate(t *testing.T) {
	table, _ := testTable(t, map[string]int{"telemetry": 4, "mqtt": 4}, Route{Filter: "local/#", NotStored: true},
		Route{Filter: "sensors/+/+", Topic: "telemetry", Key: "{1}:{2}"}, Route{Filter: "#", Topic: "mqtt", Key: "{topic}"})
	buf := make([]byte, 0, 64)
	a, b, c := []byte("sensors/building-7/temperature"), []byte("other/topic"), []byte("local/x")
	if n := testing.AllocsPerRun(100, func() {
		table.Route(a, buf)
		table.Route(b, buf)
		table.Route(c, buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRoute(b *testing.B) {
	table, _ := testTable(b, map[string]int{"telemetry": 4, "mqtt": 4},
		Route{Filter: "sensors/+/+", Topic: "telemetry", Key: "{1}:{2}"}, Route{Filter: "#", Topic: "mqtt", Key: "{topic}"})
	buf := make([]byte, 0, 64)
	for _, topic := range []string{"sensors/building-7/temperature", "mqttload/17/23"} {
		b.Run(strings.ReplaceAll(topic, "/", "."), func(b *testing.B) {
			for b.Loop() {
				table.Route([]byte(topic), buf)
			}
		})
	}
}

func BenchmarkDefaultRoute(b *testing.B) {
	table, _ := testTable(b, map[string]int{"mqtt": 4}, Route{Filter: "#", Topic: "mqtt", Key: "{topic}"})
	topic := []byte("mqttload/17/23")
	for b.Loop() {
		table.Route(topic, nil)
	}
}
