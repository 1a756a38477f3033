package auth

import (
	"strings"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

// MaySubscribe says whether the client may subscribe to a filter. mosquitto grants all and checks each delivery, and so do we unless
// Options.StrictSubscribe is set: then a rule that grants reading must take in the whole filter, and no rule deny a part of it. A
// shared subscription is judged by its filter.
func (c *Client) MaySubscribe(filter string) bool {
	f := c.a.current.Load()
	if !c.a.o.StrictSubscribe || f.acl == nil {
		return true
	}
	if _, rest, shared := topics.SharedGroup(filter); shared {
		filter = rest
	}
	return c.exists(f) && f.acl.grantsAll(&c.who, filter)
}

// grantsAll says whether a client may read every topic that filter matches, as far as single rules tell.
func (a *acl) grantsAll(who *identity, filter string) bool {
	own := &a.anonymous
	if who.named {
		own = a.users[who.user]
	}
	if own != nil {
		switch own.judgeAll(filter, nil) {
		case granted:
			return true
		case denied:
			return false
		}
	}
	return !who.dangerous && a.patterns.judgeAll(filter, who) == granted
}

// judgeAll is judge for all topics of a filter.
func (r *rules) judgeAll(filter string, who *identity) verdict {
	for i := range r.denies {
		if rule, ok := r.denies[i].of(who); ok && overlap(rule, filter) {
			return denied
		}
	}
	for i := range r.grants {
		if rule, ok := r.grants[i].of(who); ok && r.grants[i].access&read != 0 && covers(rule, filter) {
			return granted
		}
	}
	return silent
}

// of is the rule's filter with the client's names in it. ok is false when it is not for the client.
func (r *rule) of(who *identity) (filter string, ok bool) {
	switch {
	case who == nil:
		return r.filter, true
	case r.hasUser && !who.named:
		return "", false
	}
	return string(who.fill(nil, r.filter)), true
}

// covers says whether wide matches every topic that narrow does. It may say no where only both levels of a wildcard together would.
func covers(wide, narrow string) bool {
	if narrow[0] == '$' && (wide[0] == '+' || wide[0] == '#') {
		return false // MQTT 5 §4.7.2
	}
	for {
		w, wrest, wmore := strings.Cut(wide, "/")
		n, nrest, nmore := strings.Cut(narrow, "/")
		switch {
		case w == "#":
			return true
		case n == "#" || w != "+" && w != n:
			return false
		case !nmore:
			return !wmore || wrest == "#"
		case !wmore:
			return false
		}
		wide, narrow = wrest, nrest
	}
}

// overlap says whether there is a topic that both filters match.
func overlap(a, b string) bool {
	wild := func(s string) bool { return s[0] == '+' || s[0] == '#' }
	if a[0] == '$' && wild(b) || b[0] == '$' && wild(a) {
		return false
	}
	for {
		x, xrest, xmore := strings.Cut(a, "/")
		y, yrest, ymore := strings.Cut(b, "/")
		switch {
		case x == "#" || y == "#":
			return true
		case x != "+" && y != "+" && x != y:
			return false
		case !xmore && !ymore:
			return true
		case !xmore:
			return yrest == "#"
		case !ymore:
			return xrest == "#"
		}
		a, b = xrest, yrest
	}
}
