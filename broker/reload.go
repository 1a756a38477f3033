package broker

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// watchInterval is the time between two looks at the files of a running broker. A change is taken up once a look finds what the
// look before found: a file that is still being written is left alone, and files that belong together come together.
const watchInterval = 2 * time.Second

// reloader has parts of the broker read their files again: all of them when asked (SIGHUP), one of them when its files have
// changed. A part registers before run starts, or later from any goroutine:
//
//	r.register("passwords", []string{passwordFile, aclFile}, auth.Reload)
//
// The function reads the files anew and takes up what they say, all of it or none: with an error the part goes on with
// what it had. The error names file and reason; the reloader logs it, so the function doesn't. It is called by one
// goroutine at a time, for all parts, and may take as long as it needs.
type reloader struct {
	lg  *slog.Logger
	hup chan struct{} // somebody asked for all; holds one

	mu    sync.Mutex
	parts []*reloadPart // under mu; a part's other fields belong to run
}

// reloadPart is what one part of the broker registered.
type reloadPart struct {
	name   string
	files  []string
	reload func() error

	inUse []fileStamp // of the files when they were last read, or when the part registered
	last  []fileStamp // at the look before
}

// fileStamp tells one state of a file from another. The inode is there because a new file can be moved into the place of one of the
// same age and size.
type fileStamp struct {
	device, inode  uint64
	size, modified int64 // bytes, ns
}

func newReloader(lg *slog.Logger) *reloader {
	return &reloader{lg: lg, hup: make(chan struct{}, 1)}
}

// register adds a part, or replaces the one of that name. Empty file names are left out.
func (r *reloader) register(name string, files []string, reload func() error) {
	p := &reloadPart{name: name, reload: reload}
	for _, f := range files {
		if f != "" {
			p.files = append(p.files, f)
		}
	}
	p.inUse = stamps(p.files)
	p.last = p.inUse
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, old := range r.parts {
		if old.name == name {
			r.parts[i] = p
			return
		}
	}
	r.parts = append(r.parts, p)
}

// all asks for everything to be read again, soon. It never waits.
func (r *reloader) all() {
	select {
	case r.hup <- struct{}{}:
	default: // asked for already
	}
}

// run works until ctx ends.
func (r *reloader) run(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hup:
			for _, p := range r.registered() {
				r.reload(p, stamps(p.files))
			}
		case <-tick.C:
			for _, p := range r.registered() {
				r.look(p)
			}
		}
	}
}

func (r *reloader) registered() []*reloadPart {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*reloadPart(nil), r.parts...)
}

// look reads a part's files again if they have changed and came to rest.
func (r *reloader) look(p *reloadPart) {
	now := stamps(p.files)
	settled := same(now, p.last)
	p.last = now
	if settled && !same(now, p.inUse) {
		r.reload(p, now)
	}
}

// reload reads a part's files again. now was taken before: what changes while they are read is seen at the next look. What failed is
// tried again when the files change, not before: the log would fill with one message.
func (r *reloader) reload(p *reloadPart, now []fileStamp) {
	p.inUse, p.last = now, now
	if err := p.reload(); err != nil {
		r.lg.Error("reload failed, what was read before stays in use", "what", p.name, "cause", err)
		return
	}
	r.lg.Info("reloaded", "what", p.name, "files", len(p.files))
}

// stamps of a file that isn't there, or can't be looked at, are zero.
func stamps(files []string) []fileStamp {
	list := make([]fileStamp, len(files))
	for i, name := range files {
		info, err := os.Stat(name) // follows links: a link that points elsewhere is a change
		if err != nil {
			continue
		}
		list[i] = fileStamp{size: info.Size(), modified: info.ModTime().UnixNano()}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			list[i].device, list[i].inode = uint64(s.Dev), uint64(s.Ino)
		}
	}
	return list
}

func same(a, b []fileStamp) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
