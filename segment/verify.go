package segment

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/state"
)

// The severities of a Finding, the gravest first.
const (
	SeverityDamage = files.SeverityDamage // records or state are lost or can't be read
	SeverityFault  = files.SeverityFault  // wrong, and nothing is lost: it can be made anew from what is there
	SeverityNote   = files.SeverityNote   // normal after a crash, or left over
)

// Finding is one thing that Verify found.
type Finding struct {
	files.Problem
	// Topic and Partition say whose it is; Topic is "" where it is nobody's.
	Topic     string
	Partition int32
}

// VerifySummary counts what Verify has looked at and found.
type VerifySummary struct {
	// InUse says that another process has the directory open.
	InUse bool
	// Files and Bytes are those that were read: Batches and Records of segments, Frames of the journal, Values of the state.
	Files                           int
	Bytes, Batches, Records, Values int64
	Frames                          int
	// Damages, Faults and Notes are the findings by severity.
	Damages, Faults, Notes int
}

// Clean says that nothing is wrong. There may be notes.
func (s VerifySummary) Clean() bool { return s.Damages == 0 && s.Faults == 0 }

// maxFindings bounds what Verify holds; further ones are counted only.
const maxFindings = 10000

// Verify reads everything in a data directory and calls fn for what is wrong or odd: journal, state, segments, and each of
// them against the others. It takes no lock and writes nothing, and holds no more than some MiB. Beside a broker it looks
// again at what it finds before it tells, since that may be something half done.
//
// The error is fn's, ErrNewerFormat, or says why the directory can't be looked at.
func Verify(dir string, fn func(Finding) error) (VerifySummary, error) {
	v := verifier{fs: vfs.OS, dir: dir}
	findings, err := v.verify()
	for _, f := range findings {
		if err == nil {
			err = fn(f)
		}
	}
	return v.sum, err
}

// verifier is the work of Verify, and the eyes of Repair.
type verifier struct {
	fs  vfs.FS
	dir string
	// mine says that nobody else can be writing: this process has the lock.
	mine bool
	used bool // somebody has
	sum  VerifySummary

	// of the look in hand
	findings []Finding
	more     int // findings beyond maxFindings
	only     map[ViewPartition]bool
	facts    facts
}

// facts is what journal and state say, against which partitions are checked.
type facts struct {
	journal map[ViewPartition]files.Ranges
	changes map[string]journalled // of the keys that matter here
	newest  *state.FileCheck      // nil: no state file is usable
	topics  map[string]TopicOptions
	starts  map[ViewPartition]int64
	cursors map[ViewPartition][]cursorFact
	checked map[ViewPartition]files.CheckOptions
	fileLen int64 // of a journal file, as the newest says; 0 unknown
	orphans map[string]bool
}

type journalled struct {
	lsn     uint64
	value   []byte
	deleted bool
}

type cursorFact struct {
	owner  string
	offset int64
}

// looks is how often a finding must be seen beside a running broker.
const looks = 3

// verify looks once, and beside another process again at what seems wrong.
func (v *verifier) verify() ([]Finding, error) {
	var err error
	if v.used, err = v.inUse(); err != nil {
		return nil, err
	}
	if err := v.look(); err != nil {
		return nil, err
	}
	found, sum, more := v.findings, v.sum, v.more
	alarming := func(f Finding) bool { return f.Severity != SeverityNote }
	for n := 1; n < looks && slices.ContainsFunc(found, alarming); n++ {
		now, err := v.inUse()
		if err != nil {
			return nil, err
		}
		if v.used = v.used || now; !v.used {
			break
		}
		v.only = map[ViewPartition]bool{}
		for _, f := range found {
			if alarming(f) {
				v.only[ViewPartition{f.Topic, f.Partition}] = true
			}
		}
		if err := v.look(); err != nil {
			return nil, err
		}
		again := map[string]bool{}
		for _, f := range v.findings {
			again[f.key()] = true
		}
		found = slices.DeleteFunc(found, func(f Finding) bool { return alarming(f) && !again[f.key()] })
		more = v.more
	}
	if v.used { // what a start would do, a broker is just doing
		found = slices.DeleteFunc(found, func(f Finding) bool { return !alarming(f) && f.Fix != files.FixNone })
	}
	v.only, v.sum = nil, sum
	v.sum.InUse, v.sum.Damages, v.sum.Faults, v.sum.Notes = v.used, 0, 0, 0
	for _, f := range found {
		switch f.Severity {
		case SeverityDamage:
			v.sum.Damages++
		case SeverityFault:
			v.sum.Faults++
		default:
			v.sum.Notes++
		}
	}
	if more > 0 {
		v.sum.Damages += more
		found = append(found, finding(SeverityDamage, "more", v.dir, fmt.Sprintf("%d more findings, not listed", more), "mend these first and verify again", files.FixNone))
	}
	return found, nil
}

