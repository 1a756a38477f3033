// Package broker puts the parts together. It is the only place that knows every one of them: the order in which they start
// and stop, which route an MQTT topic takes into the log, and who this gateway is.
//
// Start: data directory locked and recovered, topics made, mirrors begun, and only then the MQTT listeners opened, so that
// nobody is answered before what was acknowledged earlier is there. Stop is the same backwards: no new connections, acks of
// what is in flight, mirrors, and last the log with a checkpoint.
package broker
