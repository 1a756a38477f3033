package broker

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicemq/sluice/broker/admission"
	"github.com/sluicemq/sluice/broker/auth"
)

func passwordLine(user, password string) string {
	salt := make([]byte, 12)
	rand.Read(salt)
	sum := sha512.Sum512(append([]byte(password), salt...))
	return fmt.Sprintf("%s:$6$%s$%s\n", user, base64.StdEncoding.EncodeToString(salt), base64.StdEncoding.EncodeToString(sum[:]))
}

// connect sends a version 3.1.1 CONNECT by hand and returns CONNACK's return code.
func connect(t *testing.T, b *Broker, user, password string) (c net.Conn, code byte) {
	t.Helper()
	c, err := net.Dial("tcp", b.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	body := []byte("\x00\x04MQTT\x04\xC2\x00\x00")
	for _, field := range []string{"id-" + user, user, password} {
		body = append(append(body, 0, byte(len(field))), field...)
	}
	if _, err := c.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		t.Fatal(err)
	}
	var ack [4]byte
	if _, err := io.ReadFull(c, ack[:]); err != nil || ack[0] != 0x20 {
		t.Fatalf("CONNACK % x, %v", ack, err)
	}
	return c, ack[3]
}

// TestAccessFollowsItsFiles: the two paths are all that is given; a file that changes is taken up by itself, a bad one isn't.
func TestAccessFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(filepath.Join(dir, "data"))
	o.MQTT.Listeners[0].AllowAnonymous = false
	o.Access = auth.Options{PasswordFile: filepath.Join(dir, "passwd"), ACLFile: filepath.Join(dir, "acl")}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alice := passwordLine("alice", "secret")
	write(o.Access.PasswordFile, alice+passwordLine("bob", "hunter2"))
	write(o.Access.ACLFile, "pattern # # not a comment\n")
	b, said := newTestBroker(t, o)
	var config *ConfigError
	if err := b.Start(); !errors.As(err, &config) || !strings.Contains(err.Error(), o.Access.ACLFile+":1: access type") {
		t.Fatalf("with a bad ACL file: %v", err)
	}
	write(o.Access.ACLFile, "topic #\n")
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for user, want := range map[string]byte{"alice": 0, "mallory": 4} {
		if _, code := connect(t, b, user, "secret"); code != want {
			t.Errorf("%s: return code %d, want %d", user, code, want)
		}
	}
	bob, code := connect(t, b, "bob", "hunter2")
	if code != 0 {
		t.Fatalf("bob: return code %d", code)
	}

	write(o.Access.PasswordFile, alice[:20]) // bad: nothing happens but a line in the log, by the watch over the files
	waitFor(t, func() bool { return strings.Contains(said.String(), o.Access.PasswordFile+":1: ") })
	if _, err := bob.Write([]byte{0xC0, 0}); err != nil {
		t.Fatal(err)
	}
	var pong [2]byte
	if _, err := io.ReadFull(bob, pong[:]); err != nil || !bytes.Equal(pong[:], []byte{0xD0, 0}) {
		t.Fatalf("bob after a bad file: % x, %v", pong, err)
	}

	write(o.Access.PasswordFile, alice) // no bob
	b.Reload()
	if _, err := bob.Read(pong[:]); !errors.Is(err, io.EOF) {
		t.Errorf("bob is still connected: %v", err)
	}
	if _, code := connect(t, b, "alice", "secret"); code != 0 {
		t.Errorf("alice: return code %d", code)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("it did not happen in time")
		case <-tick.C:
		}
	}
}

func TestArgonMemory(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 64 << 20, 16 << 20: 8 << 20, 64 << 20: 16 << 20, 200 << 20: 50 << 20, 8 << 30: 64 << 20} {
		if got := argonMemory(admission.Memory{Bytes: bytes}); got != want {
			t.Errorf("%d bytes: %d, want %d", bytes, got, want)
		}
	}
}
