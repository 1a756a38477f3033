// Package websocket is the server's side of WebSocket (RFC 6455) in bytes: the opening handshake, and frames, taken apart in
// the buffer that they were read into. It reads and writes nothing itself, starts no goroutine, and keeps a few bytes for a connection.
//
// It is for MQTT: binary messages only, whose boundaries mean nothing, and no extensions.
package websocket
