package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/segment"
)

var verifyCommand = subcommand{
	name: "verify", arguments: []string{"DIR"},
	help: "Check everything in a data directory and change nothing, also while a broker uses it.",
	more: `It reads all of journal, segments, indexes and state, holds each against the others, and prints
one line for each finding: how bad it is, where, what, and what to do about it.

damage: records or state are lost or can't be read.
fault: something is wrong, and it can be made anew without a loss.
note: normal after a crash, or left over.

Nothing is written, not even a lock file. Exit code 0: no damage and no fault. 1: damage or
faults, or the directory can't be read. 2: wrong command line, or a directory of a newer release.`,
	new: func(f *pflag.FlagSet) runner {
		format := choose(f, "format", "output `FORMAT`: text; json: one object a line for each finding, then one with the summary", "text", "json")
		return func(o output, args []string) error { return verify(o, args[0], *format) }
	},
}

// verify prints the findings, then what was looked at.
func verify(o output, dir, format string) error {
	out := bufio.NewWriterSize(o.out, 64<<10)
	show := textFinding
	if format == "json" {
		show = jsonFindings
	}
	sum, err := segment.Verify(dir, func(f segment.Finding) error { return show(out, dir, f) })
	if err == nil && format == "json" {
		err = jsonSummary(out, sum)
	} else if err == nil {
		err = textSummary(out, dir, sum)
	}
	if flushErr := out.Flush(); err == nil {
		err = flushErr
	}
	switch {
	case err != nil:
		return fmt.Errorf("verify: %w", err)
	case sum.Clean():
		return nil
	case sum.InUse:
		return fmt.Errorf("verify: %s has %s; stop the broker, then run sluice repair %s", dir, wrongs(sum), dir)
	}
	return fmt.Errorf("verify: %s has %s; see sluice repair --dry-run %s", dir, wrongs(sum), dir)
}

func wrongs(s segment.VerifySummary) string {
	return fmt.Sprintf("%s and %s", count(int64(s.Damages), "damage"), count(int64(s.Faults), "fault"))
}

// count is a number of things; batches are more than one batch.
func count(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "ch"):
		what += "e"
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// textFinding is one line for people, with paths from the data directory on.
func textFinding(w io.Writer, dir string, f segment.Finding) error {
	line := fmt.Sprintf("%-6s  %s", f.Severity, within(dir, f.Path))
	if f.Position >= 0 {
		line += fmt.Sprintf(":%d", f.Position)
	}
	if where := offsets(f.Topic, f.Partition, f.From, f.To); where != "" {
		line += "  " + where
	}
	if f.Position >= 0 && f.Bytes > 0 {
		line += "  " + count(f.Bytes, "byte")
	}
	_, err := fmt.Fprintf(w, "%s: %s. %s.\n", line, printable(f.What), sentence(f.Remedy))
	return err
}

// within is a path from the data directory on.
func within(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil && rel != "." {
		return printable(rel)
	}
	return printable(path)
}

// printable quotes what a terminal would obey: names may come from anywhere.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.QuoteToASCII(s)
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// offsets names a partition and offsets of it; to is exclusive, -1 for unknown.
func offsets(topic string, partition int32, from, to int64) string {
	var parts []string
	if topic != "" {
		parts = append(parts, fmt.Sprintf("%s-%d", topic, partition))
	}
	switch {
	case from < 0:
	case to < 0:
		parts = append(parts, fmt.Sprintf("offsets from %d", from))
	case to <= from:
		parts = append(parts, fmt.Sprintf("before offset %d", from))
	case to == from+1:
		parts = append(parts, fmt.Sprintf("offset %d", from))
	default:
		parts = append(parts, fmt.Sprintf("offsets %d-%d", from, to-1))
	}
	return strings.Join(parts, " ")
}

func textSummary(w io.Writer, dir string, s segment.VerifySummary) error {
	use := ""
	if s.InUse {
		use = ", in use by a broker"
	}
	verdict := "clean"
	if !s.Clean() {
		verdict = "NOT CLEAN"
	}
	_, err := fmt.Fprintf(w, "%s%s: %s, %s, %s, %s, %s, %s checked; %s, %s, %s: %s\n", dir, use,
		count(int64(s.Files), "file"), count(s.Bytes, "byte"), count(s.Batches, "batch"), count(s.Records, "record"),
		count(int64(s.Frames), "journal frame"), count(s.Values, "state value"),
		count(int64(s.Damages), "damage"), count(int64(s.Faults), "fault"), count(int64(s.Notes), "note"), verdict)
	return err
}

// jsonFinding is a finding for programs. Offsets are both included; what doesn't apply or isn't known is left out.
type jsonFinding struct {
	Severity    string `json:"severity"` // damage, fault or note
	Kind        string `json:"kind"`
	File        string `json:"file"`
	Position    *int64 `json:"position,omitempty"`
	Bytes       int64  `json:"bytes,omitempty"`
	Topic       string `json:"topic,omitempty"`
	Partition   *int32 `json:"partition,omitempty"`
	FirstOffset *int64 `json:"first_offset,omitempty"`
	LastOffset  *int64 `json:"last_offset,omitempty"`
	What        string `json:"what"`
	Remedy      string `json:"remedy"`
}

func jsonFindings(w io.Writer, _ string, f segment.Finding) error {
	j := jsonFinding{Severity: string(f.Severity), Kind: f.Kind, File: f.Path, Bytes: f.Bytes, Topic: f.Topic, What: f.What, Remedy: f.Remedy}
	if f.Position >= 0 {
		j.Position = &f.Position
	}
	if f.Topic != "" {
		j.Partition = &f.Partition
	}
	j.FirstOffset, j.LastOffset = included(f.From, f.To)
	return json.NewEncoder(w).Encode(j)
}

func included(from, to int64) (first, last *int64) {
	if from >= 0 {
		first = &from
	}
	if to--; from >= 0 && to >= from {
		last = &to
	}
	return first, last
}

type jsonVerdict struct {
	Summary struct {
		InUse   bool   `json:"in_use"`
		Files   int    `json:"files"`
		Bytes   int64  `json:"bytes"`
		Batches int64  `json:"batches"`
		Records int64  `json:"records"`
		Frames  int    `json:"journal_frames"`
		Values  int64  `json:"state_values"`
		Damages int    `json:"damages"`
		Faults  int    `json:"faults"`
		Notes   int    `json:"notes"`
		Verdict string `json:"verdict"` // clean, fault or damage
	} `json:"summary"`
}

func jsonSummary(w io.Writer, s segment.VerifySummary) error {
	var j jsonVerdict
	j.Summary.InUse, j.Summary.Files, j.Summary.Bytes, j.Summary.Batches, j.Summary.Records = s.InUse, s.Files, s.Bytes, s.Batches, s.Records
	j.Summary.Frames, j.Summary.Values = s.Frames, s.Values
	j.Summary.Damages, j.Summary.Faults, j.Summary.Notes = s.Damages, s.Faults, s.Notes
	switch {
	case s.Damages > 0:
		j.Summary.Verdict = "damage"
	case s.Faults > 0:
		j.Summary.Verdict = "fault"
	default:
		j.Summary.Verdict = "clean"
	}
	return json.NewEncoder(w).Encode(j)
}
