package record

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

var envelopes = []struct {
	name string
	e    Envelope
	hex  string
}{
	{"smallest", Envelope{}, "00 00000000 00"},
	{"QoS 1", Envelope{QoS: 1, Incarnation: 0x01020304, ClientID: []byte("c1")}, "01 01020304 02 6331"},
	{"QoS 2, retained", Envelope{QoS: 2, Retain: true, Incarnation: 1<<32 - 1, ClientID: []byte("c1")}, "06 ffffffff 02 6331"},
	{"expiry 0", Envelope{HasExpiry: true}, "08 00000000 00 00000000"},
	{"expiry", Envelope{HasExpiry: true, ExpirySeconds: 3600, ClientID: []byte("x")}, "08 00000000 01 78 00000e10"},
	{"properties", Envelope{QoS: 1, Properties: []byte{0x01, 0x01}}, "11 00000000 00 0101"},
	{"all", Envelope{QoS: 2, Retain: true, Incarnation: 7, ClientID: []byte("abc"), HasExpiry: true, ExpirySeconds: 1, Properties: []byte{3, 0, 1, 'j'}},
		"1e 00000007 03 616263 00000001 0300016a"},
	{"long client id", Envelope{ClientID: []byte(strings.Repeat("i", 200))}, "00 00000000 c801 " + strings.Repeat("69", 200)},
}

func equalEnvelope(a, b Envelope) bool {
	return a.QoS == b.QoS && a.Retain == b.Retain && a.Incarnation == b.Incarnation && a.HasExpiry == b.HasExpiry &&
		a.ExpirySeconds == b.ExpirySeconds && string(a.ClientID) == string(b.ClientID) && string(a.Properties) == string(b.Properties)
}

func TestEnvelopeBytes(t *testing.T) {
	for _, c := range envelopes {
		want, err := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.e.Append([]byte("x")); string(got) != "x"+string(want) {
			t.Errorf("%s: %x, want %x", c.name, got[1:], want)
		}
		if got, err := ParseEnvelope(want); err != nil || !equalEnvelope(got, c.e) {
			t.Errorf("%s: %+v, error %v", c.name, got, err)
		}
		// A cut envelope is malformed wherever the cut isn't within free bytes (the properties) but before their end.
		for n := range len(want) {
			got, err := ParseEnvelope(want[:n])
			cutInProperties := len(c.e.Properties) > 0 && n > len(want)-len(c.e.Properties)
			if (err == nil) != cutInProperties {
				t.Errorf("%s cut at %d: %+v, error %v", c.name, n, got, err)
			}
		}
	}
}

func TestEnvelopeMalformed(t *testing.T) {
	for name, s := range map[string]string{
		"empty":                     "",
		"QoS 3":                     "03 00000000 00",
		"client id beyond":          "00 00000000 05 6162",
		"client id above 65535":     "00 00000000 808004" + strings.Repeat("61", 65536),
		"client id length overflow": "00 00000000 ffffffffffffffffffff01",
		"client id length huge":     "00 00000000 ffffffffffffffff7f",
		"trailing bytes":            "00 00000000 00 00",
		"expiry cut":                "08 00000000 00 0000",
		"properties missing":        "10 00000000 00",
	} {
		p, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := ParseEnvelope(p); !errors.Is(err, errEnvelope) {
			t.Errorf("%s: %+v, error %v", name, e, err)
		}
	}
	for _, first := range []byte{0x20, 0x40, 0x80, 0xe1} {
		if _, err := ParseEnvelope([]byte{first}); err != ErrEnvelopeVersion {
			t.Errorf("flags %02x: error %v", first, err)
		}
	}
}

func TestEnvelopeAllocatesNothing(t *testing.T) {
	e := envelopes[6].e
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		p := e.Append(buf)
		if _, err := ParseEnvelope(p); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
