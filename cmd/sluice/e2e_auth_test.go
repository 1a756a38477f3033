//go:build linux

package main_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A gateway of twenty users as mosquitto guards it: a password file by mosquitto_passwd, an ACL file, and sixty messages that some may
// publish and some may receive.
const migrationUsers = 20

func migrationUser(i int) (name, password string) {
	return fmt.Sprintf("user%02d", i), fmt.Sprintf("pass word %d", i)
}

const migrationACL = `# clients without a name
topic read public/#

user user00
topic readwrite #
topic read $SYS/#

user user01
topic read plant/#
topic deny plant/+/secret
topic deny plant/2/#

user user02
topic write plant/1/+
topic write plant/2/+
topic deny plant/2/hidden

user user03
topic plant/3/#
topic deny plant/3
topic read plant/+/temperature

user user04
topic read with spaces/in it
topic write with spaces/in it
topic write public/#

user user05
topic write #
topic deny plant/#

user user06
topic read +/+/temperature

user user07
topic read +

user user08
topic read /leading/#
topic write /leading/+

user user09
topic write $SYS/broker/connection/+/state
topic write a/+/temperature

# user01 goes on
user user01
topic read extra/user01

pattern read devices/%c/commands/#
pattern write devices/%c/state
pattern readwrite home/%u/#
pattern deny home/%u/locked
pattern deny devices/+/forbidden
pattern write mailbox/%u-%c
pattern read marker/#
`

// migrationProbes are messages: who sends what, by which client id (pub-NAME when it is empty).
var migrationProbes = []struct{ user, id, topic string }{
	{"user00", "", "plant/1/temperature"}, {"user00", "", "plant/1/secret"}, {"user00", "", "plant/2/temperature"}, {"user00", "", "plant"},
	{"user00", "", "plant/3"}, {"user00", "", "plant/3/x/y"}, {"user00", "", "with spaces/in it"}, {"user00", "", "public"},
	{"user00", "", "public/news"}, {"user00", "", "single"}, {"user00", "", "/leading/a"}, {"user00", "", "leading/a"},
	{"user00", "", "plant/9/hidden/deep"}, {"user00", "", "$SYS/x"}, {"user00", "", "$SYS/broker/connection/b/state"}, {"user00", "", "extra/user01"},
	{"user00", "", "devices/user10/commands/reboot"}, {"user00", "", "devices/user11/commands"}, {"user00", "", "devices/user12/forbidden"},
	{"user00", "", "home/user13/light"}, {"user00", "", "home/user14/locked"}, {"user00", "", "home/user15"}, {"user00", "", "home/user16/a/b"},
	{"user00", "", "home//x"}, {"user00", "", "a/b/temperature"}, {"user00", "", "Plant/1/temperature"},
	{"user01", "", "plant/1/temperature"}, {"user01", "", "extra/user01"}, {"user01", "", "home/user01/light"}, {"user01", "", "home/user02/light"},
	{"user02", "", "plant/1/temperature"}, {"user02", "", "plant/1/a/b"}, {"user02", "", "plant/2/temperature"}, {"user02", "", "plant/2/hidden"},
	{"user02", "", "plant/4/temperature"}, {"user03", "", "plant/3/temperature"}, {"user03", "", "plant/3"}, {"user03", "", "plant/1/temperature"},
	{"user04", "", "with spaces/in it"}, {"user04", "", "with spaces"}, {"user04", "", "public/from04"}, {"user05", "", "plant/1/temperature"},
	{"user05", "", "single"}, {"user05", "", "a/b/temperature"}, {"user05", "", "public"}, {"user06", "", "a/b/temperature"},
	{"user08", "", "/leading/b"}, {"user08", "", "/leading/b/c"}, {"user09", "", "a/b/temperature"}, {"user09", "", "a//temperature"},
	{"user10", "", "devices/user10/state"}, {"user10", "device7", "devices/device7/state"}, {"user10", "device7", "devices/user10/state"},
	{"user11", "a/b", "devices/a/b/state"}, {"user12", "x+y", "home/user12/x"}, {"user13", "", "mailbox/user13-user13"},
	{"user13", "id", "mailbox/user13-id"}, {"user13", "", "home/user13/locked"}, {"user14", "#", "home/user14/x"}, {"", "", "public/anonymous"},
}

// guardedPeer is a broker that guards its topics by the two files.
type guardedPeer struct {
	port string
	subs []subscriber
}

func (p *guardedPeer) pub(t *testing.T, user, id, topic, payload string, args ...string) (ok bool) {
	t.Helper()
	args = append([]string{"-p", p.port, "-q", "1", "-t", topic, "-m", payload}, args...)
	if user != "" {
		var i int
		fmt.Sscanf(user, "user%d", &i)
		_, password := migrationUser(i)
		args = append(args, "-u", user, "-P", password)
	}
	if id == "" {
		id = "pub-" + user // a user's subscriber has the name itself
	}
	args = append(args, "-i", id)
	_, _, err := tryRun(t, 20*time.Second, "mosquitto_pub", args...)
	return err == nil
}

// listen makes a subscriber of each user, for everything there may be.
func (p *guardedPeer) listen(t *testing.T) {
	t.Helper()
	for i := range migrationUsers {
		name, password := migrationUser(i)
		p.subs = append(p.subs, p.sub(t, "-u", name, "-P", password, "-i", name))
	}
}

