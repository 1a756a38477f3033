package retained

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

var unlimited = Limits{math.MaxInt, math.MaxInt64}

func message(topic, payload string) *Message {
	return NewMessage(Message{Topic: topic, Payload: []byte(payload)})
}

// all walks the whole filter.
func (s *Store) all(filter string, mark uint64) (found []string) {
	for at, more := (Position{}), true; more; {
		var m *Message
		if m, at, more = s.Next(filter, at, mark); m != nil {
			found = append(found, m.Topic+"="+string(m.Payload))
		}
	}
	return found
}

func (s *Store) want(t *testing.T, filter string, want ...string) {
	t.Helper()
	mark, _ := s.Mark()
	if got := s.all(filter, mark); !slices.Equal(got, want) {
		t.Errorf("%s: %q, not %q", filter, got, want)
	}
}

func TestWalkOfFilters(t *testing.T) {
	s := New(unlimited)
	for _, topic := range []string{"a", "a/b", "a/b/c", "a//c", "/", "/a", "b", "$SYS/a", "$SYS/a/b", "a-b", "ab"} {
		s.Load(message(topic, "x"))
	}
	for filter, want := range map[string][]string{
		"#":       {"/", "/a", "a", "a//c", "a/b", "a/b/c", "a-b", "ab", "b"},
		"a":       {"a"},
		"a/#":     {"a", "a//c", "a/b", "a/b/c"},
		"+":       {"a", "a-b", "ab", "b"},
		"+/#":     {"/", "/a", "a", "a//c", "a/b", "a/b/c", "a-b", "ab", "b"},
		"a/+/#":   {"a//c", "a/b", "a/b/c"},
		"a/+":     {"a/b"},
		"a/+/c":   {"a//c", "a/b/c"},
		"/+":      {"/", "/a"},
		"/#":      {"/", "/a"},
		"+/+":     {"/", "/a", "a/b"},
		"$SYS/#":  {"$SYS/a", "$SYS/a/b"},
		"$SYS/+":  {"$SYS/a"},
		"+/a":     {"/a"},
		"x/#":     nil,
		"a/b/c/d": nil,
	} {
		for i := range want {
			want[i] += "=x"
		}
		s.want(t, filter, want...)
	}
}

