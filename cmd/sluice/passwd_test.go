package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluicemq/sluice/broker/auth"
)

// withInput runs a command line with something on the standard input.
func withInput(t *testing.T, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		io.WriteString(w, input)
		w.Close()
	}()
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = r
	return command(args...)
}

func TestPasswd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	for _, tt := range []struct {
		name, input string
		args        []string
		code        int
		stderr      string
	}{
		{"first", "secret\n", []string{file, "alice"}, exitOK, ""},
		{"no end of line", "secret", []string{file, "bob", "--algorithm", "sha512"}, exitOK, ""},
		{"Windows", "pass word \r\nmore\n", []string{"--algorithm=argon2id", file, "carol"}, exitOK, ""},
		{"iterations", "secret\n", []string{file, "dave", "--iterations", "5"}, exitOK, ""},
		{"delete", "", []string{file, "bob", "--delete"}, exitOK, ""},
		{"delete nobody", "", []string{file, "bob", "--delete"}, exitFailed, "sluice: password file " + file + ": no such user\n"},
		{"empty", "\n", []string{file, "bob"}, exitFailed, "sluice: the password is empty\n"},
		{"nothing", "", []string{file, "bob"}, exitFailed, "sluice: there is no password on the standard input; nothing was changed\n"},
		{"bad name", "x\n", []string{file, "a:b"}, exitFailed, "sluice: user's name \"a:b\" holds a colon, which ends the name in the file\n"},
		{"too long", strings.Repeat("x", 70000) + "\n", []string{file, "bob"}, exitFailed, "sluice: the password is 65538 bytes long; at most 65535 are allowed\n"},
		{"algorithm", "x\n", []string{file, "bob", "--algorithm", "md5"}, exitConfig, `sluice: invalid argument "md5" for "--algorithm" flag: allowed: pbkdf2, argon2id, sha512; see sluice passwd --help` + "\n"},
	} {
		code, stdout, stderr := withInput(t, tt.input, append([]string{"passwd"}, tt.args...)...)
		if code != tt.code || stdout != "" || stderr != tt.stderr {
			t.Errorf("%s: exit code %d, %q, %q; want %d, %q", tt.name, code, stdout, stderr, tt.code, tt.stderr)
		}
	}
	a, _, err := auth.New(auth.Options{PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	for user, password := range map[string]string{"alice": "secret", "carol": "pass word ", "dave": "secret"} {
		if _, err := a.Authenticate(t.Context(), auth.Credentials{User: user, HasUser: true, Password: []byte(password), HasPassword: true}); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"alice:$7$100000$", "carol:$argon2id$", "dave:$7$5$", ""} {
		if lines := strings.Split(string(data), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d of %q is not %q", i, lines, want)
		}
	}
}

// terminal is a pseudo terminal: its user's side, and the program's.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	t.Cleanup(func() { user.Close() })
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

func TestPasswordFromTerminal(t *testing.T) {
	for _, tt := range []struct {
		first, second string
		want          error
	}{{"secret", "secret", nil}, {"secret", "Secret", errTwoPasswords}} {
		user, program := terminal(t)
		before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		prompts, answers, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan string, 1)
		go func() { // types once it is asked, so that nothing is typed before the echo is off
			var all bytes.Buffer
			buf := make([]byte, 64)
			for answered := 0; ; {
				n, err := prompts.Read(buf)
				all.Write(buf[:n])
				if err != nil {
					break
				}
				if asked := strings.Count(all.String(), ": "); asked > answered {
					answered = asked
					fmt.Fprintln(user, []string{tt.first, tt.second}[answered-1])
				}
			}
			said <- all.String()
		}()
		password, err := askPassword(program, answers)
		answers.Close()
		if err != tt.want || tt.want == nil && string(password) != "secret" {
			t.Errorf("%q, %v", password, err)
		}
		if text := <-said; text != "Password: \nAgain: \n" {
			t.Errorf("prompts %q", text)
		}
		after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("the terminal is not as it was: %v", err)
		}
		fmt.Fprint(program, "end") // behind what was echoed
		if err := unix.SetNonblock(int(user.Fd()), true); err != nil {
			t.Fatal(err)
		}
		echo := readUntil(t, user, "end")
		if strings.Contains(strings.ToLower(echo), "secret") {
			t.Errorf("the terminal showed %q", echo)
		}
	}
}

// readUntil reads up to an end.
func readUntil(t *testing.T, f *os.File, end string) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 256)
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(string(all), end); {
		if time.Now().After(deadline) {
			t.Fatalf("only %q", all)
		}
		n, err := unix.Read(int(f.Fd()), buf)
		if err == nil {
			all = append(all, buf[:n]...)
		}
	}
	return string(all)
}
