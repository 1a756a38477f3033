// Package mqtt is the MQTT door: listeners, connections, sessions and the fan-out to subscribers, for MQTT 3.1.1 and 5.
//
// Its promise: PUBACK, PUBREC and PUBCOMP leave after the sync that covers what they acknowledge. A connection never
// waits for a sync (but once, where CONNACK says that there is a session which outlives it), it reads on while its
// acknowledgements queue up; what it has in flight is bounded, and when the bound is reached the broker stops reading, so that
// TCP pushes back.
//
// What runs: a goroutine for each listener and each connection, one for the fan-out, one that looks for silent
// clients, one for sessions and wills whose time has come, one for $SYS and for retained messages that expire, and for a
// connection that doesn't take what it is sent a writer for as long as there is something to write.
//
// Locks, outermost first: the log's (between Begin and End of a segment.Writer), sys.mu, keeper.handing, Server.mu, session.mu (a
// shared subscription's before its members'), conn.mu, and inside of it fanout.mu and those of the stores of retained messages and
// of the subscription tree. The log's is never taken with one of the others held, since Begin may wait for the committer and
// the committer takes conn.mu.
//
// Not there yet: enhanced authentication (AUTH), which is refused in the protocol's own words.
package mqtt
