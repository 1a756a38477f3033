package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

type badCase struct {
	name    string
	version byte
	raw     []byte
	reason  byte
}

var badHeaders = []badCase{
	{"type 0", V5, cat(0x00, 0), MalformedPacket},
	{"CONNECT flags", V5, cat(0x11, 0), MalformedPacket},
	{"SUBSCRIBE flags 0", V5, cat(0x80, 0), MalformedPacket},
	{"SUBSCRIBE flags 3", V5, cat(0x83, 0), MalformedPacket},
	{"UNSUBSCRIBE flags 0", V5, cat(0xA0, 0), MalformedPacket},
	{"PUBREL flags 0", V5, cat(0x60, 2, uint16(1)), MalformedPacket},
	{"PUBACK flags 2", V5, cat(0x42, 2, uint16(1)), MalformedPacket},
	{"PINGREQ flags", V5, cat(0xC1, 0), MalformedPacket},
	{"DISCONNECT flags", V5, cat(0xE8, 0), MalformedPacket},
	{"AUTH flags", V5, cat(0xF1, 0), MalformedPacket},
	{"QoS 3", V5, cat(0x36, 0), MalformedPacket},
	{"DUP at QoS 0", V5, cat(0x38, 0), MalformedPacket},
	{"remaining length of five bytes", V5, cat(0x30, 0x80, 0x80, 0x80, 0x80, 0x01), MalformedPacket},
	{"remaining length of six bytes", V5, cat(0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01), MalformedPacket},
	{"CONNACK from a client", V5, packet(0x20, 0, 0), ProtocolError},
	{"SUBACK from a client", V5, packet(0x90, 0, 1, 0), ProtocolError},
	{"UNSUBACK from a client", V311, packet(0xB0, 0, 1), ProtocolError},
	{"PINGRESP from a client", V311, packet(0xD0), ProtocolError},
	{"AUTH in 3.1.1", V311, packet(0xF0), MalformedPacket},
	{"PINGREQ with a body", V5, packet(0xC0, 0), MalformedPacket},
	{"CONNECT of one byte", V5, packet(0x10, 0), MalformedPacket},
}

