package broker

import (
	"bytes"
	"strings"
)

// filter is an MQTT topic filter (MQTT 5 §4.7) taken apart once. Immutable.
type filter struct {
	levels    []string // "+" and "#" are the wildcards: no valid filter has them as text
	wildcards int
}

func newFilter(s string) filter {
	f := filter{levels: strings.Split(s, "/")}
	for _, level := range f.levels {
		if level == "+" || level == "#" {
			f.wildcards++
		}
	}
	return f
}

// match reports whether the filter takes the topic.
func (f *filter) match(topic []byte) bool {
	rest, more := topic, true // the levels that are left, and whether there are any: "" is a level, too
	for _, level := range f.levels {
		if level == "#" {
			return true // also where it stands for no level: a/# takes a
		}
		if !more {
			return false
		}
		var part []byte
		part, rest, more = cutLevel(rest)
		if level != "+" && string(part) != level {
			return false
		}
	}
	return !more
}

// wildcard is what the nth wildcard, counted from 1, stands for in a topic that the filter takes: one level for +, for # all
// that is left, which is empty where it stands for no level.
func (f *filter) wildcard(topic []byte, n int) []byte {
	rest := topic
	for _, level := range f.levels {
		if level == "#" {
			return rest
		}
		var part []byte
		part, rest, _ = cutLevel(rest)
		if level == "+" {
			if n--; n == 0 {
				return part
			}
		}
	}
	return nil
}

// cutLevel is bytes.Cut at a slash.
func cutLevel(topic []byte) (level, rest []byte, more bool) {
	if i := bytes.IndexByte(topic, '/'); i >= 0 {
		return topic[:i], topic[i+1:], true
	}
	return topic, nil, false
}

// covers reports whether every topic that other takes is taken by f, too. It may miss a case (+/# covers #), never invent one.
func (f *filter) covers(other *filter) bool {
	for i, level := range f.levels {
		if level == "#" {
			return true
		}
		if i == len(other.levels) || other.levels[i] == "#" {
			return false
		}
		if level != "+" && level != other.levels[i] {
			return false
		}
	}
	return len(f.levels) == len(other.levels)
}
