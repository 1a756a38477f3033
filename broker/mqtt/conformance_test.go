package mqtt

import (
	"bytes"
	"cmp"
	flags "flag" // the package has a flag of its own
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicemq/sluice/broker/mqtt/wire"
)

var updateDocs = flags.Bool("update", false, "write docs/mqtt-conformance.md from the tables of TestConformanceTable")

// statement is one normative statement of a standard.
type statement struct {
	id    string // without "MQTT-"
	binds binds
	what  string // in short
	tests string // names of tests, "package." before those of others; those of TestViolations are found by themselves
	note  string // says why there is no test, or what there is to know beside it
}

// binds says whom a statement is for.
type binds string

const (
	serverOnly binds = "server"
	clientOnly binds = "client"
	bothSides  binds = "both"
)

// brokerCase is one that other brokers get wrong.
type brokerCase struct{ letter, what, tests string }

var brokerCases = []brokerCase{
	{"a", "a version 5 SUBSCRIBE that ends behind its filter closes that client and nothing else", "TestViolations/SUBSCRIBE that ends behind its filter"},
	{"b", "a subscriber with receive maximum 5 gets all of 50 messages of QoS 1, in order", "TestSendWindow"},
	{"c", "200 messages that were queued for a client come in order", "TestOfflineQueue"},
	{"d", "of what was queued no more than the receive maximum is sent unacknowledged, without DUP", "TestOfflineQueue"},
	{"e", "a queued message larger than the client takes is discarded, and the rest is delivered", "TestOfflineMessageTooLarge TestClientsMaximumPacketSize"},
	{"f", "a subscriber without keepalive that stops reading holds no publisher up", "TestStuckSubscriber"},
	{"g", "a stuck client that connects again gets in at once", "TestStuckSubscriber"},
	{"h", "SUBSCRIBE under the packet id of an unacknowledged message is granted", "TestPacketIDSpaces"},
	{"i", "a client's own PUBLISH under that id leaves the message where it is", "TestOwnPacketIDKeepsTheDelivery"},
	{"j", "a keepalive of 43,691 s and more is kept", "TestKeepalive TestOverdue"},
	{"k", "a connection without CONNECT costs little and is closed after seconds", "TestConnectTimeout TestTooManySockets TestTransportsDeadline TestIdleConnectionBytes"},
	{"l", "a header that announces 256 MB takes no memory", "TestFirstPacket wire.TestHugeAnnouncementAllocatesNothing"},
	{"m", "the listener outlives a time without file descriptors", "TestOutOfDescriptors"},
	{"n", "sessions that expire take their subscriptions along", "TestExpiredSessionsLeaveNothing"},
	{"o", "retained messages are kept whatever the wall clock does", "TestRetainedExpiryIsOfTheLogsClock TestRetainedSurvives"},
	{"p", "a delayed will has its properties, and no others", "TestDelayedWill TestWillProperties"},
	{"q", "a version 3.1.1 client that is taken over is sent no DISCONNECT", "TestTakeOver"},
	{"r", "a remaining length of more than four bytes is malformed", "TestProtocolErrorsAfterConnect TestFirstPacket TestViolations/remaining length of five bytes"},
	{"s", "QoS 1 to a topic that begins with $ is acknowledged", "TestDollarTopicsAreAcknowledgedOnly"},
	{"t", "access rules match topics as filters do, to the last level", "TestDeniedPublish TestDeliveriesAreChecked auth.TestProbes auth.TestEmptyACLDeniesAll auth.TestACLAgainstNaive auth.TestACLAgainstMosquitto"},
	{"u", "a will is published only where its client may publish", "TestWillIsChecked"},
	{"v", "the broker stops while clients connect: no race, no hang", "TestCloseWhileClientsConnect TestManySuccessors"},
	{"w", "acknowledgements, deliveries and take-overs of one session at once don't lock each other out", "TestTakeOverLosesNothing TestCrowd"},
	{"x", "a message that comes during a take-over is not lost", "TestTakeOverLosesNothing"},
	{"y", "QoS 2 with DUP is not doubled, invalid UTF-8 closes its client alone, wills stay in order in a take-over", "TestQoS2IsStoredOnce TestViolations/topic that isn't UTF-8 TestTakeOverWillOrder TestRetainedWill"},
	{"z", "malformed CONNECTs are refused", "TestViolations wire.TestMalformedPacketsAreRefusedWithTheirReason"},
}

