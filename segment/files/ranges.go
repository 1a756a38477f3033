package files

import (
	"cmp"
	"slices"
)

// Range is a run of offsets, To exclusive.
type Range struct{ From, To int64 }

// Ranges are runs of offsets in order that neither overlap nor touch. The zero value is empty.
type Ranges []Range

// Add adds a run. It is cheap when it touches the last one or lies behind it.
func (rs Ranges) Add(from, to int64) Ranges {
	if from >= to {
		return rs
	}
	if n := len(rs); n == 0 || from > rs[n-1].To {
		return append(rs, Range{from, to})
	} else if last := &rs[n-1]; from >= last.From {
		last.To = max(last.To, to)
		return rs
	}
	all := append(rs, Range{from, to})
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	var merged Ranges
	for _, r := range all {
		merged = merged.Add(r.From, r.To)
	}
	return merged
}

// End is the offset behind the last run, 0 if there is none.
func (rs Ranges) End() int64 {
	if len(rs) == 0 {
		return 0
	}
	return rs[len(rs)-1].To
}

// Split cuts the offsets from from to to into runs that are in rs and runs that are not, in order.
func (rs Ranges) Split(from, to int64, fn func(r Range, in bool)) {
	for _, r := range rs {
		if from >= to || r.To <= from || r.From >= to {
			continue
		}
		if from < r.From {
			fn(Range{from, r.From}, false)
		}
		in := Range{max(from, r.From), min(to, r.To)}
		fn(in, true)
		from = in.To
	}
	if from < to {
		fn(Range{from, to}, false)
	}
}

// meets says whether any offset from from to to is in rs.
func (rs Ranges) meets(from, to int64) bool {
	return slices.ContainsFunc(rs, func(r Range) bool { return r.From < to && r.To > from })
}
