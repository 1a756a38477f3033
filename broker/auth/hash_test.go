package auth

import (
	"strings"
	"testing"
)

// The first three are mosquitto_passwd 2.0.11's, the last is from the tests of argon2's reference implementation.
var knownHashes = []struct{ password, hash string }{
	{"secret", "$7$101$/O0yDH0A0Oa34GQS$yhgfLi/pM5IMdB043NriBNd74xLnz32DHAAgUMWwmbA1XpVbOHW6eScTkMI6CZwM+1l+dQZLz0lZ8qruRRLZ3A=="},
	{"hunter2", "$7$101$Pa71RqjwVSYZuo8k$QUzco9kVWW56yX5IzuygDf3gnAY/I2EYeoi8La6BkIRdK+PzWgmyPN+GqQbVBXSOpeht74dZ3426F2XCdnllJw=="},
	{"sixsix", "$6$jgZ2Fo3ZWZAl7ApO$k14P4blpT6vE56sAdTFFzlKdySjtIhsI5/fqdrxDZuaGrddQFdtFxvJw9cyqbvaKYpI9mPQdNwPwzJ39Nr+Q3w=="},
	{"password", "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"},
}

func TestKnownHashes(t *testing.T) {
	for _, k := range knownHashes {
		h, err := parseHash(k.hash, 64<<20)
		if err != nil {
			t.Errorf("%s: %v", k.hash, err)
			continue
		}
		if h.String() != k.hash {
			t.Errorf("%s became %s", k.hash, h)
		}
		if !h.matches([]byte(k.password)) {
			t.Errorf("%s is not the hash of %q", k.hash, k.password)
		}
		for _, wrong := range []string{"", k.password + "x", k.password[1:], k.password + "\x01"} {
			if h.matches([]byte(wrong)) {
				t.Errorf("%s takes %q", k.hash, wrong)
			}
		}
	}
}

func TestNewHash(t *testing.T) {
	for _, algorithm := range []Algorithm{SHA512, PBKDF2, Argon2id} {
		password := []byte("pass\xffword")
		h, other := newHash(algorithm, 1000, password), newHash(algorithm, 1000, password)
		if h.String() == other.String() {
			t.Error("the salt is the same twice")
		}
		again, err := parseHash(h.String(), DefaultArgonMemory)
		if err != nil {
			t.Fatal(err)
		}
		if !again.matches(password) || again.matches([]byte("password")) {
			t.Errorf("%s is not the hash of its password", h)
		}
	}
}

func TestBadHashes(t *testing.T) {
	const salt, sum = "/O0yDH0A0Oa34GQS", "yhgfLi/pM5IMdB043NriBNd74xLnz32DHAAgUMWwmbA1XpVbOHW6eScTkMI6CZwM+1l+dQZLz0lZ8qruRRLZ3A=="
	const argonSum = "CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	for _, tt := range []struct{ text, want string }{
		{"plain", "not a hash"},
		{"", "not a hash"},
		{"$", "not a hash"},
		{"$7", "not a hash"},
		{"$5$" + salt + "$" + sum, `"$5$" is not known`},
		{"$argon2i$v=19$m=64,t=1,p=1$c29tZXNhbHQ$" + argonSum, "is not known"},
		{"$7$" + salt + "$" + sum, "not a whole number"},
		{"$7$0$" + salt + "$" + sum, "0 is out of range"},
		{"$7$1000001$" + salt + "$" + sum, "1000001 is out of range; allowed: 1 to 1000000"},
		{"$7$99999999999$" + salt + "$" + sum, "not a whole number"},
		{"$7$0101$" + salt + "$" + sum, "not a whole number"},
		{"$7$101", "cut short"},
		{"$7$101$" + salt, "cut short"},
		{"$7$101$" + salt + "$" + sum[:40], "30 bytes, not 64"},
		{"$7$101$" + salt + "$", "0 bytes, not 64"},
		{"$7$101$$" + sum, "salt has 0 bytes"},
		{"$7$101$" + strings.Repeat("AAAA", 22) + "$" + sum, "salt has 66 bytes"},
		{"$7$101$" + salt + "$!" + sum[1:], "not base64"},
		{"$6$" + salt + "$" + sum + "$x", "not base64"},
		{"$6$" + salt + "$" + sum[:86], "not base64"},
		{"$6$" + strings.Repeat("x", 600), "603 characters"},
		{"$argon2id$v=16$m=64,t=1,p=1$c29tZXNhbHQ$" + argonSum, "version"},
		{"$argon2id$v=19$m=64,t=1$c29tZXNhbHQ$" + argonSum, "are not m="},
		{"$argon2id$v=19$t=1,m=64,p=1$c29tZXNhbHQ$" + argonSum, "are not m="},
		{"$argon2id$v=19$m=7,t=1,p=1$c29tZXNhbHQ$" + argonSum, "out of range"},
		{"$argon2id$v=19$m=31,t=1,p=4$c29tZXNhbHQ$" + argonSum, "less than 8 KiB for each of 4"},
		{"$argon2id$v=19$m=64,t=65,p=1$c29tZXNhbHQ$" + argonSum, "65 is out of range; allowed: 1 to 64"},
		{"$argon2id$v=19$m=512,t=1,p=17$c29tZXNhbHQ$" + argonSum, "17 is out of range; allowed: 1 to 16"},
		{"$argon2id$v=19$m=2049,t=1,p=1$c29tZXNhbHQ$" + argonSum, "more than mqtt.auth.argon2_memory, 2048 KiB"},
		{"$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$AAAA", "3 bytes; allowed: 16 to 64"},
		{"$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ=$" + argonSum, "not base64"},
	} {
		if h, err := parseHash(tt.text, 2<<20); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", tt.text, h, err, tt.want)
		}
	}
}

// FuzzHash: what is taken is written the same, and within its bounds.
func FuzzHash(f *testing.F) {
	for _, k := range knownHashes {
		f.Add(k.hash)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHash(text, 8<<20)
		if err != nil {
			return
		}
		again, err := parseHash(h.String(), 8<<20)
		if err != nil || again.String() != h.String() {
			t.Fatalf("%q became %q: %v", text, h, err)
		}
		if strings.Count(text, "\n") == 0 && strings.Count(text, "\r") == 0 && h.String() != text {
			t.Fatalf("%q became %q", text, h)
		}
		if h.rounds > maxIterations || h.memory > 8<<10 || h.lanes > maxLanes || len(h.salt) == 0 || len(h.sum) < minArgonBytes {
			t.Fatalf("%q is out of bounds: %+v", text, h)
		}
	})
}

func BenchmarkPBKDF2(b *testing.B) {
	h := newHash(PBKDF2, DefaultIterations, []byte("x"))
	for b.Loop() {
		h.matches([]byte("password"))
	}
}

func BenchmarkArgon2id(b *testing.B) {
	h := newHash(Argon2id, 0, []byte("x"))
	b.ReportAllocs()
	for b.Loop() {
		h.matches([]byte("password"))
	}
}
