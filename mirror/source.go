package mirror

// Source is what a mirror needs of the log.
type Source interface {
	// Topics are the log's topics at this moment.
	Topics() []Topic
	// Watch has ch, of capacity 1, receive a non-blocking send after each commit that holds records.
	Watch(ch chan<- struct{})
	Unwatch(ch chan<- struct{})
	// Correction is what must be added to a record's timestamp to get the true time, in ms. It isn't known for what was
	// stamped before the clock could be trusted; once ClockTrusted, what isn't known never will be.
	Correction(timestamp int64) (ms int64, known bool)
	ClockTrusted() bool
}

// Topic is one topic of the log.
type Topic struct {
	Name       string
	Partitions []Partition // by id, from 0
}

// Partition is one partition of the log. All methods are safe for concurrent use.
type Partition interface {
	// HighWatermark is the offset after the last readable record; StartOffset is the first one still there.
	HighWatermark() int64
	StartOffset() int64
	// Read appends whole batches to dst: at least the one that holds offset, more up to about maxBytes. Nothing is
	// appended where offset is the high watermark.
	Read(dst []byte, offset int64, maxBytes int) ([]byte, error)
	// SetCursor keeps owner's next offset and data with it, lazily: it rides with the next commit or checkpoint.
	SetCursor(owner string, next int64, data []byte)
	// Cursor is what SetCursor kept; ok is false when there is nothing, err says that it can't be read.
	Cursor(owner string) (next int64, data []byte, ok bool, err error)
}