var badPublishes = []badCase{
	{"empty", V311, packet(0x30), MalformedPacket},
	{"one byte", V311, packet(0x30, 0), MalformedPacket},
	{"topic longer than the packet", V311, packet(0x30, uint16(9), "abc"), MalformedPacket},
	{"empty topic 3.1.1", V311, packet(0x30, str(""), "x"), ProtocolError},
	{"empty topic without alias", V5, publish5("", props(), "x"), ProtocolError},
	{"plus in topic", V311, packet(0x30, str("a/+/b")), MalformedPacket},
	{"hash in topic", V5, publish5("a/#", props(), ""), MalformedPacket},
	{"NUL in topic", V311, packet(0x30, str("a\x00b")), MalformedPacket},
	{"NUL in a topic that isn't ASCII", V311, packet(0x30, str("ä\x00b")), MalformedPacket},
	{"surrogate in topic", V311, packet(0x30, str("a\xed\xa0\x80")), MalformedPacket},
	{"overlong UTF-8 in topic", V311, packet(0x30, str("a\xc0\xaf")), MalformedPacket},
	{"cut UTF-8 in topic", V5, publish5("a\xe2\x82", props(), ""), MalformedPacket},
	{"UTF-8 beyond U+10FFFF", V5, publish5("a\xf4\x90\x80\x80", props(), ""), MalformedPacket},
	{"too many levels", V311, packet(0x30, str(strings.Repeat("/", MaxTopicLevels))), TopicNameInvalid},
	{"QoS 1 without packet id", V311, packet(0x32, str("a")), MalformedPacket},
	{"QoS 1 with half a packet id", V311, packet(0x32, str("a"), 1), MalformedPacket},
	{"QoS 1 packet id 0", V311, packet(0x32, str("a"), uint16(0)), ProtocolError},
	{"QoS 2 packet id 0", V5, packet(0x34, str("a"), uint16(0), props()), ProtocolError},
	{"no property length", V5, packet(0x30, str("a")), MalformedPacket},
	{"property length beyond the packet", V5, packet(0x30, str("a"), 5, 1, 0), MalformedPacket},
	{"property length of five bytes", V5, packet(0x30, str("a"), 0x80, 0x80, 0x80, 0x80, 1), MalformedPacket},
	{"property length with a spare byte", V5, packet(0x30, str("a"), 0x80, 0), MalformedPacket},
	{"property length cut", V5, packet(0x30, str("a"), 0x80), MalformedPacket},
	{"property overruns its length", V5, packet(0x30, str("a"), 3, 2, 0, 0, 0, 9), MalformedPacket},
	{"string property overruns its length", V5, packet(0x30, str("a"), 4, 3, 0, 5, "hello"), MalformedPacket},
	{"user property without value", V5, publish5("a", props(propUser, str("k")), ""), MalformedPacket},
	{"user property cut in its key", V5, publish5("a", props(propUser, 0), ""), MalformedPacket},
	{"user property with NUL", V5, publish5("a", props(user("k", "\x00")), ""), MalformedPacket},
	{"unknown property 0", V5, publish5("a", props(0, 1), ""), MalformedPacket},
	{"unknown property 4", V5, publish5("a", props(4, 1), ""), MalformedPacket},
	{"unknown property 63", V5, publish5("a", props(63, 1), ""), MalformedPacket},
	{"unknown property 64", V5, publish5("a", props(64, 1), ""), MalformedPacket},
	{"property id of two bytes", V5, publish5("a", props(0x81, 0), ""), MalformedPacket},
	{"session expiry in PUBLISH", V5, publish5("a", props(propSessionExpiry, uint32(1)), ""), MalformedPacket},
	{"maximum QoS in PUBLISH", V5, publish5("a", props(propMaximumQoS, 1), ""), MalformedPacket},
	{"payload format 2", V5, publish5("a", props(propPayloadFormat, 2), ""), ProtocolError},
	{"payload format 9", V5, publish5("a", props(propPayloadFormat, 9), ""), ProtocolError},
	{"payload format twice", V5, publish5("a", props(propPayloadFormat, 1, propPayloadFormat, 1), ""), ProtocolError},
	{"payload format cut", V5, publish5("a", props(propPayloadFormat), ""), MalformedPacket},
	{"expiry twice", V5, publish5("a", props(propMessageExpiry, uint32(0), propMessageExpiry, uint32(0)), ""), ProtocolError},
	{"expiry cut", V5, publish5("a", props(propMessageExpiry, 0, 0, 0), ""), MalformedPacket},
	{"content type twice", V5, publish5("a", props(propContentType, str("x"), propContentType, str("x")), ""), ProtocolError},
	{"content type not UTF-8", V5, publish5("a", props(propContentType, str("\xff")), ""), MalformedPacket},
	{"response topic twice", V5, publish5("a", props(propResponseTopic, str("x"), propResponseTopic, str("x")), ""), ProtocolError},
	{"response topic with plus", V5, publish5("a", props(propResponseTopic, str("x/+")), ""), ProtocolError},
	{"response topic with hash", V5, publish5("a", props(propResponseTopic, str("#")), ""), ProtocolError},
	{"empty response topic", V5, publish5("a", props(propResponseTopic, str("")), ""), ProtocolError},
	{"correlation data twice", V5, publish5("a", props(propCorrelationData, str("x"), propCorrelationData, str("")), ""), ProtocolError},
	{"correlation data cut", V5, publish5("a", props(propCorrelationData, 0), ""), MalformedPacket},
	{"topic alias 0", V5, publish5("a", props(propTopicAlias, uint16(0)), ""), TopicAliasInvalid},
	{"topic alias twice", V5, publish5("a", props(propTopicAlias, uint16(1), propTopicAlias, uint16(1)), ""), ProtocolError},
	{"topic alias cut", V5, publish5("a", props(propTopicAlias, 1), ""), MalformedPacket},
	{"subscription id from a client", V5, publish5("a", props(propSubscriptionID, 5), ""), ProtocolError},
	{"subscription id 0 from a client", V5, publish5("a", props(propSubscriptionID, 0), ""), ProtocolError},
	{"too many user properties", V5, publish5("a", props(bytes.Repeat(user("", ""), MaxUserProperties+1)), ""), QuotaExceeded},
}

