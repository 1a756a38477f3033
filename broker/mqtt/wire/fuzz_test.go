package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
)

// seed adds every packet of our tables and of the library's own cases.
func seed(f *testing.F) {
	for _, cases := range badTables {
		for _, c := range cases {
			if len(c.raw) < 1000 {
				f.Add(c.raw, c.version)
			}
		}
	}
	for _, c := range goldenInbound() {
		f.Add(c.raw, c.version)
	}
	for _, cases := range packets.TPacketData {
		for _, c := range cases {
			if len(c.RawBytes) < 1000 {
				f.Add(c.RawBytes, V311)
				f.Add(c.RawBytes, V5)
			}
		}
	}
}

// fix makes the remaining length fit the bytes at hand, so that mutations
// reach the bodies; it returns nil when there is no header.
func fix(raw []byte) []byte {
	if len(raw) == 0 {
		return nil
	}
	_, n, err := ParseHeader(raw)
	if err != nil {
		n = min(2, len(raw))
	}
	return packet(raw[0], raw[n:])
}

// FuzzInbound holds every parser to its word: a packet is read or refused with
// an *Error of ours, and what is read can be trusted by the engine.
func FuzzInbound(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, raw []byte, version byte) {
		if version != V5 {
			version = V311
		}
		_, _, err := ParseHeader(raw)
		checkError(t, err)
		v, err := parse(fix(raw), version)
		checkError(t, err)
		if err != nil {
			return
		}
		switch v := v.(type) {
		case *Connect:
			checkConnect(t, v)
		case Publish:
			checkPublish(t, fix(raw), &v, version)
		case *Subscribe:
			if v.PacketID == 0 || len(v.Filters) == 0 || len(v.Filters) > MaxFilters {
				t.Fatalf("%+v", v)
			}
			for _, f := range v.Filters {
				if f.Filter == "" || f.QoS > 2 || f.RetainHandling > 2 || !validString([]byte(f.Filter)) {
					t.Fatalf("%+v", f)
				}
			}
		case *Unsubscribe:
			if v.PacketID == 0 || len(v.Filters) == 0 {
				t.Fatalf("%+v", v)
			}
		}
	})
}

// checkError refuses errors that aren't ours: packets must never be the one
// that finds something.
func checkError(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if err == nil || err == ErrIncomplete {
		return
	}
	if !errors.As(err, &e) {
		t.Fatalf("error that is no *Error: %v", err)
	}
	switch e.What {
	case "undecodable packet", "CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "AUTH", "":
		t.Fatalf("passed the walk, refused behind it: %v", err)
	}
	if e.Reason < 0x80 {
		t.Fatalf("reason 0x%02X", e.Reason)
	}
}

func checkConnect(t *testing.T, c *Connect) {
	t.Helper()
	if c.ReceiveMaximum == 0 || c.Version != V311 && c.Version != V5 {
		t.Fatalf("%+v", c)
	}
	if c.HasPassword && !c.HasUsername && c.Version == V311 {
		t.Fatalf("%+v", c)
	}
	if w := c.Will; w != nil {
		if w.Topic == "" || w.QoS > 2 || strings.ContainsAny(w.Topic, "+#\x00") {
			t.Fatalf("%+v", w)
		}
		checkRaw(t, w.Raw)
	}
}

// checkRaw walks raw with NextProperty to its end.
func checkRaw(t *testing.T, raw []byte) (ps []Property) {
	t.Helper()
	for len(raw) > 0 {
		p, rest, ok := NextProperty(raw)
		if !ok {
			t.Fatalf("raw properties end early: % x", raw)
		}
		ps = append(ps, p)
		raw = rest
	}
	return ps
}

