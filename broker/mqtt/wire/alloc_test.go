package wire

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

var hotPublishes = []struct {
	name    string
	raw     []byte
	version byte
}{
	{"3.1.1 QoS 0", packet(0x30, str("sensors/plant-7/temperature"), bytes.Repeat([]byte("x"), 100)), V311},
	{"3.1.1 QoS 1", packet(0x32, str("sensors/plant-7/temperature"), uint16(7), bytes.Repeat([]byte("x"), 100)), V311},
	{"5 no properties", packet(0x32, str("sensors/plant-7/temperature"), uint16(7), 0, bytes.Repeat([]byte("x"), 100)), V5},
	{"5 forwardable", packet(0x32, str("sensors/plant-7/temperature"), uint16(7), props(propPayloadFormat, 1, propContentType, str("text/plain"), user("a", "b")), "x"), V5},
	{"5 mixed", packet(0x32, str("sensors/plant-7/temperature"), uint16(7), props(propPayloadFormat, 1, propMessageExpiry, uint32(60), user("a", "b")), "x"), V5},
}

var hotOutgoing = Outgoing{Topic: []byte("sensors/plant-7/temperature"), Payload: bytes.Repeat([]byte("x"), 100), PacketID: 7, QoS: 1,
	Raw: user("a", "b"), HasExpiry: true, Expiry: 60, SubscriptionIDs: []uint32{300}}

func TestHotPathAllocatesNothing(t *testing.T) {
	zero := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	var p Publish
	for _, c := range hotPublishes {
		zero("ParsePublish "+c.name, func() {
			h, n, err := ParseHeader(c.raw)
			if err == nil {
				err = h.CheckInbound(c.version)
			}
			if err == nil {
				err = ParsePublish(&p, h, c.raw[n:], c.version)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	buf := make([]byte, 0, 512)
	zero("AppendPublish", func() { buf = AppendPublish(buf[:0], V5, &hotOutgoing) })
	zero("PublishSize", func() { _ = PublishSize(V5, &hotOutgoing) })
	zero("AppendPuback", func() { buf = AppendPuback(buf[:0], V5, 7, QuotaExceeded) })
	zero("AppendRefusal", func() { buf = AppendRefusal(buf[:0], PUBACK, 7, QuotaExceeded, "full") })
	ack := packet(0x40, uint16(7), NoMatchingSubscribers, props(propReasonString, str("x")))
	zero("ParseAck", func() {
		if _, _, err := ParseAck(Header{Type: PUBACK, Remaining: len(ack) - 2}, ack[2:], V5); err != nil {
			t.Fatal(err)
		}
	})
	zero("AppendConnack", func() { buf = AppendConnack(buf[:0], V5, &Connack{ReceiveMaximum: 64, AssignedClientID: "abc"}) })
	zero("NextProperty", func() { _, _, _ = NextProperty(hotOutgoing.Raw) })
}

// A packet costs memory in proportion to its bytes, whatever it claims in them.
func TestAllocationIsBoundedByTheInput(t *testing.T) {
	var all [][]byte
	for _, cases := range badTables {
		for _, c := range cases {
			all = append(all, c.raw)
		}
	}
	for _, c := range goldenInbound() {
		all = append(all, c.raw)
	}
	all = append(all,
		packet(0x82, uint16(1), 0, bytes.Repeat(cat(str("a"), 0), MaxFilters)),
		packet(0xA2, uint16(1), 0, bytes.Repeat(str("a"), MaxFilters)),
		packet(0x82, uint16(1), 0, str(strings.Repeat("a", 60000)), 0),
		connect5(2, props(bytes.Repeat(user("", ""), MaxUserProperties)), str("c")),
		connect5(6, props(), str("c"), props(bytes.Repeat(user("", ""), MaxUserProperties)), str("w"), str(strings.Repeat("p", 65535))))
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, raw := range all {
		for round := range 20 {
			b := bytes.Clone(raw)
			if round > 0 && len(b) > 0 {
				for range 1 + rnd.IntN(3) {
					b[rnd.IntN(len(b))] = byte(rnd.Uint32())
				}
			}
			b = fix(b)
			for _, version := range []byte{V311, V5} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := parse(b, version)
				runtime.ReadMemStats(&after)
				if got, most := after.TotalAlloc-before.TotalAlloc, uint64(8192+128*len(b)); got > most {
					t.Fatalf("%d bytes of input, %d allocated (error %v): % x", len(b), got, err, b[:min(64, len(b))])
				}
			}
		}
	}
}

// A header that announces the largest packet costs nothing but the answer.
func TestHugeAnnouncementAllocatesNothing(t *testing.T) {
	raw := cat(0x10, 0xFF, 0xFF, 0xFF, 0x7F)
	if n := testing.AllocsPerRun(100, func() {
		h, n, err := ParseHeader(raw)
		if err != nil || n != 5 || h.Remaining != MaxRemaining {
			t.Fatal(h, n, err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkParsePublish(b *testing.B) {
	for _, c := range hotPublishes {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) {
			b.ReportAllocs()
			var p Publish
			for b.Loop() {
				h, n, err := ParseHeader(c.raw)
				if err != nil {
					b.Fatal(err)
				}
				if err := ParsePublish(&p, h, c.raw[n:], c.version); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendPublish(b *testing.B) {
	for _, version := range []byte{V311, V5} {
		b.Run(map[byte]string{V311: "3.1.1", V5: "5"}[version], func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 512)
			for b.Loop() {
				buf = AppendPublish(buf[:0], version, &hotOutgoing)
			}
		})
	}
}

func BenchmarkAcks(b *testing.B) {
	b.Run("AppendPuback", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 16)
		for b.Loop() {
			buf = AppendPuback(buf[:0], V5, 7, Success)
		}
	})
	raw := packet(0x40, uint16(7))
	b.Run("ParseAck", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, n, _ := ParseHeader(raw)
			if _, _, err := ParseAck(h, raw[n:], V5); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParseConnect(b *testing.B) {
	raw := connect5(0xC2, props(propSessionExpiry, uint32(60)), str("client"), str("user"), str("password"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(raw, V5); err != nil {
			b.Fatal(err)
		}
	}
}
