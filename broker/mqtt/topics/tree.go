package topics

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Subscription is what a subscriber asked for beside the filter. The tree only
// carries it.
type Subscription struct {
	ID                uint32  // subscription identifier, 0: none
	Starts            *Starts // where it begins; nil: everywhere
	QoS               byte
	RetainHandling    byte
	NoLocal           bool
	RetainAsPublished bool
}

// Starts are the places that a subscription begins at, by whatever numbers the
// subscriber gives them.
type Starts []int64

// Hit is one subscription that a topic matches.
type Hit[S comparable] struct {
	Subscriber S
	Filter     string
	Sub        Subscription
}

// Tree maps topic filters to subscriptions, at most one for each filter and
// subscriber. The zero value is an empty tree. All methods may be called from
// any goroutine. Filters must be valid (ValidFilter) and without $share/group/;
// a shared subscription is the business of whoever leases its group.
type Tree[S comparable] struct {
	len  atomic.Int64
	mu   sync.RWMutex
	root node[S] // guarded by mu
}

// Len is the number of subscriptions. It takes no lock: when it is 0 a
// publisher has nobody to look for.
func (t *Tree[S]) Len() int { return int(t.len.Load()) }

// Subscribe adds the subscription of s to filter; replaced says that s had one
// to the same filter, which is gone now. The tree keeps the string filter, as
// the subscriber will: so it should hold its own bytes only.
func (t *Tree[S]) Subscribe(filter string, s S, sub Subscription) (replaced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.root.open(filter)
	for i := range l.subs {
		if l.subs[i].subscriber == s {
			l.subs[i].sub = sub
			return true
		}
	}
	l.subs = append(l.subs, entry[S]{s, sub})
	t.len.Add(1)
	return false
}

// Unsubscribe removes the subscription of s to filter, and says whether there
// was one.
func (t *Tree[S]) Unsubscribe(filter string, s S) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unsubscribeLocked(filter, s)
}

// UnsubscribeAll removes the subscriptions of s to all of filters.
func (t *Tree[S]) UnsubscribeAll(s S, filters []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range filters {
		t.unsubscribeLocked(f, s)
	}
}

func (t *Tree[S]) unsubscribeLocked(filter string, s S) bool {
	found := t.root.remove(filter, true, s)
	if found {
		t.len.Add(-1)
	}
	return found
}

// Match appends one hit for each subscription that topic matches: several for
// a subscriber whose filters overlap, in no particular order. topic must be a
// valid topic name. It allocates nothing beyond dst.
func (t *Tree[S]) Match(topic []byte, dst []Hit[S]) []Hit[S] { return t.MatchOf(topic, dst, nil) }

// MatchOf is Match for those subscribers that want says. nil means all. It is
// called with the tree locked.
func (t *Tree[S]) MatchOf(topic []byte, dst []Hit[S], want func(S) bool) []Hit[S] {
	if t.len.Load() == 0 || len(topic) == 0 {
		return dst
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.root.match(topic, true, topic[0] == '$', dst, want)
}

// node is one level of the tree. A filter's last level has its leaf here; a
// final # hangs at the level before it, because that level matches too.
type node[S comparable] struct {
	children children[S]
	plus     *node[S] // the level +
	leaf     *leaf[S] // filters that end at this level
	hash     *leaf[S] // filters that go on with /# and end
}

// leaf is one filter. It has at least one entry.
type leaf[S comparable] struct {
	filter string
	subs   []entry[S]
}

type entry[S comparable] struct {
	subscriber S
	sub        Subscription
}

// open returns the leaf of filter below n, made if it has to be.
func (n *node[S]) open(filter string) *leaf[S] {
	for rest, more := filter, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		if level == "#" {
			return openLeaf(&n.hash, filter)
		}
		n = n.enter(level)
	}
	return openLeaf(&n.leaf, filter)
}

func openLeaf[S comparable](l **leaf[S], filter string) *leaf[S] {
	if *l == nil {
		*l = &leaf[S]{filter: filter}
	}
	return *l
}

// enter returns the child of n for one level of a filter, made if it has to be.
func (n *node[S]) enter(level string) *node[S] {
	if level == "+" {
		if n.plus == nil {
			n.plus = &node[S]{}
		}
		return n.plus
	}
	c := n.children.get(level)
	if c == nil {
		c = &node[S]{}
		n.children.put(strings.Clone(level), c)
	}
	return c
}

// remove takes s off the leaf of filter below n, and takes out what that
// leaves empty. more is false once the filter is used up. Depth is at most
// MaxLevels, as filters are valid.
func (n *node[S]) remove(rest string, more bool, s S) bool {
	if !more {
		return removeEntry(&n.leaf, s)
	}
	level, rest, more := strings.Cut(rest, "/")
	if level == "#" {
		return removeEntry(&n.hash, s)
	}
	if level == "+" {
		if n.plus == nil || !n.plus.remove(rest, more, s) {
			return false
		}
		if n.plus.empty() {
			n.plus = nil
		}
		return true
	}
	c := n.children.get(level)
	if c == nil || !c.remove(rest, more, s) {
		return false
	}
	if c.empty() {
		n.children.del(level)
	}
	return true
}

func removeEntry[S comparable](l **leaf[S], s S) bool {
	if *l == nil {
		return false
	}
	subs := (*l).subs
	for i := range subs {
		if subs[i].subscriber != s {
			continue
		}
		last := len(subs) - 1
		subs[i] = subs[last]
		subs[last] = entry[S]{} // lets go of the subscriber
		subs = subs[:last]
		switch {
		case last == 0:
			*l = nil
			return true
		case cap(subs) > 8 && last < cap(subs)/4:
			subs = append(make([]entry[S], 0, cap(subs)/2), subs...)
		}
		(*l).subs = subs
		return true
	}
	return false
}

func (n *node[S]) empty() bool {
	return n.children.len() == 0 && n.plus == nil && n.leaf == nil && n.hash == nil
}

// match appends the hits below n. more is false once the topic is used up;
// noWildcard holds at the first level of a topic that begins with $. A node
// stands for one path and is entered at most once for a topic, so the cost is
// bounded by the size of the tree whatever the filters are.
func (n *node[S]) match(rest []byte, more, noWildcard bool, dst []Hit[S], want func(S) bool) []Hit[S] {
	if n.hash != nil && !noWildcard {
		dst = n.hash.append(dst, want)
	}
	if !more {
		if n.leaf != nil {
			dst = n.leaf.append(dst, want)
		}
		return dst
	}
	level, rest, more := cut(rest)
	if c := n.children.find(level); c != nil {
		dst = c.match(rest, more, false, dst, want)
	}
	if n.plus != nil && !noWildcard {
		dst = n.plus.match(rest, more, false, dst, want)
	}
	return dst
}

// cut splits the first level off a topic.
func cut(topic []byte) (level, rest []byte, more bool) {
	for i, c := range topic {
		if c == '/' {
			return topic[:i], topic[i+1:], true
		}
	}
	return topic, nil, false
}

func (l *leaf[S]) append(dst []Hit[S], want func(S) bool) []Hit[S] {
	for i := range l.subs {
		if want != nil && !want(l.subs[i].subscriber) {
			continue
		}
		dst = append(dst, Hit[S]{l.subs[i].subscriber, l.filter, l.subs[i].sub})
	}
	return dst
}

// Under says whether a filter begins with level, which is no wildcard.
func (t *Tree[S]) Under(level string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.root.children.get(level) != nil
}
