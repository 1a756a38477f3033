package retained

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

var codec = Codec{MaxKeyBytes: 32768}

func TestCodec(t *testing.T) {
	for _, topic := range []string{"t", "/", strings.Repeat("a", 32768-7), strings.Repeat("a", 32768-6), strings.Repeat("a", 65535)} {
		for _, m := range []Message{
			{Payload: []byte("x")},
			{Payload: []byte("x"), Properties: []byte{1, 1}, Publisher: "c/1", Stamp: 1 << 40, Expiry: 7, HasExpiry: true, QoS: 2},
			{Payload: bytes.Repeat([]byte{0}, 300), Publisher: strings.Repeat("c", 1000), Stamp: -1, HasExpiry: true, QoS: 1},
		} {
			m.Topic = topic
			key := codec.AppendKey([]byte("-"), topic)[1:]
			value := codec.AppendValue([]byte("-"), &m, 77)[1:]
			if len(key) > codec.MaxKeyBytes || !bytes.HasPrefix(key, []byte(KeyPrefix)) {
				t.Fatalf("key of %d bytes", len(key))
			}
			got, err := codec.Decode(key, value)
			if err != nil {
				t.Fatal(err)
			}
			clear(value)
			want := *NewMessage(m)
			if len(want.Properties) == 0 {
				want.Properties, got.Properties = nil, nil
			}
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("%.100v, not %.100v", *got, want)
			}
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	long := strings.Repeat("a", 40000)
	a, b := codec.AppendKey(nil, long+"1"), codec.AppendKey(nil, long+"2")
	if bytes.Equal(a, b) || len(a) != len(hashedPrefix)+32 {
		t.Errorf("%q and %q", a, b)
	}
}

func TestDecodeRefuses(t *testing.T) {
	m := Message{Topic: "t", Payload: []byte("x"), Publisher: "c"}
	key, value := codec.AppendKey(nil, "t"), codec.AppendValue(nil, &m, 1)
	for n := range len(value) {
		if _, err := codec.Decode(key, value[:n]); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(value))
		}
	}
	newer := bytes.Clone(value)
	newer[0] |= 2
	if _, err := codec.Decode(key, newer); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
	newer = bytes.Clone(value)
	newer[10] |= 0x20 // the envelope's version
	if _, err := codec.Decode(key, newer); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
	for _, k := range []string{"retain/", "retain", "retained", "retain#x", "q2/t"} {
		if _, err := codec.Decode([]byte(k), value); err == nil {
			t.Errorf("key %q is accepted", k)
		}
	}
	other := Message{Topic: strings.Repeat("a", 40000), Payload: []byte("x")}
	if _, err := codec.Decode(codec.AppendKey(nil, other.Topic+"b"), codec.AppendValue(nil, &other, 1)); err == nil {
		t.Error("the value of another topic is accepted")
	}
}

// What decodes encodes to the same again, but for bytes with several spellings; nothing panics.
func FuzzDecode(f *testing.F) {
	small := Codec{MaxKeyBytes: 64} // so that long topics are short enough to be found
	for _, m := range []Message{
		{Topic: "t", Payload: []byte("x")},
		{Topic: strings.Repeat("a", 60), Payload: []byte("x"), Properties: []byte{1, 1}, Publisher: "c", Expiry: 7, HasExpiry: true, QoS: 2},
	} {
		f.Add(small.AppendKey(nil, m.Topic), small.AppendValue(nil, &m, 77))
	}
	f.Add([]byte("retain/"), []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		m, err := small.Decode(key, value)
		if err != nil {
			return
		}
		if len(m.Payload) == 0 || m.QoS > 2 {
			t.Fatalf("%+v", m)
		}
		again, err := small.Decode(small.AppendKey(nil, m.Topic), small.AppendValue(nil, m, 0))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v becomes %+v, %v", m, again, err)
		}
	})
}