// key tells findings apart. What a broker moves on with, offsets and LSNs, is in it: a finding about it is not the same twice.
func (f Finding) key() string {
	return fmt.Sprint(f.Severity, f.Kind, f.Path, f.Position, f.From, f.Topic, f.Partition, f.What)
}

func (v *verifier) inUse() (bool, error) {
	if v.mine {
		return false, nil
	}
	used, err := vfs.Locked(filepath.Join(v.dir, lockName))
	if err != nil {
		return false, fmt.Errorf("see whether %s is in use: %w", v.dir, err)
	}
	return used, nil
}

// lockName is a file in the data directory that has nothing in it.
const lockName = "lock"

func finding(severity files.Severity, kind, path, what, remedy string, fix files.Fix) Finding {
	return Finding{Problem: files.Problem{
		Severity: severity, Kind: kind, Path: path, Position: -1, From: -1, To: -1, What: what, Remedy: remedy, Fix: fix,
	}}
}

func (v *verifier) add(f Finding) {
	if len(v.findings) == maxFindings {
		if f.Severity != SeverityNote {
			v.more++
		}
		return
	}
	v.findings = append(v.findings, f)
}

// look reads the directory once: first the journal, then the state, then the segments. What an earlier one loses
// meanwhile is in a later one by then.
func (v *verifier) look() error {
	v.findings, v.more, v.sum = nil, 0, VerifySummary{}
	v.facts = facts{
		journal: map[ViewPartition]files.Ranges{}, changes: map[string]journalled{}, topics: map[string]TopicOptions{},
		starts: map[ViewPartition]int64{}, cursors: map[ViewPartition][]cursorFact{}, checked: map[ViewPartition]files.CheckOptions{},
		orphans: map[string]bool{},
	}
	if err := v.root(); err != nil {
		return err
	}
	inspection, err := v.journal()
	if err != nil {
		return markFormat(err)
	}
	if err := v.state(); err != nil {
		return markFormat(err)
	}
	v.judgeJournal(inspection)
	v.settings()
	return v.partitions()
}

// root looks at the names in the directory.
func (v *verifier) root() error {
	entries, err := v.fs.ReadDir(v.dir)
	if err != nil {
		return fmt.Errorf("%s can't be verified: %w", v.dir, err)
	}
	ours := false
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(v.dir, e.Name())
		switch {
		case name == "topics" || name == "journal" || state.IsFile(name):
			ours = true
		case name == lockName || name == reserveName:
			v.sum.Files++
		case state.IsLeftover(name):
			v.add(finding(SeverityNote, "leftover", path, "was being written when the power failed", "the next start of the broker removes it", files.FixStart))
		case state.IsSetAside(name):
			v.add(finding(SeverityNote, "set-aside", path, "a damaged state file that was set aside", setAsideRemedy, files.FixNone))
		default:
			v.add(finding(SeverityNote, "unknown-file", path, "is not the broker's", nothingToDo, files.FixNone))
		}
	}
	if !ours {
		return fmt.Errorf("%s is not a data directory: it has neither topics nor journal nor state", v.dir)
	}
	return nil
}

