package journal

import (
	"bytes"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicemq/sluice/internal/vfs"
)

// FileInfo is what Inspect finds out about one journal file.
type FileInfo struct {
	Path string
	// Bytes is the file's size, StatedBytes what its header says.
	Bytes, StatedBytes int64
	// Empty says that the file has neither header nor frames: it was never used.
	Empty bool
	// Copies says what is wrong with each of the two copies of the header, "" for a good one.
	Copies [2]string
	// FirstLSN is of the first frame of this use of the file, LastLSN of the last valid one: below FirstLSN without any.
	FirstLSN, LastLSN uint64
	// StrayLSN is the greatest LSN of frames that no header leads to, at byte StrayAt; 0 for none.
	StrayLSN uint64
	StrayAt  int64
}

// Inspection is what Inspect finds.
type Inspection struct {
	Files []FileInfo
	// Covered is the LSN up to which frames may be missing. Report is about those beyond it.
	Covered uint64
	Report  Report
	// Others are the names in the directory that are not journal files.
	Others []fs.DirEntry
}

// Inspect reads all of a journal and changes nothing. It calls fn for each entry of each valid frame, also of those that
// checkpoints cover, in order. It may be used beside a process that writes, with the reservations of ReplayDir. Errors:
// fn's, *FormatError, and of listing the directory.
func Inspect(fsys vfs.FS, dir string, fn func(lsn uint64, e *Entry) error) (Inspection, error) {
	var in Inspection
	files, bad, err := openSteady(fsys, dir)
	if err != nil {
		return in, err
	}
	defer closeFiles(files)
	var chain []*use
	for _, f := range files {
		if f.used {
			chain = append(chain, &use{f.f, f.header, f.begin, f, 0})
			in.Covered = max(in.Covered, f.header.covered)
		}
	}
	if in.Report, err = replay(chain, &scanner{fn: fn}); err != nil {
		return in, err
	}
	for i, d := range in.Report.Damages {
		in.Report.Damages[i].FromLSN = max(d.FromLSN, in.Covered+1)
	}
	in.Report.Damages = slices.DeleteFunc(in.Report.Damages, func(d Damage) bool { return d.FromLSN > d.ToLSN })
	in.Report.Damages = append(in.Report.Damages, bad...)
	for _, f := range files {
		in.Files = append(in.Files, inspectFile(f, chain))
	}
	entries, err := fsys.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), fileSuffix) || e.IsDir() {
			in.Others = append(in.Others, e)
		}
	}
	return in, err
}

// inspectFile describes one file.
func inspectFile(f *file, chain []*use) FileInfo {
	info := FileInfo{Path: f.f.Name(), StatedBytes: f.header.size, FirstLSN: f.header.firstLSN}
	info.Bytes, _ = f.f.Size()
	b := make([]byte, framesAt)
	n, _ := f.f.ReadAt(b, 0)
	zero := bytes.Count(b[:n], []byte{0}) == n
	var headers [2]header
	for i := range info.Copies {
		c := b[min(n, i*blockBytes):min(n, (i+1)*blockBytes)]
		h, ok, _ := parseHeader(c, info.Path)
		switch {
		case ok:
			headers[i] = h
		case len(bytes.Trim(c, "\x00")) == 0:
			info.Copies[i] = "is all zeros"
		default:
			info.Copies[i] = "fails its checksum"
		}
	}
	if info.Copies == [2]string{} && headers[0] != headers[1] {
		info.Copies[1] = fmt.Sprintf("is of another use: it begins at LSN %d, not %d", headers[1].firstLSN, headers[0].firstLSN)
	}
	for _, u := range chain {
		if u.file == f {
			info.LastLSN = u.last
		}
	}
	if !f.used {
		f.strays(&info)
		info.Empty = zero && info.StrayLSN == 0
	}
	return info
}

// strays looks for frames in a file that has no header.
func (f *file) strays(info *FileInfo) {
	var buf []byte
	for at := int64(0); at+frameHeaderBytes <= info.Bytes; at += blockBytes {
		var b [frameHeaderBytes]byte
		if n, _ := f.f.ReadAt(b[:], at); n < len(b) {
			continue
		}
		if h, ok := parseFrameHeader(b[:]); !ok || h.lsn <= info.StrayLSN {
			continue
		}
		if h, err := readFrame(f.f, at, info.Bytes, &buf); err == nil {
			info.StrayLSN, info.StrayAt = h.lsn, at
		}
	}
}

// SetAside takes a file that no header leads into out of the journal, by another name, which it returns.
func SetAside(fsys vfs.FS, path string) (string, error) {
	aside, err := vfs.Unused(fsys, path+".damaged")
	if err != nil {
		return "", err
	}
	if err := fsys.Rename(path, aside); err != nil {
		return "", err
	}
	return aside, fsys.SyncDir(filepath.Dir(path))
}
