// Package wire turns bytes into MQTT packets and back: versions 3.1.1 and 5,
// a server's side of both. It does no I/O, starts no goroutine and keeps no
// state, so every function may be called from any goroutine.
//
// PUBLISH and the acknowledgements are coded by hand and allocate nothing:
// they are the hot path. CONNECT, SUBSCRIBE, UNSUBSCRIBE and AUTH are decoded
// by github.com/mochi-mqtt/server/v2/packets, but only after a strict walk of
// our own over every field and property, because that decoder accepts
// truncated, duplicated and out-of-range properties and panics on a SUBSCRIBE
// that ends after its filter.
//
// Bad input yields an *Error that carries the MQTT 5 reason code to close the
// connection with; it never panics and never allocates more than a small
// multiple of the bytes at hand.
package wire
