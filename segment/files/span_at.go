package files

// SpanAt describes the segment that holds offset, or the first one, with both times, which are read when they are not
// known yet. ok is false for a chain without segments, and when the segment left the chain meanwhile. Errors are those of
// the file system.
func (c *Chain) SpanAt(offset int64) (s Span, ok bool, err error) {
	v, ok := c.viewAt(offset)
	if !ok {
		return Span{}, false, nil
	}
	_, err = c.times(v, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := max(c.findLocked(offset), 0)
	if i >= len(c.segments) || c.segments[i] != v.seg {
		return Span{}, false, nil
	}
	if err != nil {
		return Span{}, false, err
	}
	return c.spanLocked(i), true, nil
}
