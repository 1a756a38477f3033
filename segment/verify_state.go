package segment

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sluicemq/sluice/segment/files"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/state"
)

// state looks at both state files and chooses the one that the broker would go by.
func (v *verifier) state() error {
	checks, err := state.Inspect(v.dir, wantedPrefixes...)
	if err != nil {
		return err
	}
	bad, missing := 0, 0
	for i := range checks {
		c := &checks[i]
		switch {
		case c.Missing:
			missing++
			continue
		case c.Err != nil:
			bad++
		case v.facts.newest == nil || c.Number > v.facts.newest.Number:
			v.facts.newest = c
		}
		v.sum.Files++
		v.sum.Bytes += c.Bytes
		v.sum.Values += c.Values
	}
	for i := range checks {
		v.judgeState(&checks[i], missing)
	}
	if v.facts.newest != nil || missing == 2 && len(v.facts.journal) == 0 && !v.anySegments() {
		return nil
	}
	what := "both state files are missing"
	if bad > 0 {
		what = "no state file is usable"
	}
	v.add(finding(SeverityDamage, "state", v.dir, what+": sessions, cursors, topic settings and the recovery point are lost",
		"run sluice repair, or start the broker: it sets bad ones aside and takes the topics from their directories", files.FixStart))
	return nil
}

// judgeState says what is wrong with one state file.
func (v *verifier) judgeState(c *state.FileCheck, missing int) {
	usable := v.facts.newest != nil
	f := finding(SeverityFault, "state", c.Path, "", "run sluice repair, or start the broker: it makes the file anew from the other one", files.FixStart)
	switch {
	case c.Missing && usable && v.facts.newest.Number > 1:
		f.What = "is missing"
	case c.Missing && usable:
		f.Severity, f.What = SeverityNote, "is not there yet: the other one is the first checkpoint's"
	case c.Missing:
		return
	case c.Err != nil:
		f.Position, f.What = c.Position, fmt.Sprintf("is damaged: %v", c.Err)
		if !usable {
			f.Severity, f.Remedy = SeverityDamage, "run sluice repair, or start the broker: it sets the file aside"
		}
	case c.BadMeta >= 0:
		f.Position = c.BadMeta
		f.What = fmt.Sprintf("one meta page is damaged: the file counts as it was at checkpoint %d", c.Number)
		f.Remedy = "run sluice repair, or start the broker: the next checkpoints write it anew"
	default:
		return
	}
	v.add(f)
}

// anySegments says whether any partition has a log file with something in it.
func (v *verifier) anySegments() bool {
	entries, err := v.fs.ReadDir(topicsDir(v.dir))
	if err != nil {
		return false
	}
	for _, e := range entries {
		list, err := files.List(v.fs, filepath.Join(topicsDir(v.dir), e.Name()))
		for _, s := range list {
			if s.Bytes > 0 {
				return true
			}
		}
		if err != nil && e.IsDir() {
			return true
		}
	}
	return false
}

