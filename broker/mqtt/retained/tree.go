package retained

import (
	"cmp"
	"slices"
	"strings"
)

// node is one level of a topic. Children are sorted by level, so that a walk can be taken up where it was left, whatever has
// come and gone since: node before children, children in order.
type node struct {
	children []child
	entry    *entry // nil: no topic ends here
}

type child struct {
	level string
	node  *node
}

func (n *node) search(level string) (at int, ok bool) {
	return slices.BinarySearchFunc(n.children, level, func(c child, l string) int { return cmp.Compare(c.level, l) })
}

// find is the entry of a topic, nil for none.
func (n *node) find(topic string) *entry {
	for rest, more := topic, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		at, ok := n.search(level)
		if !ok {
			return nil
		}
		n = n.children[at].node
	}
	return n.entry
}

// open is the entry of a topic, made if it has to be. The tree keeps parts of the string.
func (n *node) open(topic string) *entry {
	for rest, more := topic, true; more; {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		at, ok := n.search(level)
		if !ok {
			n.children = slices.Insert(n.children, at, child{strings.Clone(level), new(node)})
		}
		n = n.children[at].node
	}
	if n.entry == nil {
		n.entry = new(entry)
	}
	return n.entry
}

// remove takes the topic's entry out, and the nodes that this leaves empty. Depth is bounded by the levels of a topic.
func (n *node) remove(rest string, more bool) {
	if !more {
		n.entry = nil
		return
	}
	level, rest, more := strings.Cut(rest, "/")
	at, ok := n.search(level)
	if !ok {
		return
	}
	c := n.children[at].node
	c.remove(rest, more)
	if c.entry == nil && len(c.children) == 0 {
		n.children = slices.Delete(n.children, at, at+1)
		if cap(n.children) > 16 && len(n.children) < cap(n.children)/4 {
			n.children = slices.Clone(n.children)
		}
	}
}

// Position is a place in the order of all topics. The zero value is before the first.
type Position struct {
	path  string
	begun bool
}

// At is the position of a topic.
func At(topic string) Position { return Position{topic, true} }

// Before says whether the position is before that of a topic.
func (p Position) Before(topic string) bool {
	if !p.begun {
		return true
	}
	for a, b := p.path, topic; ; {
		la, ra, ma := strings.Cut(a, "/")
		lb, rb, mb := strings.Cut(b, "/")
		switch {
		case la != lb:
			return la < lb
		case !ma || !mb:
			return !ma && mb
		}
		a, b = ra, rb
	}
}

// walker looks for the first entry behind a position that a filter matches.
type walker struct {
	accept func(*entry) bool
	left   int      // nodes that may still be looked at
	levels []string // of the node in hand
	found  *entry
	over   bool // found something, or looked at enough
}

// way is what is left of the way to the position, from a node that lies on it; on is false for one that lies behind it.
type way struct {
	rest string
	more bool
	on   bool
}

// visit walks n and what is below it. rest is what of the filter is for n's children, if more.
func (w *walker) visit(n *node, rest string, more bool, to way) {
	if !to.on {
		w.left--
		if (!more || rest == "#") && n.entry != nil && w.accept(n.entry) {
			w.found, w.over = n.entry, true
		}
		if w.over = w.over || w.left <= 0; w.over {
			return
		}
	}
	if !more {
		return
	}
	var first, next string
	var nextMore bool
	at, onWay := 0, to.on && to.more
	if onWay {
		first, next, nextMore = strings.Cut(to.rest, "/")
		at, _ = n.search(first)
	}
	level, below, belowMore := strings.Cut(rest, "/")
	end := len(n.children)
	switch level {
	case "#":
		below, belowMore = "#", true
	case "+":
	default:
		i, ok := n.search(level)
		if !ok || i < at {
			return
		}
		at, end = i, i+1
	}
	wild := level == "+" || level == "#"
	for ; at < end && !w.over; at++ {
		c := &n.children[at]
		if wild && len(w.levels) == 0 && strings.HasPrefix(c.level, "$") {
			continue // MQTT 5 §4.7.2
		}
		w.levels = append(w.levels, c.level)
		w.visit(c.node, below, belowMore, way{next, nextMore, onWay && c.level == first})
		if !w.over {
			w.levels = w.levels[:len(w.levels)-1]
		}
	}
}

// next is the first entry behind from that filter matches and accept takes. The position is that of the last node that was looked
// at; more is false when there is nothing behind it. It looks at no more than budget nodes.
func (n *node) next(filter string, from Position, budget int, accept func(*entry) bool) (e *entry, at Position, more bool) {
	w := walker{accept: accept, left: budget + 1, levels: make([]string, 0, 8)} // the root is none
	w.visit(n, filter, true, way{from.path, from.begun, true})
	switch {
	case !w.over:
		return nil, from, false
	case w.found != nil && w.found.visible != nil:
		return w.found, At(w.found.visible.Topic), true
	}
	return w.found, At(strings.Join(w.levels, "/")), true
}
