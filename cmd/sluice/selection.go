package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// selection is which records a dump prints.
type selection struct {
	topic        string // "" for all
	partition    int32  // -1 for all
	first, last  int64  // offsets, both included
	since, until int64  // ms, until excluded
}

// dumpFlags are the flags of a dump, as they were written.
type dumpFlags struct{ topic, partition, offset, since, until string }

// selection reads the flags. The error names the flag.
func (w dumpFlags) selection(now time.Time) (s selection, err error) {
	s = selection{topic: w.topic, partition: -1, first: 0, last: math.MaxInt64, since: math.MinInt64, until: math.MaxInt64}
	if w.partition != "" {
		if w.topic == "" {
			return s, errors.New("--partition needs --topic: every topic has partitions of its own")
		}
		n, err := strconv.ParseInt(w.partition, 10, 32)
		if err != nil || n < 0 {
			return s, fmt.Errorf("--partition %s: not the number of a partition; they count from 0", w.partition)
		}
		s.partition = int32(n)
	}
	if w.offset != "" {
		if s.first, s.last, err = parseOffsets(w.offset); err != nil {
			return s, fmt.Errorf("--offset %s: %w", w.offset, err)
		}
	}
	for _, t := range []struct {
		flag, text string
		to         *int64
	}{{"--since", w.since, &s.since}, {"--until", w.until, &s.until}} {
		if t.text == "" {
			continue
		}
		at, err := parseTime(t.text, now)
		if err != nil {
			return s, fmt.Errorf("%s %s: %w", t.flag, t.text, err)
		}
		// Records have milliseconds: one belongs to the range if it isn't before the given moment.
		*t.to = at.Add(time.Millisecond - time.Nanosecond).UnixMilli()
	}
	if s.until <= s.since {
		return s, fmt.Errorf("--until %s is not after --since %s: no record can be in between", w.until, w.since)
	}
	return s, nil
}

// parseOffsets reads FROM, FROM:TO, FROM: or :TO.
func parseOffsets(text string) (first, last int64, err error) {
	from, to, ranged := strings.Cut(text, ":")
	first, last = 0, math.MaxInt64
	if from != "" {
		if first, err = strconv.ParseInt(from, 10, 64); err != nil || first < 0 {
			return 0, 0, fmt.Errorf("%q is not an offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on", from)
		}
	}
	if to != "" {
		if last, err = strconv.ParseInt(to, 10, 64); err != nil || last < 0 {
			return 0, 0, fmt.Errorf("%q is not an offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on", to)
		}
	}
	switch {
	case from == "" && to == "":
		return 0, 0, errors.New("no offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on")
	case ranged && last < first:
		return 0, 0, fmt.Errorf("the last offset, %d, is below the first, %d", last, first)
	}
	return first, last, nil
}

// parseTime reads a moment: RFC 3339, or how long before now.
func parseTime(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil {
		if ago < 0 {
			return now, errors.New("a duration is how long ago, and can't be negative")
		}
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return now, errors.New("is neither a moment like 2026-11-30T14:00:00Z nor a duration back from now like 90m")
	}
	return at, nil
}

// choose leaves the wanted ones of the partitions. The error names what is not there.
func (s *selection) choose(all []segment.ViewPartition) (list []segment.ViewPartition, err error) {
	if s.topic == "" {
		return all, nil
	}
	var topics []string
	ofTopic := 0
	for _, p := range all {
		if len(topics) == 0 || topics[len(topics)-1] != p.Topic {
			topics = append(topics, p.Topic)
		}
		if p.Topic != s.topic {
			continue
		}
		ofTopic++
		if s.partition < 0 || s.partition == p.ID {
			list = append(list, p)
		}
	}
	switch {
	case ofTopic == 0 && len(topics) == 0:
		return nil, fmt.Errorf("there is no topic %s: the directory has no topics", s.topic)
	case ofTopic == 0:
		return nil, fmt.Errorf("there is no topic %s; there are: %s", s.topic, strings.Join(topics, ", "))
	case len(list) == 0:
		return nil, fmt.Errorf("topic %s has no partition %d: it has %d, from 0 on", s.topic, s.partition, ofTopic)
	}
	return list, nil
}

// batches is the part of the selection that batches can tell.
func (s *selection) batches() segment.Selection {
	to := s.last
	if to < math.MaxInt64 {
		to++
	}
	return segment.Selection{From: s.first, To: to, Since: s.since}
}

func (s *selection) has(r *record.Record) bool {
	return r.Offset >= s.first && r.Offset <= s.last && r.Timestamp >= s.since && r.Timestamp < s.until
}

// all says that every record is wanted of whatever topics are.
func (s *selection) all() bool {
	return s.first == 0 && s.last == math.MaxInt64 && s.since == math.MinInt64 && s.until == math.MaxInt64
}
