package auth

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

const probedACL = `# before the first user: clients without a name
topic read anon/#
topic write anonw/#

user alice
topic a/#
topic deny a/secret/#
topic read $SYS/#
topic $foo/#
topic write $SYS/broker/connection/x/state
topic write $SYS/broker/x
topic write $share/g/a
topic write r/only
topic read with spaces/in it
topic readwrite
pattern write c/%c/#
pattern deny c/%c/deny
pattern u/%u/#
pattern deny a/own/%u
pattern readwrite mix-%u-%c/z
pattern write %u
pattern write e/%%u/x
user   bob b  
topic   read    b/+/x   
user alice
topic read  second/#
`

// probes are what mosquitto 2.0.11 was seen to do with probedACL.
var probes = []struct {
	user, id, topic string
	access          access
	want            bool
}{
	{"alice", "c1", "a/b", write, true},
	{"alice", "c1", "a", write, true},
	{"alice", "c1", "a/secret", write, false}, // a/secret/# takes its parent along
	{"alice", "c1", "a/secret/x", write, false},
	{"alice", "c1", "a/secret/x", read, false},
	{"alice", "c1", "a/own/alice", write, true}, // what is granted by name isn't denied by a pattern
	{"alice", "c1", "$foo/x", write, true},
	{"alice", "c1", "$foo", write, true},
	{"alice", "c1", "$SYS/broker/uptime", read, true},
	{"alice", "c1", "$SYS/broker/connection/x/state", write, true},
	{"alice", "c1", "$SYS/broker/connection/y/state", write, false},
	{"alice", "c1", "$SYS/broker/x", write, false}, // not even where it is granted
	{"alice", "c1", "$SYSx", write, false},
	{"alice", "c1", "$share/g/a", write, false},
	{"alice", "c1", "r/only", write, true},
	{"alice", "c1", "r/only", read, false},
	{"alice", "c1", "with spaces/in it", read, true},
	{"alice", "c1", "with", read, false},
	{"alice", "c1", "readwrite", write, true},
	{"alice", "c1", "second/x", read, true},
	{"alice", "c1", "c/c1/x", write, true},
	{"alice", "c1", "c/c1/x", read, false},
	{"alice", "c1", "c/c1", write, true},
	{"alice", "c1", "c/c1/deny", write, false},
	{"alice", "c1", "c/c2/x", write, false},
	{"alice", "c1", "u/alice/x", write, true},
	{"alice", "c1", "u/alice/x", read, true},
	{"alice", "c1", "u/bob/x", write, false},
	{"alice", "c1", "mix-alice-c1/z", write, true},
	{"alice", "c1", "alice", write, true},
	{"alice", "c1", "anonw/x", write, false},
	{"alice", "c1", "e/%alice/x", write, true},
	{"alice", "c1", "e/%%u/x", write, false},
	{"", "n/1", "anonw/x", write, true},
	{"", "n/1", "anon/x", write, false},
	{"", "n/1", "anon/x", read, true},
	{"", "n/1", "c/n/1/z", write, true}, // a / in a client id is more levels
	{"", "n/1", "c/n/1", write, true},
	{"", "n/1", "u//x", write, false}, // no name, no %u
	{"", "n/1", "u/x", write, false},
	{"", "n/1", "$SYS/broker/uptime", read, false},
	{"alice", "d+1", "a/b", write, true}, // wildcards in a name shut out from patterns only
	{"alice", "d+1", "u/alice/x", write, false},
	{"alice", "d/#", "u/alice/x", write, false},
	{"a+", "c1", "u/a+/x", read, false},
	{"bob b", "c1", "b/1/x", read, true},
	{"bob b", "c1", "b/1/x", write, false},
	{"bob b", "c1", "u/bob b/x", write, true},
	{"bob", "c1", "b/1/x", read, false},
	{"bob", "c1", "c/c1/x", write, true},
	{"ALICE", "c1", "a/b", write, false},
}

// testAuthenticator has an ACL and no password file.
func testAuthenticator(t testing.TB, text string) *Authenticator {
	t.Helper()
	a, _, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &files{tag: rand.Uint64()}
	if f.acl, _, err = parseACL("acl", []byte(text)); err != nil {
		t.Fatal(err)
	}
	a.current.Store(f)
	return a
}

