// Package mirror carries the log's partitions to a regional Kafka cluster, a region.
//
// A lane is one partition's ordered stream. Lanes are grouped by the broker that leads their remote partition, and each
// such broker has one sender: a goroutine with one produce request in flight, which carries at most one batch of each of
// its lanes. So memory is bounded by the request size and the number of brokers, whatever the number of partitions, the
// backlog and the length of an outage.
//
// Batches go out as they are stored, with base offset 0 and our producer id and sequence; small consecutive ones are merged
// first, because a request carries one batch a partition and the link has a round-trip time. While a request is in flight
// new records gather in the log: that is what merges them, and a short linger does the same on a fast link.
//
// The promise, for now: at least once and in order for each partition; none twice in undisturbed running, across lost
// connections, lost answers and moved leaders, and across a clean stop. What may have arrived twice is counted.
//
// A region that is away, unknown to DNS or that refuses a topic never stops the gateway: the log keeps what was not
// acknowledged, and the lane tries again with a growing, random delay.
package mirror
