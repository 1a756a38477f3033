package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// within says whether inner lies in the memory of outer.
func within(outer, inner []byte) bool {
	if len(inner) == 0 {
		return false
	}
	base, p := uintptr(unsafe.Pointer(&outer[0])), uintptr(unsafe.Pointer(&inner[0]))
	return p >= base && p+uintptr(len(inner)) <= base+uintptr(len(outer))
}

type testProp struct {
	bytes   []byte
	forward bool
}

var (
	testExpiry = cat(propMessageExpiry, uint32(77))
	testAlias  = cat(propTopicAlias, uint16(3))
	testProps  = []testProp{
		{cat(propPayloadFormat, 1), true},
		{cat(propContentType, str("text/plain")), true},
		{cat(propResponseTopic, str("r/t")), true},
		{cat(propCorrelationData, str("\x00\x01")), true},
		{testExpiry, false},
		{testAlias, false},
	}
)

// randomSection draws properties in any order; want are the forwardable ones,
// which lie in runs pieces.
func randomSection(rnd *rand.Rand) (sec, want []byte, runs int) {
	var all []testProp
	for _, q := range testProps {
		if rnd.IntN(2) == 0 {
			all = append(all, q)
		}
	}
	for range rnd.IntN(4) {
		all = append(all, testProp{user(string(rune('a'+rnd.IntN(26))), "v"), true})
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	last := false
	for _, q := range all {
		sec = append(sec, q.bytes...)
		if q.forward {
			want = append(want, q.bytes...)
			if !last {
				runs++
			}
		}
		last = q.forward
	}
	return sec, want, runs
}

// Raw holds the forwardable properties only, in order and byte for byte, for
// any order they come in; it aliases the packet whenever they lie together.
func TestRawHoldsForwardablePropertiesOnly(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var p Publish
	aliased, copied := 0, 0
	for range 20000 {
		sec, want, runs := randomSection(rnd)
		raw := publish5("a/b", props(sec), "payload")
		before := bytes.Clone(raw)
		h, n, err := ParseHeader(raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := ParsePublish(&p, h, raw[n:], V5); err != nil {
			t.Fatalf("% x: %v", raw, err)
		}
		if !bytes.Equal(p.Props.Raw, want) || string(p.Payload) != "payload" {
			t.Fatalf("% x:\n got % x\nwant % x", sec, p.Props.Raw, want)
		}
		if !bytes.Equal(raw, before) {
			t.Fatal("the packet was changed")
		}
		if runs == 1 && !within(raw, p.Props.Raw) {
			t.Fatalf("copied for nothing: % x", sec)
		}
		if runs > 1 {
			copied++
			if within(raw, p.Props.Raw) || cap(p.Props.Raw) > 2*len(raw)+64 {
				t.Fatal("scratch")
			}
		} else {
			aliased++
		}
		if got := p.Props.HasExpiry; got != bytes.Contains(sec, testExpiry) || got && p.Props.Expiry != 77 {
			t.Fatalf("expiry of % x: %+v", sec, p.Props)
		}
		if got := p.Props.Alias == 3; got != bytes.Contains(sec, testAlias) {
			t.Fatalf("alias of % x: %+v", sec, p.Props)
		}
	}
	if aliased == 0 || copied == 0 {
		t.Fatalf("%d aliased, %d copied", aliased, copied)
	}
}

// A Publish that is used again keeps nothing of the packet before.
func TestParsePublishStartsAfresh(t *testing.T) {
	var p Publish
	for _, c := range []struct {
		raw     []byte
		version byte
	}{
		{packet(0x3B, str("a"), uint16(9), props(propTopicAlias, uint16(1), user("a", "b"), propMessageExpiry, uint32(3), propPayloadFormat, 1), "x"), V5},
		{packet(0x30, str("b")), V311},
	} {
		h, n, err := ParseHeader(c.raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := ParsePublish(&p, h, c.raw[n:], c.version); err != nil {
			t.Fatal(err)
		}
	}
	if p.PacketID != 0 || p.QoS != 0 || p.Retain || p.Props.Raw != nil || p.Props.HasExpiry || p.Props.Alias != 0 || p.Props.UTF8 ||
		p.Props.Expiry != 0 || len(p.Payload) != 0 || string(p.Topic) != "b" {
		t.Fatalf("%+v", p)
	}
}

// One packet with huge properties must not pin its scratch for good.
func TestLargeScratchIsGivenUp(t *testing.T) {
	var p Publish
	big := user("k", string(bytes.Repeat([]byte("v"), 20000)))
	for _, c := range []struct {
		raw   []byte
		large bool
	}{
		{publish5("a", props(big, propTopicAlias, uint16(1), user("a", "b")), ""), true},
		{publish5("a", props(), ""), false},
	} {
		h, n, err := ParseHeader(c.raw)
		if err == nil {
			err = ParsePublish(&p, h, c.raw[n:], V5)
		}
		if err != nil || cap(p.Scratch) > maxScratch != c.large {
			t.Fatalf("%v, scratch of %d bytes", err, cap(p.Scratch))
		}
	}
}

// Appending to a slice of a Publish must not write into the packet.
func TestPublishSlicesAreCapped(t *testing.T) {
	raw := publish5("a", props(user("k", "v"), propTopicAlias, uint16(1)), "payload")
	before := bytes.Clone(raw)
	p := mustParse[Publish](t, raw, V5)
	_ = append(p.Topic, '!')
	_ = append(p.Props.Raw, '!')
	if !bytes.Equal(raw, before) {
		t.Fatal("the packet was changed")
	}
}

func TestLargestPublish(t *testing.T) {
	m := &Outgoing{Topic: bytes.Repeat([]byte("t"), 65535), Payload: make([]byte, 3<<20), SubscriptionIDs: []uint32{1, 127, 128, 16383, 16384, 2097151, 2097152, MaxRemaining}}
	out := AppendPublish(nil, V5, m)
	h, n, err := ParseHeader(out)
	if err != nil || n+h.Remaining != len(out) || len(out) != PublishSize(V5, m) {
		t.Fatalf("%+v %d %d %v", h, n, len(out), err)
	}
}

// A decoder's panic costs its own packet only.
func TestPanicBecomesAnError(t *testing.T) {
	f := func() (err error) {
		defer recovered(&err)
		var b []byte
		_ = b[len(b)]
		return nil
	}
	err, ok := f().(*Error)
	if !ok || err.Reason != MalformedPacket {
		t.Fatal(err)
	}
}

func TestErrorText(t *testing.T) {
	_, err := parse(packet(0x32, str("a"), uint16(0)), V311)
	if got, want := err.Error(), "mqtt: PUBLISH with packet id 0 (0x82)"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	if PUBLISH.String() != "PUBLISH" || Type(200).String() == "" {
		t.Fatal("names")
	}
}
