package auth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func fileText(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSetPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	set := func(user, password string, algorithm Algorithm) {
		t.Helper()
		if err := SetPassword(file, user, algorithm, 101, []byte(password)); err != nil {
			t.Fatal(err)
		}
	}
	set("alice", "one", PBKDF2)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a new file has %v, %v", info.Mode(), err)
	}
	put(t, file, "# users\n"+fileText(t, file)+"\nnonsense line\nbob:"+hashOfHunter2+"\n#bob:x\nbob:"+hashOfSecret) // no end of line
	set("bob", "two", SHA512)
	set("carol", "three", Argon2id)
	set("alice", "four", PBKDF2)
	lines := strings.Split(fileText(t, file), "\n")
	for i, want := range []string{"# users", "alice:$7$101$", "", "nonsense line", "bob:$6$", "#bob:x", "carol:$argon2id$v=19$m=12288,t=3,p=1$", ""} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) || want == "" && lines[i] != "" {
			t.Fatalf("line %d of %q is not %q", i, lines, want)
		}
	}
	a, _, err := New(Options{PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	for user, password := range map[string]string{"alice": "four", "bob": "two", "carol": "three"} {
		if _, err := a.login(user, password); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	if err := DeleteUser(file, "bob"); err != nil {
		t.Fatal(err)
	}
	if text := fileText(t, file); strings.Contains(text, "\nbob:") || !strings.Contains(text, "#bob:x\n") {
		t.Errorf("after bob was deleted: %q", text)
	}
	before := fileText(t, file)
	if err := DeleteUser(file, "bob"); !errors.Is(err, ErrNoUser) || fileText(t, file) != before {
		t.Errorf("bob twice: %v", err)
	}
	if files, _ := os.ReadDir(filepath.Dir(file)); len(files) != 1 {
		t.Errorf("%d files are left behind", len(files))
	}
}

func TestSetPasswordKeepsOwnerAndLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "passwd"), filepath.Join(dir, "link")
	put(t, file, "# empty\n")
	if err := os.Symlink("passwd", link); err != nil {
		t.Fatal(err)
	}
	uid := os.Getuid()
	if uid == 0 {
		uid = 12345
		if err := os.Chown(file, uid, 54321); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[os.FileMode]os.FileMode{0o600: 0o600, 0o640: 0o640, 0o644: 0o640, 0o400: 0o600, 0o666: 0o660} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if err := SetPassword(link, "alice", SHA512, 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != uid || info.Mode().Perm() != want {
			t.Errorf("mode %v: uid %d, mode %v", mode, s.Uid, info.Mode())
		}
	}
	if to, err := os.Readlink(link); err != nil || to != "passwd" {
		t.Errorf("the link leads to %q: %v", to, err)
	}
	if text := fileText(t, file); !strings.HasPrefix(text, "# empty\nalice:$6$") {
		t.Errorf("%q", text)
	}
}

func TestSetPasswordRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	for _, tt := range []struct {
		user, password string
		iterations     int
		want           string
	}{
		{"", "x", 1, "is empty"}, {"a:b", "x", 1, "colon"}, {"#a", "x", 1, "begins with #"}, {" a", "x", 1, "blank"}, {"a\n", "x", 1, "blank"},
		{"a\nb", "x", 1, "isn't text"}, {"\xff", "x", 1, "isn't text"}, {strings.Repeat("a", MaxUserNameBytes+1), "x", 1, "1025 bytes"},
		{"a", "", 1, "password is empty"}, {"a", "x\x00y", 1, "zero byte"}, {"a", strings.Repeat("x", MaxPasswordBytes+1), 1, "65536 bytes"},
		{"a", "x", 0, "out of range"}, {"a", "x", MaxIterations + 1, "out of range"},
	} {
		if err := SetPassword(file, tt.user, PBKDF2, tt.iterations, []byte(tt.password)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.20q %.20q: %v, want %q", tt.user, tt.password, err, tt.want)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was made")
	}
	if err := SetPassword(filepath.Join(file, "x", "y"), "a", SHA512, 0, []byte("x")); err == nil {
		t.Error("a file was made without its directory")
	}
}
