package mirror

import (
	"bytes"
	"strings"
	"testing"
)

func TestCursorBytes(t *testing.T) {
	p := producer{id: 0x0102030405060708, epoch: 9, cluster: "eu", topic: [16]byte{15: 0xff}}
	want := []byte("\x01\x02eu" + strings.Repeat("\x00", 15) + "\xff" + "\x01\x02\x03\x04\x05\x06\x07\x08" + "\x00\x09" + "\x7f\xff\xff\xff")
	got := appendCursor(nil, p, 1<<31-1)
	if !bytes.Equal(got, want) {
		t.Fatalf("cursor\n%x, want\n%x", got, want)
	}
	back, seq, err := parseCursor(got)
	if err != nil || back != p || seq != 1<<31-1 {
		t.Fatalf("%+v, %d, %v", back, seq, err)
	}
	for n := range got {
		if _, _, err := parseCursor(got[:n]); err == nil {
			t.Errorf("%d of %d bytes are taken for a cursor", n, len(got))
		}
	}
	if _, _, err := parseCursor(append([]byte{2}, got[1:]...)); err == nil {
		t.Error("another version is taken for ours")
	}
	if _, _, err := parseCursor(append(got, 0)); err == nil {
		t.Error("a byte too many is taken")
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(appendCursor(nil, producer{id: 1, cluster: "x"}, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, seq, err := parseCursor(b)
		if err != nil {
			return
		}
		if q, again, err := parseCursor(appendCursor(nil, p, seq)); err != nil || q != p || again != seq {
			t.Errorf("%+v %d becomes %+v %d: %v", p, seq, q, again, err)
		}
	})
}

func TestSequenceAfter(t *testing.T) {
	for _, tt := range []struct {
		from int32
		n    int64
		want int32
	}{{0, 1, 1}, {1<<31 - 2, 1, 1<<31 - 1}, {1<<31 - 1, 1, 0}, {1<<31 - 1, 5, 4}, {0, 1 << 31, 0}, {7, 3<<31 + 1, 8}} {
		if got := sequenceAfter(tt.from, tt.n); got != tt.want {
			t.Errorf("%d + %d = %d, want %d", tt.from, tt.n, got, tt.want)
		}
	}
}
