package auth

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicemq/sluice/broker/mqtt/topics"
)

// Options say which files there are and what a hash may cost.
type Options struct {
	// PasswordFile is a path; empty: passwords aren't checked.
	PasswordFile string
	// ACLFile is a path; empty: everybody may publish and receive everything but what no client may publish.
	ACLFile string
	// StrictSubscribe refuses a SUBSCRIBE to what the client may not read all of. Otherwise it is granted and each delivery checked.
	StrictSubscribe bool
	// ArgonMemory bounds what the argon2 of one password may take, in bytes. 0: DefaultArgonMemory.
	ArgonMemory int64
	// MaxWaiting is how many clients may wait for a hash to be computed; then one of the address with most of them is told that the
	// broker is busy. 0: 4096.
	MaxWaiting int
	// MaxWait is how long a client may wait for its hash. 0: 15 s.
	MaxWait time.Duration
}

// DefaultArgonMemory is enough for the largest of OWASP's equivalent settings, 46 MiB with one pass.
const DefaultArgonMemory = 48 << 20

const (
	defaultMaxWaiting = 4096
	defaultMaxWait    = 15 * time.Second
)

// Why a client isn't let in.
var (
	ErrBadCredentials = errors.New("user name or password is wrong")
	ErrNotAuthorized  = errors.New("clients without a user name are not allowed here")
	ErrBusy           = errors.New("too many passwords are being checked")
)

// Authenticator checks clients against the two files. All methods are safe for concurrent use.
type Authenticator struct {
	o      Options
	key    [32]byte // of the MACs of passwords; never leaves the process
	seed   maphash.Seed
	slots  *queue       // a place for each core that may compute hashes
	argon  *queue       // one place
	hashes atomic.Int64 // slow ones that were computed

	loading sync.Mutex // held by Load
	current atomic.Pointer[files]

	verdicts [verdictSlots]atomic.Uint64 // see Client.may
}

// files are both files as they were read together. Immutable but for what was verified.
type files struct {
	passwords *passwords // nil: passwords aren't checked
	acl       *acl       // nil: all topics are allowed
	tag       uint64     // of the verdicts that they lead to
	refused   refusals
}

// New reads the files. The error names everything that is wrong with them; a *FileError within it file and line. Warnings are what
// is skipped.
func New(o Options) (a *Authenticator, warnings []string, err error) {
	if o.ArgonMemory == 0 {
		o.ArgonMemory = DefaultArgonMemory
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = defaultMaxWaiting
	}
	if o.MaxWait == 0 {
		o.MaxWait = defaultMaxWait
	}
	a = &Authenticator{o: o, seed: maphash.MakeSeed(), slots: newQueue(max(1, runtime.GOMAXPROCS(0)/2), o.MaxWaiting), argon: newQueue(1, o.MaxWaiting)}
	crand.Read(a.key[:])
	warnings, err = a.Load()
	if err != nil {
		return nil, nil, err
	}
	return a, warnings, nil
}

// Load reads both files anew. With an error what was there stays. Otherwise Client.Valid says which clients may not stay, and
// what a client may do follows the new files from here on.
func (a *Authenticator) Load() (warnings []string, err error) {
	a.loading.Lock()
	defer a.loading.Unlock()
	f, warnings, err := readFiles(a.o)
	if err != nil {
		return nil, err
	}
	f.tag = rand.Uint64()
	a.current.Store(f)
	return warnings, nil
}

// readFiles reads what there is of the two files.
func readFiles(o Options) (f *files, warnings []string, err error) {
	f = new(files)
	var errs [2]error
	var more []string
	if o.PasswordFile != "" {
		var data []byte
		if data, errs[0] = readFile(passwordFile, "mqtt.auth.password_file", o.PasswordFile); errs[0] == nil {
			f.passwords, warnings, errs[0] = parsePasswords(o.PasswordFile, data, o.ArgonMemory)
		}
	}
	if o.ACLFile != "" {
		var data []byte
		if data, errs[1] = readFile(aclFile, "mqtt.auth.acl_file", o.ACLFile); errs[1] == nil {
			f.acl, more, errs[1] = parseACL(o.ACLFile, data)
		}
	}
	return f, append(warnings, more...), errors.Join(errs[:]...)
}

// Summary is one line on what is in effect.
func (a *Authenticator) Summary() string {
	f := a.current.Load()
	text := "passwords are not checked"
	if f.passwords != nil {
		text = fmt.Sprintf("%d users in %s", len(f.passwords.users), a.o.PasswordFile)
	}
	if f.acl != nil {
		return fmt.Sprintf("%s, rules of %d users in %s", text, len(f.acl.users), a.o.ACLFile)
	}
	return text + ", all topics for everybody"
}

