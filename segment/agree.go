package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"

	"github.com/sluicemq/sluice/segment/record"
)

// Beyond the recovery point nothing of a segment was synced, and a power cut may leave anything in its blocks: on file
// systems that give a block out before it is written, also what another partition's file had there. A RecordBatch doesn't
// say whose it is, and one of another partition may well have the offset that follows. So valid batches prove nothing
// there. The journal does: its files never grow, and a frame is bound to one use of its file. Recovery compares the two;
// where they differ the journal is right. What lies behind the journal's end is kept: more likely a disk that lies about syncs lost
// the frames than that a foreign batch has just the offset that follows.

// errForeign poisons a chain that holds what isn't the partition's.
var errForeign = errors.New("the journal has other records there")

// agreement compares the segments with the journal. Recovery only.
type agreement struct {
	seed           maphash.Seed
	ours, theirs   *record.Decoder // of the journal's batches and of the segments'
	partitions     map[*Partition]*comparison
	encodedForHash []byte
}

// comparison is how far a partition is compared.
type comparison struct {
	end     int64    // offset behind the journal's last batch
	scanned int64    // offset behind what the segments held before the journal added anything
	base    int64    // offset of hashes[0]
	hashes  []uint64 // of the records in one batch of the segments
	buf     []byte   // that batch
}

func newAgreement() *agreement {
	return &agreement{
		seed: maphash.MakeSeed(), ours: record.NewDecoder(0), theirs: record.NewDecoder(0),
		partitions: map[*Partition]*comparison{},
	}
}

// of is p's comparison. The first call comes before the journal adds anything to p.
func (a *agreement) of(p *Partition) *comparison {
	c := a.partitions[p]
	if c == nil {
		c = &comparison{scanned: p.next}
		a.partitions[p] = c
	}
	return c
}

// compare looks at a batch of the journal. If the segments have other records at its offsets, p goes on at its beginning,
// and what they hold from the recovery point on comes out of the journal again.
func (l *Log) compare(p *Partition, b record.Batch) {
	c := l.agreement.of(p)
	c.end = b.NextOffset()
	if base := b.BaseOffset(); base >= p.chain.SyncedOffset() && base < c.scanned && !l.agreement.holds(p, c, b) {
		c.scanned = base
		l.distrust(p, base)
	}
}

// distrust takes everything from offset on, and from the recovery point, out of the partition's segments.
func (l *Log) distrust(p *Partition, offset int64) {
	note := fmt.Sprintf("%s: the segments hold records at offsets %d to %d that the journal doesn't know; they were never synced",
		p, offset, p.next-1)
	l.log.Warn("segments and journal differ", "what", note)
	l.recovered.Notes = append(l.recovered.Notes, note)
	p.chain.Distrust(errForeign)
	p.next = offset
	p.high.Store(offset)
}

// holds says whether the segments of p hold the records of b.
func (a *agreement) holds(p *Partition, c *comparison, b record.Batch) bool {
	return a.ours.Records(b, func(r *record.Record) error {
		if r.Offset < c.base || r.Offset >= c.base+int64(len(c.hashes)) {
			if err := a.load(p, c, r.Offset); err != nil {
				return err
			}
		}
		if i := r.Offset - c.base; i < 0 || i >= int64(len(c.hashes)) || c.hashes[i] != a.hash(r) {
			return errForeign
		}
		return nil
	}) == nil
}

// load hashes the records of the batch that holds offset.
func (a *agreement) load(p *Partition, c *comparison, offset int64) (err error) {
	c.hashes = c.hashes[:0]
	if c.buf, err = p.chain.Read(c.buf[:0], offset, 1, math.MaxInt64); err != nil {
		return err
	}
	b, _, err := record.Next(c.buf)
	if err != nil {
		return err
	}
	c.base = b.BaseOffset()
	return a.theirs.Records(b, func(r *record.Record) error {
		if r.Offset != c.base+int64(len(c.hashes)) {
			return errForeign
		}
		c.hashes = append(c.hashes, a.hash(r))
		return nil
	})
}

// hash is over all that a record holds but its offset.
func (a *agreement) hash(r *record.Record) uint64 {
	b := binary.BigEndian.AppendUint64(a.encodedForHash[:0], uint64(r.Timestamp))
	add := func(p []byte, null bool) {
		length := uint64(len(p)) + 1
		if null {
			length = 0
		}
		b = append(binary.BigEndian.AppendUint64(b, length), p...)
	}
	add(r.Key, r.Key == nil)
	add(r.Value, r.Value == nil)
	for _, h := range r.Headers {
		add([]byte(h.Key), false)
		add(h.Value, h.Value == nil)
	}
	a.encodedForHash = b
	return maphash.Bytes(a.seed, b)
}
