package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluicemq/sluice/internal/vfs"
)

// A journal file is zero-filled once and used again and again. Each use starts with a header, twice, each copy in a
// block of its own:
//
//	 0   8  magic "SLUICEJN"
//	 8   4  CRC-32C of bytes 12 to 55
//	12   4  format version, 1
//	16   8  epoch: a random number for this use, part of each frame's checksum
//	24   8  LSN of the first frame
//	32   8  last valid LSN of the file before; frames beyond it there are void
//	40   8  bytes of the file
//	48   8  LSN up to which checkpoints covered everything when this use began: frames up to it may be missing
//
// The frames follow at byte 8192. Files are told apart by their headers; names mean nothing and never change.
const (
	headerMagic   = "SLUICEJN"
	headerBytes   = 56
	framesAt      = 2 * blockBytes
	formatVersion = 1
	fileSuffix    = ".journal"
)

// FormatError says that a file was written by a newer release. The file is left untouched.
type FormatError struct {
	Path    string
	Version uint32
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format version %d, this release reads up to %d: run a release that is at least as new as the one that wrote it",
		e.Path, e.Version, formatVersion)
}

type header struct {
	epoch    uint64
	firstLSN uint64
	prevLSN  uint64 // last valid LSN of the file before
	size     int64
	covered  uint64 // LSN up to which frames were not needed any more
}

func (h header) encode() []byte {
	b := make([]byte, framesAt)
	copy(b, headerMagic)
	binary.BigEndian.PutUint32(b[12:], formatVersion)
	binary.BigEndian.PutUint64(b[16:], h.epoch)
	binary.BigEndian.PutUint64(b[24:], h.firstLSN)
	binary.BigEndian.PutUint64(b[32:], h.prevLSN)
	binary.BigEndian.PutUint64(b[40:], uint64(h.size))
	binary.BigEndian.PutUint64(b[48:], h.covered)
	binary.BigEndian.PutUint32(b[8:], crc32.Checksum(b[12:headerBytes], castagnoli))
	copy(b[blockBytes:], b[:headerBytes])
	return b
}

// parseHeader reads the first good one of the two copies.
func parseHeader(b []byte, path string) (h header, ok bool, err error) {
	for at := 0; at+headerBytes <= len(b); at += blockBytes {
		c := b[at : at+headerBytes]
		if string(c[:8]) != headerMagic || crc32.Checksum(c[12:], castagnoli) != binary.BigEndian.Uint32(c[8:]) {
			continue
		}
		if v := binary.BigEndian.Uint32(c[12:]); v > formatVersion {
			return h, false, &FormatError{path, v}
		}
		return header{
			epoch:    binary.BigEndian.Uint64(c[16:]),
			firstLSN: binary.BigEndian.Uint64(c[24:]),
			prevLSN:  binary.BigEndian.Uint64(c[32:]),
			size:     int64(binary.BigEndian.Uint64(c[40:])),
			covered:  binary.BigEndian.Uint64(c[48:]),
		}, true, nil
	}
	return h, false, nil
}

// file is one journal file. Its fields are guarded by Journal.mu, but for f, which is set once.
type file struct {
	f       vfs.File
	header  header // of the present use
	used    bool   // false: free, its content means nothing
	failed  error  // a write or sync failed: never written again, removed when it is not needed any more
	lastLSN uint64 // of the last valid frame
	end     int64  // where the next frame goes
	begin   int64  // where the first frame is
	note    string // what is odd about its content since Open; immutable
}

// free says whether the file can be put to use. Journal.mu is held.
func (f *file) free() bool { return !f.used && f.failed == nil }

func newEpoch() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:])
}

// openFiles opens all files of the directory and reads their headers. What can't be read of it is in bad.
func openFiles(fsys vfs.FS, dir string, write bool) (files []*file, bad []Damage, err error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), fileSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := openFile(fsys, path, write)
		switch {
		case err == nil:
			files = append(files, f)
		case errors.Is(err, fs.ErrNotExist): // removed since, by the broker that owns the directory
		case isDamage(err):
			bad = append(bad, Damage{File: path, Cause: "can't be read: " + err.Error()})
		default:
			closeFiles(files)
			return nil, nil, err
		}
	}
	return files, bad, nil
}

// isDamage says that the file itself can't be read, now or later; not that rights or resources are wanting.
func isDamage(err error) bool {
	for _, e := range []error{syscall.EIO, syscall.EUCLEAN, syscall.EISDIR, syscall.ENXIO, syscall.ELOOP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func closeFiles(files []*file) {
	for _, f := range files {
		f.f.Close()
	}
}

func openFile(fs vfs.FS, path string, write bool) (*file, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	vf, err := fs.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	f := &file{f: vf, begin: framesAt, end: framesAt}
	b := make([]byte, framesAt)
	n, readErr := vf.ReadAt(b, 0)
	f.header, f.used, err = parseHeader(b[:n], path)
	if err != nil {
		vf.Close()
		return nil, err
	}
	if !f.used {
		f.adopt()
	}
	if !f.used && readErr != nil && readErr != io.EOF {
		vf.Close()
		return nil, readErr // it may have held frames, and is no place for new ones
	}
	return f, nil
}

// createFile makes a new file of zeros. Writing them once makes the later overwrites cost one flush and no metadata;
// it also claims the space now and not at a commit.
func createFile(fs vfs.FS, dir string, size int64) (*file, error) {
	path, err := unusedName(fs, dir)
	if err != nil {
		return nil, err
	}
	vf, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	if err := zeroFill(vf, 0, size); err != nil {
		vf.Close()
		fs.Remove(path)
		return nil, err
	}
	if err := fs.SyncDir(dir); err != nil {
		vf.Close()
		fs.Remove(path)
		return nil, err
	}
	return &file{f: vf, begin: framesAt, end: framesAt}, nil
}

func unusedName(fs vfs.FS, dir string) (string, error) {
	entries, err := fs.ReadDir(dir)
	if err != nil {
		return "", err
	}
	next := 1
	for _, e := range entries {
		if n, err := strconv.Atoi(strings.TrimSuffix(e.Name(), fileSuffix)); err == nil && n >= next {
			next = n + 1
		}
	}
	return filepath.Join(dir, fmt.Sprintf("%08d%s", next, fileSuffix)), nil
}

func zeroFill(f vfs.File, from, to int64) error {
	chunk := make([]byte, min(to-from, 256<<10))
	for at := from; at < to; {
		n, err := f.WriteAt(chunk[:min(int64(len(chunk)), to-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return f.Sync()
}
