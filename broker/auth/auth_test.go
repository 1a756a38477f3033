package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// withPasswords is an authenticator for a password file's content.
func withPasswords(t testing.TB, text string) (a *Authenticator, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "passwd")
	put(t, file, text)
	a, _, err := New(Options{PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	return a, file
}

func put(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *Authenticator) login(user, password string) (User, error) {
	return a.Authenticate(context.Background(), Credentials{User: user, HasUser: true, Password: []byte(password), HasPassword: true})
}

func TestAuthenticate(t *testing.T) {
	checked, _ := withPasswords(t, "alice:"+hashOfSecret+"\n")
	open, _, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	alice := User{Name: "alice", Named: true, Checked: true}
	for _, tt := range []struct {
		name string
		a    *Authenticator
		c    Credentials
		user User
		err  error
	}{
		{"right", checked, Credentials{User: "alice", HasUser: true, Password: []byte("secret"), HasPassword: true}, alice, nil},
		{"wrong", checked, Credentials{User: "alice", HasUser: true, Password: []byte("Secret"), HasPassword: true}, User{}, ErrBadCredentials},
		{"empty password", checked, Credentials{User: "alice", HasUser: true, Password: []byte{}, HasPassword: true}, User{}, ErrBadCredentials},
		{"no password", checked, Credentials{User: "alice", HasUser: true}, User{}, ErrBadCredentials},
		{"unknown", checked, Credentials{User: "bob", HasUser: true, Password: []byte("secret"), HasPassword: true}, User{}, ErrBadCredentials},
		{"unknown where anonymous may", checked, Credentials{User: "bob", HasUser: true, Password: []byte("secret"), HasPassword: true, AllowAnonymous: true}, User{}, ErrBadCredentials},
		{"no name", checked, Credentials{}, User{}, ErrNotAuthorized},
		{"password only", checked, Credentials{Password: []byte("secret"), HasPassword: true}, User{}, ErrNotAuthorized},
		{"anonymous", checked, Credentials{AllowAnonymous: true}, User{}, nil},
		{"empty name", checked, Credentials{HasUser: true, AllowAnonymous: true}, User{}, nil},
		{"empty name where it may not", checked, Credentials{HasUser: true}, User{}, ErrNotAuthorized},
		{"certificate", checked, Credentials{Certificate: "dev7", User: "alice", HasUser: true}, User{Name: "dev7", Named: true}, nil},
		{"unchecked name", open, Credentials{User: "bob", HasUser: true, AllowAnonymous: true}, User{Name: "bob", Named: true}, nil},
		{"unchecked name where it may not", open, Credentials{User: "bob", HasUser: true}, User{}, ErrNotAuthorized},
	} {
		user, err := tt.a.Authenticate(context.Background(), tt.c)
		user.hash = nil
		if user != tt.user || !errors.Is(err, tt.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", tt.name, user, err, tt.user, tt.err)
		}
	}
}

// TestHashesAreRare: only what was not asked before costs a hash, and a file that is read again forgets it all.
func TestHashesAreRare(t *testing.T) {
	a, _ := withPasswords(t, "alice:"+hashOfSecret+"\nbob:"+hashOfHunter2+"\n")
	step := func(what, user, password string, right bool, hashes int64) {
		t.Helper()
		before := a.hashes.Load()
		if _, err := a.login(user, password); (err == nil) != right {
			t.Errorf("%s: %v", what, err)
		}
		if n := a.hashes.Load() - before; n != hashes {
			t.Errorf("%s: %d hashes, want %d", what, n, hashes)
		}
	}
	step("first", "alice", "secret", true, 1)
	step("again", "alice", "secret", true, 0)
	step("other user's", "bob", "secret", false, 1)
	step("wrong", "alice", "wrong", false, 1)
	step("wrong again", "alice", "wrong", false, 0)
	step("right after wrong", "alice", "secret", true, 0)
	step("nobody", "carol", "secret", false, 1)
	step("nobody again", "carol", "secret", false, 0)
	step("nobody with another", "carol", "x", false, 1)
	if _, err := a.Load(); err != nil {
		t.Fatal(err)
	}
	step("after a reload", "alice", "secret", true, 1)
	step("wrong after a reload", "alice", "wrong", false, 1)
}

// TestUnknownUsersCostTheSame: each name that isn't there is tried on the hash of some user, always the same one.
func TestUnknownUsersCostTheSame(t *testing.T) {
	a, _ := withPasswords(t, "alice:"+hashOfSecret+"\nbob:"+hashOfHunter2+"\ncarol:"+hashOfSixsix+"\n")
	p := a.current.Load().passwords
	seen := make(map[*hash]bool)
	for i := range 100 {
		name := fmt.Sprint("nobody", i)
		h := a.target(p, nil, name)
		if h != a.target(p, nil, name) {
			t.Fatal("the cost of a name changes")
		}
		seen[h] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d of 3 hashes stand in", len(seen))
	}
	empty, _ := withPasswords(t, "")
	if _, err := empty.login("alice", ""); !errors.Is(err, ErrBadCredentials) {
		t.Error(err)
	}
}

// TestOneHashForAll: clients that come at once with one password cost one hash.
func TestOneHashForAll(t *testing.T) {
	a, _ := withPasswords(t, "fleet:"+newHash(PBKDF2, 20_000, []byte("secret")).String()+"\n")
	var wg sync.WaitGroup
	var in atomic.Int64
	for range 200 {
		wg.Go(func() {
			if _, err := a.login("fleet", "secret"); err == nil {
				in.Add(1)
			}
		})
	}
	wg.Wait()
	if n := a.hashes.Load(); in.Load() != 200 || n > int64(a.slots.free) {
		t.Errorf("%d are in, with %d hashes", in.Load(), n)
	}
}

func TestWaitingIsBounded(t *testing.T) {
	a, _ := withPasswords(t, "alice:"+hashOfSecret+"\n")
	synctest.Test(t, func(t *testing.T) {
		a.slots = newQueue(0, 2) // all places are taken
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := a.login("alice", "secret"); !errors.Is(err, ErrBusy) {
					t.Errorf("waited too long: %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := a.login("alice", "secret"); !errors.Is(err, ErrBusy) || time.Since(start) != 0 {
			t.Errorf("a third one: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		if d := time.Since(start); d != defaultMaxWait {
			t.Errorf("they waited %v", d)
		}
		// Who gives up makes room, and says why.
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(context.Background())
		wg.Go(func() {
			_, err := a.Authenticate(ctx, Credentials{User: "alice", HasUser: true, Password: []byte("secret"), HasPassword: true})
			if !errors.Is(err, gone) {
				t.Errorf("canceled: %v", err)
			}
		})
		synctest.Wait()
		cancel(gone)
		wg.Wait()
		if a.slots.waiting != 0 || len(a.slots.sources) != 0 {
			t.Errorf("%+v still waits", a.slots)
		}
		// A place that gets free goes to who waits, and comes back.
		wg.Go(func() {
			if _, err := a.login("alice", "secret"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		a.slots.give()
		wg.Wait()
		if a.slots.free != 1 {
			t.Errorf("%d places are free", a.slots.free)
		}
		// What is known needs none.
		a.slots.free = 0
		if _, err := a.login("alice", "secret"); err != nil {
			t.Error(err)
		}
	})
}

func TestOneArgonAtATime(t *testing.T) {
	a, _ := withPasswords(t, "alice:"+hashOfSecret+"\n")
	a.slots = newQueue(8, 8)
	give, err := a.take(context.Background(), Argon2id, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.take(ctx, Argon2id, netip.Addr{}); err == nil {
		t.Error("two argon2 at once")
	}
	other, err := a.take(context.Background(), PBKDF2, netip.Addr{})
	if err != nil {
		t.Error("a PBKDF2 waits for an argon2:", err)
	}
	other()
	give()
	if a.slots.free != 8 || a.argon.free != 1 {
		t.Error("places were not given back")
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	o := Options{PasswordFile: filepath.Join(dir, "passwd"), ACLFile: filepath.Join(dir, "acl")}
	put(t, o.PasswordFile, "alice:"+hashOfSecret+"\nbob:"+hashOfHunter2+"\ncarol:"+hashOfSixsix+"\n")
	put(t, o.ACLFile, "user alice\ntopic a\nuser bob\ntopic a\n")
	a, _, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	clients := make(map[string]*Client)
	for name, password := range map[string]string{"alice": "secret", "bob": "hunter2", "carol": "sixsix"} {
		u, err := a.login(name, password)
		if err != nil {
			t.Fatal(err)
		}
		clients[name] = a.Client(u, name)
	}
	anonymous := a.Client(User{}, "x")
	state := func() (valid, write string) {
		for _, name := range []string{"alice", "bob", "carol"} {
			if clients[name].Valid() {
				valid += name + " "
			}
			if clients[name].MayPublish([]byte("a")) {
				write += name + " "
			}
		}
		return valid, write
	}
	expect := func(what, wantValid, wantWrite string) {
		t.Helper()
		if valid, write := state(); valid != wantValid || write != wantWrite || !anonymous.Valid() {
			t.Errorf("%s: valid %s, write %s", what, valid, write)
		}
	}
	expect("at first", "alice bob carol ", "alice bob ")

	put(t, o.PasswordFile, "alice:"+hashOfSecret+"\nbob:"+hashOfSecret+"\n") // another password for bob, no carol
	if _, err := a.Load(); err != nil {
		t.Fatal(err)
	}
	expect("with a new password file", "alice ", "alice bob ")

	put(t, o.PasswordFile, "alice:"+hashOfSecret[:30])
	put(t, o.ACLFile, "user alice\ntopic b\n")
	if _, err := a.Load(); err == nil || !strings.HasPrefix(err.Error(), o.PasswordFile+":1: ") {
		t.Errorf("a bad password file: %v", err)
	}
	expect("with a bad password file", "alice ", "alice bob ")

	put(t, o.PasswordFile, "alice:"+hashOfSecret+"\ncarol:"+hashOfSixsix+"\n")
	put(t, o.ACLFile, "user carol\ntopic a\ntopik b\n")
	var bad *FileError
	if _, err := a.Load(); !errors.As(err, &bad) || bad.File != o.ACLFile || bad.Line != 3 {
		t.Errorf("a bad ACL file: %v", err)
	}
	expect("with a bad ACL file", "alice ", "alice bob ")

	put(t, o.ACLFile, "user carol\ntopic a\nuser bob\ntopic a\n")
	if _, err := a.Load(); err != nil {
		t.Fatal(err)
	}
	expect("with new files", "alice carol ", "carol ") // bob's rights don't outlive bob

	os.Remove(o.ACLFile)
	if _, err := a.Load(); err == nil || !strings.Contains(err.Error(), "mqtt.auth.acl_file") {
		t.Errorf("without a file: %v", err)
	}
	expect("with a file missing", "alice carol ", "carol ")
}

// A client that is made again from what was kept of it, without its password, has its rights for as long as its user is there.
func TestClientOfAKeptUser(t *testing.T) {
	a, file := withPasswords(t, "alice:"+hashOfSecret+"\n")
	u, err := a.login("alice", "secret")
	if err != nil {
		t.Fatal(err)
	}
	c := a.Client(a.Client(u, "x").User(), "x")
	if !c.Valid() || !c.MayPublish([]byte("a")) {
		t.Error("it has no rights")
	}
	put(t, file, "bob:"+hashOfSecret+"\n")
	if _, err := a.Load(); err != nil {
		t.Fatal(err)
	}
	if c.Valid() || c.MayPublish([]byte("a")) {
		t.Error("its rights outlive its user")
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none")
	bad := filepath.Join(dir, "bad")
	put(t, bad, "nonsense")
	_, _, err := New(Options{PasswordFile: missing, ACLFile: bad})
	for _, want := range []string{"password file " + missing + ": no such file", "sluice passwd", bad + ":1: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, _, err := New(Options{PasswordFile: dir}); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
	large := filepath.Join(dir, "large")
	put(t, large, strings.Repeat("# a line\n", maxFileBytes/9+1))
	if _, _, err := New(Options{ACLFile: large}); err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("a large file: %v", err)
	}
}

// BenchmarkKnownPassword is what a client costs that comes back.
func BenchmarkKnownPassword(b *testing.B) {
	a, _ := withPasswords(b, "alice:"+hashOfSecret+"\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.login("alice", "secret"); err != nil {
			b.Fatal(err)
		}
	}
}