// refusedFilter is a choice: a filter that isn't one could as well close the connection.
const refusedFilter = "such a filter is refused in SUBACK, and the other filters and the connection stay"

// TestConformanceTable wants a test or a reason in each row, tests that exist, all statements in their order, and docs/mqtt-conformance.md as
// the tables have it.
func TestConformanceTable(t *testing.T) {
	checkNumbers(t, "3.1.1", statements311, 141, nil)
	checkNumbers(t, "5", statements5, 251, map[string]int{"2.2.1": 2})
	known := testsOf(t, map[string]string{"": ".", "wire": "wire", "topics": "topics", "retained": "retained", "websocket": "websocket", "auth": "../auth"})
	var doc bytes.Buffer
	doc.WriteString(conformanceHead)
	writeStatements(t, &doc, known, "MQTT 3.1.1", statements311, at311)
	writeStatements(t, &doc, known, "MQTT 5", statements5, at5)
	doc.WriteString("\n## Cases that break other brokers\n\n| | right result | tests |\n| --- | --- | --- |\n")
	for _, c := range brokerCases {
		writeRow(t, &doc, known, "case "+c.letter, splitTests(c.tests), []string{c.letter, c.what})
	}
	doc.WriteString("\n## Violations\n\n| packet | breaks in 3.1.1 | answer | breaks in 5 | answer |\n| --- | --- | --- | --- | --- |\n")
	for _, v := range violations() {
		fmt.Fprintf(&doc, "| %s | %s | %s | %s | %s |\n", v.name, v.old, v.answerText(at311), v.new, v.answerText(at5))
	}
	checkDoc(t, "../../docs/mqtt-conformance.md", doc.Bytes())
}

// answerText is the answer in words.
func (v *violation) answerText(version int) string {
	p := v.answer[version]
	if v.raw[version] == nil || p == nil {
		return ""
	}
	var text []string
	if len(p) > 0 {
		kind := wire.Type(p[0] >> 4)
		code := p[len(p)-1]
		switch {
		case kind == wire.CONNACK:
			code = p[3]
		case kind == wire.UNSUBACK && version == at311, (kind == wire.PUBREL || kind == wire.PUBCOMP) && p[1] == 2:
			code = 0
		}
		if text = append(text, kind.String()); code != 0 {
			text[0] += fmt.Sprintf(" 0x%02X", code)
		}
	}
	if !v.open {
		text = append(text, "close")
	}
	return cmp.Or(strings.Join(text, ", "), "none")
}

func writeStatements(t *testing.T, doc *bytes.Buffer, known map[string]bool, title string, list []statement, version int) {
	fmt.Fprintf(doc, "\n## %s\n\n| statement | binds | in short | tests | |\n| --- | --- | --- | --- | --- |\n", title)
	broken := violationsOf(version)
	for i := range list {
		s := &list[i]
		tests := append(splitTests(s.tests), violationTests(broken[s.id])...)
		writeRow(t, doc, known, title+" "+s.id, tests, []string{"MQTT-" + s.id, string(s.binds), s.what}, s.note)
		delete(broken, s.id)
	}
	for id, names := range broken {
		t.Errorf("%s has no statement %s, which %q names", title, id, names)
	}
}

// violationsOf are the names of the rules of TestViolations, by statement.
func violationsOf(version int) map[string][]string {
	names := map[string][]string{}
	for _, v := range violations() {
		if v.raw[version] == nil {
			continue
		}
		for _, id := range strings.Fields([2]string{v.old, v.new}[version]) {
			names[id] = append(names[id], v.name)
		}
	}
	return names
}

// violationTests are some of TestViolations, as a row has them.
func violationTests(names []string) (list []string) {
	if len(names) > 3 {
		return []string{fmt.Sprintf("TestViolations, %d packets", len(names))}
	}
	for _, name := range names {
		list = append(list, "TestViolations/"+name)
	}
	return list
}

