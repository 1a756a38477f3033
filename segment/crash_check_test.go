package segment

import (
	"encoding/binary"
	"strings"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// snapshot is what a log holds.
type snapshot struct {
	topics map[string]modelTopic
	parts  map[string]snapshotPart
	state  map[string]string
	lazy   map[string]uint64
}

type snapshotPart struct {
	modelPart       // next is the high watermark
	cursor    int64 // 0 while the log runs: only a recovery looks at cursors
}

// lazyNumber is at the end of each value that need not be durable.
func lazyNumber(value []byte) uint64 { return binary.BigEndian.Uint64(value[len(value)-8:]) }

// snap reads all that the log holds.
func (d *crashDriver) snap(recovered bool) *snapshot {
	s := &snapshot{topics: map[string]modelTopic{}, parts: map[string]snapshotPart{}, state: map[string]string{}, lazy: map[string]uint64{}}
	for _, t := range d.log.Topics() {
		s.topics[t.Name()] = modelTopic{t.ID(), int32(len(t.Partitions()))}
		for _, p := range t.Partitions() {
			var part snapshotPart
			part.start = p.StartOffset()
			part.records = d.readAll(p, part.start, []int{1, 700, 1 << 16}[d.rng.IntN(3)])
			part.next = p.HighWatermark()
			s.parts[p.String()] = part
		}
	}
	for _, prefix := range []string{"s/", startPrefix, gapPrefix} {
		d.mustNot(d.log.Range([]byte(prefix), func(k, v []byte) bool { s.state[string(k)] = string(v); return true }))
	}
	d.mustNot(d.log.Range([]byte("z/"), func(k, v []byte) bool { s.lazy[string(k)] = lazyNumber(v); return true }))
	for _, p := range d.log.allPartitions() {
		for _, owner := range crashOwners {
			offset, data, ok, err := d.log.Cursor(p, owner)
			d.mustNot(err)
			if ok {
				part := s.parts[p.String()]
				if recovered {
					part.cursor = max(part.cursor, offset)
				}
				s.parts[p.String()] = part
				s.lazy[string(cursorKey(p, owner))] = lazyNumber(data)
			}
		}
	}
	return s
}

// readAll reads a partition from offset to its high watermark.
func (d *crashDriver) readAll(p *Partition, offset int64, maxBytes int) (all []modelRecord) {
	for offset < p.HighWatermark() {
		got := d.readOnce(p, offset, maxBytes)
		if len(got) == 0 {
			break // a hole at the end
		}
		all = append(all, got...)
		offset = got[len(got)-1].offset + 1
	}
	return all
}

// readOnce is one read: the records from offset on.
func (d *crashDriver) readOnce(p *Partition, offset int64, maxBytes int) (got []modelRecord) {
	var err error
	d.buf, err = p.Read(d.buf[:0], offset, maxBytes)
	d.mustNot(err)
	for rest := d.buf; len(rest) > 0; {
		var b record.Batch
		b, rest, err = record.Next(rest)
		if err == nil {
			err = b.Verify()
		}
		if err == nil {
			got, err = d.decode(got, b, offset)
		}
		if err != nil {
			d.fail("read %s at %d: %v", p, offset, err)
		}
	}
	return got
}

func (d *crashDriver) decode(got []modelRecord, b record.Batch, offset int64) ([]modelRecord, error) {
	err := d.decoder.Records(b, func(r *record.Record) error {
		if r.Offset >= offset {
			got = append(got, modelRecord{r.Offset, string(r.Value)})
		}
		return nil
	})
	return got, err
}

// checkRecovery compares a log that has just been opened with the model. The group that was being committed is there, or
// is not, as a whole.
func (d *crashDriver) checkRecovery() {
	r := d.log.Recovered()
	d.note("recovered: %d frames, %d records, torn %v, clean %v %q", r.Frames, r.Records, r.Torn, r.Clean, r.Notes)
	if len(r.Damages) > 0 {
		d.fail("damages %q", r.Damages)
	}
	if d.clean && !d.lost && (r.Frames > 0 || r.CutBytes > 0) {
		d.fail("after a clean stop %d frames were replayed and %d bytes cut", r.Frames, r.CutBytes)
	}
	s := d.checkModel(d.sealed, true)
	for name, t := range s.topics {
		d.model.topics[name] = t
	}
	for name, p := range s.parts {
		d.model.parts[name].next = p.next
	}
	for k, n := range s.lazy {
		d.model.lazyDurable[k] = n // in both state files by now
	}
	d.checkFiles()
	d.checkRetention()
}

// checkModel compares the log with the model, and with that and g.
func (d *crashDriver) checkModel(g *modelGroup, recovered bool) *snapshot {
	s := d.snap(recovered)
	stored := map[string]uint64{}
	for k, v := range d.store.current().values {
		if strings.HasPrefix(k, "z/") || strings.HasPrefix(k, cursorPrefix) {
			stored[k] = lazyNumber([]byte(v))
		}
	}
	without := d.model.compare(s, nil, stored)
	if without != nil && g != nil {
		with := d.model.compare(s, g, stored)
		if with != nil {
			d.fail("group %d is neither there nor not:\nwithout it: %v\nwith it: %v", g.seq, without, with)
		}
		d.note("group %d is there", g.seq)
		d.model.apply(g)
	} else if without != nil {
		d.fail("%v", without)
	} else if g != nil && g.seen {
		d.fail("group %d is lost, though it was acknowledged or visible: %v", g.seq, d.model.compare(s, g, stored))
	}
	if d.chance(3) {
		d.checkView()
	}
	return s
}

// checkView compares a partition with what tools see of it.
func (d *crashDriver) checkView() {
	list := d.log.allPartitions()
	if len(list) == 0 {
		return
	}
	p := d.partition()
	v := &View{d.mem, d.o.Dir}
	var got []modelRecord
	start := p.StartOffset() // the journal may have what lies below, too
	err := v.Batches(ViewPartition{p.topic.name, p.id}, start, func(b record.Batch, _ Place) (err error) {
		got, err = d.decode(got, b, start)
		return err
	}, func(d *DamageError) error { return d })
	d.mustNot(err)
	want := d.readAll(p, start, 1<<16)
	if len(got) != len(want) {
		d.fail("a view of %s has %d records, the partition %d", p, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			d.fail("a view of %s has %.30q at offset %d, the partition %.30q at %d", p, got[i].value, got[i].offset, want[i].value, want[i].offset)
		}
	}
}

// checkFiles: what crashes leave doesn't pile up, and what is there is counted.
func (d *crashDriver) checkFiles() {
	entries, err := d.mem.ReadDir(journal.Dir(d.o.Dir))
	d.mustNot(err)
	if len(entries) > journal.Files {
		d.fail("the journal has %d files", len(entries))
	}
	used := int64(0)
	for _, p := range d.log.allPartitions() {
		used += p.chain.Bytes()
	}
	if n := d.log.used.Load(); n != used {
		d.fail("%d bytes of segments are counted, there are %d", n, used)
	}
}
