package files

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/sluicemq/sluice/internal/vfs"
)

// dropTail removes what follows the valid part of the last segment.
func (r *recoverer) dropTail(t *tail) error {
	rest := r.c.active.seg.rest
	if rest == 0 {
		return nil
	}
	r.mended = true
	log := r.c.active.h.log
	cut := *t.s
	follows, err := cut.resync(math.MaxInt64)
	if err != nil || t.log.bad > 0 && t.log.last >= t.s.position {
		follows = true // unreadable bytes are no torn tail
	}
	if !follows {
		r.report.Cut += rest
		return r.cutOff(t)
	}
	side := r.free(fmt.Sprintf("%s%s%d", t.path, damagedInfix, t.s.position))
	d := Damage{Path: t.path, Position: t.s.position, Bytes: rest, From: t.s.expect, To: cut.expect, SideFile: side, Cause: t.log.cause(t.bad)}
	if err := r.copyTail(log, t.s.position, side); err != nil {
		// Then the bytes stay. A new segment ends this one, as after a failed sync.
		if t.s.position == 0 {
			return r.renameDamaged(d)
		}
		d.SideFile = ""
		r.report.Damaged = append(r.report.Damaged, d)
		return r.supersede()
	}
	r.report.Damaged = append(r.report.Damaged, d)
	r.c.addSide(sideFile{r.c.active.seg.base, side, rest})
	return r.cutOff(t)
}

// cutOff removes what follows the good part of the last segment, or, where that can't be cut, gets it out of the way.
func (r *recoverer) cutOff(t *tail) error {
	switch err := r.c.active.h.log.Truncate(t.s.position); {
	case err == nil:
		r.c.active.seg.rest = 0
		return nil
	case t.s.position > 0:
		return r.supersede()
	}
	if err := r.c.o.FS.Remove(t.path); err != nil {
		return err
	}
	r.c.segments = r.c.segments[:len(r.c.segments)-1]
	return r.supersede()
}

// copyTail copies the log from position on to a new file and makes that durable before anything is cut.
func (r *recoverer) copyTail(log vfs.File, position int64, side string) (err error) {
	f, err := r.c.o.FS.OpenFile(side, os.O_RDWR|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, r.c.o.FS.Remove(side))
		}
	}()
	buf := make([]byte, scanChunk)
	for at := int64(0); ; {
		n, rerr := log.ReadAt(buf, position+at)
		if _, err := f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			return rerr
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return r.c.o.FS.SyncDir(r.c.o.Dir)
}

// renameDamaged moves a log that is bad from its first byte out of the way and starts it anew.
func (r *recoverer) renameDamaged(d Damage) error {
	if err := r.c.o.FS.Rename(d.Path, d.SideFile); err != nil {
		return err
	}
	r.report.Damaged = append(r.report.Damaged, d)
	r.c.addSide(sideFile{r.c.active.seg.base, d.SideFile, d.Bytes})
	r.c.segments = r.c.segments[:len(r.c.segments)-1]
	return r.supersede()
}

// closeActive ends the writing of the last segment, which is still to be synced.
func (r *recoverer) closeActive() *writer {
	c, w := r.c, r.c.active
	if c.wakeLocked() != nil || c.finishIndexLocked(w) != nil {
		c.giveIndexUpLocked(w)
	}
	c.setActiveLocked(nil)
	return w
}

// supersede starts a new segment at NextOffset: now, so that its name ends the old one for whoever opens the directory
// next, or else with the next Append.
func (r *recoverer) supersede() error {
	old := r.closeActive()
	_ = r.c.rollLocked(r.c.next)
	if old.seg.base < r.c.next {
		r.c.unsynced = append(r.c.unsynced, old)
		return nil
	}
	r.close(old)
	return nil
}