// Credentials are what a client says of itself in CONNECT, and what the listener says of it.
type Credentials struct {
	User           string
	HasUser        bool
	Password       []byte
	HasPassword    bool
	Certificate    string     // user's name by a certificate that was verified; empty: there is none
	Address        netip.Addr // where it comes from; those of one address take turns with those of others
	AllowAnonymous bool
}

// User is who a client was found to be.
type User struct {
	Name    string
	Named   bool  // it has a name
	Checked bool  // the password file has the name
	hash    *hash // that its password was right for; nil: this process didn't ask for one
}

// Authenticate says who a client is. The error is one of ErrBadCredentials, ErrNotAuthorized and ErrBusy, or ctx's when that ends
// first. It may compute a slow hash, on the caller's goroutine, and wait for its turn before.
//
// A certificate's name needs no password. Without a password file a name is taken at its word where anonymous clients are let in.
// As in mosquitto an empty name is none.
func (a *Authenticator) Authenticate(ctx context.Context, c Credentials) (User, error) {
	f := a.current.Load()
	c.HasUser = c.HasUser && c.User != ""
	switch {
	case c.Certificate != "":
		return User{Name: c.Certificate, Named: true}, nil
	case !c.HasUser && c.AllowAnonymous:
		return User{}, nil
	case !c.HasUser:
		return User{}, ErrNotAuthorized
	case f.passwords == nil && c.AllowAnonymous:
		return User{Name: c.User, Named: true}, nil
	case f.passwords == nil:
		return User{}, ErrNotAuthorized
	case !c.HasPassword:
		return User{}, ErrBadCredentials
	}
	h, err := a.verify(ctx, f, &c)
	if err != nil {
		return User{}, err
	}
	return User{Name: c.User, Named: true, Checked: true, hash: h}, nil
}

// Client is one client as it was let in, with the client id that it has.
type Client struct {
	a       *Authenticator
	who     identity
	checked bool
	hash    *hash
	tag     uint64 // random, of its verdicts
}

// Client makes the client that a user is under a client id.
func (a *Authenticator) Client(u User, clientID string) *Client {
	return &Client{a: a, who: newIdentity(u.Name, u.Named, clientID), checked: u.Checked, hash: u.hash, tag: rand.Uint64()}
}

// User is who the client is, for what outlives its connection. Its password is not in it.
func (c *Client) User() User {
	return User{Name: c.who.user, Named: c.who.named, Checked: c.checked}
}

// Valid says whether the client may stay: whether its user is still there with the password that it came with.
func (c *Client) Valid() bool {
	f := c.a.current.Load()
	if !c.checked || f.passwords == nil {
		return true
	}
	u := f.passwords.users[c.who.user]
	return u != nil && (c.hash == nil || u.hash.String() == c.hash.String())
}

// MayPublish says whether the client may publish to a topic. It allocates nothing.
func (c *Client) MayPublish(topic []byte) bool { return c.may(topic, write) }

// MayReceive says whether the client may have a message of a topic. It allocates nothing.
func (c *Client) MayReceive(topic []byte) bool { return c.may(topic, read) }

// Verdicts are kept in a table for all clients, a word for each: the hash of client, files, topic and access, with the verdict
// in the lowest bit. A word stands for another topic with a probability of 2⁻⁶³ a look: the hash has a seed that nobody knows, and
// clients and files have random tags. A new file has a new tag, so what was kept is of no use any more.
const verdictSlots = 4096

func (c *Client) may(topic []byte, want access) bool {
	f := c.a.current.Load()
	if len(topic) == 0 || topic[0] == '$' && !dollar(view(topic), want) {
		return false
	}
	if f.acl == nil {
		return want == read || c.exists(f)
	}
	word := (maphash.Bytes(c.a.seed, topic) ^ c.tag ^ f.tag) + uint64(want)<<32
	slot := &c.a.verdicts[word>>1%verdictSlots]
	if kept := slot.Load(); kept&^1 == word&^1 {
		return kept&1 == 1
	}
	ok := c.exists(f) && f.acl.allows(&c.who, topic, want)
	word &^= 1
	if ok {
		word |= 1
	}
	slot.Store(word)
	return ok
}

// exists says whether the client's user still is one: what a client left behind, such as a will, ends with its user.
func (c *Client) exists(f *files) bool {
	return !c.checked || f.passwords == nil || f.passwords.users[c.who.user] != nil
}

// dollar says what of the topics that begin with $ clients may have at all, whatever the ACL file says: they publish nothing to
// $SYS but the state of bridges, and no message has a topic of $share.
func dollar(topic string, want access) bool {
	switch {
	case strings.HasPrefix(topic, "$share"):
		return false
	case want == write && strings.HasPrefix(topic, "$SYS"):
		return topics.Match("$SYS/broker/connection/+/state", topic)
	}
	return true
}