const (
	nothingToDo    = "nothing needs to be done"
	setAsideRemedy = "look at it or delete it: sluice repair --remove-set-aside"
	repairOrStart  = "run sluice repair, or start the broker: it goes on with what there is"
)

// settings takes out of state and journal what partitions are checked against.
func (v *verifier) settings() {
	values := map[string][]byte{}
	after := uint64(0)
	path := v.dir
	if n := v.facts.newest; n != nil {
		after, path = n.Point.LSN, n.Path
		for key, value := range n.Kept {
			values[key] = value
		}
	}
	for key, c := range v.facts.changes {
		if c.lsn <= after {
			continue
		}
		if values[key] = c.value; c.deleted {
			delete(values, key)
		}
	}
	for key, value := range values {
		switch {
		case strings.HasPrefix(key, topicPrefix):
			name := key[len(topicPrefix):]
			if _, o, err := decodeTopic(name, value); err != nil {
				v.add(finding(SeverityDamage, "topic", path, err.Error(), repairOrStart, files.FixStart))
			} else {
				v.facts.topics[name] = o
			}
		case strings.HasPrefix(key, startPrefix):
			if p, _, ok := splitKey(key[len(startPrefix):]); ok && len(value) == 8 {
				v.facts.starts[p] = int64(binary.BigEndian.Uint64(value))
			}
		case strings.HasPrefix(key, cursorPrefix):
			p, owner, ok := splitKey(key[len(cursorPrefix):])
			if !ok || len(value) < 8 {
				v.add(finding(SeverityNote, "cursor", path, fmt.Sprintf("cursor %q has an unknown form", key), nothingToDo, files.FixNone))
				continue
			}
			v.facts.cursors[p] = append(v.facts.cursors[p], cursorFact{owner, int64(binary.BigEndian.Uint64(value))})
		}
	}
}

// splitKey splits "<topic>/<partition>/<owner>"; the owner may be missing.
func splitKey(key string) (p ViewPartition, owner string, ok bool) {
	parts := strings.SplitN(key, "/", 3)
	if len(parts) < 2 {
		return p, "", false
	}
	if len(parts) == 3 {
		owner = parts[2]
	}
	id, err := strconv.ParseInt(parts[1], 10, 32)
	return ViewPartition{parts[0], int32(id)}, owner, err == nil && id >= 0 && id < MaxPartitions
}

