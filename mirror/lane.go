package mirror

import "time"

// lane is one partition's ordered stream to the region. At most one sender works on it at a time: the one that set busy.
type lane struct {
	topic *topic    // immutable
	id    int32     // immutable
	order int       // immutable: place among all lanes
	part  Partition // immutable

	// Under Mirror.mu.
	busy      bool
	leader    int32 // broker to send to, -1 while unknown
	notBefore time.Time
	problem   string // why it isn't going on, "" when it is

	// Written under Mirror.mu by whoever has it busy, so that one reads them without the lock.
	next     int64    // next local offset to send; only ever goes up (a region would take reused sequences for repeats)
	sequence int32    // of the record at next
	producer producer // id 0 with an empty cluster and topic: none yet
	has      bool     // producer is valid
	damaged  int64    // records that were passed over because they are damaged
	pending  span     // what was sent and has no answer: goes again as it was, before anything else
	retry    backoff

	// Under Mirror.mu, or by the one that has it busy.
	size     size
	unread   time.Time // since when the disk doesn't give what is to be sent next, zero while it does
	hole     int64     // high watermark below which there was nothing to read, 0 for none
	tooLarge int       // size of the smallest batch of several records that the region found too large, 0 for none
}

// good tells whether the lane's producer is one of this cluster and topic id.
func (l *lane) good(cluster string, topicID [16]byte) bool {
	return l.has && l.producer.cluster == cluster && l.producer.topic == topicID
}

// grow lets batches become bigger again after one arrived.
func (l *lane) grow(batchBytes int) {
	if l.size.limit >= batchBytes {
		return
	}
	if bigger := min(2*l.size.limit, batchBytes); l.tooLarge == 0 || bigger < l.tooLarge {
		l.size.limit = bigger
	}
}

// shrink makes the next batch smaller than the refused one.
func (l *lane) shrink(refusedBytes int) {
	if l.tooLarge == 0 || refusedBytes < l.tooLarge {
		l.tooLarge = refusedBytes
	}
	l.size.limit = max(min(l.size.limit, refusedBytes)/2, 1)
	l.size.raw = l.size.limit
}

// topic is a log topic and its counterpart in the region.
type topic struct {
	name, remote string  // immutable
	lanes        []*lane // immutable

	// Under Mirror.mu.
	id        [16]byte // in the region; zero where it has none
	known     bool     // seen in the region
	trouble   string   // why some lanes have no broker to send to
	retry     backoff
	notBefore time.Time           // next look at a topic in trouble
	logged    map[string]struct{} // problems written to the log since all was well
}
