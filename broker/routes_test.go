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
		{Filter: "a/b"}, {Filter: "a/+"}, {Filter: "a/c"}, {Filter: "#"}, {Filter: "x/#"}, {Filter: "#"},
	})
	want := map[int]int{2: 1, 4: 3, 5: 3}
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
		{Route{"#", "mqtt", "{topic}"}, ""},
		{Route{"sensors/+/#", "t.e-l_e", "{1}/{2}-{topic}"}, ""},
		{Route{"a", "x", "constant"}, ""},
		{Route{"", "x", "{topic}"}, "filter: "},
		{Route{"a#", "x", "{topic}"}, `filter: "a#"`},
		{Route{"a/#/b", "x", "{topic}"}, `filter: "a/#/b"`},
		{Route{"$SYS/#", "x", "{topic}"}, "topics that begin with $ are not stored"},
		{Route{"#", "", "{topic}"}, "topic: a topic needs a name"},
		{Route{"#", "..", "{topic}"}, "topic: "},
		{Route{"#", "a/b", "{topic}"}, `'/' is not allowed`},
		{Route{"#", "tele{1}", "{topic}"}, `'{' is not allowed`},
		{Route{"#", "mqtt", ""}, "key: is empty"},
		{Route{"a", "mqtt", "{1}"}, "has no wildcard"},
		{Route{"a/+", "mqtt", "{2}"}, "has 1 wildcard"},
		{Route{"#", "mqtt", "{0}"}, "{0}"},
		{Route{"#", "mqtt", "{01}"}, "{01}"},
		{Route{"#", "mqtt", "{client}"}, "{client}"},
		{Route{"#", "mqtt", "{1"}, "a brace without its partner"},
		{Route{"#", "mqtt", "1}"}, "a brace without its partner"},
		{Route{"#", "mqtt", strings.Repeat("{1}", 17)}, "more than 16 parts"},
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
	if errs := (Route{"a/#/b", "", ""}).Validate(); len(errs) != 3 {
		t.Errorf("three wrong fields gave %v", errs)
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
		Route{"sensors/+/alarm", "alarms", "{1}"},
		Route{"sensors/+/+", "telemetry", "{1}:{2}"},
		Route{"plant/#", "telemetry", "p-{1}"},
		Route{"fixed", "telemetry", "constant"},
		Route{"#", "mqtt", "{topic}"},
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

func TestRouteUnknownTopic(t *testing.T) {
	_, err := newTable([]Route{{"#", "nowhere", "{topic}"}}, func(string) []*segment.Partition { return nil })
	if err == nil || !strings.Contains(err.Error(), `no topic "nowhere"`) {
		t.Errorf("got %v", err)
	}
}

func TestRouteDoesNotAllocate(t *testing.T) {
	table, _ := testTable(t, map[string]int{"telemetry": 4, "mqtt": 4},
		Route{"sensors/+/+", "telemetry", "{1}:{2}"}, Route{"#", "mqtt", "{topic}"})
	buf := make([]byte, 0, 64)
	a, b := []byte("sensors/building-7/temperature"), []byte("other/topic")
	if n := testing.AllocsPerRun(100, func() {
		table.Route(a, buf)
		table.Route(b, buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRoute(b *testing.B) {
	table, _ := testTable(b, map[string]int{"telemetry": 4, "mqtt": 4},
		Route{"sensors/+/+", "telemetry", "{1}:{2}"}, Route{"#", "mqtt", "{topic}"})
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
	table, _ := testTable(b, map[string]int{"mqtt": 4}, Route{"#", "mqtt", "{topic}"})
	topic := []byte("mqttload/17/23")
	for b.Loop() {
		table.Route(topic, nil)
	}
}