// partitions checks each partition that anything tells of.
func (v *verifier) partitions() error {
	all := map[ViewPartition]bool{}
	for p := range v.facts.journal {
		all[p] = true
	}
	for name, o := range v.facts.topics {
		for id := range o.Partitions {
			all[ViewPartition{name, id}] = true
		}
	}
	if v.facts.newest != nil {
		for name := range v.facts.newest.Point.Ends {
			if topic, id, ok := splitPartition(name); ok {
				all[ViewPartition{topic, id}] = true
			}
		}
	}
	entries, err := v.fs.ReadDir(topicsDir(v.dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s can't be verified: %w", v.dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(topicsDir(v.dir), e.Name())
		topic, id, ok := splitPartition(e.Name())
		switch {
		case ok:
			all[ViewPartition{topic, id}] = true
		case isAsideDir(e.Name()):
			v.add(finding(SeverityNote, "set-aside", path, "a partition's directory that was set aside", setAsideRemedy, files.FixNone))
		default:
			v.add(finding(SeverityNote, "unknown-file", path, "is not the broker's", nothingToDo, files.FixNone))
		}
	}
	list := make([]ViewPartition, 0, len(all))
	for p := range all {
		if v.only == nil || v.only[p] {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b ViewPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
	})
	for _, p := range list {
		v.partition(p)
	}
	return nil
}

// isAsideDir says whether a name in topics is that of a partition's directory that was set aside.
func isAsideDir(name string) bool {
	base, _, found := strings.Cut(name, ".damaged")
	_, _, ok := splitPartition(base)
	return found && ok
}

// partition checks one partition's directory and what the state says of it.
func (v *verifier) partition(p ViewPartition) {
	dir := filepath.Join(topicsDir(v.dir), p.String())
	o := files.CheckOptions{FS: v.fs, Dir: dir, End: files.NoRecoveryPoint, Start: v.facts.starts[p], Journal: v.facts.journal[p]}
	topic, known := v.facts.topics[p.Topic]
	if n := v.facts.newest; n != nil {
		if end, ok := n.Point.Ends[p.String()]; ok {
			o.End = end
		} else if known {
			o.End = 0 // made since: the journal has all of it
		}
	}
	v.facts.checked[p] = o
	mine := func(f Finding) {
		f.Topic, f.Partition = p.Topic, p.ID
		v.add(f)
	}
	if known && p.ID >= topic.Partitions {
		mine(finding(SeverityFault, "topic", dir, fmt.Sprintf("topic %s has %d partitions: the broker doesn't read this one", p.Topic, topic.Partitions),
			"sluice dump prints it; sluice repair sets the directory aside", files.FixRemove))
		return
	}
	checked, err := files.Check(o, func(problem files.Problem) { mine(Finding{Problem: problem}) })
	v.sum.Files += checked.Files
	v.sum.Bytes += checked.Bytes
	v.sum.Batches += checked.Batches
	v.sum.Records += checked.Records
	if err != nil {
		f := finding(SeverityDamage, "directory", dir, err.Error(), "run sluice repair, or start the broker: it sets aside what is no directory", files.FixStart)
		f.From, f.To = o.Start, max(o.End, -1)
		mine(f)
	}
	if !known && !v.facts.orphans[p.Topic] && (checked.Next > 0 || len(o.Journal) > 0) {
		v.facts.orphans[p.Topic] = true
		mine(finding(SeverityFault, "topic", dir, fmt.Sprintf("the state doesn't know topic %s", p.Topic), "run sluice repair, or start the broker: it takes the topic in with the default settings", files.FixStart))
	}
	v.cursors(p, max(checked.Next, o.End, o.Journal.End()), mine)
}

// cursors compares the cursors of a partition with its end.
func (v *verifier) cursors(p ViewPartition, end int64, report func(Finding)) {
	for _, c := range v.facts.cursors[p] {
		if c.offset <= end {
			continue
		}
		f := finding(SeverityDamage, "cursor", v.dir, fmt.Sprintf("%s has seen offsets up to %d, the log ends at %d", c.owner, c.offset-1, end),
			"run sluice repair, or start the broker: it goes on behind them", files.FixStart)
		f.From, f.To = end, c.offset
		report(f)
	}
}

// journal reads the journal and takes down what it holds.
func (v *verifier) journal() (journal.Inspection, error) {
	in, err := journal.Inspect(v.fs, journal.Dir(v.dir), func(lsn uint64, e *journal.Entry) error {
		if e.Kind != journal.KindBatch {
			if wanted(string(e.Key)) {
				v.facts.changes[string(e.Key)] = journalled{lsn, slices.Clone(e.Value), e.Kind == journal.KindDelete}
			}
			return nil
		}
		p := ViewPartition{string(e.Topic), e.Partition}
		b, err := wholeBatch(e)
		if err == nil && (ValidTopicName(p.Topic) != nil || p.ID < 0 || p.ID >= MaxPartitions) {
			err = errors.New("there can't be such a partition")
		}
		if err != nil {
			f := finding(SeverityDamage, "journal", journal.Dir(v.dir), fmt.Sprintf("frame %d: batch of %s: %v", lsn, p, err), repairOrStart, files.FixStart)
			v.add(f)
			return nil
		}
		v.facts.journal[p] = v.facts.journal[p].Add(b.BaseOffset(), b.NextOffset())
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return in, fmt.Errorf("%s can't be verified: %w", v.dir, err)
	}
	v.sum.Files += len(in.Files)
	for _, f := range in.Files {
		v.sum.Bytes += f.Bytes
	}
	v.sum.Frames = in.Report.Frames
	return in, nil
}

var wantedPrefixes = []string{topicPrefix, cursorPrefix, startPrefix}

func wanted(key string) bool {
	return slices.ContainsFunc(wantedPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
