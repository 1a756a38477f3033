// Package mosquitto runs the real mosquitto for tests that hold the broker against it.
package mosquitto

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

// patience is how long it may take to listen.
const patience = 10 * time.Second

// Start runs mosquitto until the test ends, on an address of its own, which it returns when it accepts connections. config is added to
// its configuration, which lets everybody in. Without a mosquitto the test is skipped, or fails if SLUICE_REQUIRE lists it.
func Start(t testing.TB, config string) (address string) {
	t.Helper()
	program := find(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(address)
	file := filepath.Join(t.TempDir(), "mosquitto.conf")
	config = fmt.Sprintf("user root\nlistener %s 127.0.0.1\nallow_anonymous true\n%s", port, config)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-c", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func find(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		program = "/usr/sbin/mosquitto" // where Debian has it, which is in root's PATH only
	}
	if _, err := os.Stat(program); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SLUICE_REQUIRE"), ","), "mosquitto") {
			t.Fatal("there is no mosquitto, and SLUICE_REQUIRE lists it")
		}
		t.Skip("there is no mosquitto")
	}
	return program
}
