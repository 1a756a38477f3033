package topics

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestValidFilter(t *testing.T) {
	for _, c := range []struct {
		filter string
		want   error
	}{
		{"#", nil}, {"+", nil}, {"/", nil}, {"//", nil}, {"a", nil}, {"a/b", nil}, {"a/#", nil}, {"+/#", nil},
		{"+/+", nil}, {"a/+/b", nil}, {"/+", nil}, {"+/", nil}, {"/#", nil}, {"a//b", nil}, {" ", nil}, {"ä/€/𝄞", nil},
		{"$SYS/#", nil}, {"$share", nil}, {"$shared/a", nil}, {"$Share/g", nil}, {"\x01\x7f\uFFFF", nil},
		{"$share/g/a", nil}, {"$share/g/#", nil}, {"$share/g/+/b", nil}, {"$share/g//", nil}, {"$share/g//a", nil},
		{"$share/g/$share/h/a", nil},
		{strings.Repeat("/", MaxLevels-1), nil},
		{strings.Repeat("a", MaxBytes), nil},
		{"", ErrEmpty},
		{strings.Repeat("a", MaxBytes+1), ErrTooLong},
		{strings.Repeat("/", MaxLevels), ErrLevels},
		{"a\x00", ErrString}, {"\x00", ErrString}, {"\xff", ErrString}, {"a/\xed\xa0\x80", ErrString},
		{"a#", ErrWildcard}, {"#a", ErrWildcard}, {"a/#/b", ErrWildcard}, {"#/", ErrWildcard}, {"##", ErrWildcard},
		{"a/b+", ErrWildcard}, {"+b", ErrWildcard}, {"a/+b/c", ErrWildcard}, {"++", ErrWildcard}, {"+#", ErrWildcard},
		{"a/b#", ErrWildcard}, {"#/#", ErrWildcard},
		{"$share/", ErrShared}, {"$share//", ErrShared}, {"$share//a", ErrShared}, {"$share/g", ErrShared}, {"$share/g/", ErrShared},
		{"$share/+/a", ErrShared}, {"$share/#/a", ErrShared}, {"$share/g+/a", ErrShared}, {"$share/#", ErrShared},
		{"$share/g/a#", ErrWildcard}, {"$share/g/#/a", ErrWildcard},
	} {
		if err := ValidFilter(c.filter); !errors.Is(err, c.want) {
			t.Errorf("%.40q: %v, want %v", c.filter, err, c.want)
		}
	}
}

func TestValidTopic(t *testing.T) {
	for _, c := range []struct {
		topic string
		want  error
	}{
		{"a", nil}, {"/", nil}, {"a//b", nil}, {"$SYS/x", nil}, {"\uFEFF", nil},
		{strings.Repeat("/", MaxLevels-1), nil}, {strings.Repeat("a", MaxBytes), nil},
		{"", ErrEmpty}, {strings.Repeat("a", MaxBytes+1), ErrTooLong}, {strings.Repeat("/", MaxLevels), ErrLevels},
		{"a+", ErrWildcard}, {"#", ErrWildcard}, {"a/+/b", ErrWildcard}, {"a\x00b", ErrString}, {"\xc0\x80", ErrString},
	} {
		if err := ValidTopic(c.topic); !errors.Is(err, c.want) {
			t.Errorf("%.40q: %v, want %v", c.topic, err, c.want)
		}
	}
}

func TestSharedGroup(t *testing.T) {
	for _, c := range []struct {
		in, group, rest string
		ok              bool
	}{
		{"$share/g/a/b", "g", "a/b", true}, {"$share/g/#", "g", "#", true}, {"$share/g//", "g", "/", true},
		{"a/b", "", "", false}, {"$share/g", "g", "", false}, {"$share", "", "", false}, {"x$share/g/a", "", "", false},
	} {
		if g, r, ok := SharedGroup(c.in); g != c.group || r != c.rest || ok != c.ok {
			t.Errorf("%q: %q %q %v", c.in, g, r, ok)
		}
	}
}

