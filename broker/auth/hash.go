package auth

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
)

// A password's hash in the file, as mosquitto_passwd writes it. Salt and sum are in base64, with padding for the first two and
// without for argon2 (the PHC string format):
//
//	$6$salt$sum                              SHA-512 of password and salt
//	$7$iterations$salt$sum                   PBKDF2 with HMAC-SHA-512
//	$argon2id$v=19$m=KiB,t=passes,p=lanes$salt$sum

// Algorithm is how a password was hashed.
type Algorithm byte

// The algorithms, by the strength they give a password that isn't random.
const (
	SHA512 Algorithm = iota + 1
	PBKDF2
	Argon2id
)

// Bounds of what a file may ask for.
const (
	maxIterations  = 1_000_000 // half a second on a fast machine
	maxPasses      = 64
	maxLanes       = 16
	minArgonMemory = 8 // KiB a lane (RFC 9106 §3.1)
	maxSaltBytes   = 64
	sumBytes       = 64 // of SHA-512 and of PBKDF2 with it
	minArgonBytes  = 16
	maxArgonBytes  = 64
	maxHashLength  = 512 // characters
)

// What passwords are hashed with unless asked otherwise.
const (
	DefaultIterations   = 100_000
	defaultPasses       = 3 // with 12 MiB, one of OWASP's equivalent settings, and the one that fits a small gateway
	defaultArgonMemory  = 12 << 10
	defaultSaltBytes    = 12 // mosquitto 2.0 takes no other length for $6$ and $7$
	defaultArgonSalt    = 16
	defaultArgonSum     = 32
	argonVersion        = "v=19"
	argonName           = "argon2id"
	supportedAlgorithms = "$6$, $7$ and $argon2id$"
)

// hash is a parsed hash. Immutable.
type hash struct {
	algorithm Algorithm
	rounds    uint32 // iterations of PBKDF2, passes of argon2
	memory    uint32 // KiB, of argon2
	lanes     uint8  // of argon2
	salt, sum []byte
}

// parseHash reads a hash; text is what the file has behind the user's colon. argonMemory bounds an argon2's memory in bytes.
func parseHash(text string, argonMemory int64) (*hash, error) {
	if len(text) > maxHashLength {
		return nil, fmt.Errorf("the hash is %d characters long; at most %d are allowed", len(text), maxHashLength)
	}
	kind, rest, ok := strings.Cut(strings.TrimPrefix(text, "$"), "$")
	if !strings.HasPrefix(text, "$") || !ok {
		return nil, errors.New("what follows the colon is not a hash of a password, which begins with $; set the password with sluice passwd")
	}
	switch kind {
	case "6":
		return parseSHA512(&hash{algorithm: SHA512}, rest)
	case "7":
		return parsePBKDF2(rest)
	case argonName:
		return parseArgon2(rest, argonMemory)
	}
	return nil, fmt.Errorf("hash type %.16q is not known (allowed: %s); set the password with sluice passwd", "$"+kind+"$", supportedAlgorithms)
}

func parsePBKDF2(text string) (*hash, error) {
	digits, rest, _ := strings.Cut(text, "$")
	n, err := parameter(digits, 1, maxIterations)
	if err != nil {
		return nil, fmt.Errorf("iterations %w", err)
	}
	return parseSHA512(&hash{algorithm: PBKDF2, rounds: n}, rest)
}

// parseSHA512 reads salt and sum as the two algorithms have them that are made of SHA-512.
func parseSHA512(h *hash, text string) (*hash, error) {
	if err := h.parseBytes(text, base64.StdEncoding); err != nil {
		return nil, err
	}
	if len(h.sum) != sumBytes {
		return nil, fmt.Errorf("the hash has %d bytes, not %d; set the password again with sluice passwd", len(h.sum), sumBytes)
	}
	return h, nil
}

