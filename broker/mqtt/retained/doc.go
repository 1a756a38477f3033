// Package retained holds the retained messages of a broker (MQTT 5 §3.3.1.3): in memory, one for each topic, in a tree by topic
// levels, within limits in number and bytes. The log's state holds the same under keys that this package names and
// encodes; reading and writing that is the caller's business.
//
// A change is staged while the caller has the log's lock, so that there is one order of all changes, and becomes visible when
// its commit group is durable, or at once where the message itself is handed on at once. What a group that failed
// would have changed is undone.
//
// A subscription that begins takes a mark. A walk shows it what was retained before its mark; what changed after it arrives as a
// live message and is left out, whether it is durable yet or not.
package retained
