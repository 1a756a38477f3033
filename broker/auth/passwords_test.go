package auth

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	hashOfSecret  = "$7$101$/O0yDH0A0Oa34GQS$yhgfLi/pM5IMdB043NriBNd74xLnz32DHAAgUMWwmbA1XpVbOHW6eScTkMI6CZwM+1l+dQZLz0lZ8qruRRLZ3A=="
	hashOfHunter2 = "$7$101$Pa71RqjwVSYZuo8k$QUzco9kVWW56yX5IzuygDf3gnAY/I2EYeoi8La6BkIRdK+PzWgmyPN+GqQbVBXSOpeht74dZ3426F2XCdnllJw=="
	hashOfSixsix  = "$6$jgZ2Fo3ZWZAl7ApO$k14P4blpT6vE56sAdTFFzlKdySjtIhsI5/fqdrxDZuaGrddQFdtFxvJw9cyqbvaKYpI9mPQdNwPwzJ39Nr+Q3w=="
)

// What is skipped, and which of two lines counts, is what mosquitto 2.0.11 was seen to do.
func TestPasswordFile(t *testing.T) {
	text := "# comment\n\nalice:" + hashOfSecret + "\n" +
		"nocolon\n" +
		"dave:\n" +
		"dup:" + hashOfHunter2 + "\n" +
		"dup:" + hashOfSecret + "\n" +
		"  spaced  \t: " + hashOfSecret + " \r\n" +
		"extra:" + hashOfHunter2 + ":x:y\n" +
		"a name:" + hashOfSixsix + "\n" +
		"\xff\xfe:" + hashOfSixsix + "\n" +
		" \t\n" +
		"last:" + hashOfSixsix
	p, warnings, err := parsePasswords("pw", []byte(text), DefaultArgonMemory)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range p.order {
		names = append(names, u.name)
		if p.users[u.name] != u {
			t.Errorf("%q is not the user that counts", u.name)
		}
	}
	if want := []string{"alice", "dup", "spaced", "extra", "a name", "last"}; !slices.Equal(names, want) || len(p.users) != len(want) {
		t.Errorf("users %q, want %q", names, want)
	}
	for name, password := range map[string]string{"alice": "secret", "dup": "secret", "spaced": "secret", "extra": "hunter2", "a name": "sixsix", "last": "sixsix"} {
		if !p.users[name].hash.matches([]byte(password)) {
			t.Errorf("%s doesn't have the password %s", name, password)
		}
	}
	want := []string{"pw:4: there is no colon", `pw:5: user "dave" has no password`, `pw:7: user "dup" is in line 6, too`, `pw:11: user's name "\xff\xfe" is not UTF-8`}
	if len(warnings) != len(want) {
		t.Fatalf("warnings %q", warnings)
	}
	for i := range want {
		if !strings.HasPrefix(warnings[i], want[i]) {
			t.Errorf("warning %q, want %q", warnings[i], want[i])
		}
	}
}

func TestBadPasswordFiles(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"erin:plain", "pw:1: user \"erin\": what follows the colon is not a hash"},
		{"a:" + hashOfSecret + "\nb:" + hashOfSecret[:52] + "\n", `pw:2: user "b": the hash has 21 bytes, not 64; set the password again with sluice passwd`},
		{":" + hashOfSecret, "pw:1: there is no user's name"},
		{"\n" + strings.Repeat("x", maxLineBytes+1), "pw:2: the line is 4097 bytes long; at most 4096"},
		{strings.Repeat("x", MaxUserNameBytes+1) + ":" + hashOfSecret, "pw:1: the user's name is 1025 bytes long; at most 1024"},
		{"a\x00b:" + hashOfSecret, "pw:1: the line holds a zero byte"},
		{strings.Repeat("x:y\n", 30), "pw: more problems follow these 20"},
	} {
		if p, _, err := parsePasswords("pw", []byte(tt.text), DefaultArgonMemory); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.40q: %v, %v; want %q", tt.text, p, err, tt.want)
		}
	}
	var many bytes.Buffer
	for i := range maxUsers + 1 {
		fmt.Fprintf(&many, "u%d:%s\n", i, hashOfSixsix)
	}
	if _, _, err := parsePasswords("pw", many.Bytes(), DefaultArgonMemory); err == nil || !strings.Contains(err.Error(), "pw:10001: this is user 10001; at most 10000") {
		t.Errorf("too many users: %v", err)
	}
}

// TestMosquittoPasswd reads what the real tool writes.
func TestMosquittoPasswd(t *testing.T) {
	if _, err := exec.LookPath("mosquitto_passwd"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SLUICE_REQUIRE"), ","), "mosquitto") {
			t.Fatal("mosquitto_passwd is not in PATH and SLUICE_REQUIRE lists mosquitto")
		}
		t.Skip("mosquitto_passwd is not in PATH")
	}
	file := filepath.Join(t.TempDir(), "pw")
	users := map[string]string{"alice": "secret", "ümläut": "pässword", "with space": " leading and trailing ", "x": strings.Repeat("long", 50)}
	flags := [][]string{{"-c", "-b"}, {"-b"}, {"-H", "sha512", "-b"}, {"-H", "sha512-pbkdf2", "-b"}}
	i := 0
	for name, password := range users {
		args := append(slices.Clone(flags[i]), file, name, password)
		if out, err := exec.Command("mosquitto_passwd", args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		i++
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, warnings, err := parsePasswords(file, data, DefaultArgonMemory)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	for name, password := range users {
		if u := p.users[name]; u == nil || !u.hash.matches([]byte(password)) || u.hash.matches([]byte(password+".")) {
			t.Errorf("%q: %+v", name, u)
		}
	}
}

// FuzzPasswords: nobody is a user whom no line names, and each has a hash within bounds.
func FuzzPasswords(f *testing.F) {
	f.Add([]byte("# comment\n\nalice:" + hashOfSecret + "\nbob:\nnocolon\n dup :" + hashOfSixsix + ":x\ndup:" + hashOfHunter2))
	f.Add([]byte("a:$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, warnings, err := parsePasswords("pw", data, 8<<20)
		if err != nil {
			if p != nil {
				t.Fatal("an error and users")
			}
			return
		}
		if len(warnings) > maxProblems || len(p.order) != len(p.users) {
			t.Fatalf("%d warnings, %d in order, %d users", len(warnings), len(p.order), len(p.users))
		}
		for name, u := range p.users {
			if name == "" || u.name != name || u.hash == nil || strings.Contains(name, ":") || !bytes.Contains(data, []byte(name)) {
				t.Fatalf("user %q: %+v", name, u)
			}
		}
	})
}
