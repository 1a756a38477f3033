package broker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/segment"
)

func TestWearReport(t *testing.T) {
	const day = 24 * time.Hour
	quiet := segment.Wear{JournalBytes: 1, SegmentBytes: 2, CheckpointBytes: 3, BytesPerDay: 2e9, EnduranceBytes: 4e12, Life: 2000 * day}
	governed := quiet
	governed.BudgetPerDay, governed.Delay = 2<<30, 250*time.Millisecond
	over := governed
	over.OverBudget = 90 * time.Second
	for name, c := range map[string]struct {
		wear segment.Wear
		want []string
		not  []string
	}{
		"nothing governed": {quiet, []string{"INFO", "journal_bytes=1 ", "segment_bytes=2 ", "checkpoint_bytes=3 ", "bytes_a_day=2000000000", `life="5 years"`},
			[]string{"wear_budget", "most_messages"}},
		"governed":    {governed, []string{"INFO", "wear_budget=2147483648", "over_budget=0s", "commit_delay=250ms", "most_messages_a_second_at_window_1=4"}, nil},
		"over budget": {over, []string{"WARN", "over_budget=1m30s", "raise commit.wear_budget"}, nil},
	} {
		var out bytes.Buffer
		logWear(slog.New(slog.NewTextHandler(&out, nil)), c.wear)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is missing in %s", name, want, out.String())
			}
		}
		for _, not := range c.not {
			if strings.Contains(out.String(), not) {
				t.Errorf("%s: %q is in %s", name, not, out.String())
			}
		}
	}
	if got := wearText(segment.Wear{}); got != "" {
		t.Errorf("got %q, nothing is known yet", got)
	}
	if got := wearText(quiet); got != "; flash 2.0 GB a day, 5 years" {
		t.Errorf("got %q", got)
	}
}

func TestLifeText(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{0: "unknown", time.Hour: "0 days", 186 * day: "186 days", 729 * day: "729 days", 730 * day: "2 years", 36500 * day: "100 years"} {
		if got := lifeText(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
