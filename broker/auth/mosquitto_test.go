package auth

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicemq/sluice/internal/mosquitto"
)

// TestACLAgainstMosquitto asks the real broker about random files, by version 5's PUBACK: it says who may not publish.
func TestACLAgainstMosquitto(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	files := 12
	if testing.Short() {
		files = 3
	}
	asked, allowed := 0, 0
	for range files {
		text := randomACL(r)
		file := filepath.Join(t.TempDir(), "acl")
		put(t, file, text)
		address := mosquitto.Start(t, "acl_file "+file+"\n")
		a := testAuthenticator(t, text)
		for i, who := range []identity{
			newIdentity("", false, "c1"), newIdentity("u1", true, "c2"), newIdentity("u2", true, "c/3"), newIdentity("u1", true, "c+"),
			newIdentity("u#", true, "c5"), newIdentity("none", true, "c1u1"), newIdentity("u3", true, "u3"),
		} {
			p := dialMosquitto(t, address, who)
			c := a.Client(User{Name: who.user, Named: who.named}, who.clientID)
			for range 40 {
				topic := randomTopic(r)
				want := p.mayPublish(topic)
				if got := c.MayPublish([]byte(topic)); got != want {
					t.Fatalf("seed %d: client %d, %+v, %q: %v, mosquitto %v, by\n%s", seed, i, who, topic, got, want, text)
				}
				asked++
				if want {
					allowed++
				}
			}
			p.Close()
		}
	}
	t.Logf("%d questions, %d allowed", asked, allowed)
	if allowed == 0 || allowed == asked {
		t.Error("the files tell nobody apart")
	}
}

type mosquittoClient struct {
	net.Conn
	t *testing.T
}

// dialMosquitto connects with version 5.
func dialMosquitto(t *testing.T, address string, who identity) mosquittoClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	flags := byte(2)
	if who.named {
		flags |= 128
	}
	body := append([]byte("\x00\x04MQTT\x05"), flags, 0, 0, 0)
	body = appendField(body, who.clientID)
	if who.named {
		body = appendField(body, who.user)
	}
	c := mosquittoClient{conn, t}
	c.send(0x10, body)
	if kind, ack := c.read(); kind != 0x20 || ack[1] != 0 {
		t.Fatalf("%+v: CONNACK %x % x", who, kind, ack)
	}
	return c
}

func appendField(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func (c mosquittoClient) send(first byte, body []byte) {
	c.t.Helper()
	if _, err := c.Write(append([]byte{first, byte(len(body))}, body...)); err != nil { // none has 128 bytes
		c.t.Fatal(err)
	}
}

func (c mosquittoClient) read() (first byte, body []byte) {
	c.t.Helper()
	var header [2]byte
	_, err := io.ReadFull(c, header[:])
	body = make([]byte, header[1])
	if err == nil {
		_, err = io.ReadFull(c, body)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return header[0], body
}

func (c mosquittoClient) mayPublish(topic string) bool {
	c.t.Helper()
	c.send(0x32, append(appendField(nil, topic), 0, 7, 0))
	kind, ack := c.read()
	if kind != 0x40 {
		c.t.Fatalf("%q: %x % x, not PUBACK", topic, kind, ack)
	}
	return len(ack) < 3 || ack[2] != 0x87
}
