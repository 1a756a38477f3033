package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/segment"
	"github.com/sluicemq/sluice/segment/record"
)

// toolsLog makes a data directory that is closed: topic t with two partitions of 30 records each, one a minute from
// 2026-01-01T00:00:00Z on, in batches of ten; and topic u with one record.
func toolsLog(t *testing.T) string {
	t.Helper()
	o := segment.DefaultOptions()
	o.Dir = t.TempDir()
	o.MaxBytes, o.MaxRecordBytes, o.JournalBytes, o.AppendBytes = 64<<10, 4<<10, 1<<20, 1
	log, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for topic, partitions := range map[string]int32{"t": 2, "u": 1} {
		made, err := log.CreateTopic(segment.TopicOptions{Name: topic, Partitions: partitions})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range made.Partitions() {
			for i := range 30 {
				r := record.Record{Timestamp: begin.Add(time.Duration(i) * time.Minute).UnixMilli(), Value: fmt.Appendf(nil, "%s/%d", p, i)}
				ticket, err := log.Append(p, &r)
				if err == nil {
					err = ticket.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if log, err = segment.Open(o); err != nil { // begins a new journal file
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return o.Dir
}

// forget takes out of the journal what checkpoints cover, as its recycling does.
func forget(t *testing.T, dir string) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "journal", "*.journal"))
	for _, name := range names {
		p, err := os.ReadFile(name)
		if err == nil {
			clear(p[8192:])
			err = os.WriteFile(name, p, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// printed are the values that a dump in JSON has printed.
func printed(t *testing.T, stdout string) (values []string) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(stdout)); d.More(); {
		var b jsonBatch
		if err := d.Decode(&b); err != nil {
			t.Fatal(err)
		}
		if len(b.Records) == 0 {
			t.Errorf("a batch without records: %+v", b)
		}
		for _, r := range b.Records {
			values = append(values, *r.Value)
		}
	}
	return values
}

func TestDumpSelection(t *testing.T) {
	dir := toolsLog(t)
	numbers := func(p string, from, to int) (values []string) {
		for i := from; i <= to; i++ {
			values = append(values, fmt.Sprintf("%s/%d", p, i))
		}
		return values
	}
	join := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"all", nil, join(numbers("t-0", 0, 29), numbers("t-1", 0, 29), numbers("u-0", 0, 29))},
		{"topic", []string{"--topic", "t"}, join(numbers("t-0", 0, 29), numbers("t-1", 0, 29))},
		{"partition", []string{"--topic", "t", "--partition", "1"}, numbers("t-1", 0, 29)},
		{"from an offset", []string{"--topic", "t", "--partition", "1", "--offset", "27"}, numbers("t-1", 27, 29)},
		{"from an offset on", []string{"--topic", "u", "--offset", "27:"}, numbers("u-0", 27, 29)},
		{"up to an offset", []string{"--topic", "u", "--offset", ":2"}, numbers("u-0", 0, 2)},
		{"offsets", []string{"--topic", "t", "--offset", "9:11"}, join(numbers("t-0", 9, 11), numbers("t-1", 9, 11))},
		{"one offset", []string{"--topic", "u", "--offset", "7:7"}, numbers("u-0", 7, 7)},
		{"offsets beyond the end", []string{"--topic", "u", "--offset", "70"}, nil},
		{"since", []string{"--topic", "u", "--since", "2026-01-01T00:25:00Z"}, numbers("u-0", 25, 29)},
		{"since, between two", []string{"--topic", "u", "--since", "2026-01-01T00:24:00.0001Z"}, numbers("u-0", 25, 29)},
		{"until", []string{"--topic", "u", "--until", "2026-01-01T02:02:00+02:00"}, numbers("u-0", 0, 1)},
		{"all of it together", []string{"--topic", "t", "--partition", "0", "--offset", "5:20", "--since", "2026-01-01T00:07:00Z", "--until", "2026-01-01T00:10:00Z"}, numbers("t-0", 7, 9)},
		{"back from now", []string{"--topic", "u", "--since", "1h"}, nil},
		{"until a moment back from now", []string{"--topic", "u", "--until", "1h", "--offset", "28"}, numbers("u-0", 28, 29)},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := command(append([]string{"dump", dir, "--format", "json"}, test.args...)...)
			got := printed(t, stdout)
			if code != exitOK || stderr != "" || strings.Join(got, " ") != strings.Join(test.want, " ") {
				t.Errorf("exit code %d, %q\n%q, want\n%q", code, stderr, got, test.want)
			}
			for _, format := range []string{"text", "hex"} {
				_, stdout, _ := command(append([]string{"dump", dir, "--format", format}, test.args...)...)
				lines := strings.Count(stdout, "\n")
				if format == "text" {
					lines -= strings.Count(stdout, "crc ok")
				}
				if lines != len(test.want) {
					t.Errorf("%s: %d records, want %d", format, lines, len(test.want))
				}
			}
		})
	}
	for args, want := range map[string]string{
		"--topic v":               "sluice: dump: there is no topic v; there are: t, u",
		"--topic t --partition 2": "sluice: dump: topic t has no partition 2: it has 2, from 0 on",
	} {
		code, stdout, stderr := command(append([]string{"dump", dir}, strings.Fields(args)...)...)
		if code != exitFailed || stdout != "" || stderr != want+"\n" {
			t.Errorf("%s: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestDumpSelectionErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--partition 1":            "--partition needs --topic: every topic has partitions of its own",
		"--topic t --partition=-1": "--partition -1: not the number of a partition; they count from 0",
		"--topic t --partition x":  "--partition x: not the number of a partition; they count from 0",
		"--offset x":               `--offset x: "x" is not an offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on`,
		"--offset 1:-2":            `--offset 1:-2: "-2" is not an offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on`,
		"--offset :":               "--offset :: no offset; write FROM, FROM:TO, FROM: or :TO with numbers from 0 on",
		"--offset 9:3":             "--offset 9:3: the last offset, 3, is below the first, 9",
		"--since yesterday":        "--since yesterday: is neither a moment like 2026-11-30T14:00:00Z nor a duration back from now like 90m",
		"--until=-1h":              "--until -1h: a duration is how long ago, and can't be negative",
		"--since 1h --until 2h":    "--until 2h is not after --since 1h: no record can be in between",
	} {
		code, stdout, stderr := command(append([]string{"dump", t.TempDir()}, strings.Fields(args)...)...)
		if code != exitConfig || stdout != "" || stderr != "sluice: "+want+"; see sluice dump --help\n" {
			t.Errorf("%s: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// The tools one after the other, as an operator uses them.
func TestVerifyAndRepair(t *testing.T) {
	dir := toolsLog(t)
	code, stdout, stderr := command("verify", dir)
	if code != exitOK || stderr != "" || strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout, " 90 records, ") || !strings.HasSuffix(stdout, "0 damages, 0 faults, 0 notes: clean\n") {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = command("repair", dir)
	if code != exitOK || stderr != "" || stdout != dir+": nothing to repair\n" {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}

	forget(t, dir)
	log := filepath.Join(dir, "topics", "t-0", "00000000000000000000.log")
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := record.Next(data)
	bad, _, _ := record.Next(rest)
	base, next, at := bad.BaseOffset(), bad.NextOffset(), len(first)
	data[at+record.HeaderBytes+2] ^= 1
	if err := os.WriteFile(log, data, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = command("verify", dir)
	begin := fmt.Sprintf("damage  topics/t-0/00000000000000000000.log:%d  %s", at, offsets("t", 0, base, next))
	if code != exitFailed || !strings.HasPrefix(stdout, begin) || !strings.HasSuffix(stdout, ": NOT CLEAN\n") || stderr != "sluice: verify: "+dir+" has 1 damage and 0 faults; see sluice repair --dry-run "+dir+"\n" {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	wantJSON(t, dir, jsonFinding{Severity: "damage", Kind: "batch", File: log, Topic: "t"}, int64(at), base, next-1)

	before, _ := os.ReadDir(dir)
	code, dry, stderr := command("repair", "--dry-run", dir)
	if after, _ := os.ReadDir(dir); code != exitOK || stderr != "" || len(after) != len(before) || !strings.Contains(dry, "a dry run, nothing was done") {
		t.Fatalf("exit code %d, %q, %q", code, dry, stderr)
	}
	code, stdout, stderr = command("repair", dir)
	lost := fmt.Sprintf("lost: %s: %s\n", offsets("t", 0, base, next), count(next-base, "record"))
	if code != exitOK || stderr != "" || !strings.Contains(stdout, lost) || !strings.HasSuffix(stdout, dir+": repaired\n") || !strings.Contains(dry, lost) {
		t.Fatalf("exit code %d, %q, %q; dry %q", code, stdout, stderr, dry)
	}
	code, stdout, stderr = command("verify", dir)
	if code != exitOK || stderr != "" || !strings.Contains(stdout, "note    topics/t-0/") {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, stderr = command("repair", "--remove-set-aside", dir); code != exitOK || !strings.Contains(stdout, ": delete it: it was set aside\n") {
		t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

// wantJSON runs verify with JSON and checks the one finding and the summary.
func wantJSON(t *testing.T, dir string, want jsonFinding, position, first, last int64) {
	t.Helper()
	code, stdout, _ := command("verify", "--format", "json", dir)
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	var f jsonFinding
	var v jsonVerdict
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || f.Severity != want.Severity || f.Kind != want.Kind || f.File != want.File || f.Topic != want.Topic || *f.Partition != 0 ||
		*f.Position != position || *f.FirstOffset != first || *f.LastOffset != last || f.What == "" || f.Remedy == "" || d.More() {
		t.Errorf("exit code %d, %+v", code, f)
	}
	if s := v.Summary; s.InUse || s.Damages != 1 || s.Faults != 0 || s.Notes != 0 || s.Verdict != "damage" || s.Files == 0 || s.Batches == 0 || s.Records == 0 || s.Values == 0 {
		t.Errorf("%+v", s)
	}
}

func TestVerifyAndRepairRefuse(t *testing.T) {
	empty := t.TempDir()
	used := t.TempDir()
	writeLog(t, used) // and keeps it open
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"verify"}, exitConfig, "DIR is missing"},
		{[]string{"verify", empty, "--format", "hex"}, exitConfig, `invalid argument "hex" for "--format" flag: allowed: text, json`},
		{[]string{"verify", empty}, exitFailed, empty + " is not a data directory"},
		{[]string{"verify", filepath.Join(empty, "x")}, exitFailed, "no such file or directory"},
		{[]string{"repair", empty}, exitFailed, empty + " is not a data directory"},
		{[]string{"repair", filepath.Join(empty, "x")}, exitFailed, "no such file or directory"},
		{[]string{"repair", used}, exitFailed, "repair: data directory " + used + " is locked by a broker; stop it first"},
		{[]string{"repair", "--dry-run", used}, exitFailed, "repair: data directory " + used + " is locked by a broker; stop it first"},
	} {
		code, stdout, stderr := command(test.args...)
		if code != test.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, test.says) {
			t.Errorf("%q: exit code %d, %q, %q", test.args, code, stdout, stderr)
		}
	}
	if names, _ := os.ReadDir(empty); len(names) != 0 {
		t.Errorf("made %v", names)
	}
	code, stdout, _ := command("verify", used)
	if code != exitOK || !strings.Contains(stdout, ", in use by a broker: ") {
		t.Errorf("in use: exit code %d, %q", code, stdout)
	}
}

// A directory of a newer release is left alone, with the exit code that says that trying again won't help.
func TestToolsNewerRelease(t *testing.T) {
	dir := toolsLog(t)
	names, _ := filepath.Glob(filepath.Join(dir, "journal", "*.journal"))
	var content [][]byte
	for _, name := range names {
		p, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(p, []byte("SLUICEJN")) {
			newerHeader(p[:56])
			newerHeader(p[4096 : 4096+56])
		}
		if err := os.WriteFile(name, p, 0o600); err != nil {
			t.Fatal(err)
		}
		content = append(content, p)
	}
	for _, args := range [][]string{{"verify", dir}, {"repair", "--dry-run", dir}, {"repair", dir}} {
		code, stdout, stderr := command(args...)
		if code != exitConfig || stdout != "" || !strings.Contains(stderr, "newer release") {
			t.Errorf("%q: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	for i, name := range names {
		if p, _ := os.ReadFile(name); !bytes.Equal(p, content[i]) {
			t.Errorf("%s was changed", name)
		}
	}
}

// newerHeader makes a journal file's header one of format 2.
func newerHeader(b []byte) {
	binary.BigEndian.PutUint32(b[12:], 2)
	binary.BigEndian.PutUint32(b[8:], crc32.Checksum(b[12:], crc32.MakeTable(crc32.Castagnoli)))
}
