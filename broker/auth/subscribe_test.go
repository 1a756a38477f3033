package auth

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

func TestMaySubscribe(t *testing.T) {
	a := testAuthenticator(t, "topic read public/#\nuser alice\ntopic read a/#\ntopic read b/+/x\ntopic write w/#\ntopic deny a/secret/#\ntopic read $SYS/#\n"+
		"pattern read own/%u/#\npattern deny own/+/locked\npattern read dev/%c/#\n")
	for _, strict := range []bool{true, false} {
		a.o.StrictSubscribe = strict
		for _, tt := range []struct {
			user, id, filter string
			want             bool
		}{
			{"alice", "c", "a/x", true}, {"alice", "c", "a/x/#", true}, {"alice", "c", "a/x/+/y", true},
			{"alice", "c", "a/#", false}, {"alice", "c", "a/+", false}, {"alice", "c", "a/secret", false}, {"alice", "c", "a/secret/x", false},
			{"alice", "c", "#", false}, {"alice", "c", "+/x", false}, {"alice", "c", "b/1/x", true}, {"alice", "c", "b/+/x", true},
			{"alice", "c", "b/+/+", false}, {"alice", "c", "w/x", false}, {"alice", "c", "$SYS/#", true}, {"alice", "c", "$SYS/broker/+", true},
			{"alice", "c", "$share/g/a/x", true}, {"alice", "c", "$share/g/#", false},
			{"alice", "c", "own/alice/x", true}, {"alice", "c", "own/alice/#", false}, {"alice", "c", "own/bob/x", false}, {"alice", "c", "own/+/x", false},
			{"alice", "c", "dev/c/#", true}, {"alice", "d", "dev/c/#", false}, {"alice", "+", "dev/+/#", false}, {"alice", "c", "public/x", false},
			{"", "c", "public/#", true}, {"", "c", "public", true}, {"", "c", "own//x", false}, {"", "c", "dev/c/x", true}, {"bob", "c", "a/x", false},
		} {
			c := a.Client(User{Name: tt.user, Named: tt.user != ""}, tt.id)
			if got := c.MaySubscribe(tt.filter); got != (tt.want || !strict) {
				t.Errorf("%q as %q, %s, strict %v: %v", tt.user, tt.id, tt.filter, strict, got)
			}
		}
	}
}

// TestFiltersOfFilters: what covers and overlap say of filters must be true of all short topics.
func TestFiltersOfFilters(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	words := []string{"a", "b", "$a", ""}
	var all []string
	for _, x := range words {
		if x != "" {
			all = append(all, x)
		}
		for _, y := range words {
			all = append(all, x+"/"+y)
			for _, z := range words {
				all = append(all, x+"/"+y+"/"+z, x+"/"+y+"/"+z+"/a")
			}
		}
	}
	draw := func() string {
		levels := make([]string, 1+r.IntN(3))
		for i := range levels {
			levels[i] = []string{"a", "b", "+", "+", "", "$a"}[r.IntN(6)]
		}
		if r.IntN(3) == 0 {
			levels = append(levels, "#")
		}
		if f := strings.Join(levels, "/"); f != "" {
			return f
		}
		return "#"
	}
	yes := 0
	for range 20_000 {
		x, y := draw(), draw()
		if x == "/#" || y == "/#" {
			continue // it matches its parent, which would be the empty topic
		}
		both, outside := false, false
		for _, topic := range all {
			inX, inY := topics.Match(x, topic), topics.Match(y, topic)
			both = both || inX && inY
			outside = outside || inY && !inX
		}
		if got := overlap(x, y); got != both {
			t.Fatalf("seed %d: overlap(%q, %q) = %v", seed, x, y, got)
		}
		if covers(x, y) {
			yes++
			if outside {
				t.Fatalf("seed %d: %q doesn't cover %q", seed, x, y)
			}
		} else if !outside && !strings.Contains(x, "#") {
			t.Fatalf("seed %d: %q covers %q", seed, x, y)
		}
	}
	if yes == 0 {
		t.Error("nothing covers anything")
	}
}
