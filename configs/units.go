package configs

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. In a file: a plain number, or a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB,
// GiB, TiB (powers of 1024).
type Size int64

// The binary units.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// sizeUnits; the last one divides every size.
var sizeUnits = []struct {
	name  string
	bytes Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// ParseSize reads a size. The error says what is wrong with s, without repeating it.
func ParseSize(s string) (Size, error) {
	number, unit := splitUnit(s)
	if number == "" {
		return 0, fmt.Errorf("is not a size; write bytes, or a number with KB, MB, GB, KiB, MiB or GiB, such as 256KiB")
	}
	bytes := Size(1)
	if unit != "" {
		bytes = 0
		for _, u := range sizeUnits {
			if strings.EqualFold(u.name, unit) {
				bytes = u.bytes
			}
		}
	}
	if bytes == 0 {
		return 0, fmt.Errorf("has the unknown unit %q; use B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", unit)
	}
	if whole, err := strconv.ParseInt(number, 10, 64); err == nil {
		if whole < 0 {
			return 0, fmt.Errorf("is negative; a size is 0 or more")
		}
		if whole > math.MaxInt64/int64(bytes) {
			return 0, fmt.Errorf("is more than 8 EiB can count; write less")
		}
		return Size(whole) * bytes, nil
	}
	part, err := strconv.ParseFloat(number, 64)
	if err != nil || part < 0 || part*float64(bytes) >= math.MaxInt64 {
		return 0, fmt.Errorf("is not a size; write bytes, or a number with KB, MB, GB, KiB, MiB or GiB, such as 256KiB")
	}
	return Size(part * float64(bytes)), nil
}

// String writes the size exactly, in the unit that takes the smallest number.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	best := sizeUnits[len(sizeUnits)-1]
	for _, u := range sizeUnits {
		if s%u.bytes == 0 && u.bytes > best.bytes {
			best = u
		}
	}
	return strconv.FormatInt(int64(s/best.bytes), 10) + best.name
}

// FileMode is the permissions of a file. In a file: three octal digits, with or without zeros before them.
type FileMode int64

// ParseFileMode reads permissions. The error says what is wrong with s, without repeating it.
func ParseFileMode(s string) (FileMode, error) {
	mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("is not a file's permissions; write three octal digits, such as 0660")
	}
	return FileMode(mode), nil
}

// String is the permissions in octal, as chmod takes them.
func (m FileMode) String() string { return fmt.Sprintf("%04o", int64(m)) }

// Duration is a length of time. In a file: numbers with the units ns, us, ms, s, m, h and d, such as 5ms, 1h30m or 7d.
type Duration time.Duration

// ParseDuration reads a duration. The error says what is wrong with s, without repeating it.
func ParseDuration(s string) (Duration, error) {
	wrong := fmt.Errorf("is not a duration; write a number with ms, s, m, h or d, such as 5ms, 168h or 7d")
	if s == "0" {
		return 0, nil
	}
	if _, unit := splitUnit(s); unit == "" && s != "" {
		return 0, fmt.Errorf("has no unit; write it with ms, s, m, h or d, such as 5ms, 168h or 7d")
	}
	var days time.Duration
	rest := s
	if number, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return 0, wrong
		}
		if n < 0 {
			return 0, fmt.Errorf("is negative; a duration is 0 or more")
		}
		days, rest = time.Duration(n), after
		if days > math.MaxInt64/(24*time.Hour)-1 {
			return 0, fmt.Errorf("is longer than 292 years; write less")
		}
		days *= 24 * time.Hour
	}
	var d time.Duration
	if rest != "" || s == "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil {
			return 0, wrong
		}
	}
	if d < 0 {
		return 0, fmt.Errorf("is negative; a duration is 0 or more")
	}
	if d > math.MaxInt64-days {
		return 0, fmt.Errorf("is longer than 292 years; write less")
	}
	return Duration(days + d), nil
}

// String writes the duration as it would be written in a file.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if d == 0 {
		return "0"
	}
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// splitUnit parts "256 KiB" into its number and its unit.
func splitUnit(s string) (number, unit string) {
	s = strings.TrimSpace(s)
	i := strings.LastIndexAny(s, "0123456789.") + 1
	return strings.TrimSpace(s[:i]), strings.TrimSpace(s[i:])
}
