package wire

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

type goldenCase struct {
	version byte
	raw     []byte
	want    any
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// goldenInbound are packets written out by hand from the tables of the two
// specifications, with what they mean.
func goldenInbound() map[string]goldenCase {
	g := map[string]goldenCase{}
	for _, m := range []map[string]goldenCase{goldenConnects(), goldenPublishes(), goldenSubscribes(), goldenOthers()} {
		for k, v := range m {
			g[k] = v
		}
	}
	return g
}

func goldenConnects() map[string]goldenCase {
	plain := Connect{ReceiveMaximum: 65535, RequestProblemInfo: true}
	with := func(f func(c *Connect)) *Connect { c := plain; f(&c); return &c }
	return map[string]goldenCase{
		"3.1.1 smallest": {V311, unhex("10 0c 0004 4d515454 04 02 0000 0000"),
			with(func(c *Connect) { c.Version, c.CleanStart = 4, true })},
		"3.1.1 with everything": {V311, unhex("10 1f 0004 4d515454 04 f4 003c 0002 6331 0003 772f31 0002 6869 0001 75 0003 707764"),
			with(func(c *Connect) {
				c.Version, c.KeepAlive, c.ClientID = 4, 60, "c1"
				c.Will = &Will{Topic: "w/1", Payload: []byte("hi"), QoS: 2, Retain: true}
				c.HasUsername, c.Username, c.HasPassword, c.Password = true, "u", true, []byte("pwd")
			})},
		"3.1.1 empty will payload, user name and password": {V311, unhex("10 16 0004 4d515454 04 c6 ffff 0001 63 0001 77 0000 0000 0000"),
			with(func(c *Connect) {
				c.Version, c.CleanStart, c.KeepAlive, c.ClientID = 4, true, 65535, "c"
				c.Will = &Will{Topic: "w", Payload: []byte{}}
				c.HasUsername, c.HasPassword, c.Password = true, true, []byte{}
			})},
		"5 smallest, empty client id, session kept": {V5, unhex("10 0d 0004 4d515454 05 00 0000 00 0000"),
			with(func(c *Connect) { c.Version = 5 })},
		"5 password without user name": {V5, unhex("10 11 0004 4d515454 05 42 0000 00 0001 63 0001 70"),
			with(func(c *Connect) {
				c.Version, c.CleanStart, c.ClientID, c.HasPassword, c.Password = 5, true, "c", true, []byte("p")
			})},
		"5 all properties": {V5, connect5(2, props(propSessionExpiry, uint32(0xFFFFFFFF), propReceiveMaximum, uint16(20),
			propMaximumPacketSize, uint32(100), propTopicAliasMaximum, uint16(7), propRequestResponseInfo, 1,
			propRequestProblemInfo, 0, user("a", "b"), user("a", ""), propAuthMethod, str("SCRAM"), propAuthData, str("\x00\xff")), str("c")),
			&Connect{Version: 5, CleanStart: true, KeepAlive: 60, ClientID: "c", SessionExpiry: 0xFFFFFFFF, HasSessionExpiry: true,
				ReceiveMaximum: 20, MaximumPacketSize: 100, TopicAliasMaximum: 7, RequestResponseInfo: true,
				HasAuthMethod: true, AuthMethod: "SCRAM", AuthData: []byte{0, 255}}},
		"5 zero is not absent": {V5, connect5(6, props(propSessionExpiry, uint32(0)), str("c"),
			props(propMessageExpiry, uint32(0), propWillDelay, uint32(0)), str("w"), str("")),
			with(func(c *Connect) {
				c.Version, c.CleanStart, c.KeepAlive, c.ClientID, c.HasSessionExpiry = 5, true, 60, "c", true
				c.Will = &Will{Topic: "w", Payload: []byte{}, HasExpiry: true}
			})},
		"5 will with all properties": {V5, connect5(0x36, props(), str("c"),
			props(propPayloadFormat, 1, propWillDelay, uint32(9), propContentType, str("t"), propMessageExpiry, uint32(8),
				user("k", "v"), propCorrelationData, str("\x00"), propResponseTopic, str("r/s")), str("w"), str("x")),
			with(func(c *Connect) {
				c.Version, c.CleanStart, c.KeepAlive, c.ClientID = 5, true, 60, "c"
				c.Will = &Will{Topic: "w", Payload: []byte("x"), QoS: 2, Retain: true, Delay: 9, HasExpiry: true, Expiry: 8, UTF8: true,
					Raw: cat(propPayloadFormat, 1, propContentType, str("t"), user("k", "v"), propCorrelationData, str("\x00"), propResponseTopic, str("r/s"))}
			})},
	}
}

func goldenPublishes() map[string]goldenCase {
	b := func(s string) []byte { return []byte(s) }
	return map[string]goldenCase{
		"3.1.1 QoS 0":            {V311, unhex("30 05 0003 612f62"), Publish{Topic: b("a/b"), Payload: b("")}},
		"3.1.1 QoS 1 DUP RETAIN": {V311, unhex("3b 09 0003 612f62 0010 6869"), Publish{Topic: b("a/b"), Payload: b("hi"), PacketID: 16, QoS: 1, Dup: true, Retain: true}},
		"3.1.1 QoS 2":            {V311, unhex("34 06 0001 61 ffff 00"), Publish{Topic: b("a"), Payload: b("\x00"), PacketID: 65535, QoS: 2}},
		"3.1.1 control characters and a byte order mark": {V311, packet(0x30, str("\x01\x7f\uFEFF\uFFFF")), Publish{Topic: b("\x01\x7f\uFEFF\uFFFF"), Payload: b("")}},
		"3.1.1 deepest topic":                            {V311, packet(0x30, str(strings.Repeat("/", MaxTopicLevels-1))), Publish{Topic: b(strings.Repeat("/", MaxTopicLevels-1)), Payload: b("")}},
		"3.1.1 spare remaining length byte":              {V311, unhex("30 85 00 0003 612f62"), Publish{Topic: b("a/b"), Payload: b("")}},
		"5 no properties":                                {V5, unhex("32 07 0001 61 0001 00 78"), Publish{Topic: b("a"), Payload: b("x"), PacketID: 1, QoS: 1}},
		"5 alias without topic":                          {V5, unhex("30 07 0000 03 23 0001 78"), Publish{Topic: b(""), Payload: b("x"), Props: PublishProps{Alias: 1}}},
		"5 expiry 0 is there":                            {V5, unhex("30 09 0001 61 05 02 00000000"), Publish{Topic: b("a"), Payload: b(""), Props: PublishProps{HasExpiry: true}}},
		"5 as many user properties as allowed": {V5, publish5("a", props(bytes.Repeat(user("", ""), MaxUserProperties)), ""),
			Publish{Topic: b("a"), Payload: b(""), Props: PublishProps{Raw: bytes.Repeat(user("", ""), MaxUserProperties)}}},
		"5 empty values": {V5, publish5("a", props(propContentType, str(""), propCorrelationData, str(""), user("", "")), ""),
			Publish{Topic: b("a"), Payload: b(""), Props: PublishProps{Raw: cat(propContentType, str(""), propCorrelationData, str(""), user("", ""))}}},
	}
}

func goldenSubscribes() map[string]goldenCase {
	return map[string]goldenCase{
		"3.1.1 SUBSCRIBE": {V311, unhex("82 0e 000a 0003 612f62 01 0003 632f64 02"),
			&Subscribe{PacketID: 10, Filters: []SubscribeFilter{{Filter: "a/b", QoS: 1}, {Filter: "c/d", QoS: 2}}}},
		"5 SUBSCRIBE with all options": {V5, unhex("82 0c 000a 03 0b ff7f 0003 612f23 2e"),
			&Subscribe{PacketID: 10, SubscriptionID: 16383, Filters: []SubscribeFilter{{Filter: "a/#", QoS: 2, NoLocal: true, RetainAsPublished: true, RetainHandling: 2}}}},
		"5 SUBSCRIBE shared": {V5, packet(0x82, uint16(1), props(user("a", "b")), str("$share/g/a"), 0x19),
			&Subscribe{PacketID: 1, Filters: []SubscribeFilter{{Filter: "$share/g/a", QoS: 1, RetainAsPublished: true, RetainHandling: 1}}}},
		"5 largest subscription id": {V5, packet(0x82, uint16(1), props(propSubscriptionID, 0xFF, 0xFF, 0xFF, 0x7F), str("a"), 0),
			&Subscribe{PacketID: 1, SubscriptionID: MaxRemaining, Filters: []SubscribeFilter{{Filter: "a"}}}},
		"3.1.1 UNSUBSCRIBE": {V311, unhex("a2 0c 000a 0003 612f62 0003 632f64"), &Unsubscribe{PacketID: 10, Filters: []string{"a/b", "c/d"}}},
		"5 UNSUBSCRIBE":     {V5, packet(0xA2, uint16(2), props(user("a", "b")), str("#")), &Unsubscribe{PacketID: 2, Filters: []string{"#"}}},
	}
}

func goldenOthers() map[string]goldenCase {
	return map[string]goldenCase{
		"3.1.1 PUBACK":                        {V311, unhex("40 02 0102"), [2]int{0x102, 0}},
		"3.1.1 PUBREL":                        {V311, unhex("62 02 0001"), [2]int{1, 0}},
		"5 PUBREC with reason":                {V5, unhex("50 03 0001 97"), [2]int{1, 0x97}},
		"5 PUBACK no subscriber":              {V5, unhex("40 04 0001 10 00"), [2]int{1, 0x10}},
		"5 PUBCOMP not found":                 {V5, packet(0x70, uint16(1), 0x92, props(propReasonString, str("gone"), user("a", "b"), user("a", "b"))), [2]int{1, 0x92}},
		"3.1.1 DISCONNECT":                    {V311, unhex("e0 00"), Disconnect{}},
		"5 DISCONNECT empty":                  {V5, unhex("e0 00"), Disconnect{}},
		"5 DISCONNECT that asks for the will": {V5, unhex("e0 01 04"), Disconnect{Reason: DisconnectWithWill}},
		"5 DISCONNECT with expiry 0":          {V5, unhex("e0 07 00 05 11 00000000"), Disconnect{HasSessionExpiry: true}},
		"5 DISCONNECT with all": {V5, packet(0xE0, 0x81, props(propReasonString, str("x"), propSessionExpiry, uint32(7), user("a", "b"))),
			Disconnect{Reason: 0x81, SessionExpiry: 7, HasSessionExpiry: true}},
		"5 AUTH empty": {V5, unhex("f0 00"), Auth{}},
		"5 AUTH":       {V5, packet(0xF0, 0x18, props(propAuthMethod, str("m"), propAuthData, str("d"), propReasonString, str("r"))), Auth{Reason: 0x18, HasMethod: true, Method: "m", Data: []byte("d")}},
		"PINGREQ":      {V311, unhex("c0 00"), nil},
	}
}

func TestGoldenInbound(t *testing.T) {
	for name, c := range goldenInbound() {
		t.Run(name, func(t *testing.T) {
			raw := bytes.Clone(c.raw)
			got, err := parse(raw, c.version)
			if err != nil {
				t.Fatalf("% x: %v", c.raw, err)
			}
			if p, ok := got.(Publish); ok {
				p.Scratch = nil
				got = p
			} else {
				clear(raw) // all but Publish must own its memory
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Fatalf("% x:\n got %+v\nwant %+v", c.raw, got, c.want)
			}
		})
	}
}

func TestGoldenOutbound(t *testing.T) {
	full := &Connack{SessionPresent: true, HasSessionExpiry: true, SessionExpiry: 10, ReceiveMaximum: 64, HasMaximumQoS: true, MaximumQoS: 1,
		NoRetain: true, MaximumPacketSize: 0x40000, AssignedClientID: "id", TopicAliasMaximum: 9, ReasonString: "r", NoWildcards: true,
		NoSubscriptionIDs: true, NoShared: true, HasServerKeepAlive: true, ServerKeepAlive: 30, ResponseInfo: "p"}
	msg := &Outgoing{Topic: []byte("a/b"), Payload: []byte("hi"), PacketID: 10, QoS: 1, Dup: true, Retain: true,
		Raw: cat(propPayloadFormat, 1), HasExpiry: true, Expiry: 5, SubscriptionIDs: []uint32{1, 128}}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"PUBACK":                   {AppendPuback(nil, V311, 0x102, Success), "40 02 0102"},
		"PUBACK 5 success":         {AppendPuback(nil, V5, 1, Success), "40 02 0001"},
		"PUBACK 5 refused":         {AppendPuback(nil, V5, 1, QuotaExceeded), "40 03 0001 97"},
		"PUBACK 3.1.1 has no room": {AppendPuback(nil, V311, 1, NoMatchingSubscribers), "40 02 0001"},
		"PUBREC":                   {AppendPubrec(nil, V5, 2, NotAuthorized), "50 03 0002 87"},
		"PUBACK 5 with why":        {AppendRefusal(nil, PUBACK, 1, QuotaExceeded, "full"), "40 0b 0001 97 07 1f 0004 66756c6c"},
		"PUBREC 5 with why":        {AppendRefusal(nil, PUBREC, 2, NotAuthorized, "no"), "50 09 0002 87 05 1f 0002 6e6f"},
		"PUBREC 5 without why":     {AppendRefusal(nil, PUBREC, 2, NotAuthorized, ""), "50 03 0002 87"},
		"PUBREL":                   {AppendPubrel(nil, V311, 2, Success), "62 02 0002"},
		"PUBREL not found":         {AppendPubrel(nil, V5, 2, PacketIDNotFound), "62 03 0002 92"},
		"PUBCOMP":                  {AppendPubcomp(nil, V5, 65535, Success), "70 02 ffff"},
		"PUBLISH 3.1.1 QoS 0":      {AppendPublish(nil, V311, &Outgoing{Topic: []byte("a/b"), Payload: []byte("hi"), Raw: []byte{1, 1}, HasExpiry: true}), "30 07 0003 612f62 6869"},
		"PUBLISH 3.1.1 QoS 1":      {AppendPublish(nil, V311, msg), "3b 09 0003 612f62 000a 6869"},
		"PUBLISH 5":                {AppendPublish(nil, V5, msg), "3b 16 0003 612f62 000a 0c 0101 02 00000005 0b01 0b8001 6869"},
		"PUBLISH 5 new alias":      {AppendPublish(nil, V5, &Outgoing{Topic: []byte("a/b"), Payload: []byte("hi"), Alias: 258}), "30 0b 0003 612f62 03 23 0102 6869"},
		"PUBLISH 5 known alias":    {AppendPublish(nil, V5, &Outgoing{Payload: []byte("hi"), Alias: 258, HasExpiry: true}), "30 0d 0000 08 02 00000000 23 0102 6869"},
		"PUBLISH 5 plain":          {AppendPublish(nil, V5, &Outgoing{Topic: []byte("a"), QoS: 2, PacketID: 1}), "34 06 0001 61 0001 00"},
		"CONNACK 3.1.1":            {AppendConnack(nil, V311, &Connack{SessionPresent: true}), "20 02 01 00"},
		"CONNACK 3.1.1 version":    {AppendConnack(nil, V311, &Connack{Reason: UnsupportedProtocolVersion}), "20 02 00 01"},
		"CONNACK 3.1.1 client id":  {AppendConnack(nil, V311, &Connack{Reason: ClientIDNotValid, SessionPresent: true}), "20 02 00 02"},
		"CONNACK 3.1.1 busy":       {AppendConnack(nil, V311, &Connack{Reason: ServerBusy}), "20 02 00 03"},
		"CONNACK 3.1.1 password":   {AppendConnack(nil, V311, &Connack{Reason: BadUsernameOrPassword}), "20 02 00 04"},
		"CONNACK 3.1.1 refused":    {AppendConnack(nil, V311, &Connack{Reason: NotAuthorized}), "20 02 00 05"},
		"CONNACK 3.1.1 malformed":  {AppendConnack(nil, V311, &Connack{Reason: MalformedPacket}), ""},
		"CONNACK 5":                {AppendConnack(nil, V5, &Connack{}), "20 03 00 00 00"},
		"CONNACK 5 refused":        {AppendConnack(nil, V5, &Connack{Reason: MalformedPacket, SessionPresent: true}), "20 03 00 81 00"},
		"CONNACK 5 all": {AppendConnack(nil, V5, full),
			"20 2d 01 00 2a 11 0000000a 21 0040 24 01 25 00 27 00040000 12 0002 6964 22 0009 1f 0001 72 28 00 29 00 2a 00 13 001e 1a 0001 70"},
		"SUBACK 3.1.1":      {AppendSuback(nil, V311, 10, []byte{0, 1, 2, 0x8F}, "no"), "90 06 000a 00 01 02 80"},
		"SUBACK 5":          {AppendSuback(nil, V5, 10, []byte{2, 0x8F}, ""), "90 05 000a 00 02 8f"},
		"UNSUBACK 3.1.1":    {AppendUnsuback(nil, V311, 10, []byte{0, 0x11}, "no"), "b0 02 000a"},
		"UNSUBACK 5":        {AppendUnsuback(nil, V5, 10, []byte{0, 0x11}, ""), "b0 05 000a 00 00 11"},
		"SUBACK 5 with why": {AppendSuback(nil, V5, 10, []byte{2, 0x8F}, "no"), "90 0a 000a 05 1f 0002 6e6f 02 8f"},
		"UNSUBACK with why": {AppendUnsuback(nil, V5, 10, []byte{0, 0x8F}, "no"), "b0 0a 000a 05 1f 0002 6e6f 00 8f"},
		"DISCONNECT":        {AppendDisconnect(nil, ServerShuttingDown, ""), "e0 01 8b"},
		"DISCONNECT reason": {AppendDisconnect(nil, SessionTakenOver, "hi"), "e0 07 8e 05 1f 0002 6869"},
		"PINGRESP":          {AppendPingresp(nil), "d0 00"},
	} {
		if want := unhex(c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n got % x\nwant % x", name, c.got, want)
		}
	}
}

