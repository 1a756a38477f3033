package mirror

import (
	"errors"
	"fmt"

	"github.com/sluicemq/sluice/segment/record"
)

// Sizes of what a cutter works with.
const (
	passBytes    = 32 << 10  // a stored compressed batch of this size is sent as it is: merging it gains little
	plainBytes   = 256       // an uncompressed batch below this isn't worth compressing alone
	readBytes    = 128 << 10 // one read of the log
	maxRawFactor = 4         // a merged batch decompresses to at most this many times its limit
	keepBytes    = 64 << 10  // an idle buffer beyond this is freed
)

// span is a range of local offsets [from, to) that travels as one batch.
type span struct{ from, to int64 }

func (s span) count() int64 { return s.to - s.from }
func (s span) empty() bool  { return s.to <= s.from }

// cutter makes the batches that are sent out of those that are stored. Not safe for concurrent use.
type cutter struct {
	codec record.Codec
	read  []byte // stored batches
	build record.Builder
	dec   *record.Decoder
	enc   *record.Encoder

	correction func(timestamp int64) (ms int64, known bool) // nil: all timestamps are right
	waits      bool                                         // for what isn't known: errUnclear
	untrusted  int64                                        // records of the batch made last that aren't known
	record     record.Record                                // scratch
}

func newCutter(codec record.Codec) *cutter {
	return &cutter{codec: codec, dec: record.NewDecoder(0), enc: record.NewEncoder()}
}

// release frees what a busy time left behind.
func (c *cutter) release() {
	if cap(c.read) > keepBytes {
		c.read = nil
	}
	c.build.Reset(keepBytes)
	c.record = record.Record{}
}

// size is how big a lane's batches become.
type size struct {
	limit int // bytes of a batch as it is sent; only a single record may be beyond
	pass  int // bytes up to which a stored batch may be sent as it is
	raw   int // bytes before compression to aim for: found by trying, since what they compress to isn't known before
}

var (
	errEnough  = errors.New("enough records") // ends the walk through a batch's records
	errNothing = errors.New("no records where the high watermark promises some")
)

// next appends to dst one batch of the records from offset on: a stored batch as it is when that starts there and is big
// or alone, else the records of consecutive ones, merged and compressed. It returns the longer dst and what is in the
// batch: the range starts beyond offset where the log has a hole there, ends before the next hole, and is empty at the
// high watermark.
func (c *cutter) next(dst []byte, p Partition, offset int64, s *size) ([]byte, span, error) {
	first, rest, err := c.first(p, offset)
	if err != nil || first == nil {
		return dst, span{}, err
	}
	_, known, alike := c.moved(first)
	if alike && first.BaseOffset() >= offset && len(first) <= s.pass && c.whole(first, rest, p.HighWatermark()) {
		if !known && c.waits {
			return dst, span{}, errUnclear
		}
		out, err := c.asStored(dst, first)
		return out, span{first.BaseOffset(), first.NextOffset()}, err
	}
	return c.merge(dst, p, offset, s)
}

// exactly appends to dst one batch of the records of the range, which next returned before. Where the log has merged
// stored batches meanwhile the bytes may differ, the records don't.
func (c *cutter) exactly(dst []byte, p Partition, want span) ([]byte, error) {
	first, _, err := c.first(p, want.from)
	if err != nil {
		return dst, err
	}
	if first != nil && first.BaseOffset() == want.from && first.NextOffset() == want.to && c.alike(first) {
		return c.asStored(dst, first)
	}
	got, err := c.gather(p, want.from, func(r *record.Record) bool { return r.Offset < want.to }, nil) // not a part of it
	if err != nil {
		return dst, err
	}
	if got != want {
		return dst, fmt.Errorf("offsets %d to %d are not in the log any more: found %d to %d", want.from, want.to, got.from, got.to)
	}
	return c.enc.Compress(dst, c.build.Seal(0), c.codec)
}

// first reads at offset. A nil batch means that there is nothing yet.
func (c *cutter) first(p Partition, offset int64) (first record.Batch, rest []byte, err error) {
	c.read, err = p.Read(c.read[:0], offset, readBytes)
	if err != nil || len(c.read) == 0 {
		return nil, nil, err
	}
	return c.verified(c.read)
}