func (p *guardedPeer) sub(t *testing.T, args ...string) subscriber {
	t.Helper()
	all := append([]string{"-oL", "mosquitto_sub", "-d", "-q", "1", "-p", p.port, "-F", messageMark + "%t %p", "-t", "#", "-t", "$SYS/broker/connection/#"}, args...)
	s := subscriber{spawn(t, "stdbuf", all...)}
	wait(t, 20*time.Second, "SUBACK for mosquitto_sub", func() bool {
		if !s.alive() {
			t.Fatalf("mosquitto_sub ended: %v\n%s", s.err, s.stderr.String())
		}
		return strings.Contains(s.stdout.String(), "Subscribed (mid: 1)")
	})
	return s
}

// markers end a test: with one for each of many topics behind them, all messages before have been delivered in each partition.
const markers = 24

// deliveries are what each subscriber got, once everything was delivered.
func (p *guardedPeer) deliveries(t *testing.T) (all [][]string) {
	t.Helper()
	for i := range markers {
		if !p.pub(t, "user00", "marker", fmt.Sprintf("marker/%d", i), "marker") {
			t.Fatal("a marker can't be published")
		}
	}
	for i, s := range p.subs {
		wait(t, 20*time.Second, fmt.Sprintf("all markers at subscriber %d", i), func() bool {
			return strings.Count(s.stdout.String(), messageMark+"marker/") == markers
		})
		got := slices.DeleteFunc(s.messages(), func(m string) bool { return strings.HasPrefix(m, "marker/") })
		slices.Sort(got)
		all = append(all, got)
	}
	return all
}

// testMigration: with only the two paths given, sluice delivers what mosquitto delivers.
func (r *rig) testMigration(t *testing.T) {
	need(t, "mosquitto")
	for _, command := range []string{mosquittoBroker(), "mosquitto_passwd"} {
		if _, err := exec.LookPath(command); err != nil {
			missing(t, required("mosquitto"), "mosquitto: %s is not there", command)
		}
	}
	dir := r.dir(t)
	passwords, acl := filepath.Join(dir, "passwd"), filepath.Join(dir, "acl")
	for i := range migrationUsers {
		name, password := migrationUser(i)
		args := []string{"-b", passwords, name, password}
		switch {
		case i == 0:
			args = slices.Insert(args, 0, "-c")
		case i%3 == 0:
			args = slices.Insert(args, 0, "-H", "sha512")
		}
		run(t, 20*time.Second, "mosquitto_passwd", args...)
	}
	if err := os.WriteFile(acl, []byte(migrationACL), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(migrationProbes) != 60 {
		t.Fatalf("%d probes", len(migrationProbes))
	}
	theirs := startMosquitto(t, dir, passwords, acl)
	g := r.gateway(t, fmt.Sprintf("version: 1\nmqtt: {auth: {password_file: %q, acl_file: %q}}\n", passwords, acl))
	g.start(t)
	ours := &guardedPeer{port: g.port()}

	var want, got [][]string
	for _, p := range []*guardedPeer{theirs, ours} {
		p.listen(t)
		for i, probe := range migrationProbes {
			p.pub(t, probe.user, probe.id, probe.topic, fmt.Sprint("probe ", i))
		}
		if p.pub(t, "", "x", "single", "wrong", "-u", "user00", "-P", "wrong") || p.pub(t, "", "x", "single", "unknown", "-u", "nobody", "-P", "x") {
			t.Errorf("port %s: somebody is let in with a wrong password", p.port)
		}
		got = p.deliveries(t)
		if p == theirs {
			want = got
		}
	}
	allowed := 0
	for i := range want {
		allowed += len(want[i])
		if !slices.Equal(got[i], want[i]) {
			name, _ := migrationUser(i)
			t.Errorf("%s: sluice delivered\n%s\nand mosquitto\n%s", name, strings.Join(got[i], "\n"), strings.Join(want[i], "\n"))
		}
	}
	t.Logf("%d of %d deliveries are allowed", allowed, migrationUsers*len(migrationProbes))
	if allowed < 60 {
		t.Error("hardly anything was delivered at all")
	}
	g.stop(t)
}

// startMosquitto runs the broker with the two files.
func startMosquitto(t *testing.T, dir, passwords, acl string) *guardedPeer {
	t.Helper()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "mosquitto.conf")
	// Root is given up for the user mosquitto otherwise, who may not read the files.
	text := fmt.Sprintf("user root\nlistener %s 127.0.0.1\npassword_file %s\nacl_file %s\n", port, passwords, acl)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, mosquittoBroker(), "-c", config)
	wait(t, 20*time.Second, "mosquitto accepts connections", func() bool {
		if !p.alive() {
			t.Fatalf("mosquitto ended: %v\n%s", p.err, p.stderr.String())
		}
		return accepts("127.0.0.1:" + port)
	})
	return &guardedPeer{port: port}
}

// mosquittoBroker is the broker's path. Debian has it where only root's PATH leads.
func mosquittoBroker() string {
	if path, err := exec.LookPath("mosquitto"); err == nil {
		return path
	}
	return "/usr/sbin/mosquitto"
}
