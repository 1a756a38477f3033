package segment

import (
	"strings"
	"testing"
)

func TestValidTopicName(t *testing.T) {
	if err := ValidTopicName(strings.Repeat("x", 249)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", ".", "..", "a b", "a/b", "ä", strings.Repeat("x", 250)} {
		if ValidTopicName(name) == nil {
			t.Errorf("%q was taken", name)
		}
	}
}
