package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Bounds of both files. They are read whole.
const (
	maxFileBytes = 4 << 20
	maxLineBytes = 4 << 10
	maxProblems  = 20 // that one reading reports
)

// blanks is what mosquitto takes for space at the ends of names and topics.
const blanks = " \t\n\v\f\r"

// FileError is one line of a file that can't be used.
type FileError struct {
	File    string
	Line    int // from 1
	Message string
}

func (e *FileError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

// reading is one file in hand. It goes on after an error, so that all of them are reported.
type reading struct {
	file     string
	line     int
	problems []error
	warnings []string
}

func (r *reading) bad(format string, args ...any) {
	if len(r.problems) <= maxProblems {
		r.problems = append(r.problems, &FileError{r.file, r.line, fmt.Sprintf(format, args...)})
	}
}

// warn notes what mosquitto skips, too.
func (r *reading) warn(format string, args ...any) {
	if len(r.warnings) < maxProblems {
		r.warnings = append(r.warnings, (&FileError{r.file, r.line, fmt.Sprintf(format, args...)}).Error())
	}
}

// err is everything that is wrong with the file, nil when nothing is.
func (r *reading) err() error {
	if len(r.problems) > maxProblems {
		r.problems[maxProblems] = fmt.Errorf("%s: more problems follow these %d", r.file, maxProblems)
	}
	return errors.Join(r.problems...)
}

// each calls f with each line, without its end. Lines that are too long are reported instead.
func (r *reading) each(data []byte, f func(line []byte)) {
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		r.line++
		switch {
		case len(line) > maxLineBytes:
			r.bad("the line is %d bytes long; at most %d are allowed", len(line), maxLineBytes)
		case bytes.IndexByte(line, 0) >= 0:
			r.bad("the line holds a zero byte; is this the right file?")
		default:
			f(line)
		}
	}
}

// readFile reads a file whole, within its bound. what names it in the error, and key is the configuration's.
func readFile(what, key, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(what, key, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, openError(what, key, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s %s is larger than %d bytes; is it the right file?", what, path, maxFileBytes)
	}
	return data, nil
}

func openError(what, key string, err error) error {
	remedy := "check " + key
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = fmt.Sprintf("let user id %d read it", os.Getuid())
	case errors.Is(err, fs.ErrNotExist):
		remedy = "check " + key + ", or make the file with sluice passwd"
		if what != passwordFile {
			remedy = "check " + key + ", or make the file"
		}
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return fmt.Errorf("%s %s: %w; %s", what, pathErr.Path, pathErr.Err, remedy)
	}
	return fmt.Errorf("%s: %w; %s", what, err, remedy)
}

// What the two files are called in messages.
const (
	passwordFile = "password file"
	aclFile      = "ACL file"
)
