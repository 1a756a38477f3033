package auth

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

// The ACL file: a rule a line, with lines that begin with # as comments.
//
//	user NAME                                   whom the topic rules below are for; those before the first user are for clients without a name
//	topic   [read|write|readwrite|deny] FILTER  readwrite when left out
//	pattern [read|write|readwrite|deny] FILTER  for everybody; %u is the user's name and %c the client id, wherever they stand
//
// A user's own rules are asked first, then the patterns. In each of the two a deny that matches wins over all others, and a
// rule that matches and grants what is asked for ends the search: a user's own rule grants what a pattern denies. What nothing grants is
// refused. A topic that begins with $ needs a filter that does.

// Bounds of an ACL file, beside its size.
const maxRules = 20_000

// access is what a rule grants; a deny grants nothing.
type access byte

const (
	read access = 1 << iota
	write
	deny access = 0
)

// rule is one line. Immutable.
type rule struct {
	filter  string
	access  access
	hasUser bool // a pattern with %u: not for clients without a name
}

// rules are a user's, or the patterns.
type rules struct{ denies, grants []rule }

func (r *rules) add(line rule) {
	if line.access == deny {
		r.denies = append(r.denies, line)
	} else {
		r.grants = append(r.grants, line)
	}
}

// acl is an ACL file. Immutable.
type acl struct {
	anonymous rules
	users     map[string]*rules
	patterns  rules
}

// parseACL reads an ACL file's content; file names it in messages.
func parseACL(file string, data []byte) (a *acl, warnings []string, err error) {
	p := &aclParser{reading: reading{file: file}, acl: &acl{users: make(map[string]*rules)}}
	p.to = &p.acl.anonymous
	p.each(data, func(line []byte) { p.parse(string(line)) })
	if err := p.err(); err != nil {
		return nil, nil, err
	}
	return p.acl, p.warnings, nil
}

type aclParser struct {
	reading
	acl   *acl
	to    *rules // of the user in hand
	count int
}

// parse reads one line. Only the space separates words, and leading ones don't count.
func (p *aclParser) parse(line string) {
	line = strings.TrimRight(line, blanks)
	if strings.HasPrefix(line, "#") || line == "" {
		return
	}
	keyword, rest, _ := strings.Cut(strings.TrimLeft(line, " "), " ")
	switch keyword {
	case "user":
		p.user(strings.Trim(rest, blanks))
	case "topic", "pattern":
		p.rule(keyword == "pattern", strings.TrimLeft(rest, " "))
	default:
		hint := ""
		if strings.ContainsAny(keyword, "\t") {
			hint = "; separate words with spaces, not tabs"
		}
		p.bad("%.40q is not known (allowed: user, topic, pattern)%s", keyword, hint)
	}
}

func (p *aclParser) user(name string) {
	switch {
	case name == "":
		p.bad("user without a name; write user NAME")
		return
	case len(name) > MaxUserNameBytes:
		p.bad("the user's name is %d bytes long; at most %d are allowed", len(name), MaxUserNameBytes)
		return
	}
	p.to = p.acl.users[name]
	if p.to == nil {
		p.to = new(rules)
		p.acl.users[name] = p.to
		p.limit()
	}
}

// rule reads what follows topic or pattern.
func (p *aclParser) rule(pattern bool, text string) {
	line := rule{access: read | write}
	word, filter, more := strings.Cut(text, " ")
	if filter = strings.Trim(filter, blanks); !more || filter == "" {
		filter = word // a filter alone, be it called read
	} else if err := line.grant(word); err != nil {
		p.bad("%v", err)
		return
	}
	if filter == "" {
		p.bad("there is no topic; write topic [read|write|readwrite|deny] TOPIC")
		return
	}
	if strings.HasPrefix(filter, "$share/") {
		p.warn("%.80q: messages have no topic that begins with $share; write the topic itself", filter)
	} else if err := topics.ValidFilter(filter); err != nil {
		p.bad("%.80q is not a topic filter: %v", filter, err)
		return
	}
	line.filter = filter
	p.limit()
	if !pattern {
		p.to.add(line)
		return
	}
	line.hasUser = strings.Contains(filter, "%u")
	if !line.hasUser && !strings.Contains(filter, "%c") {
		p.warn("pattern %.80q holds neither %%u nor %%c, so it is the same for everybody", filter)
	}
	p.acl.patterns.add(line)
}

func (r *rule) grant(word string) error {
	switch word {
	case "read":
		r.access = read
	case "write":
		r.access = write
	case "readwrite":
		r.access = read | write
	case "deny":
		r.access = deny
	default:
		return fmt.Errorf("access type %.40q is not known (allowed: read, write, readwrite, deny); a topic with spaces needs one before it", word)
	}
	return nil
}

var errTooManyRules = errors.New("too many rules")

// limit counts users and rules.
func (p *aclParser) limit() {
	if p.count++; p.count == maxRules+1 {
		p.bad("%v: users and rules together are more than %d", errTooManyRules, maxRules)
	}
	if p.count > maxRules {
		p.acl = &acl{users: make(map[string]*rules)} // it is refused anyway: hold no more of it
		p.to = &p.acl.anonymous
	}
}

// allows says whether a client may have want of a topic.
func (a *acl) allows(who *identity, topic []byte, want access) bool {
	own := &a.anonymous
	if who.named {
		own = a.users[who.user]
	}
	name := view(topic)
	if own != nil {
		switch own.judge(name, want, nil) {
		case granted:
			return true
		case denied:
			return false
		}
	}
	// With a wildcard in its name a client could reach beyond its place in the hierarchy.
	if who.dangerous || len(a.patterns.denies)+len(a.patterns.grants) == 0 {
		return false
	}
	return a.patterns.judge(name, want, who) == granted
}

type verdict byte

const (
	silent verdict = iota
	granted
	denied
)

// judge asks the rules. who is whose names are put into patterns; nil: there is nothing to put in.
func (r *rules) judge(topic string, want access, who *identity) verdict {
	var scratch [256]byte
	for i := range r.denies {
		if r.denies[i].matches(topic, who, scratch[:0]) {
			return denied
		}
	}
	for i := range r.grants {
		if g := &r.grants[i]; g.access&want != 0 && g.matches(topic, who, scratch[:0]) {
			return granted
		}
	}
	return silent
}

func (r *rule) matches(topic string, who *identity, scratch []byte) bool {
	if who == nil {
		return topics.Match(r.filter, topic)
	}
	if r.hasUser && !who.named {
		return false
	}
	return topics.Match(view(who.fill(scratch, r.filter)), topic)
}

// fill appends pattern to dst with the client's names in it.
func (who *identity) fill(dst []byte, pattern string) []byte {
	for {
		i := strings.IndexByte(pattern, '%')
		if i < 0 || i+1 == len(pattern) {
			return append(dst, pattern...)
		}
		dst = append(dst, pattern[:i]...)
		switch pattern[i+1] {
		case 'c':
			dst = append(dst, who.clientID...)
		case 'u':
			dst = append(dst, who.user...)
		default:
			dst = append(dst, '%')
			pattern = pattern[i+1:]
			continue
		}
		pattern = pattern[i+2:]
	}
}

// identity is what the rules see of a client. Immutable.
type identity struct {
	user      string
	clientID  string
	named     bool // it has a user's name
	dangerous bool // a name holds a wildcard
}

func newIdentity(user string, named bool, clientID string) identity {
	return identity{
		user: user, clientID: clientID, named: named,
		dangerous: named && strings.ContainsAny(user, "+#") || strings.ContainsAny(clientID, "+#"),
	}
}

// view is b as a string, for as long as b doesn't change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
