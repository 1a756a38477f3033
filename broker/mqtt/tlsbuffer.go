package mqtt

import (
	"bytes"
	"crypto/tls"
	"reflect"
	"unsafe"
)

// crypto/tls keeps what it once needed for a record for as long as the connection lasts: a client that sent one large message costs
// 40 KiB from then on (measured, five messages of 100,000 bytes), and there is no way to ask for them back. So the empty buffer is replaced behind its back. Should a
// release of Go have other fields, nothing is done; TestTLSBuffersAreReleased says so.

// tlsBuffers are the places of the buffers in a tls.Conn: records as they come in, and handshake messages.
var tlsBuffers = struct{ records, messages uintptr }{bufferIn("rawInput"), bufferIn("hand")}

// bufferIn is the place of a field, or 0 if there is no such buffer. It can't be the first field.
func bufferIn(name string) uintptr {
	f, ok := reflect.TypeFor[tls.Conn]().FieldByName(name)
	if !ok || f.Type != reflect.TypeFor[bytes.Buffer]() {
		return 0
	}
	return f.Offset
}

// keepRecordBytes is how large the buffer for records may be and stay. Small records then don't allocate.
const keepRecordBytes = 4 << 10

// release frees a buffer that holds nothing and is larger than keep. Nobody may be in Read or Handshake.
func release(c *tls.Conn, place uintptr, keep int) {
	if place == 0 {
		return
	}
	if b := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), place)); b.Len() == 0 && b.Cap() > keep {
		*b = bytes.Buffer{}
	}
}