var badAcks = []badCase{
	{"PUBACK empty", V5, packet(0x40), MalformedPacket},
	{"PUBACK one byte", V5, packet(0x40, 1), MalformedPacket},
	{"PUBACK id 0", V5, packet(0x40, uint16(0)), ProtocolError},
	{"PUBREL id 0", V311, packet(0x62, uint16(0)), ProtocolError},
	{"PUBACK with reason in 3.1.1", V311, packet(0x40, uint16(1), 0), MalformedPacket},
	{"PUBREL with more in 3.1.1", V311, packet(0x62, uint16(1), 0), MalformedPacket},
	{"PUBACK reason 1", V5, packet(0x40, uint16(1), 1), ProtocolError},
	{"PUBREC reason 0x92", V5, packet(0x50, uint16(1), 0x92), ProtocolError},
	{"PUBREL reason 0x10", V5, packet(0x62, uint16(1), 0x10), ProtocolError},
	{"PUBCOMP reason 0x97", V5, packet(0x70, uint16(1), 0x97), ProtocolError},
	{"PUBACK trailing", V5, packet(0x40, uint16(1), 0, 0, 9), MalformedPacket},
	{"PUBACK property length beyond", V5, packet(0x40, uint16(1), 0, 7), MalformedPacket},
	{"PUBACK reason string twice", V5, packet(0x40, uint16(1), 0, props(propReasonString, str("a"), propReasonString, str("a"))), ProtocolError},
	{"PUBREC content type", V5, packet(0x50, uint16(1), 0, props(propContentType, str("a"))), MalformedPacket},
	{"PUBCOMP reason string not UTF-8", V5, packet(0x70, uint16(1), 0, props(propReasonString, str("\xc3"))), MalformedPacket},
}

