// Package journal is the write-ahead log of a data directory: commit groups go into it as frames, one write and one
// sync each, and come back out of it after a crash, each whole or not at all.
//
// It keeps a few files of a fixed size, pre-written with zeros and recycled for ever. An overwrite of such a file
// followed by fdatasync costs one flush and one block; an append to a growing file costs two flushes and four blocks
// on ext4.
//
// A failed write or sync is final for its file: the frame is not durable, the file takes no more, and the journal
// goes on in a spare that is always there.
package journal
