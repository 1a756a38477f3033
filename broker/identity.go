package broker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/sluicemq/sluice/segment"
)

// identityKey keeps a made-up gateway id in the log's state.
const identityKey = "gateway/id"

// gatewayID is the configured id; else the one that was made up earlier, which must stay although a machine id may have
// appeared since: it names topics in the region; else a hash of the machine id; else a new one, durable when this returns.
func gatewayID(configured, machineIDFile string, log *segment.Log) (id, source string, err error) {
	if configured != "" {
		return configured, "configuration", nil
	}
	kept, ok, err := log.Get([]byte(identityKey))
	if err != nil {
		return "", "", fmt.Errorf("read the gateway's id: %w", err)
	}
	if ok && segment.ValidTopicName(string(kept)) == nil {
		return string(kept), "made up at an earlier start", nil
	}
	if id, ok := hashMachineID(machineIDFile); ok {
		return id, "machine id", nil
	}
	var random [8]byte
	rand.Read(random[:])
	id = hex.EncodeToString(random[:])
	ticket, err := log.Put([]byte(identityKey), []byte(id))
	if err == nil {
		err = ticket.Wait(context.Background())
	}
	if err != nil {
		return "", "", fmt.Errorf("keep the gateway's id: %w", err)
	}
	return id, "made up", nil
}

// hashMachineID hashes the machine id (machine-id(5): 32 hexadecimal digits). That page asks programs not to show the id
// itself but a hash of it and a fixed text of theirs.
func hashMachineID(file string) (string, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	text := strings.TrimSpace(string(data))
	if raw, err := hex.DecodeString(text); err != nil || len(raw) != 16 {
		return "", false // "uninitialized" during the first boot
	}
	sum := sha256.Sum256([]byte("sluice gateway id\x00" + text))
	return hex.EncodeToString(sum[:8]), true
}

// newIncarnation marks one start of the process. Never 0, which stands for none.
func newIncarnation() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		if n := binary.BigEndian.Uint32(b[:]); n != 0 {
			return n
		}
	}
}