func TestProbes(t *testing.T) {
	a := testAuthenticator(t, probedACL)
	for _, p := range probes {
		c := a.Client(User{Name: p.user, Named: p.user != ""}, p.id)
		for _, how := range []string{"found", "kept"} {
			if got := c.may([]byte(p.topic), p.access); got != p.want {
				t.Errorf("%q as %q, %q, access %d: %v (%s)", p.user, p.id, p.topic, p.access, got, how)
			}
		}
	}
}

func TestEmptyACLDeniesAll(t *testing.T) {
	c := testAuthenticator(t, "").Client(User{}, "c")
	if c.MayPublish([]byte("a")) || c.MayReceive([]byte("a")) {
		t.Error("an empty file allows something")
	}
	a, _, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	c = a.Client(User{}, "c")
	if !c.MayPublish([]byte("a")) || !c.MayReceive([]byte("$SYS/x")) || c.MayPublish([]byte("$SYS/x")) {
		t.Error("without a file everything but $SYS is allowed")
	}
}

func TestBadACLs(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"topc a", `acl:1: "topc" is not known (allowed: user, topic, pattern)`},
		{"\n  # indented", `acl:2: "#" is not known`},
		{"topic\ta", "separate words with spaces, not tabs"},
		{"topic", "acl:1: there is no topic"},
		{"pattern ", "acl:1: there is no topic"},
		{"user", "acl:1: user without a name"},
		{"user  \t", "acl:1: user without a name"},
		{"topic rw a", `acl:1: access type "rw" is not known (allowed: read, write, readwrite, deny)`},
		{"topic a b", `access type "a" is not known`},
		{"topic read a/#/b", `acl:1: "a/#/b" is not a topic filter`},
		{"topic a+", `"a+" is not a topic filter`},
		{"pattern +%c/x", `"+%c/x" is not a topic filter`},
		{"topic a\ntopic b#\nuser\n", "acl:3: user without a name"},
		{"topic " + strings.Repeat("x", maxLineBytes), "acl:1: the line is"},
		{"user " + strings.Repeat("x", MaxUserNameBytes+1), "acl:1: the user's name is 1025 bytes long"},
		{strings.Repeat("topic a\n", maxRules+1), "acl:20001: too many rules"},
	} {
		if a, _, err := parseACL("acl", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.40q: %v, %v; want %q", tt.text, a, err, tt.want)
		}
	}
}

func TestACLWarnings(t *testing.T) {
	_, warnings, err := parseACL("acl", []byte("pattern a/b\npattern a/%x\ntopic read $share/g/a\npattern %u\n"))
	if err != nil || len(warnings) != 3 || !strings.HasPrefix(warnings[0], "acl:1: pattern") || !strings.HasPrefix(warnings[2], `acl:3: "$share/g/a"`) {
		t.Errorf("%q, %v", warnings, err)
	}
}

// naive is a second statement of the rules: all lines in the order of the file, the last word by the weight of each.
func naive(text string, who identity, topic string, want access) bool {
	section, ownDeny, ownGrant, patternDeny, patternGrant := "", false, false, false, false
	anonymous, patterns := true, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.SplitN(line, " ", 3)
		if words[0] == "user" {
			section, anonymous = words[1], false
			continue
		}
		filter := words[2]
		if words[0] == "pattern" {
			patterns = true
			if strings.Contains(filter, "%u") && !who.named {
				continue
			}
			filter = strings.NewReplacer("%u", who.user, "%c", who.clientID).Replace(filter)
		} else if anonymous == who.named || !anonymous && section != who.user {
			continue
		}
		if !topics.Match(filter, topic) {
			continue
		}
		isDeny := words[1] == "deny"
		grants := words[1] == "readwrite" || words[1] == "read" && want == read || words[1] == "write" && want == write
		if words[0] == "pattern" {
			patternDeny, patternGrant = patternDeny || isDeny, patternGrant || grants
		} else {
			ownDeny, ownGrant = ownDeny || isDeny, ownGrant || grants
		}
	}
	switch {
	case ownDeny, ownGrant:
		return !ownDeny
	case !patterns || who.dangerous || patternDeny:
		return false
	}
	return patternGrant
}

