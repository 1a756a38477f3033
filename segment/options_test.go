package segment

import (
	"strings"
	"testing"
	"time"
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

func TestWearOptionsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"":                 func(o *Options) { o.WearBudget = MinWearBudget },
		"wear budget":      func(o *Options) { o.WearBudget = MinWearBudget - 1 },
		"ceiling":          func(o *Options) { o.WearBudget, o.MaxDelayCeiling = MinWearBudget, o.MaxDelay-1 },
		"is not within":    func(o *Options) { o.WearBudget, o.MaxDelayCeiling = MinWearBudget, time.Hour },
		"endurance of -1 ": func(o *Options) { o.EnduranceBytes = -1 },
	} {
		o := DefaultOptions()
		o.Dir = "x"
		change(&o)
		if err := o.Validate(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
