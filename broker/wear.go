package broker

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicemq/sluice/segment"
)

// wearInterval is the time between two reports of what wears the flash.
const wearInterval = time.Hour

// logWear tells what was written since the start, and how long the flash lasts at that.
func logWear(lg *slog.Logger, w segment.Wear) {
	args := []any{"journal_bytes", w.JournalBytes, "segment_bytes", w.SegmentBytes, "checkpoint_bytes", w.CheckpointBytes,
		"system_bytes", w.SystemBytes, "bytes_a_day", w.BytesPerDay, "endurance_bytes", w.EnduranceBytes, "life", lifeText(w.Life), "commit_delay", w.Delay.Round(10 * time.Microsecond)}
	if w.Delay > 0 {
		args = append(args, "most_messages_a_second_at_window_1", int64(time.Second/w.Delay))
	}
	if w.BudgetPerDay > 0 {
		args = append(args, "wear_budget", w.BudgetPerDay, "over_budget", w.OverBudget.Round(time.Second))
	}
	if w.OverBudget > 0 {
		lg.Warn("flash wear: the budget was exceeded; raise commit.wear_budget or commit.max_delay_ceiling, or publish less", args...)
		return
	}
	lg.Info("flash wear", args...)
}

// lifeText is a life in the unit that people plan in.
func lifeText(d time.Duration) string {
	const day = 24 * time.Hour
	switch days := d / day; {
	case d == 0:
		return "unknown"
	case days < 730:
		return fmt.Sprintf("%d days", days)
	default:
		return fmt.Sprintf("%d years", days/365)
	}
}

// wearText is short, for the service manager.
func wearText(w segment.Wear) string {
	if w.BytesPerDay == 0 {
		return ""
	}
	return fmt.Sprintf("; flash %.1f GB a day, %s", float64(w.BytesPerDay)/1e9, lifeText(w.Life))
}
