// Package files keeps one partition's records in the files that Kafka keeps them in: a chain of segments, each a .log of
// RecordBatches with an .index and a .timeindex beside it, so that Kafka's own tools read and verify them.
//
// What it promises:
//
//   - What lies below SyncedOffset is on flash. What was appended above it may be lost by a crash, torn or whole, and is
//     the journal's to bring back.
//   - A file whose write or sync failed is never synced again: Restart goes on in a new one.
//   - Readers see whole batches that Append completed or that recovery checked, with good CRCs, and nothing else.
//   - Indexes are hints. A wrong one costs time, never a wrong answer, by offset or by time.
//   - Opening looks at names and sizes, each once, and at log bytes only from the recovery point on.
//   - No bytes that might have been good are destroyed: what can't be used is set aside in a file that keeps its name, or
//     stays where it is. What a disk can't read costs the batches there, not their neighbours.
//   - Drop takes the oldest segments away under readers who notice nothing but a higher StartOffset. What is on the disk is
//     counted until it is off it.
//   - A segment costs a few hundred bytes of memory, and open files only while it is read or has something to be synced.
package files
