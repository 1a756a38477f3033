package topics

// children maps level names to nodes. A Go map costs some 250 bytes for its
// first entry, and most levels of device topics have one child: few children
// are kept in a slice, many in a map.
type children[S comparable] struct {
	few  []child[S]
	many map[string]*node[S] // nil while few is in use
}

type child[S comparable] struct {
	level string
	node  *node[S]
}

// The two bounds lie apart, so that one filter that comes and goes doesn't
// convert back and forth.
const (
	manyFrom = 8
	fewFrom  = 4
)

func (c *children[S]) len() int {
	if c.many != nil {
		return len(c.many)
	}
	return len(c.few)
}

func (c *children[S]) get(level string) *node[S] {
	if c.many != nil {
		return c.many[level]
	}
	for i := range c.few {
		if c.few[i].level == level {
			return c.few[i].node
		}
	}
	return nil
}

// find is get for bytes; the conversions don't allocate.
func (c *children[S]) find(level []byte) *node[S] {
	if c.many != nil {
		return c.many[string(level)]
	}
	for i := range c.few {
		if c.few[i].level == string(level) {
			return c.few[i].node
		}
	}
	return nil
}

// put adds a level that isn't there.
func (c *children[S]) put(level string, n *node[S]) {
	if c.many == nil && len(c.few) < manyFrom {
		c.few = append(c.few, child[S]{level, n})
		return
	}
	if c.many == nil {
		c.many = make(map[string]*node[S], 2*manyFrom)
		for _, f := range c.few {
			c.many[f.level] = f.node
		}
		c.few = nil
	}
	c.many[level] = n
}

// del removes level. A map never shrinks, so one that got small is given up.
func (c *children[S]) del(level string) {
	if c.many != nil {
		delete(c.many, level)
		if len(c.many) <= fewFrom {
			for l, n := range c.many {
				c.few = append(c.few, child[S]{l, n})
			}
			c.many = nil
		}
		return
	}
	for i := range c.few {
		if c.few[i].level == level {
			last := len(c.few) - 1
			c.few[i] = c.few[last]
			c.few[last] = child[S]{}
			c.few = c.few[:last]
			break
		}
	}
	if len(c.few) == 0 {
		c.few = nil
	}
}