// checkPublish compares with the library's decoder, which accepts all that
// ours does and must read the same, and sends the message round.
func checkPublish(t *testing.T, raw []byte, p *Publish, version byte) {
	t.Helper()
	h, n, _ := ParseHeader(raw)
	pk := packets.Packet{ProtocolVersion: version}
	if err := pk.FixedHeader.Decode(raw[0]); err != nil {
		t.Fatalf("library: header: %v", err)
	}
	pk.FixedHeader.Remaining = h.Remaining
	if err := pk.PublishDecode(raw[n:]); err != nil {
		t.Fatalf("library: %v, we read %+v", err, p)
	}
	if code := pk.PublishValidate(65535); code.Code != 0 {
		t.Fatalf("library: %v, we read %+v", code, p)
	}
	ours := packets.Properties{MessageExpiryInterval: p.Props.Expiry, TopicAlias: p.Props.Alias, TopicAliasFlag: p.Props.Alias != 0}
	for _, q := range checkRaw(t, p.Props.Raw) {
		switch q.ID {
		case PropPayloadFormat:
			ours.PayloadFormat, ours.PayloadFormatFlag = q.Value[0], true
		case PropContentType:
			ours.ContentType = string(q.Value)
		case PropResponseTopic:
			ours.ResponseTopic = string(q.Value)
		case PropCorrelationData:
			ours.CorrelationData = q.Value
		case PropUser:
			ours.User = append(ours.User, packets.UserProperty{Key: string(q.Key), Val: string(q.Value)})
		}
	}
	if !reflect.DeepEqual(ours, pk.Properties) {
		t.Fatalf("properties\nours    %+v\nlibrary %+v", ours, pk.Properties)
	}
	if string(p.Topic) != pk.TopicName || !bytes.Equal(p.Payload, pk.Payload) || p.PacketID != pk.PacketID ||
		p.QoS != pk.FixedHeader.Qos || p.Dup != pk.FixedHeader.Dup || p.Retain != pk.FixedHeader.Retain {
		t.Fatalf("ours %+v, library %+v", p, pk)
	}
	roundTrip(t, p, version)
}

func roundTrip(t *testing.T, p *Publish, version byte) {
	t.Helper()
	m := Outgoing{Topic: p.Topic, Payload: p.Payload, PacketID: p.PacketID, QoS: p.QoS, Dup: p.Dup, Retain: p.Retain,
		Raw: p.Props.Raw, HasExpiry: p.Props.HasExpiry, Expiry: p.Props.Expiry}
	if len(m.Topic) == 0 {
		m.Topic = []byte("resolved")
	}
	out := AppendPublish([]byte("before"), version, &m)
	if len(out) != 6+PublishSize(version, &m) {
		t.Fatalf("%d bytes, PublishSize %d", len(out)-6, PublishSize(version, &m))
	}
	q := mustParse[Publish](t, out[6:], version)
	want := *p
	want.Topic, want.Props.Alias = m.Topic, 0
	want.Scratch, q.Scratch = nil, nil
	if string(q.Props.Raw) != string(want.Props.Raw) {
		t.Fatalf("raw % x, want % x", q.Props.Raw, want.Props.Raw)
	}
	q.Props.Raw, want.Props.Raw = nil, nil
	if !bytes.Equal(q.Payload, want.Payload) {
		t.Fatal("payload changed")
	}
	q.Payload, want.Payload = nil, nil
	if !reflect.DeepEqual(q, want) {
		t.Fatalf("round trip\n got %+v\nwant %+v", q, want)
	}
}

// FuzzNextProperty: bytes read back from flash may be anything.
func FuzzNextProperty(f *testing.F) {
	f.Add(cat(PropPayloadFormat, 1, user("a", "b")))
	f.Add(cat(PropUser, str("a"), 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for len(raw) > 0 {
			_, rest, ok := NextProperty(raw)
			if !ok {
				return
			}
			if len(rest) >= len(raw) {
				t.Fatal("no progress")
			}
			raw = rest
		}
	})
}

// What the library takes for valid in its own cases we read too, but for those
// that only a server may send or that break the specification.
func TestLibraryCases(t *testing.T) {
	want := map[string]byte{
		"Connect: mqtt v3.1":                UnsupportedProtocolVersion,
		"Publish: mqtt v5":                  ProtocolError, // subscription identifier
		"Publish: subscription identifiers": ProtocolError,
		"Disconnect: takeover":              ProtocolError,
		"Disconnect: shutting down":         ProtocolError,
	}
	read, refused := 0, map[string]bool{}
	for typ, name := range packets.PacketNames {
		for _, c := range packets.TPacketData[typ] {
			h, n, err := ParseHeader(c.RawBytes)
			if c.Expect != nil || c.FailFirst != nil || c.Packet == nil || err != nil || h.Remaining != len(c.RawBytes)-n ||
				h.CheckInbound(V5) != nil {
				continue // meant to fail, meant for encoding, or from a server
			}
			version := V311
			if c.Packet.ProtocolVersion == V5 {
				version = V5
			}
			_, err = parse(c.RawBytes, version)
			if err == nil {
				read++
				continue
			}
			if id := name + ": " + c.Desc; want[id] != err.(*Error).Reason {
				t.Errorf("%s: %v, want reason 0x%02X", id, err, want[id])
			} else {
				refused[id] = true
			}
		}
	}
	if read < 40 || len(refused) != len(want) {
		t.Errorf("%d cases read, %d of %d refused", read, len(refused), len(want))
	}
}
