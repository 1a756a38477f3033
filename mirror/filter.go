package mirror

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sluicemq/sluice/mirror/mm2"
)

// filter chooses the topics to mirror as MirrorMaker's DefaultTopicFilter does: an expression matches the whole name, and
// exclusion wins.
type filter struct{ include, exclude *regexp.Regexp }

func newFilter(include, exclude []string) (filter, error) {
	in, err := anchored(include)
	if err != nil {
		return filter{}, fmt.Errorf("mirror: topics: %w", err)
	}
	ex, err := anchored(exclude)
	if err != nil {
		return filter{}, fmt.Errorf("mirror: exclude: %w", err)
	}
	return filter{in, ex}, nil
}

// anchored joins the expressions into one for the whole name; nil matches nothing.
func anchored(list []string) (*regexp.Regexp, error) {
	if len(list) == 0 {
		return nil, nil
	}
	for _, expr := range list {
		if _, err := regexp.Compile(expr); err != nil {
			return nil, fmt.Errorf("%q is not a regular expression (RE2 syntax): %w", expr, err)
		}
	}
	return regexp.Compile(`\A(?:(?:` + strings.Join(list, `)|(?:`) + `))\z`)
}

func (f filter) match(topic string) bool {
	return !mm2.Internal(topic) && f.include != nil && f.include.MatchString(topic) &&
		(f.exclude == nil || !f.exclude.MatchString(topic))
}
