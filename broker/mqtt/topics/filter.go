package topics

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Bounds of names and filters.
const (
	MaxBytes  = 65535 // MQTT 5 §4.7.3
	MaxLevels = 128   // ours; the depth of the tree and of every walk over it
)

// Why a topic name or a filter is refused. They say nothing of the topic
// itself: it is the client's, and the caller escapes it where it logs it.
var (
	ErrEmpty    = errors.New("topic is empty")
	ErrTooLong  = errors.New("topic is longer than 65535 bytes")
	ErrString   = errors.New("topic is not a valid MQTT string")
	ErrLevels   = errors.New("topic has more than 128 levels")
	ErrWildcard = errors.New("wildcard where MQTT allows none")
	ErrShared   = errors.New("shared subscription without a valid group or filter")
)

// ValidTopic says whether topic can be published to. It allocates nothing.
func ValidTopic(topic string) error {
	if err := checkString(topic); err != nil {
		return err
	}
	if strings.ContainsAny(topic, "+#") {
		return ErrWildcard
	}
	return nil
}

// ValidFilter says whether filter can be subscribed to. A shared subscription
// ($share/group/filter) is judged with its group. It allocates nothing.
func ValidFilter(filter string) error {
	if err := checkString(filter); err != nil {
		return err
	}
	if strings.HasPrefix(filter, sharePrefix) {
		group, rest, ok := SharedGroup(filter)
		if !ok || rest == "" || group == "" || strings.ContainsAny(group, "+#") {
			return ErrShared
		}
		filter = rest
	}
	for {
		level, rest, more := strings.Cut(filter, "/")
		switch {
		case level == "#" && more:
			return ErrWildcard // only as the last level
		case level != "#" && level != "+" && strings.ContainsAny(level, "+#"):
			return ErrWildcard // only as a whole level
		case !more:
			return nil
		}
		filter = rest
	}
}

// checkString is what names and filters have in common.
func checkString(s string) error {
	switch {
	case s == "":
		return ErrEmpty
	case len(s) > MaxBytes:
		return ErrTooLong
	case strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s):
		return ErrString
	case strings.Count(s, "/") >= MaxLevels:
		return ErrLevels
	}
	return nil
}

const sharePrefix = "$share/"

// IsShared says whether filter is that of a shared subscription.
func IsShared(filter string) bool { return strings.HasPrefix(filter, sharePrefix) }

// SharedGroup splits $share/group/filter. ok is false when filter has another
// form, $share/group without a filter included.
func SharedGroup(filter string) (group, rest string, ok bool) {
	s, shared := strings.CutPrefix(filter, sharePrefix)
	if !shared {
		return "", "", false
	}
	return strings.Cut(s, "/")
}

// Match says whether topic matches filter, both valid and filter not shared.
// It is the plain statement of the rules that the tree is tested against.
func Match(filter, topic string) bool {
	if topic != "" && topic[0] == '$' && filter != "" && (filter[0] == '+' || filter[0] == '#') {
		return false // MQTT 5 §4.7.2
	}
	for {
		f, frest, fmore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, trest, tmore := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		switch {
		case !tmore && !fmore:
			return true
		case !tmore:
			return frest == "#" // a/# matches a as well, MQTT 5 §4.7.1.2
		case !fmore:
			return false
		}
		filter, topic = frest, trest
	}
}