func TestConnectVersion(t *testing.T) {
	for _, c := range []struct {
		body []byte
		want byte
	}{
		{cat(str("MQTT"), 4), V311},
		{cat(str("MQTT"), 5), V5},
		{cat(str("MQTT"), 6), V5},
		{cat(str("MQTT"), 3), V311},
		{cat(str("MQIsdp"), 3), V311},
		{cat(str("MQIsdp"), 5), V311},
		{cat(str("MQTT")), 0},
		{cat(str("HTTP"), 4), 0},
		{nil, 0},
	} {
		if got := ConnectVersion(c.body); got != c.want {
			t.Errorf("% x: got %d, want %d", c.body, got, c.want)
		}
	}
}

func TestHeaderSizes(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 16383, 16384, 2097151, 2097152, MaxRemaining} {
		raw := appendVarint([]byte{0x30}, n)
		for cut := range raw {
			if _, _, err := ParseHeader(raw[:cut]); err != ErrIncomplete {
				t.Fatalf("%d of % x: %v", cut, raw, err)
			}
		}
		h, size, err := ParseHeader(append(raw, 0xFF))
		if err != nil || h.Remaining != n || size != len(raw) || size != 1+varintSize(n) {
			t.Fatalf("%d: %+v, %d bytes, %v", n, h, size, err)
		}
	}
	// The fifth length byte is refused here, not by what it would announce.
	if _, _, err := ParseHeader([]byte{0x30, 0x80, 0x80, 0x80, 0x80, 0x00}); err == nil || err == ErrIncomplete {
		t.Error(err)
	}
	if _, _, err := ParseHeader([]byte{0x30, 0x80, 0x80, 0x80, 0x80}); err == nil || err == ErrIncomplete {
		t.Error(err)
	}
	// A bad header is refused before it is complete.
	for _, raw := range [][]byte{{0x00}, {0x36}, {0x38}, {0x60}, {0xFF}} {
		if _, _, err := ParseHeader(raw); err == nil || err == ErrIncomplete {
			t.Errorf("% x: %v", raw, err)
		}
	}
}

// TestSubackSize: what is foretold of a SUBACK and an UNSUBACK is what they take, also around lengths of two bytes.
func TestSubackSize(t *testing.T) {
	for _, n := range []int{1, 2, 123, 124, 125, 126, MaxFilters} {
		codes := make([]byte, n)
		if got, want := SubackSize(n), len(AppendSuback(nil, V5, 1, codes, "")); got != want {
			t.Errorf("%d filters: %d, SUBACK has %d bytes", n, got, want)
		}
		if got, want := SubackSize(n), len(AppendUnsuback(nil, V5, 1, codes, "")); got != want {
			t.Errorf("%d filters: %d, UNSUBACK has %d bytes", n, got, want)
		}
		// With a reason string as well, the length says where the packet ends.
		for _, why := range []string{"", "no", strings.Repeat("x", 130)} {
			p := AppendSuback(nil, V5, 1, codes, why)
			if h, size, err := ParseHeader(p); err != nil || size+h.Remaining != len(p) {
				t.Errorf("%d filters, %d bytes of why: %+v, %v, %d bytes", n, len(why), h, err, len(p))
			}
		}
	}
}