// Every walk is what the plain rule says, in one order, wherever it is taken up and whatever has gone meanwhile.
func TestWalksAgainstTheRule(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	levels := []string{"", "a", "b", "c", "$x", "long-level"}
	pick := func(from []string) string {
		parts := make([]string, 1+rng.IntN(4))
		for i := range parts {
			parts[i] = from[rng.IntN(len(from))]
		}
		return strings.Join(parts, "/")
	}
	for range 300 {
		s := New(unlimited)
		there := map[string]bool{}
		for range rng.IntN(60) {
			if topic := pick(levels); topics.ValidTopic(topic) == nil {
				s.Load(message(topic, "x"))
				there[topic] = true
			}
		}
		filter := pick(append([]string{"+", "+"}, levels...))
		if rng.IntN(2) == 0 {
			filter += "/#"
		}
		if topics.ValidFilter(filter) != nil {
			continue
		}
		var want, got []string
		for topic := range there {
			if topics.Match(filter, topic) {
				want = append(want, topic)
			}
		}
		slices.SortFunc(want, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
		removed := map[string]bool{}
		for at, more := (Position{}), true; more; {
			var e *entry
			e, at, more = s.root.next(filter, at, 1+rng.IntN(5), func(*entry) bool { return true })
			if e == nil {
				continue
			}
			got = append(got, e.visible.Topic)
			if rng.IntN(3) == 0 && len(want) > 0 { // the last one, or another, goes
				topic := want[rng.IntN(len(want))]
				if slices.Contains(got, topic) {
					s.root.remove(topic, true)
					removed[topic] = true
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %q, not %q", filter, got, want)
		}
	}
}

func TestPositions(t *testing.T) {
	order := []string{"", "/", "//a", "/a", "a", "a//c", "a/b", "a/b/c", "a-b", "ab"}
	for i, p := range order {
		for j, topic := range order {
			if got := At(p).Before(topic); got != (i < j) {
				t.Errorf("%q before %q: %v", p, topic, got)
			}
		}
		if !(Position{}).Before(p) {
			t.Errorf("the beginning isn't before %q", p)
		}
	}
}

func TestNextLooksAtSoMuch(t *testing.T) {
	s := New(unlimited)
	for i := range 5 * walkNodes {
		s.Load(message(fmt.Sprintf("d/%d", i), "x"))
	}
	s.Load(message("d/last/y", "y"))
	calls := 0
	for at, more := (Position{}), true; more; calls++ {
		var m *Message
		if m, at, more = s.Next("d/+/y", at, 0); m != nil && m.Topic != "d/last/y" {
			t.Fatal(m.Topic)
		}
	}
	if calls < 5 {
		t.Errorf("%d calls for %d topics", calls, 5*walkNodes)
	}
}

func TestChangesBecomeVisible(t *testing.T) {
	s := New(unlimited)
	s.Load(message("t", "old"))
	before, _ := s.Mark()
	s.Stage(5, "t", message("t", "new"), false)
	after, group := s.Mark()
	if group != 5 || !s.Unsettled() {
		t.Fatalf("group %d", group)
	}
	s.want(t, "t", "t=old")
	if got := s.all("t", before); got != nil { // the new one arrives live, and the old one must not come behind it
		t.Errorf("%q for one who subscribed before", got)
	}
	s.Settle(5)
	if got := s.all("t", before); got != nil {
		t.Errorf("%q for one who subscribed before", got)
	}
	if got := s.all("t", after); len(got) != 1 || got[0] != "t=new" || s.Settled() != 5 || s.Unsettled() {
		t.Errorf("%q for one who subscribed after", got)
	}
	s.Stage(6, "t", nil, false)
	s.want(t, "t", "t=new")
	s.Settle(6)
	s.want(t, "#")
	if len(s.root.children) != 0 {
		t.Error("the tree isn't empty")
	}
	if n, bytes := s.Len(); n != 0 || bytes != 0 {
		t.Errorf("%d messages, %d bytes", n, bytes)
	}
}

func TestAtOnce(t *testing.T) {
	s := New(unlimited)
	first, _ := s.Stage(1, "t", message("t", "logged"), false)
	second, _ := s.Stage(1, "t", message("t", "at once"), true)
	before, _ := s.Mark()
	s.Show(second)
	if got := s.all("t", before); got != nil { // handed on behind the mark: it is live
		t.Errorf("%q", got)
	}
	s.want(t, "t", "t=at once")
	s.Settle(1)
	s.want(t, "t", "t=at once") // the later one
	_ = first

	clear, _ := s.Stage(2, "t", nil, true)
	s.Settle(2) // before it is handed on
	s.want(t, "t", "t=at once")
	s.Show(clear)
	s.want(t, "t")
	if len(s.root.children) != 0 || s.Unsettled() {
		t.Error("the tree isn't empty")
	}
}

func TestUndo(t *testing.T) {
	state := map[string]*Message{"a": message("a", "1"), "b": message("b", "1")}
	durable := func(topic string) (*Message, error) { return state[topic], nil }
	s := New(Limits{5, math.MaxInt64})
	s.Load(state["a"])
	s.Load(state["b"])
	shown, _ := s.Stage(7, "a", message("a", "2"), true)
	late, _ := s.Stage(7, "c", message("c", "2"), true)
	s.Stage(7, "b", nil, false)
	s.Stage(7, "d", message("d", "2"), false)
	s.Show(shown)
	s.Stage(8, "d", message("d", "3"), false)
	s.want(t, "#", "a=2", "b=1")
	if errs := s.Undo(7, durable); errs != nil {
		t.Fatal(errs)
	}
	s.Show(late)
	s.want(t, "#", "a=1", "b=1")
	if n, _ := s.Len(); n != 3 {
		t.Errorf("%d messages with the one that is staged", n)
	}
	s.Settle(8)
	s.want(t, "#", "a=1", "b=1", "d=3")
	s.Stage(9, "a", message("a", "4"), false)
	if errs := s.Undo(9, func(string) (*Message, error) { return nil, errors.New("disk") }); len(errs) != 1 {
		t.Fatal(errs)
	}
	s.want(t, "#", "a=1", "b=1", "d=3")
}

func TestLimits(t *testing.T) {
	s := New(Limits{2, 2*messageOverhead + 10})
	stage := func(topic, payload string, want bool) {
		t.Helper()
		var m *Message
		if payload != "" {
			m = message(topic, payload)
		}
		if _, ok := s.Stage(1, topic, m, false); ok != want {
			t.Errorf("%s=%s: %v", topic, payload, ok)
		}
	}
	stage("a", "1", true)
	stage("b", "1", true)
	stage("c", "1", false)
	stage("a", "123456", true) // 7 + 2
	stage("b", "123456", false)
	stage("a", "", true)
	stage("c", "1", true)
	stage("d", "1", false)
	s.Settle(1)
	s.want(t, "#", "b=1", "c=1")
}

// Random changes at random limits against a plain map of what is durable and what is visible.
func TestStoreAgainstModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := New(Limits{6, math.MaxInt64})
		durable := map[string]*Message{}
		type staged struct {
			topic string
			m     *Message
		}
		group, pending := uint64(1), []staged{}
		var unshown []*Change
		for range 200 {
			switch r := rng.IntN(10); {
			case r < 7:
				topic := string(rune('a' + rng.IntN(8)))
				var m *Message
				if rng.IntN(3) > 0 {
					m = message(topic, fmt.Sprint(rng.Int()))
				}
				atOnce := rng.IntN(2) == 0
				if c, ok := s.Stage(group, topic, m, atOnce); ok {
					pending = append(pending, staged{topic, m})
					if atOnce {
						unshown = append(unshown, c)
					}
				}
			case r < 8:
				for _, c := range unshown {
					s.Show(c)
				}
				unshown = nil
			case r < 9:
				for _, p := range pending {
					if durable[p.topic] = p.m; p.m == nil {
						delete(durable, p.topic)
					}
				}
				s.Settle(group)
				pending = nil
				group++
			default:
				s.Undo(group, func(topic string) (*Message, error) { return durable[topic], nil })
				pending = nil
				group++
			}
			if len(pending) > 0 || len(unshown) > 0 {
				continue
			}
			var want []string
			bytes := int64(0)
			for topic, m := range durable {
				want = append(want, topic+"="+string(m.Payload))
				bytes += m.Size()
			}
			slices.Sort(want)
			s.want(t, "#", want...)
			if n, size := s.Len(); n != len(want) || size != bytes || s.Unsettled() {
				t.Errorf("%d messages, %d bytes, not %d, %d", n, size, len(want), bytes)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

func TestExpired(t *testing.T) {
	age := map[int64]time.Duration{1: 10 * time.Second, 2: 9*time.Second + 999*time.Millisecond, 3: 365 * 24 * time.Hour}
	at := func(stamp int64) time.Duration { return age[stamp] }
	s := New(unlimited)
	for topic, m := range map[string]Message{
		"old":  {Stamp: 1, Expiry: 10, HasExpiry: true},
		"new":  {Stamp: 2, Expiry: 10, HasExpiry: true},
		"none": {Stamp: 3},
		"zero": {Stamp: 2, HasExpiry: true},
	} {
		m.Topic, m.Payload = topic, []byte("x")
		s.Load(NewMessage(m))
	}
	topics := s.Expired(10, at)
	slices.Sort(topics)
	if !slices.Equal(topics, []string{"old", "zero"}) {
		t.Fatalf("%q", topics)
	}
	if !s.Expire(1, "old", at) || s.Expire(1, "old", at) || s.Expire(1, "new", at) || s.Expire(1, "gone", at) {
		t.Error("the wrong ones expire")
	}
	s.Settle(1)
	s.want(t, "#", "new=x", "none=x", "zero=x")
	if left, ok := s.root.find("new").visible.Left(at); left != 1 || !ok {
		t.Errorf("%d s left", left)
	}
}

func benchmarkStore(n int) *Store {
	s := New(unlimited)
	for i := range n {
		s.Load(message(fmt.Sprintf("site/%d/sensor/%d", i%100, i), "21.5"))
	}
	return s
}

// All 10,000 retained messages, one Next each, as a subscriber to # takes them.
func BenchmarkWalk(b *testing.B) {
	s := benchmarkStore(10000)
	mark, _ := s.Mark()
	for _, c := range []struct {
		filter string
		found  int
	}{{"#", 10000}, {"site/+/sensor/+", 10000}, {"site/7/#", 100}, {"site/7/sensor/1007", 1}, {"site/+/nothing", 0}} {
		b.Run(c.filter, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n := len(s.walk(c.filter, mark)); n != c.found {
					b.Fatal(n)
				}
			}
		})
	}
}

func (s *Store) walk(filter string, mark uint64) []*Message {
	found := make([]*Message, 0, 10000)
	for at, more := (Position{}), true; more; {
		var m *Message
		if m, at, more = s.Next(filter, at, mark); m != nil {
			found = append(found, m)
		}
	}
	return found
}

func BenchmarkStage(b *testing.B) {
	s := benchmarkStore(10000)
	payload := []byte("21.6")
	b.ReportAllocs()
	group := uint64(0)
	for b.Loop() {
		group++
		s.Stage(group, "site/7/sensor/1007", NewMessage(Message{Topic: "site/7/sensor/1007", Payload: payload}), false)
		s.Settle(group)
	}
}