// verified splits the first batch off. Its CRC is checked before anything else happens to it: the batch that leaves gets
// a new one, which would make damage look sound.
func (c *cutter) verified(buf []byte) (record.Batch, []byte, error) {
	b, rest, err := record.Next(buf)
	if err == nil {
		err = b.Verify()
	}
	return b, rest, err
}

// whole tells whether a stored batch is sent as it is: big and compressed, or alone before a hole or the high watermark.
func (c *cutter) whole(b record.Batch, rest []byte, highWatermark int64) bool {
	if c.big(b) || b.NextOffset() >= highWatermark {
		return true
	}
	next, _, err := record.Next(rest)
	return err == nil && next.BaseOffset() != b.NextOffset()
}

func (c *cutter) big(b record.Batch) bool {
	return len(b) >= passBytes && (b.Codec() != record.None || c.codec == record.None)
}

// asStored appends a batch all of whose records are moved alike.
func (c *cutter) asStored(dst []byte, b record.Batch) (out []byte, err error) {
	ms, known, _ := c.moved(b)
	c.untrusted = 0
	if !known {
		c.untrusted = int64(b.Count())
	}
	if b.Codec() == record.None && c.codec != record.None && len(b) >= plainBytes {
		out, err = c.enc.Compress(dst, b, c.codec)
	} else {
		out = append(dst, b...)
	}
	if err == nil && ms != 0 {
		record.MoveTimestamps(out[len(dst):], ms)
	}
	return out, err
}

// merge is next for records that don't travel as they are stored.
func (c *cutter) merge(dst []byte, p Partition, offset int64, s *size) ([]byte, span, error) {
	if c.codec == record.None || s.raw < s.limit {
		s.raw = s.limit
	}
	s.raw = min(s.raw, maxRawFactor*s.limit)
	for {
		fits := func(r *record.Record) bool { return c.build.Count() == 0 || c.build.Len()+c.build.Size(r) <= s.raw }
		got, err := c.gather(p, offset, fits, c.big)
		if got.empty() {
			return dst, span{}, err
		}
		out, err := c.enc.Compress(dst, c.build.Seal(0), c.codec)
		if err != nil {
			return dst, span{}, err
		}
		n := len(out) - len(dst)
		switch full := c.build.Len() > s.raw/2; {
		case n > s.limit && s.raw > s.limit:
			s.raw = s.limit
			dst = out[:len(dst)]
			continue
		case n < s.limit/2 && full:
			s.raw = min(2*s.raw, maxRawFactor*s.limit)
		}
		return out, got, nil
	}
}

// gather fills the builder with records from offset on, while more holds, up to a hole, the high watermark, or a batch
// for which stop holds, which then begins the next range. An error may come with a range, that of what precedes the place
// where it struck.
func (c *cutter) gather(p Partition, offset int64, more func(*record.Record) bool, stop func(record.Batch) bool) (span, error) {
	c.build.Reset(keepBytes + maxRawFactor*readBytes)
	c.untrusted = 0
	got := span{offset, offset}
	add := func(r *record.Record) error {
		if r.Offset < got.to {
			return nil
		}
		r, err := c.put(r)
		switch {
		case err != nil && c.build.Count() == 0:
			return err
		case err != nil || !more(r):
			return errEnough
		case c.build.Count() == 0:
			got.from = r.Offset
		}
		c.build.Append(r)
		got.to = r.Offset + 1
		return nil
	}
	var err error
	for got.to < p.HighWatermark() {
		if c.read, err = p.Read(c.read[:0], got.to, readBytes); err != nil || len(c.read) == 0 {
			break
		}
		before, enough := got.to, false
		if enough, err = c.addBatches(&got, add, stop); err != nil || enough || got.to == before {
			break
		}
	}
	if c.build.Count() == 0 {
		return span{}, err
	}
	return got, err
}

// addBatches hands the records of what was read to add; enough says that the range ends here.
func (c *cutter) addBatches(got *span, add func(*record.Record) error, stop func(record.Batch) bool) (enough bool, err error) {
	for rest := c.read; len(rest) > 0; {
		var b record.Batch
		if b, rest, err = c.verified(rest); err != nil {
			return false, err
		}
		if c.build.Count() > 0 && (b.BaseOffset() > got.to || b.BaseOffset() == got.to && stop != nil && stop(b)) {
			return true, nil
		}
		if err := c.dec.Records(b, add); errors.Is(err, errEnough) {
			return true, nil
		} else if err != nil {
			return false, err
		}
	}
	return false, nil
}