// matchCases are those of MQTT 5 §4.7 and those other brokers got wrong.
var matchCases = []struct {
	filter, topic string
	want          bool
}{
	{"sport/tennis/player1/#", "sport/tennis/player1", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/ranking", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true},
	{"sport/#", "sport", true},
	{"sport/#", "sports", false},
	{"#", "a", true}, {"#", "/", true}, {"#", "a/b/c", true},
	{"sport/tennis/+", "sport/tennis/player1", true},
	{"sport/tennis/+", "sport/tennis/player1/ranking", false},
	{"sport/+", "sport", false}, {"sport/+", "sport/", true},
	{"+/+", "/finance", true}, {"/+", "/finance", true}, {"+", "/finance", false},
	{"+", "a", true}, {"+", "a/b", false}, {"+/", "a/", true}, {"+/", "a", false},
	{"+/#", "a", true}, {"+/#", "/", true}, {"a/+/#", "a/b", true}, {"a/+/#", "a", false}, {"a/+/#", "a/b/c/d", true},
	{"+/+/#", "a", false}, {"+/+/#", "a/b", true},
	{"a//b", "a//b", true}, {"a/+/b", "a//b", true}, {"a/b", "a//b", false}, {"/", "/", true}, {"//#", "/", true}, {"//#", "//x", true},
	{"/#", "/", true}, {"/#", "", true}, {"/#", "a", false}, {"/#", "/a", true},
	{"a", "A", false}, {"a", "a/", false}, {"a/", "a", false}, {"a", "/a", false},
	{"#", "$SYS", false}, {"#", "$SYS/x", false}, {"+", "$SYS", false}, {"+/x", "$SYS/x", false}, {"+/#", "$SYS", false},
	{"$SYS/#", "$SYS/x", true}, {"$SYS/#", "$SYS", true}, {"$SYS/+", "$SYS/x", true}, {"$SYS/x", "$SYS/x", true},
	{"a/#", "a/$b", true}, {"a/+", "a/$b", true}, {"$", "$", true}, {"#", "$", false},
}

func TestMatch(t *testing.T) {
	for _, c := range matchCases {
		if got := Match(c.filter, c.topic); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.filter, c.topic, got)
		}
		var tree Tree[int]
		tree.Subscribe(c.filter, 1, Subscription{})
		if c.topic == "" {
			continue
		}
		if got := len(tree.Match([]byte(c.topic), nil)) == 1; got != c.want {
			t.Errorf("tree: %q, %q: %v", c.filter, c.topic, got)
		}
	}
}

// naive is a second statement of the rules, as unlike Match as can be: over
// split levels, from the back.
func naive(filter, topic string) bool {
	f, t := strings.Split(filter, "/"), strings.Split(topic, "/")
	if strings.HasPrefix(topic, "$") && (f[0] == "+" || f[0] == "#") {
		return false
	}
	if last := len(f) - 1; f[last] == "#" {
		f = f[:last]
		if len(t) < len(f) {
			return false
		}
		t = t[:len(f)]
	}
	if len(f) != len(t) {
		return false
	}
	for i := len(f) - 1; i >= 0; i-- {
		if f[i] != "+" && f[i] != t[i] {
			return false
		}
	}
	return true
}

// randomTopic draws from few short levels, empty ones and $ among them, so that
// matches and shared prefixes are common.
func randomTopic(rnd *rand.Rand) string {
	levels := []string{"", "a", "b", "c", "$s", "ab"}
	parts := make([]string, 1+rnd.IntN(4))
	for i := range parts {
		parts[i] = levels[rnd.IntN(len(levels))]
	}
	if s := strings.Join(parts, "/"); s != "" {
		return s
	}
	return "a"
}

func randomFilter(rnd *rand.Rand) string {
	parts := strings.Split(randomTopic(rnd), "/")
	for i := range parts {
		if rnd.IntN(3) == 0 {
			parts[i] = "+"
		}
	}
	if rnd.IntN(3) == 0 {
		parts = append(parts, "#")
		if rnd.IntN(4) == 0 {
			parts = parts[len(parts)-1:]
		}
	}
	return strings.Join(parts, "/")
}

func TestMatchAgainstNaive(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	hits := 0
	for range 200_000 {
		f, topic := randomFilter(rnd), randomTopic(rnd)
		if ValidFilter(f) != nil || ValidTopic(topic) != nil {
			t.Fatalf("generator: %q %q", f, topic)
		}
		want := naive(f, topic)
		if got := Match(f, topic); got != want {
			t.Fatalf("Match(%q, %q) = %v", f, topic, got)
		}
		if want {
			hits++
		}
	}
	if hits < 10_000 {
		t.Fatalf("only %d matches", hits)
	}
}

func FuzzFilter(f *testing.F) {
	for _, c := range matchCases {
		f.Add(c.filter, c.topic)
	}
	f.Add("$share/g/a", "a")
	f.Fuzz(func(t *testing.T, filter, topic string) {
		if ValidFilter(filter) != nil || ValidTopic(topic) != nil {
			return
		}
		if _, rest, ok := SharedGroup(filter); ok {
			filter = rest
			if ValidFilter(filter) != nil && !strings.HasPrefix(filter, sharePrefix) {
				t.Fatalf("valid shared, invalid alone: %q", filter)
			}
		}
		want := naive(filter, topic)
		var tree Tree[int]
		tree.Subscribe(filter, 7, Subscription{QoS: 1})
		if got := Match(filter, topic); got != want {
			t.Fatalf("Match(%q, %q) = %v", filter, topic, got)
		}
		if got := len(tree.Match([]byte(topic), nil)); got != map[bool]int{true: 1}[want] {
			t.Fatalf("tree: %q, %q: %d hits", filter, topic, got)
		}
		if !tree.Unsubscribe(filter, 7) || tree.Len() != 0 || !tree.root.empty() {
			t.Fatalf("tree keeps %q", filter)
		}
	})
}
