package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
)

// mac stands for a user, its hash and a password: HMAC-SHA-256 under a key of the process, which makes it worthless outside of it.
type mac [sha256.Size]byte

func (a *Authenticator) mac(name, hash string, password []byte) (m mac) {
	h := hmac.New(sha256.New, a.key[:])
	var size [4]byte
	for _, part := range []string{name, hash} {
		binary.BigEndian.PutUint32(size[:], uint32(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	h.Write(password)
	h.Sum(m[:0])
	return m
}

func (m *mac) equal(other *mac) bool { return subtle.ConstantTimeCompare(m[:], other[:]) == 1 }

// verify checks a password and returns the hash that it is right for. One that was right before costs a MAC; any other one costs
// its user's hash. A user that doesn't exist costs as much as one that does, always the same one for a name.
func (a *Authenticator) verify(ctx context.Context, f *files, c *Credentials) (*hash, error) {
	name, password := c.User, c.Password
	u := f.passwords.users[name]
	target := a.target(f.passwords, u, name)
	m := a.mac(name, target.String(), password)
	if known, right := f.known(u, &m); known {
		return answer(target, right)
	}
	give, err := a.take(ctx, target.algorithm, c.Address)
	if err != nil {
		return nil, err
	}
	defer give()
	// Another client with the same password may have been here meanwhile.
	known, right := f.known(u, &m)
	if !known {
		a.hashes.Add(1)
		right = target.matches(password) && u != nil
		f.learn(u, &m, right)
		if target.algorithm == Argon2id {
			a.tidy()
		}
	}
	return answer(target, right)
}

func answer(h *hash, right bool) (*hash, error) {
	if right {
		return h, nil
	}
	return nil, ErrBadCredentials
}

// target is the hash that a password is tried on: its user's, or that of some user in place of one that isn't there.
func (a *Authenticator) target(p *passwords, u *user, name string) *hash {
	switch {
	case u != nil:
		return u.hash
	case len(p.order) == 0:
		return nobody
	}
	m := a.mac(name, "", nil)
	return p.order[binary.BigEndian.Uint64(m[:])%uint64(len(p.order))].hash
}

// nobody is the hash of an empty password file.
var nobody = &hash{algorithm: SHA512, salt: make([]byte, defaultSaltBytes), sum: make([]byte, sumBytes)}

// known says what an earlier check of the same password found.
func (f *files) known(u *user, m *mac) (known, right bool) {
	if u != nil {
		if v := u.verified.Load(); v != nil && v.equal(m) {
			return true, true
		}
	}
	return f.refused.has(m), false
}

// learn keeps what a check found.
func (f *files) learn(u *user, m *mac, right bool) {
	if right {
		u.verified.Store(m)
	} else {
		f.refused.add(m)
	}
}

// refusals are passwords that were wrong lately: a device that tries the same wrong one for ever costs no hash each time. A new
// one takes the place of an older one. Safe for concurrent use.
type refusals struct {
	mu    sync.Mutex
	slots [256]mac
}

func (r *refusals) has(m *mac) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[m[0]].equal(m)
}

func (r *refusals) add(m *mac) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots[m[0]] = *m
}

// take waits for the right to compute a hash; the caller gives it back. An argon2 takes memory, so there is one at a time;
// SHA-512 takes no longer than a MAC, so there it needs no right.
func (a *Authenticator) take(ctx context.Context, algorithm Algorithm, from netip.Addr) (give func(), err error) {
	if algorithm == SHA512 {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.o.MaxWait, ErrBusy)
	defer cancel()
	if algorithm != Argon2id {
		return a.slots.give, a.slots.take(ctx, from)
	}
	if err := a.argon.take(ctx, from); err != nil {
		return nil, err
	}
	if err := a.slots.take(ctx, from); err != nil {
		a.argon.give()
		return nil, err
	}
	return func() { a.slots.give(); a.argon.give() }, nil
}

// tidy collects what an argon2 leaves behind before the next one begins, and gives it back to the machine after the last one: 12 MiB of
// garbage at once, which a collector that waits for the heap to grow by half keeps. RSS of a broker to which 20 users connect, and
// then 60 wrong passwords, measured: 15 MB before, 29 MB at most, 16 MB after; without this 53 MB at most and 41 MB after.
func (a *Authenticator) tidy() {
	if a.argon.crowded() {
		runtime.GC()
	} else {
		debug.FreeOSMemory()
	}
}
