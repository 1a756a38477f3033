package segment

import (
	"fmt"
	"slices"
	"time"
)

// Priority decides which topic gives way first when the disk budget is used up.
type Priority byte

// The priorities. Normal is the zero value; use Priority.rank to compare.
const (
	Normal Priority = iota
	Low
	High
	Critical
)

var priorityNames = []string{Normal: "normal", Low: "low", High: "high", Critical: "critical"}

func (p Priority) String() string {
	if int(p) < len(priorityNames) {
		return priorityNames[p]
	}
	return fmt.Sprintf("priority %d", byte(p))
}

// rank orders priorities, the lowest first.
func (p Priority) rank() int { return []int{Normal: 1, Low: 0, High: 2, Critical: 3}[p] }

// ParsePriority reads low, normal, high or critical.
func ParsePriority(s string) (Priority, error) {
	if i := slices.Index(priorityNames, s); i >= 0 {
		return Priority(i), nil
	}
	return 0, fmt.Errorf("%q is not a priority; use low, normal, high or critical", s)
}

// OnFull says what happens to a topic for which there is no room.
type OnFull byte

// DropOldest evicts the oldest records; Reject refuses new ones, and keeps all that some follower still wants.
const (
	DropOldest OnFull = iota
	Reject
)

func (o OnFull) String() string {
	if o == Reject {
		return "reject"
	}
	return "drop-oldest"
}

// ParseOnFull reads drop-oldest or reject.
func ParseOnFull(s string) (OnFull, error) {
	switch s {
	case "drop-oldest":
		return DropOldest, nil
	case "reject":
		return Reject, nil
	}
	return 0, fmt.Errorf("%q is not known; use drop-oldest or reject", s)
}

const maxRetentionAge = 100 * 365 * 24 * time.Hour

func (o TopicOptions) validateRetention() error {
	switch least := segmentsEach * int64(o.Partitions) * max(o.SegmentBytes, 64<<10); {
	case o.RetentionBytes < 0 || o.RetentionBytes > 0 && o.RetentionBytes < least:
		return fmt.Errorf("topic %s: retention of %d bytes is less than %d segments of each of %d partitions take: at least %d, or 0 for none",
			o.Name, o.RetentionBytes, segmentsEach, o.Partitions, least)
	case o.RetentionAge < 0 || o.RetentionAge > maxRetentionAge || o.RetentionAge%time.Millisecond != 0:
		return fmt.Errorf("topic %s: retention age %v is not 0 to %v in whole milliseconds", o.Name, o.RetentionAge, maxRetentionAge)
	case int(o.Priority) >= len(priorityNames):
		return fmt.Errorf("topic %s: there is no priority %d", o.Name, o.Priority)
	case o.OnFull > Reject:
		return fmt.Errorf("topic %s: there is no way %d to be full", o.Name, o.OnFull)
	}
	return nil
}
