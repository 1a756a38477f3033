// Command tlsminimum is the least that a TLS server in Go can be: a goroutine for each connection that reads into a few bytes. It
// answers CONNECT and PINGREQ of MQTT 3.1.1, so that scripts/mqttload can hold connections to it. scripts/connmemory measures
// what it takes for a connection, as the mark for the broker's own.
//
//	tlsminimum ADDRESS CERT KEY
package main

import (
	"crypto/tls"
	"log"
	"os"
	"runtime/debug"
)

func main() {
	debug.SetGCPercent(50) // as the broker
	cert, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	l, err := tls.Listen("tcp", os.Args[1], &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("msg=ready")
	for {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go greet(c.(*tls.Conn))
	}
}

// greet goes on in another goroutine: the handshake has grown this one's stack.
func greet(c *tls.Conn) {
	if c.Handshake() != nil {
		c.Close()
		return
	}
	go serve(c)
}

func serve(c *tls.Conn) {
	defer c.Close()
	var b [64]byte
	for {
		n, err := c.Read(b[:])
		if err != nil || n == 0 {
			return
		}
		switch b[0] >> 4 {
		case 1: // CONNECT
			c.Write([]byte{0x20, 2, 0, 0})
		case 12: // PINGREQ
			c.Write([]byte{0xD0, 0})
		case 14: // DISCONNECT
			return
		}
	}
}
