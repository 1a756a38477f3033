package record

import (
	"testing"

	"go.uber.org/goleak"
)

// The package promises to start no goroutines, though its compressors could.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
