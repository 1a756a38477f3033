package files

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/sluicemq/sluice/internal/vfs"
)

const (
	// tries is how often an operation is begun before a disk's "can't" is believed: what is decided upon it is for ever.
	tries = 3
	// blockBytes is the piece that a disk refuses at once.
	blockBytes = 4096
	// maxBadBlocks bounds how long one look at a file waits for a disk that refuses everything.
	maxBadBlocks = 64
)

// unreadable says that err is a disk's or file system's: the same operation on another file may well succeed.
func unreadable(err error) bool {
	for _, e := range []error{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retry calls fn until the disk does it, a few times.
func retry(fn func() error) (err error) {
	for range tries {
		if err = fn(); !unreadable(err) {
			break
		}
	}
	return err
}

func openFile(fsys vfs.FS, name string, flag int) (f vfs.File, err error) {
	err = retry(func() (err error) {
		f, err = fsys.OpenFile(name, flag, filePerm)
		return err
	})
	return f, err
}

// patient reads a file around the blocks that the disk doesn't give: they come as zeros, so the batches that lie there
// fail their checks, and what follows is found as it is behind any damage.
type patient struct {
	f       io.ReaderAt
	endures bool  // however many there are
	err     error // why a block came as zeros; nil if none did
	bad     int   // how many
	last    int64 // where the last of them is
}

// ReadAt fails like that of the file, but for blocks that can't be read: only if there are too many of them to endure.
func (p *patient) ReadAt(b []byte, at int64) (n int, err error) {
	err = retry(func() (err error) {
		n, err = p.f.ReadAt(b, at)
		return err
	})
	if !unreadable(err) {
		return n, err
	}
	for n = 0; n < len(b); {
		piece := b[n:min(len(b), n+blockBytes-int((at+int64(n))%blockBytes))]
		got := 0
		err := retry(func() (err error) {
			got, err = p.f.ReadAt(piece, at+int64(n))
			return err
		})
		if unreadable(err) {
			if p.bad == maxBadBlocks && !p.endures {
				return n, err
			}
			p.note(err, at+int64(n))
			clear(piece)
			got, err = len(piece), nil
		}
		n += got
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (p *patient) note(err error, at int64) {
	p.bad++
	p.err, p.last = err, at
}

// cause is what is wrong with bytes that bad tells of.
func (p *patient) cause(bad error) error {
	if p.err == nil || bad == nil || unreadable(bad) {
		return bad
	}
	return fmt.Errorf("%w: %w", p.err, bad)
}