// judgeJournal says what is wrong with the journal, given the recovery point.
func (v *verifier) judgeJournal(in journal.Inspection) {
	point := uint64(0)
	if v.facts.newest != nil {
		point = v.facts.newest.Point.LSN
	}
	var last, begin uint64 // of the journal, and of its newest file
	for _, f := range in.Files {
		if !f.Empty && f.StrayLSN == 0 && f.FirstLSN > 0 {
			last = max(last, f.LastLSN, f.FirstLSN-1)
			if f.FirstLSN > begin {
				begin, v.facts.fileLen = f.FirstLSN, f.StatedBytes
			}
		}
	}
	dir := journal.Dir(v.dir)
	switch {
	case v.facts.newest != nil && last < point:
		v.add(finding(SeverityDamage, "journal", dir,
			fmt.Sprintf("ends at LSN %d, the recovery point is LSN %d: what was acknowledged after the last checkpoint is lost, if anything was", last, point),
			repairOrStart, files.FixStart))
	case v.facts.newest != nil && point < in.Covered:
		v.add(finding(SeverityDamage, "journal", dir,
			fmt.Sprintf("begins behind LSN %d, the recovery point is LSN %d: what lies between is lost, but for what the segments have", in.Covered, point),
			repairOrStart, files.FixStart))
	}
	for _, d := range in.Report.Damages {
		v.judgeFrames(d, point)
	}
	if in.Report.Torn && !v.used {
		v.add(finding(SeverityNote, "journal", dir, fmt.Sprintf("torn tail: frame %d was being written when the power failed", in.Report.LastLSN+1),
			"the next start of the broker begins a new file", files.FixStart))
	}
	for _, f := range in.Files {
		v.judgeJournalFile(f, in.Covered, max(in.Covered, point, last), f.FirstLSN == begin)
	}
	for _, e := range in.Others {
		path := filepath.Join(dir, e.Name())
		if strings.Contains(e.Name(), ".journal.damaged") {
			v.add(finding(SeverityNote, "set-aside", path, "a journal file that was set aside", setAsideRemedy, files.FixNone))
			continue
		}
		v.add(finding(SeverityNote, "unknown-file", path, "is not the broker's", nothingToDo, files.FixNone))
	}
}

// judgeFrames reports frames that are missing.
func (v *verifier) judgeFrames(d journal.Damage, point uint64) {
	f := finding(SeverityDamage, "journal", d.File, "", repairOrStart, files.FixStart)
	if d.File == "" {
		f.Path = journal.Dir(v.dir)
	} else if d.Cause == "" {
		f.Position, f.Bytes = d.FromByte, d.ToByte-d.FromByte
	}
	switch {
	case d.Cause != "":
		f.What = "can't be read: " + d.Cause
	case d.ToLSN <= point:
		f.Severity = SeverityFault
		f.What = fmt.Sprintf("frames %d to %d are damaged or missing; only the older state file would need them", d.FromLSN, d.ToLSN)
	default:
		f.What = fmt.Sprintf("frames %d to %d are damaged or missing", max(d.FromLSN, point+1), d.ToLSN)
	}
	v.add(f)
}

// judgeJournalFile says what is wrong with one file. known is the last LSN that anything else tells of.
func (v *verifier) judgeJournalFile(f journal.FileInfo, covered, known uint64, newest bool) {
	needed := newest || f.LastLSN > covered
	g := finding(SeverityNote, "journal", f.Path, "", nothingToDo, files.FixNone)
	switch {
	case f.Empty:
		return
	case f.StrayLSN > known:
		g.Severity, g.Position, g.Fix = SeverityDamage, f.StrayAt, files.FixRemove
		g.What = fmt.Sprintf("has no header, but frames up to LSN %d that nothing leads to", f.StrayLSN)
		g.Remedy = "run sluice repair: it sets the file aside"
	case f.FirstLSN == 0:
		g.What = "has no header: it will be used anew"
	case needed && f.Bytes < f.StatedBytes:
		g.Severity, g.Position, g.Fix, g.Remedy = SeverityDamage, f.Bytes, files.FixStart, repairOrStart
		g.What = fmt.Sprintf("has %d of %d bytes: the frames in the rest, if any, are lost", f.Bytes, f.StatedBytes)
	case f.Copies[0] != "" && f.Copies[1] != "":
		g.Position, g.What = 0, "both copies of the header are damaged; its frames tell what it was"
	case f.Copies[0] != "":
		g.Position, g.What = 0, "the first copy of the header "+f.Copies[0]
	case f.Copies[1] != "":
		g.Position, g.What = 4096, "the second copy of the header "+f.Copies[1]
	default:
		return
	}
	if g.Severity == SeverityNote && needed {
		g.Severity, g.Fix, g.Remedy = SeverityFault, files.FixStart, "run sluice repair, or start the broker: it begins a new file"
	}
	v.add(g)
}