var badConnects = []badCase{
	{"protocol name", V5, packet(0x10, str("MQTX"), 4, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"protocol name lower case", V5, packet(0x10, str("mqtt"), 4, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"protocol name longer than the packet", V5, packet(0x10, uint16(90), "MQTT", 4, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"MQTT 3.1", V5, packet(0x10, str("MQIsdp"), 3, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"level 3 as MQTT", V5, packet(0x10, str("MQTT"), 3, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"level 6", V5, packet(0x10, str("MQTT"), 6, 2, uint16(0), 0, str("c")), UnsupportedProtocolVersion},
	{"level with the bridge bit", V5, packet(0x10, str("MQTT"), 0x84, 2, uint16(0), str("c")), UnsupportedProtocolVersion},
	{"reserved flag 3.1.1", V5, connect4(3, str("c")), MalformedPacket},
	{"reserved flag 5", V5, connect5(3, props(), str("c")), MalformedPacket},
	{"will QoS 3", V5, connect4(0x1E, str("c"), str("w"), str("")), MalformedPacket},
	{"will QoS without will", V5, connect4(0x0A, str("c")), MalformedPacket},
	{"will retain without will", V5, connect5(0x22, props(), str("c")), MalformedPacket},
	{"password without user name in 3.1.1", V5, connect4(0x42, str("c"), str("p")), MalformedPacket},
	{"no client id", V5, connect5(2, props()), MalformedPacket},
	{"client id longer than the packet", V5, connect4(2, uint16(9), "c"), MalformedPacket},
	{"client id not UTF-8", V5, connect4(2, str("\xff")), MalformedPacket},
	{"client id with NUL", V5, connect4(2, str("a\x00")), MalformedPacket},
	{"client id too long", V5, connect4(2, str(strings.Repeat("c", MaxClientIDBytes+1))), ClientIDNotValid},
	{"empty client id, session kept, 3.1.1", V5, connect4(0, str("")), ClientIDNotValid},
	{"no will topic", V5, connect4(6, str("c")), MalformedPacket},
	{"empty will topic", V5, connect4(6, str("c"), str(""), str("x")), MalformedPacket},
	{"will topic with plus", V5, connect4(6, str("c"), str("a/+"), str("x")), MalformedPacket},
	{"will topic with hash", V5, connect5(6, props(), str("c"), props(), str("#"), str("x")), MalformedPacket},
	{"will topic with NUL", V5, connect4(6, str("c"), str("a\x00"), str("x")), MalformedPacket},
	{"will topic too deep", V5, connect4(6, str("c"), str(strings.Repeat("a/", 200)), str("x")), TopicNameInvalid},
	{"no will payload", V5, connect4(6, str("c"), str("w")), MalformedPacket},
	{"will payload cut", V5, connect4(6, str("c"), str("w"), uint16(3), "ab"), MalformedPacket},
	{"user name missing", V5, connect4(0x82, str("c")), MalformedPacket},
	{"user name with NUL", V5, connect4(0x82, str("c"), str("u\x00")), MalformedPacket},
	{"user name with a surrogate", V5, connect4(0x82, str("c"), str("\xed\xbf\xbf")), MalformedPacket},
	{"password missing", V5, connect4(0xC2, str("c"), str("u")), MalformedPacket},
	{"password cut", V5, connect5(0x42, props(), str("c"), uint16(4), "pw"), MalformedPacket},
	{"trailing bytes", V5, connect4(2, str("c"), 0), MalformedPacket},
	{"user name without its flag", V5, connect5(2, props(), str("c"), str("u")), MalformedPacket},
	{"no properties", V5, packet(0x10, str("MQTT"), 5, 2, uint16(60)), MalformedPacket},
	{"properties cut", V5, connect5(2, 5, propSessionExpiry, 0, 0), MalformedPacket},
	{"property overruns its length", V5, connect5(2, 2, propReceiveMaximum, 0, 1, str("c")), MalformedPacket},
	{"receive maximum 0", V5, connect5(2, props(propReceiveMaximum, uint16(0)), str("c")), ProtocolError},
	{"receive maximum twice", V5, connect5(2, props(propReceiveMaximum, uint16(1), propReceiveMaximum, uint16(1)), str("c")), ProtocolError},
	{"maximum packet size 0", V5, connect5(2, props(propMaximumPacketSize, uint32(0)), str("c")), ProtocolError},
	{"maximum packet size twice", V5, connect5(2, props(propMaximumPacketSize, uint32(9), propMaximumPacketSize, uint32(9)), str("c")), ProtocolError},
	{"session expiry twice", V5, connect5(2, props(propSessionExpiry, uint32(0), propSessionExpiry, uint32(0)), str("c")), ProtocolError},
	{"topic alias maximum twice", V5, connect5(2, props(propTopicAliasMaximum, uint16(0), propTopicAliasMaximum, uint16(0)), str("c")), ProtocolError},
	{"request problem information 2", V5, connect5(2, props(propRequestProblemInfo, 2), str("c")), ProtocolError},
	{"request response information 2", V5, connect5(2, props(propRequestResponseInfo, 2), str("c")), ProtocolError},
	{"request problem information twice", V5, connect5(2, props(propRequestProblemInfo, 1, propRequestProblemInfo, 1), str("c")), ProtocolError},
	{"authentication data without method", V5, connect5(2, props(propAuthData, str("x")), str("c")), ProtocolError},
	{"authentication method twice", V5, connect5(2, props(propAuthMethod, str("x"), propAuthMethod, str("x")), str("c")), ProtocolError},
	{"topic alias in CONNECT", V5, connect5(2, props(propTopicAlias, uint16(1)), str("c")), MalformedPacket},
	{"will delay outside the will", V5, connect5(2, props(propWillDelay, uint32(1)), str("c")), MalformedPacket},
	{"assigned client id from a client", V5, connect5(2, props(propAssignedClientID, str("x")), str("c")), MalformedPacket},
	{"will delay twice", V5, connect5(6, props(), str("c"), props(propWillDelay, uint32(1), propWillDelay, uint32(1)), str("w"), str("")), ProtocolError},
	{"will payload format 3", V5, connect5(6, props(), str("c"), props(propPayloadFormat, 3), str("w"), str("")), ProtocolError},
	{"will response topic with hash", V5, connect5(6, props(), str("c"), props(propResponseTopic, str("a/#")), str("w"), str("")), ProtocolError},
	{"will properties cut", V5, connect5(6, props(), str("c"), 9, propWillDelay), MalformedPacket},
	{"topic alias in the will", V5, connect5(6, props(), str("c"), props(propTopicAlias, uint16(1)), str("w"), str("")), MalformedPacket},
	{"session expiry in the will", V5, connect5(6, props(), str("c"), props(propSessionExpiry, uint32(1)), str("w"), str("")), MalformedPacket},
	{"too many user properties", V5, connect5(2, props(bytes.Repeat(user("a", "b"), MaxUserProperties+1)), str("c")), QuotaExceeded},
}

var badSubscribes = []badCase{
	{"packet id cut", V5, packet(0x82, 1), MalformedPacket},
	{"packet id 0", V5, packet(0x82, uint16(0), props(), str("a"), 0), ProtocolError},
	{"no filter 3.1.1", V311, packet(0x82, uint16(1)), ProtocolError},
	{"no filter 5", V5, packet(0x82, uint16(1), props()), ProtocolError},
	{"no properties", V5, packet(0x82, uint16(1)), MalformedPacket},
	{"ends after the filter 5", V5, packet(0x82, uint16(1), props(), str("a/b")), MalformedPacket},
	{"ends after the filter 3.1.1", V311, packet(0x82, uint16(1), str("a/b")), MalformedPacket},
	{"ends after the second filter", V5, packet(0x82, uint16(1), props(), str("a"), 0, str("b")), MalformedPacket},
	{"filter cut", V5, packet(0x82, uint16(1), props(), uint16(5), "ab"), MalformedPacket},
	{"empty filter", V5, packet(0x82, uint16(1), props(), str(""), 0), MalformedPacket},
	{"filter with NUL", V311, packet(0x82, uint16(1), str("a\x00"), 0), MalformedPacket},
	{"filter not UTF-8", V5, packet(0x82, uint16(1), props(), str("\xf0\x9f"), 0), MalformedPacket},
	{"QoS 3 in 5", V5, packet(0x82, uint16(1), props(), str("a"), 3), ProtocolError},
	{"QoS 3 in 3.1.1", V311, packet(0x82, uint16(1), str("a"), 3), MalformedPacket},
	{"no local in 3.1.1", V311, packet(0x82, uint16(1), str("a"), 4), MalformedPacket},
	{"reserved option bit 6", V5, packet(0x82, uint16(1), props(), str("a"), 0x40), MalformedPacket},
	{"reserved option bit 7", V5, packet(0x82, uint16(1), props(), str("a"), 0x80), MalformedPacket},
	{"retain handling 3", V5, packet(0x82, uint16(1), props(), str("a"), 0x30), ProtocolError},
	{"no local on a shared subscription", V5, packet(0x82, uint16(1), props(), str("$share/g/a"), 4), ProtocolError},
	{"subscription id 0", V5, packet(0x82, uint16(1), props(propSubscriptionID, 0), str("a"), 0), ProtocolError},
	{"subscription id twice", V5, packet(0x82, uint16(1), props(propSubscriptionID, 1, propSubscriptionID, 1), str("a"), 0), ProtocolError},
	{"subscription id of five bytes", V5, packet(0x82, uint16(1), props(propSubscriptionID, 0x80, 0x80, 0x80, 0x80, 1), str("a"), 0), MalformedPacket},
	{"subscription id with a spare byte", V5, packet(0x82, uint16(1), props(propSubscriptionID, 0x81, 0), str("a"), 0), MalformedPacket},
	{"subscription id cut by its section", V5, packet(0x82, uint16(1), 2, propSubscriptionID, 0x81, 1, str("a"), 0), MalformedPacket},
	{"reason string in SUBSCRIBE", V5, packet(0x82, uint16(1), props(propReasonString, str("a")), str("a"), 0), MalformedPacket},
	{"too many filters", V311, packet(0x82, uint16(1), bytes.Repeat(cat(str("a"), 0), MaxFilters+1)), QuotaExceeded},
	{"unsubscribe packet id 0", V311, packet(0xA2, uint16(0), str("a")), ProtocolError},
	{"unsubscribe no filter", V311, packet(0xA2, uint16(1)), ProtocolError},
	{"unsubscribe no filter 5", V5, packet(0xA2, uint16(1), props()), ProtocolError},
	{"unsubscribe empty filter", V5, packet(0xA2, uint16(1), props(), str("")), MalformedPacket},
	{"unsubscribe filter cut", V5, packet(0xA2, uint16(1), props(), 0), MalformedPacket},
	{"unsubscribe with subscription id", V5, packet(0xA2, uint16(1), props(propSubscriptionID, 1), str("a")), MalformedPacket},
	{"unsubscribe filter with NUL", V5, packet(0xA2, uint16(1), props(), str("\x00")), MalformedPacket},
	{"unsubscribe too many filters", V311, packet(0xA2, uint16(1), bytes.Repeat(str("a"), MaxFilters+1)), QuotaExceeded},
}

var badDisconnects = []badCase{
	{"DISCONNECT with a body in 3.1.1", V311, packet(0xE0, 0), MalformedPacket},
	{"DISCONNECT reason 1", V5, packet(0xE0, 1), ProtocolError},
	{"DISCONNECT with a server's reason", V5, packet(0xE0, 0x8B), ProtocolError},
	{"DISCONNECT property length beyond", V5, packet(0xE0, 0, 5), MalformedPacket},
	{"DISCONNECT trailing", V5, packet(0xE0, 0, 0, 0), MalformedPacket},
	{"DISCONNECT session expiry twice", V5, packet(0xE0, 0, props(propSessionExpiry, uint32(1), propSessionExpiry, uint32(1))), ProtocolError},
	{"DISCONNECT session expiry cut", V5, packet(0xE0, 0, props(propSessionExpiry, 0, 0)), MalformedPacket},
	{"DISCONNECT server reference", V5, packet(0xE0, 0, props(propServerReference, str("x"))), ProtocolError},
	{"DISCONNECT topic alias", V5, packet(0xE0, 0, props(propTopicAlias, uint16(1))), MalformedPacket},
	{"AUTH reason only", V5, packet(0xF0, 0x18), MalformedPacket},
	{"AUTH reason 1", V5, packet(0xF0, 1, props(propAuthMethod, str("x"))), ProtocolError},
	{"AUTH without method", V5, packet(0xF0, 0x18, props(propAuthData, str("x"))), ProtocolError},
	{"AUTH method twice", V5, packet(0xF0, 0x18, props(propAuthMethod, str("x"), propAuthMethod, str("x"))), ProtocolError},
	{"AUTH trailing", V5, packet(0xF0, 0x18, props(propAuthMethod, str("x")), 1), MalformedPacket},
	{"AUTH property length beyond", V5, packet(0xF0, 0x18, 200, 1), MalformedPacket},
}

var badTables = map[string][]badCase{
	"header": badHeaders, "publish": badPublishes, "ack": badAcks, "connect": badConnects,
	"subscribe": badSubscribes, "disconnect": badDisconnects,
}

func TestMalformedPacketsAreRefusedWithTheirReason(t *testing.T) {
	for table, cases := range badTables {
		for _, c := range cases {
			t.Run(table+"/"+c.name, func(t *testing.T) {
				v, err := parse(c.raw, c.version)
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("% x: got %+v, error %v; want reason 0x%02X", c.raw, v, err, c.reason)
				}
				if e.Reason != c.reason {
					t.Fatalf("% x: %v; want reason 0x%02X", c.raw, e, c.reason)
				}
				if e.What == "" || strings.Contains(e.What, "undecodable") {
					t.Fatalf("refused for no reason of ours: %v", e)
				}
			})
		}
	}
}

// Every prefix of a packet's body, under a header that says the body ends
// there, is either a packet of its own or an *Error: nothing panics, and
// nothing reads on.
func TestTruncatedBodies(t *testing.T) {
	for name, c := range goldenInbound() {
		_, n, err := ParseHeader(c.raw)
		if err != nil {
			t.Fatal(err)
		}
		body := c.raw[n:]
		for cut := range body {
			raw := packet(c.raw[0], body[:cut:cut])
			if _, err := parse(raw, c.version); err != nil {
				var e *Error
				if !errors.As(err, &e) || strings.Contains(e.What, "undecodable") {
					t.Fatalf("%s cut at %d: %v", name, cut, err)
				}
			}
		}
	}
}
