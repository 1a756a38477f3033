package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Position is where a value was set.
type Position struct {
	// Source is a file's path, or a command line flag such as --listen.
	Source string
	// Line and Column count from 1; 0 for a flag.
	Line, Column int
}

// String is file:line:column, or the flag.
func (p Position) String() string {
	if p.Line == 0 {
		return p.Source
	}
	return p.Source + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}

// Problem is one thing that is wrong with a configuration. Its message is one line.
type Problem struct {
	At      Position // zero: the default, or a value set in code
	Key     string   // path of the key, such as commit.max_delay; empty for a file that can't be parsed
	Message string   // value, what is allowed, what to do
}

func (p Problem) Error() string {
	var b strings.Builder
	if p.At.Source != "" {
		b.WriteString(p.At.String())
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems is everything that is wrong with a configuration, in the order of the file. It is what Load, Parse and
// Validate return as their error.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// err is ps in the order of the file, or nil when there is nothing.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps.sorted()
}

func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(a.At.Line-b.At.Line, a.At.Column-b.At.Column, strings.Compare(a.Key, b.Key))
	})
	return ps
}

func (ps *Problems) add(at Position, key, format string, args ...any) {
	*ps = append(*ps, Problem{At: at, Key: key, Message: fmt.Sprintf(format, args...)})
}

// suggest returns the candidate that s is probably a misspelling of, or "".
func suggest(s string, candidates []string) string {
	best, limit := "", max(2, len(s)/3)+1
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(s), c); d < limit {
			best, limit = c, d
		}
	}
	return best
}

// editDistance is Levenshtein's, with a swap of neighbours counted as one (the usual slip of the fingers).
func editDistance(a, b string) int {
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