func parseArgon2(text string, memory int64) (*hash, error) {
	version, rest, _ := strings.Cut(text, "$")
	if version != argonVersion {
		return nil, fmt.Errorf("argon2 version %.16q is not known (allowed: %s)", version, argonVersion)
	}
	parameters, rest, _ := strings.Cut(rest, "$")
	h := &hash{algorithm: Argon2id}
	list := strings.Split(parameters, ",")
	if len(list) != 3 {
		return nil, fmt.Errorf("argon2 parameters %.40q are not m=KiB,t=passes,p=lanes", parameters)
	}
	for i, p := range []struct {
		name   string
		set    func(uint32)
		lo, hi uint32
	}{
		{"m=", func(v uint32) { h.memory = v }, minArgonMemory, 1 << 22},
		{"t=", func(v uint32) { h.rounds = v }, 1, maxPasses},
		{"p=", func(v uint32) { h.lanes = uint8(v) }, 1, maxLanes},
	} {
		digits, ok := strings.CutPrefix(list[i], p.name)
		if !ok {
			return nil, fmt.Errorf("argon2 parameters %.40q are not m=KiB,t=passes,p=lanes", parameters)
		}
		v, err := parameter(digits, p.lo, p.hi)
		if err != nil {
			return nil, fmt.Errorf("argon2 parameter %s%w", p.name, err)
		}
		p.set(v)
	}
	switch {
	case h.memory < minArgonMemory*uint32(h.lanes):
		return nil, fmt.Errorf("argon2 memory m=%d is less than %d KiB for each of %d lanes", h.memory, minArgonMemory, h.lanes)
	case int64(h.memory)<<10 > memory:
		return nil, fmt.Errorf("argon2 memory m=%d (KiB) is more than mqtt.auth.argon2_memory, %d KiB; raise that if the machine has the memory, "+
			"or set the password again with sluice passwd", h.memory, memory>>10)
	}
	if err := h.parseBytes(rest, base64.RawStdEncoding); err != nil {
		return nil, err
	}
	if n := len(h.sum); n < minArgonBytes || n > maxArgonBytes {
		return nil, fmt.Errorf("the hash has %d bytes; allowed: %d to %d", n, minArgonBytes, maxArgonBytes)
	}
	return h, nil
}

// parameter reads a decimal number as encoders write it.
func parameter(digits string, lo, hi uint32) (uint32, error) {
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, fmt.Errorf("%.16q is not a whole number", digits)
	}
	if n < uint64(lo) || n > uint64(hi) {
		return 0, fmt.Errorf("%d is out of range; allowed: %d to %d", n, lo, hi)
	}
	return uint32(n), nil
}

// parseBytes reads salt and sum.
func (h *hash) parseBytes(text string, encoding *base64.Encoding) error {
	salt, sum, ok := strings.Cut(text, "$")
	if !ok {
		return errors.New("the hash is cut short; set the password again with sluice passwd")
	}
	var errs [2]error
	h.salt, errs[0] = encoding.Strict().DecodeString(salt)
	h.sum, errs[1] = encoding.Strict().DecodeString(sum)
	if errors.Join(errs[:]...) != nil {
		return errors.New("salt or hash is not base64; set the password again with sluice passwd")
	}
	if n := len(h.salt); n < 1 || n > maxSaltBytes {
		return fmt.Errorf("the salt has %d bytes; allowed: 1 to %d", n, maxSaltBytes)
	}
	return nil
}

// String is the hash as the file has it.
func (h *hash) String() string {
	std, raw := base64.StdEncoding.EncodeToString, base64.RawStdEncoding.EncodeToString
	switch h.algorithm {
	case SHA512:
		return "$6$" + std(h.salt) + "$" + std(h.sum)
	case PBKDF2:
		return fmt.Sprintf("$7$%d$%s$%s", h.rounds, std(h.salt), std(h.sum))
	}
	return fmt.Sprintf("$%s$%s$m=%d,t=%d,p=%d$%s$%s", argonName, argonVersion, h.memory, h.rounds, h.lanes, raw(h.salt), raw(h.sum))
}

// matches computes password's hash and compares. It takes as long as the hash asks for, whatever the password.
func (h *hash) matches(password []byte) bool {
	return subtle.ConstantTimeCompare(h.compute(password), h.sum) == 1
}

// compute hashes password with h's algorithm, parameters and salt.
func (h *hash) compute(password []byte) []byte {
	switch h.algorithm {
	case SHA512:
		sum := sha512.Sum512(append(password[:len(password):len(password)], h.salt...))
		return sum[:]
	case PBKDF2:
		sum, err := pbkdf2.Key(sha512.New, string(password), h.salt, int(h.rounds), sumBytes)
		if err != nil {
			panic("auth: PBKDF2 refuses its parameters: " + err.Error()) // only for lengths that parseHash doesn't let through
		}
		return sum
	}
	return argon2.IDKey(password, h.salt, h.rounds, h.memory, h.lanes, uint32(len(h.sum)))
}

// newHash hashes a password with a fresh salt. iterations are PBKDF2's.
func newHash(algorithm Algorithm, iterations int, password []byte) *hash {
	h := &hash{algorithm: algorithm, salt: make([]byte, defaultSaltBytes)}
	switch algorithm {
	case PBKDF2:
		h.rounds = uint32(iterations)
	case Argon2id:
		h.rounds, h.memory, h.lanes = defaultPasses, defaultArgonMemory, 1
		h.salt, h.sum = make([]byte, defaultArgonSalt), make([]byte, defaultArgonSum)
	}
	rand.Read(h.salt)
	h.sum = h.compute(password)
	return h
}
