package mm2

import (
	"strings"
	"testing"
)

func TestInternal(t *testing.T) {
	for name, want := range map[string]bool{
		"mqtt": false, "telemetry.raw": false, "internal": false, "internal.x": false, "_x": false,
		"__consumer_offsets": true, ".hidden": true, "mm2-offset-syncs.a.internal": true, "a.checkpoints.internal": true,
		"connect-internal": true,
	} {
		if got := Internal(name); got != want {
			t.Errorf("Internal(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	if got := RemoteTopic("plant-7", "mqtt"); got != "plant-7.mqtt" {
		t.Errorf("RemoteTopic = %q", got)
	}
	for name, want := range map[string]bool{
		"a": true, "A.b_c-9": true, strings.Repeat("x", MaxTopicBytes): true,
		"": false, ".": false, "..": false, "a/b": false, "ä": false, "a b": false, strings.Repeat("x", MaxTopicBytes+1): false,
	} {
		if got := ValidName(name); got != want {
			t.Errorf("ValidName(%q) = %v, want %v", name, got, want)
		}
	}
}