// splitTests takes names apart that have spaces in what is behind their slash.
func splitTests(tests string) (list []string) {
	for _, word := range strings.Fields(tests) {
		name := word[strings.LastIndexByte(word, '.')+1:]
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
			list = append(list, word)
		} else {
			list[len(list)-1] += " " + word
		}
	}
	return list
}

// writeRow writes a row of a table: cells, tests and more cells, which say why there are no tests if there are none.
func writeRow(t *testing.T, doc *bytes.Buffer, known map[string]bool, row string, tests, cells []string, notes ...string) {
	t.Helper()
	if len(tests) == 0 && strings.Join(notes, "") == "" {
		t.Errorf("%s has neither a test nor a reason", row)
	}
	seen := map[string]bool{}
	for _, name := range tests {
		if name, _, _ := strings.Cut(name, ", "); !known[name] {
			t.Errorf("%s: there is no %s", row, name)
		}
		if seen[name] {
			t.Errorf("%s names %s twice", row, name)
		}
		seen[name] = true
	}
	cells = append(append(cells, strings.Join(tests, "; ")), notes...)
	fmt.Fprintf(doc, "| %s |\n", strings.Join(cells, " | "))
}

// testsOf are the names of all tests of some packages, and those of TestViolations.
func testsOf(t *testing.T, packages map[string]string) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for name, dir := range packages {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					known[strings.TrimPrefix(name+"."+fn.Name.Name, ".")] = true
				}
			}
		}
	}
	for _, v := range violations() {
		if known["TestViolations/"+v.name] {
			t.Errorf("two violations are called %q", v.name)
		}
		known["TestViolations/"+v.name] = true
	}
	return known
}

// checkNumbers wants n statements that are in order, without a gap: each section's numbers begin at 1 unless first says otherwise.
func checkNumbers(t *testing.T, version string, list []statement, n int, first map[string]int) {
	t.Helper()
	if len(list) != n {
		t.Errorf("%d statements of MQTT %s, not %d", len(list), version, n)
	}
	section, next := "", 0
	done := map[string]bool{}
	for _, s := range list {
		in, number, _ := strings.Cut(s.id, "-")
		if in != section {
			if done[in] {
				t.Errorf("MQTT %s: section %s comes twice", version, in)
			}
			section, next, done[in] = in, max(1, first[in]), true
		}
		if got, err := strconv.Atoi(number); err != nil || got != next {
			t.Errorf("MQTT %s: %s where %d is next", version, s.id, next)
		}
		next++
	}
}

// checkDoc compares a document with what it is generated from.
func checkDoc(t *testing.T, path string, content []byte) {
	t.Helper()
	if *updateDocs && !t.Failed() {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
		t.Errorf("%s is not what the tables have: go test ./broker/mqtt -run TestConformanceTable -update (%v)", path, err)
	}
}

const conformanceHead = `# MQTT conformance

Each normative statement of MQTT 3.1.1 and MQTT 5, as their appendices B number them, with the tests that hold the broker to
it. Generated by TestConformanceTable in broker/mqtt, which fails when a test that is named here doesn't exist, when a row has
neither a test nor a reason, or when this page is not what its tables have: ` + "`go test ./broker/mqtt -run TestConformanceTable -update`" + `.

- The statements are named in a few words; what they ask for exactly is in the standards: OASIS, MQTT Version 3.1.1 (29 October
  2014, 141 statements) and MQTT Version 5.0 (7 March 2019, 251 statements). None is left out.
- "binds" says whom a statement is for. Of those for clients alone the tests are about what the broker makes of a violation.
- Tests without a package are of broker/mqtt. TestViolations sends each packet that breaks a rule and compares the answer to the byte:
  CONNACK's code, DISCONNECT's reason and the close, an acknowledgement's reason; in version 3.1.1 a close without a packet.
- "Violations" are the packets of TestViolations; the bytes are in its tables. "none": the connection stays open.
- The last column says why there is no test, or what there is to know beside it.
`
