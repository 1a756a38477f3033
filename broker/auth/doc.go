// Package auth says who may connect to the MQTT door and what they may publish and receive, by mosquitto's password and ACL files.
//
// Its promise: files that mosquitto 2.0 takes mean the same here. What mosquitto skips with a warning is skipped with a warning; what
// would lock somebody in or out by a slip of the hand (a hash that can't be read, an access type that doesn't exist) is an error
// that names file and line, and a file with an error is not used at all.
//
// Slow hashes are computed once for each password and kept as a MAC under a key of this process, so that clients that come
// back together cost no more than a MAC each. At most half the cores compute hashes, one of them an argon2. Who has to wait does so
// for a bounded time, and the addresses that clients come from take turns.
package auth
