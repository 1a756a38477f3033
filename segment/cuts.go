package segment

import (
	"path/filepath"
	"strconv"
	"strings"
)

// cutTail is what recovery cut off a partition's segments.
type cutTail struct {
	p      *Partition
	end    bool   // nothing was kept behind it
	beyond bool   // it lies beyond the recovery point: nothing of it was synced
	to     int64  // offset behind it
	bytes  int64  // that were cut
	what   string // it is
	side   string // file that has the bytes now, or ""
	gone   bool   // a whole segment, and nothing tells why
}

// segmentBase is the offset in the name of a segment's file.
func segmentBase(path string) int64 {
	digits, _, _ := strings.Cut(filepath.Base(path), ".")
	base, _ := strconv.ParseInt(digits, 10, 64)
	return base
}

// judgeCuts tells damage from what every power cut leaves: of what was appended since the last checkpoint, any page may
// be missing, and the journal has brought it again. The files that have the remains are removed then, once the new copy
// is durable; they would fill the disk, a little with each power cut. It is called between replay and anything else that
// moves p.next. whole says that the journal was replayed without damage: what was not synced and is not in it was never
// acknowledged.
func (l *Log) judgeCuts(whole bool) (useless []cutTail) {
	for _, c := range l.cuts {
		switch {
		case c.gone && c.to <= max(c.p.chain.Start(), l.storedStart(c.p)): // by retention, whose last step the power cut undid in part
		case c.end && c.p.next >= c.to && !l.gaps[c.p]:
			l.recovered.CutBytes += c.bytes
			l.recovered.Notes = append(l.recovered.Notes, c.what+"; the journal has all of it")
			if c.side != "" {
				useless = append(useless, c)
			}
		case c.end && c.beyond && whole:
			l.recovered.CutBytes += c.bytes
			l.recovered.Notes = append(l.recovered.Notes, c.what+"; the journal doesn't know it, so it was never acknowledged")
			if c.side != "" {
				l.recovered.Notes = append(l.recovered.Notes, "it is kept as "+c.side)
			}
		case c.side != "":
			l.damaged("%s; set aside as %s", c.what, c.side)
		default:
			l.damaged("%s", c.what)
		}
	}
	l.cuts = nil
	return useless
}