// randomACL draws a file of rules that overlap a lot.
func randomACL(r *rand.Rand) string {
	var b strings.Builder
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	for range 4 + r.IntN(20) {
		if r.IntN(5) == 0 {
			fmt.Fprintf(&b, "user %s\n", pick("u1", "u2", "u3"))
			continue
		}
		kind := pick("topic", "topic", "pattern")
		levels := make([]string, 1+r.IntN(3))
		for i := range levels {
			levels[i] = pick("a", "b", "+", "", "u1", "c1")
			if kind == "pattern" && r.IntN(2) == 0 {
				levels[i] = pick("%u", "%c", "x%uy", "%c%u")
			}
		}
		if r.IntN(4) == 0 {
			levels = append(levels, "#")
		}
		filter := strings.Join(levels, "/")
		if filter == "" {
			filter = "+"
		}
		if r.IntN(8) == 0 && filter[0] != '+' && filter[0] != '#' {
			filter = "$" + filter
		}
		fmt.Fprintf(&b, "%s %s %s\n", kind, pick("read", "write", "readwrite", "readwrite", "deny"), filter)
	}
	return b.String()
}

func randomTopic(r *rand.Rand) string {
	levels := make([]string, 1+r.IntN(3))
	for i := range levels {
		levels[i] = []string{"a", "b", "", "u1", "c1", "c1u1", "xu1y", "c"}[r.IntN(8)]
	}
	topic := strings.Join(levels, "/")
	if r.IntN(8) == 0 {
		topic = "$" + topic
	}
	if topic == "" {
		topic = "a"
	}
	return topic
}

func TestACLAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		text := randomACL(r)
		a := testAuthenticator(t, text)
		for _, who := range []identity{
			newIdentity("", false, "c1"), newIdentity("u1", true, "c1"), newIdentity("u2", true, "c/1"), newIdentity("u1", true, "c+"),
			newIdentity("u#", true, "c1"), newIdentity("none", true, "c1"),
		} {
			c := a.Client(User{Name: who.user, Named: who.named}, who.clientID)
			for range 20 {
				topic, want := randomTopic(r), []access{read, write}[r.IntN(2)]
				if got := c.may([]byte(topic), want); got != naive(text, who, topic, want) {
					t.Fatalf("seed %d: %+v, %q, access %d: %v by\n%s", seed, who, topic, want, got, text)
				}
			}
		}
	}
}

// FuzzACL: any file is either refused or gives the same answers found and kept, and no one gets to publish to $SYS.
func FuzzACL(f *testing.F) {
	f.Add([]byte(probedACL), "alice", "c1", "a/b")
	f.Add([]byte("pattern %u/%c/%x%\ntopic # \n user  x y\ntopic deny +/+"), "x y", "c/d", "$SYS/b")
	f.Fuzz(func(t *testing.T, data []byte, user, id, topic string) {
		parsed, warnings, err := parseACL("acl", data)
		if err != nil {
			if parsed != nil {
				t.Fatal("an error and rules")
			}
			return
		}
		if len(warnings) > maxProblems {
			t.Fatalf("%d warnings", len(warnings))
		}
		a, _, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		a.current.Store(&files{acl: parsed})
		c := a.Client(User{Name: user, Named: user != ""}, id)
		for _, want := range []access{read, write} {
			first := c.may([]byte(topic), want)
			if first != c.may([]byte(topic), want) {
				t.Fatal("the second answer is another one")
			}
			if first && want == write && strings.HasPrefix(topic, "$SYS/x") {
				t.Fatal("$SYS can be written to")
			}
		}
	})
}

func BenchmarkMayReceive(b *testing.B) {
	var text strings.Builder
	text.WriteString("user u\n")
	for i := range 50 {
		fmt.Fprintf(&text, "topic read sensors/%d/+/temperature\n", i)
	}
	text.WriteString("pattern read own/%u/%c/#\n")
	c := testAuthenticator(b, text.String()).Client(User{Name: "u", Named: true}, "client")
	topic := []byte("own/u/client/device-17/temperature")
	b.Run("kept", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !c.MayReceive(topic) {
				b.Fatal("denied")
			}
		}
	})
	b.Run("found", func(b *testing.B) {
		b.ReportAllocs()
		f := c.a.current.Load()
		for b.Loop() {
			if !f.acl.allows(&c.who, topic, read) {
				b.Fatal("denied")
			}
		}
	})
}
