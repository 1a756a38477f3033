package configs

import (
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want Size
		str  string
	}{
		{"0", 0, "0"},
		{"1", 1, "1B"},
		{"1000", 1000, "1KB"},
		{"1023B", 1023, "1023B"},
		{"256KiB", 256 << 10, "256KiB"},
		{"256 kib", 256 << 10, "256KiB"},
		{"1MiB", 1 << 20, "1MiB"},
		{"1.5MiB", 3 << 19, "1536KiB"},
		{"4GB", 4e9, "4GB"},
		{"2TiB", 2 << 40, "2TiB"},
		{"1TB", 1e12, "1TB"},
		{"8388607TiB", 8388607 << 40, "8388607TiB"},
	}
	for _, test := range tests {
		got, err := ParseSize(test.in)
		if err != nil || got != test.want || got.String() != test.str {
			t.Errorf("%q: %d (%s), %v; want %d (%s)", test.in, got, got, err, test.want, test.str)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%q doesn't read back: %d, %v", got, again, err)
		}
	}
	for in, want := range map[string]string{
		"":                      "is not a size",
		"KiB":                   "is not a size",
		"-1":                    "is negative",
		"-1.5MiB":               "is not a size",
		"1XB":                   `unknown unit "XB"`,
		"1K":                    `unknown unit "K"`,
		"1..2MiB":               "is not a size",
		"8388608TiB":            "8 EiB",
		"99999999999999999999B": "is not a size",
		"1KiB2":                 "is not a size",
	} {
		if got, err := ParseSize(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v; want an error with %q", in, got, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	tests := []struct {
		in   string
		want time.Duration
		str  string
	}{
		{"0", 0, "0"},
		{"0s", 0, "0"},
		{"5ms", 5 * time.Millisecond, "5ms"},
		{"1h30m", 90 * time.Minute, "1h30m"},
		{"1m30s", 90 * time.Second, "1m30s"},
		{"168h", 168 * time.Hour, "168h"},
		{"7d", 168 * time.Hour, "168h"},
		{"1d12h", 36 * time.Hour, "36h"},
		{"250us", 250 * time.Microsecond, "250µs"},
		{"1.5s", 1500 * time.Millisecond, "1.5s"},
	}
	for _, test := range tests {
		got, err := ParseDuration(test.in)
		if err != nil || time.Duration(got) != test.want || got.String() != test.str {
			t.Errorf("%q: %v, %v; want %v (%s)", test.in, got, err, test.want, test.str)
		}
		if again, err := ParseDuration(got.String()); err != nil || again != got {
			t.Errorf("%q doesn't read back: %v, %v", got, again, err)
		}
	}
	for in, want := range map[string]string{
		"":                "is not a duration",
		"5":               "has no unit",
		"ms":              "is not a duration",
		"-5ms":            "is negative",
		"-1d":             "is negative",
		"1d-2h":           "is negative",
		"5 parsec":        "is not a duration",
		"1.5d":            "is not a duration",
		"200000d":         "292 years",
		"106750d1000000h": "292 years",
	} {
		if got, err := ParseDuration(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error with %q", in, got, err, want)
		}
	}
}

func FuzzUnits(f *testing.F) {
	for _, s := range []string{"1KiB", "1.5MiB", "7d1h", "-1d", "5ms", "9223372036854775807", "1e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if size, err := ParseSize(s); err == nil {
			if again, err := ParseSize(size.String()); err != nil || again != size || size < 0 {
				t.Errorf("size %q is %d, which reads back as %d, %v", s, size, again, err)
			}
		}
		if d, err := ParseDuration(s); err == nil {
			if again, err := ParseDuration(d.String()); err != nil || again != d || d < 0 {
				t.Errorf("duration %q is %v, which reads back as %v, %v", s, d, again, err)
			}
		}
	})
}
