package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// ErrNoUser says that a user that was to be deleted isn't in the file.
var ErrNoUser = errors.New("no such user")

// MaxPasswordBytes is how long a password may be (MQTT 5 §1.5.6).
const MaxPasswordBytes = 65535

// MaxIterations bounds the iterations of a PBKDF2.
const MaxIterations = maxIterations

// SetPassword writes a user's password to a password file, in place of the one that it had, and makes the file if there is
// none. Everything else in the file stays as it is. A crash leaves the old file or the new one. iterations are those of PBKDF2.
func SetPassword(file, user string, algorithm Algorithm, iterations int, password []byte) error {
	if err := validUser(user); err != nil {
		return err
	}
	switch {
	case len(password) == 0:
		return errors.New("the password is empty")
	case len(password) > MaxPasswordBytes:
		return fmt.Errorf("the password is %d bytes long; at most %d are allowed", len(password), MaxPasswordBytes)
	case bytes.IndexByte(password, 0) >= 0:
		return errors.New("the password holds a zero byte, and mosquitto would take only what is before it")
	case algorithm == PBKDF2 && (iterations < 1 || iterations > maxIterations):
		return fmt.Errorf("iterations %d are out of range; allowed: 1 to %d", iterations, maxIterations)
	}
	line := user + ":" + newHash(algorithm, iterations, password).String() + "\n"
	return edit(file, func(data []byte) ([]byte, error) {
		edited, _ := replaceUser(data, user, line)
		return edited, nil
	})
}

// DeleteUser takes a user out of a password file. The error is ErrNoUser if it isn't in there.
func DeleteUser(file, user string) error {
	return edit(file, func(data []byte) ([]byte, error) {
		edited, found := replaceUser(data, user, "")
		if !found {
			return nil, ErrNoUser
		}
		return edited, nil
	})
}

// validUser says whether a password file can hold a user's name, so that all readers of the file see the same.
func validUser(name string) error {
	switch {
	case name == "":
		return errors.New("the user's name is empty")
	case len(name) > MaxUserNameBytes:
		return fmt.Errorf("the user's name is %d bytes long; at most %d are allowed", len(name), MaxUserNameBytes)
	case strings.Contains(name, ":"):
		return fmt.Errorf("user's name %q holds a colon, which ends the name in the file", name)
	case strings.HasPrefix(name, "#"):
		return fmt.Errorf("user's name %q begins with #, as comments in the file do", name)
	case name != strings.Trim(name, blanks):
		return fmt.Errorf("user's name %q begins or ends with a blank, which the file doesn't keep", name)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("user's name %q isn't text that MQTT allows", name)
	}
	return nil
}

// replaceUser puts line where a user's first line is, or at the end, and takes the user's other lines out. An empty one is left out.
func replaceUser(data []byte, user, line string) (edited []byte, found bool) {
	for old := range bytes.Lines(data) {
		if name, _, ok := splitUser(bytes.TrimSuffix(old, []byte("\n"))); !ok || name != user || old[0] == '#' {
			edited = append(edited, old...)
			continue
		}
		if !found {
			edited = append(edited, line...)
		}
		found = true
	}
	if found {
		return edited, true
	}
	if n := len(edited); n > 0 && edited[n-1] != '\n' && line != "" {
		edited = append(edited, '\n')
	}
	return append(edited, line...), false
}

// edit replaces a file's content, atomically. Owner and group stay as they are, and so do their permissions; others get none.
func edit(file string, change func([]byte) ([]byte, error)) error {
	target, err := filepath.EvalSymlinks(file) // a link stays a link
	switch {
	case errors.Is(err, fs.ErrNotExist):
		target = file
	case err != nil:
		return fmt.Errorf("%s: %w", passwordFile, err)
	}
	data, err := readFile(passwordFile, "the path", target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	info, err := os.Stat(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", passwordFile, err)
	}
	if data, err = change(data); err != nil {
		return fmt.Errorf("%s %s: %w", passwordFile, file, err)
	}
	if err := replace(target, data, info); err != nil {
		return fmt.Errorf("write %s: %w", passwordFile, err)
	}
	return nil
}

// replace writes data beside a file, durably, and moves it there. old is the present file's, nil for none.
func replace(file string, data []byte, old fs.FileInfo) (err error) {
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if old != nil {
		err = inherit(f, old)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), file); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// inherit gives f the owner of an older file and its permissions for owner and group.
func inherit(f *os.File, old fs.FileInfo) error {
	if s, ok := old.Sys().(*syscall.Stat_t); ok {
		if own, err := f.Stat(); err != nil {
			return err
		} else if o, ok := own.Sys().(*syscall.Stat_t); !ok || o.Uid != s.Uid || o.Gid != s.Gid {
			if err := f.Chown(int(s.Uid), int(s.Gid)); err != nil {
				return fmt.Errorf("keep the owner of the file: %w", err)
			}
		}
	}
	return f.Chmod(old.Mode().Perm()&0o660 | 0o600)
}
