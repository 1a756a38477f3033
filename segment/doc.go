// Package segment is the log: topics of partitions on flash, and the small keyed state that must survive with them.
//
// What is written goes into a commit group. One journal write and one sync make the whole group durable, records and
// state changes together; only then does it become visible and is its writer told. The batches stay in memory,
// readable, until they are appended, merged and compressed, to Kafka's own segment files, which are synced at
// checkpoints only. After a crash the journal fills in what the segments lack.
//
// What is old or too much is evicted in whole segments: by age, by a topic's bound, and so that the data directory never
// takes more than its budget. The new start of the partition, and the gap for those who follow it and hadn't got that far,
// are durable before a file is removed.
//
// Five goroutines belong to a Log: the committer (journal, high watermarks, acknowledgements), the appender
// (memory to segment files), the checkpointer (sync, state, recycling), the one that evicts and watches the file system, and
// the one that looks at the wall clock.
package segment
