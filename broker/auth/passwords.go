package auth

import (
	"bytes"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// The password file: a line for each user, name and hash with a colon between. Lines that begin with # are comments. Blanks
// around name and hash don't count, nor does what follows a second colon. Of two lines for one user the last counts.

// maxUsers bounds a password file.
const maxUsers = 10_000

// MaxUserNameBytes is how long a user's name may be. MQTT allows 65,535.
const MaxUserNameBytes = 1024

// passwords is a password file. Immutable but for what was verified.
type passwords struct {
	users map[string]*user
	order []*user // as in the file
}

// user is a line of the file.
type user struct {
	name string
	hash *hash
	line int
	// verified is the MAC of the password that was last found right; nil: none yet.
	verified atomic.Pointer[mac]
}

// parsePasswords reads a password file's content; file names it in messages. argonMemory bounds what an argon2 may take, in bytes.
func parsePasswords(file string, data []byte, argonMemory int64) (p *passwords, warnings []string, err error) {
	r := &reading{file: file}
	p = &passwords{users: make(map[string]*user)}
	r.each(data, func(line []byte) { p.add(r, line, argonMemory) })
	if err := r.err(); err != nil {
		return nil, nil, err
	}
	return p, r.warnings, nil
}

// add reads one line.
func (p *passwords) add(r *reading, line []byte, argonMemory int64) {
	if bytes.HasPrefix(line, []byte("#")) || len(bytes.Trim(line, blanks)) == 0 {
		return
	}
	name, text, ok := splitUser(line)
	switch {
	case !ok:
		r.warn("there is no colon between a user's name and a hash; the line is skipped")
		return
	case name == "":
		r.bad("there is no user's name before the colon; take the line out")
		return
	case len(name) > MaxUserNameBytes:
		r.bad("the user's name is %d bytes long; at most %d are allowed", len(name), MaxUserNameBytes)
		return
	case !utf8.ValidString(name):
		r.warn("user's name %q is not UTF-8, so no client can have it; the line is skipped", name)
		return
	case text == "":
		r.warn("user %q has no password, so it can't connect; set one with sluice passwd", name)
		return
	}
	h, err := parseHash(text, argonMemory)
	if err != nil {
		r.bad("user %q: %v", name, err)
		return
	}
	u := &user{name: name, hash: h, line: r.line}
	if first := p.users[name]; first != nil {
		r.warn("user %q is in line %d, too; this line counts, take the other one out", name, first.line)
		p.order[indexOf(p.order, first)] = u
	} else if len(p.users) == maxUsers {
		r.bad("this is user %d; at most %d are allowed", maxUsers+1, maxUsers)
		return
	} else {
		p.order = append(p.order, u)
	}
	p.users[name] = u
}

func indexOf(list []*user, u *user) int {
	for i := range list {
		if list[i] == u {
			return i
		}
	}
	return -1
}

// splitUser takes a line apart. ok is false without a colon.
func splitUser(line []byte) (name, hash string, ok bool) {
	before, after, ok := strings.Cut(string(line), ":")
	after, _, _ = strings.Cut(after, ":")
	return strings.Trim(before, blanks), strings.Trim(after, blanks), ok
}
