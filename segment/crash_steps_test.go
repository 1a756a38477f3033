package segment

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/record"
)

// step does one thing that some goroutine of a broker might do.
func (d *crashDriver) step() {
	if len(d.model.topics) == 0 {
		d.createTopic()
		return
	}
	d.clock += d.rng.Int64N(2000)
	switch n := d.rng.IntN(110); {
	case n < 30:
		d.write(d.writers[d.rng.IntN(len(d.writers))])
	case n < 38:
		d.writeWithTicket()
	case n < 43:
		d.putLazy()
	case n >= 109:
		d.forgetGap()
	case n >= 100:
		d.retain()
	case n < 47:
		d.setCursor()
	case n < 66:
		d.commit()
	case n < 74:
		d.appendSome()
	case n < 78:
		d.syncChain()
	case n < 82:
		d.askForCheckpoint()
	case n < 90:
		if d.slow {
			d.commit()
		} else {
			d.checkpoint()
		}
	case n < 91:
		d.note("grow the journal")
		d.mustNot(d.log.journal.Grow(2 + d.rng.IntN(2)))
	case n < 93:
		d.createTopic()
	case n < 98:
		d.readSome()
	default:
		d.checkModel(nil, false)
	}
}

// between does a step of another goroutine while one is at a file operation.
func (d *crashDriver) between(op vfs.Op, name string) {
	if len(d.under) == 0 || len(d.under) > 3 || len(d.model.topics) == 0 || !d.chance(8) {
		return
	}
	n := d.rng.IntN(100)
	switch {
	case d.isUnder(creating) && !d.isUnder(committing):
		// Topic and journal locks are held.
	case d.under[len(d.under)-1] == retaining:
		d.besideRetention(op, name)
	case n < 30:
		d.write(d.writers[d.rng.IntN(len(d.writers))])
	case n < 40:
		d.writeWithTicket()
	case n < 50:
		d.putLazy()
	case d.isUnder(committing) && d.isUnder(checkpointing, appending, syncing, dropping):
	case d.isUnder(committing) && n < 70:
		d.appendSome()
	case d.isUnder(committing) && n < 90:
		if !d.slow {
			d.checkpoint()
		}
	case d.isUnder(committing):
		d.syncChain()
	case op == "checkpoint" && n < 70:
		d.retainMeanwhile()
	case n < 80:
		if d.commitFits(0) {
			d.commit()
		}
	case (op == vfs.OpSync || op == vfs.OpSyncDir) && !d.isUnder(appending):
		d.appendSome()
	}
}

// waiting is called where a goroutine of the log would wait for another one.
func (d *crashDriver) waiting() {
	if d.isUnder(committing) {
		d.note("  the committer waits for a checkpoint")
		d.finishCheckpoint()
		return
	}
	if d.isUnder(retaining) {
		d.retentionWaits()
		return
	}
	d.commit() // a topic is being made
}

// crashWriter is a writer that is told of its groups.
type crashWriter struct {
	d    *crashDriver
	w    *Writer
	name string
	told uint64
}

func (w *crashWriter) Committed(group uint64, err error) {
	d := w.d
	g := d.sealed
	if err != nil || g == nil || !g.members[w] || group != g.seq || group <= w.told {
		d.fail("writer %s is told of group %d: %v", w.name, group, err)
	}
	w.told, g.seen = group, true
}

// makeRoom commits until the group in hand takes more.
func (d *crashDriver) makeRoom() (ok bool) {
	if d.isUnder(retaining) && d.log.active.bytes > d.o.MaxBytes/4 {
		return false // so that retention need not wait itself
	}
	for d.log.active.bytes >= d.o.MaxBytes {
		if len(d.under) > 0 {
			return false // the writer waits
		}
		d.commit()
	}
	return true
}

// value is a new one, unlike all others.
func (d *crashDriver) value(most int) []byte {
	d.number++
	return fmt.Appendf(nil, "%d %s", d.number, strings.Repeat("abcdefgh", d.rng.IntN(1+most/8)))
}

func (d *crashDriver) partition() *Partition {
	list := d.log.allPartitions()
	return list[d.rng.IntN(len(list))]
}

func (d *crashDriver) record() *record.Record {
	v := d.value([]int{20, 100, 400}[d.rng.IntN(3)])
	d.retention.given[string(v)] = d.clock
	return &record.Record{Value: v}
}

// write adds records and state changes to the group in hand.
func (d *crashDriver) write(w *crashWriter) {
	if !d.makeRoom() {
		return
	}
	if d.refused(w.w.Begin()) {
		return
	}
	g := d.filling
	dirty := false
	for range d.rng.IntN(5) {
		p, r := d.partition(), d.record()
		if p.topic.Refused() != nil {
			continue
		}
		r.Timestamp = w.w.Stamp(time.Time{})
		w.w.Append(p, r)
		g.add(p, r)
		dirty = true
	}
	for range d.rng.IntN(4) {
		d.change(w.w, g)
		dirty = true
	}
	seq := w.w.End()
	d.note("write by %s in group %d", w.name, seq)
	if dirty != (seq != 0) {
		d.fail("End returns %d after a change: %v", seq, dirty)
	}
	if dirty {
		g.seq, g.members[w] = seq, true
	}
}

func (g *modelGroup) add(p *Partition, r *record.Record) {
	g.records[p.String()] = append(g.records[p.String()], string(r.Value))
	g.parts[p.String()] = p
}

// change changes one state value.
func (d *crashDriver) change(w *Writer, g *modelGroup) {
	switch d.rng.IntN(5) {
	case 0:
		key := d.key()
		w.Delete([]byte(key))
		g.state[key] = nil
	case 1:
		key, value := d.lazyValue()
		w.Put([]byte(key), value)
		g.lazy[key] = d.number
		delete(d.lazy, key)
		if d.model.lazyPut[key] == nil {
			d.model.lazyPut[key] = map[uint64]bool{}
		}
		d.model.lazyPut[key][d.number] = true
	default:
		key, value := d.key(), string(d.value(200))
		w.Put([]byte(key), []byte(value))
		g.state[key] = &value
	}
}

func (d *crashDriver) key() string { return fmt.Sprintf("s/%d", d.rng.IntN(12)) }

// lazyValue is a new value that need not be durable, of some key.
func (d *crashDriver) lazyValue() (key string, value []byte) {
	key = fmt.Sprintf("z/%d", d.rng.IntN(3))
	d.number++
	d.model.lazyGiven[key] = d.number
	return key, binary.BigEndian.AppendUint64([]byte("lazy"), d.number)
}

// writeWithTicket adds one thing with a ticket.
func (d *crashDriver) writeWithTicket() {
	if !d.makeRoom() {
		return
	}
	g := d.filling
	switch d.rng.IntN(4) {
	case 0:
		key, value := d.key(), string(d.value(100))
		t, err := d.log.Put([]byte(key), []byte(value))
		if d.refused(err) {
			return
		}
		g.state[key] = &value
		g.tickets = append(g.tickets, modelTicket{Ticket: t})
	case 1:
		key := d.key()
		t, err := d.log.Delete([]byte(key))
		if d.refused(err) {
			return
		}
		g.state[key] = nil
		g.tickets = append(g.tickets, modelTicket{Ticket: t})
	default:
		p, r := d.partition(), d.record()
		r.Timestamp = d.stamp()
		t, err := d.log.Append(p, r)
		if d.refused(err) {
			return
		}
		g.add(p, r)
		g.tickets = append(g.tickets, modelTicket{t, p.String(), len(g.records[p.String()]) - 1})
	}
	g.seq = d.log.active.seq
	d.note("write with ticket in group %d", g.seq)
}

func (d *crashDriver) putLazy() {
	key, value := d.lazyValue()
	d.note("lazy value %s is number %d", key, d.number)
	d.log.PutLazy([]byte(key), value)
	d.lazy[key] = d.number
}

// setCursor moves a cursor on, sometimes beyond the end.
func (d *crashDriver) setCursor() {
	p, owner := d.partition(), crashOwners[d.rng.IntN(len(crashOwners))]
	offset := p.HighWatermark()
	switch d.rng.IntN(4) {
	case 0:
		offset += int64(d.rng.IntN(8))
	case 1, 2:
		offset -= int64(d.rng.IntN(20))
	}
	d.number++
	key := string(cursorKey(p, owner))
	offset = max(offset, d.retention.cursors[key])
	d.note("cursor %s at %d is number %d", key, offset, d.number)
	d.log.SetCursor(p, owner, offset, binary.BigEndian.AppendUint64(nil, d.number))
	d.retention.cursors[key] = offset
	d.model.lazyGiven[key], d.lazy[key] = d.number, d.number
	m := d.model.parts[p.String()]
	m.cursors = append(m.cursors, offset)
}

// commitFits says whether a commit would neither have to wait for a checkpoint nor for memory.
func (d *crashDriver) commitFits(more int) bool {
	g := d.log.active
	var f journal.Frame
	f.AddBatch("", 0, 0, zeros[:g.bytes+200*len(g.parts)+100*len(d.log.lazy)+400+more])
	return d.log.journal.Fits(&f) && d.log.memory.used() < d.o.MemoryBytes
}

var zeros [64 << 10]byte

// commit is a turn of the committer.
func (d *crashDriver) commit() {
	l := d.log
	if l.active.empty() {
		d.rollIfAsked()
		return
	}
	for l.memory.used() >= d.o.MemoryBytes {
		d.append(l.fullest())
	}
	g := d.filling
	for k, n := range d.lazy {
		g.lazy[k] = n
	}
	clear(d.lazy)
	l.mu.Lock()
	sealed := l.sealLocked()
	l.mu.Unlock()
	if g.seq == 0 {
		g.seq = sealed.seq
	}
	d.takeRetention(g, sealed)
	d.note("commit group %d: %d records, %d changes", sealed.seq, sealed.records, sealed.count)
	d.filling, d.sealed = newModelGroup(), g
	d.during(committing, func() { d.plantedCommit(sealed) })
	d.sealed = nil
	d.checkTickets(g)
	d.model.apply(g)
	d.checkGaps(g)
	d.rollIfAsked()
}

func (d *crashDriver) rollIfAsked() {
	d.during(committing, d.log.rollIfAsked)
	if len(d.log.lazy) == 0 {
		clear(d.lazy) // they go with the checkpoint
	}
}

// checkTickets: the group is committed, so all of its tickets have their offsets.
func (d *crashDriver) checkTickets(g *modelGroup) {
	for w := range g.members {
		if w.told != g.seq {
			d.fail("writer %s was not told of group %d", w.name, g.seq)
		}
	}
	for _, t := range g.tickets {
		select {
		case <-t.outcome.done:
		default:
			d.fail("a ticket of group %d is open", g.seq)
		}
		d.mustNot(t.Wait(context.Background()))
		if t.part == "" {
			continue
		}
		if want := d.model.parts[t.part].next + int64(t.index); t.Offset() != want {
			d.fail("a ticket of %s has offset %d, want %d", t.part, t.Offset(), want)
		}
	}
}

// appendSome is a turn of the appender, or what a checkpoint does to a partition.
func (d *crashDriver) appendSome() {
	p := d.log.fullest()
	if p == nil || d.chance(3) {
		p = d.partition()
	}
	d.append(p)
}

func (d *crashDriver) append(p *Partition) {
	d.note("append %s", p)
	d.during(appending, func() { d.mustNot(d.log.appendPartition(p)) })
}

func (d *crashDriver) syncChain() {
	p := d.partition()
	d.note("sync %s", p)
	d.during(syncing, func() { d.mustNot(p.chain.Sync()) })
}

// askForCheckpoint is what the checkpointer does when the last checkpoint is too old.
func (d *crashDriver) askForCheckpoint() {
	if !d.log.stale() {
		return
	}
	d.note("ask for a checkpoint")
	d.log.askForRoll()
	if d.chance(2) {
		d.rollIfAsked()
	}
}

// checkpoint is a turn of the checkpointer: it takes a cut, or makes the checkpoint of the one that it took.
func (d *crashDriver) checkpoint() {
	if d.taken == nil && d.chance(3) {
		d.take()
		return
	}
	d.finishCheckpoint()
}

func (d *crashDriver) take() {
	if newer := d.log.checkpoints.take(d.log.overlay); newer != nil {
		d.note("take the cut at %d", newer.lsn)
		d.taken = newer
	}
}

func (d *crashDriver) finishCheckpoint() {
	if d.taken == nil {
		d.take()
	}
	if d.taken == nil {
		return
	}
	c := d.taken
	d.note("checkpoint at %d", c.lsn)
	d.during(checkpointing, func() {
		err := d.log.checkpoint(c)
		d.taken = nil
		d.log.checkpoints.finish(err)
		d.mustNot(err)
		d.log.checkRoom()
	})
}

// createTopic makes a topic, or changes one.
func (d *crashDriver) createTopic() {
	if len(d.under) > 0 || !d.makeRoom() {
		return
	}
	names := slices.Sorted(maps.Keys(d.retention.topics))
	o := d.retention.topics[names[d.rng.IntN(len(names))]]
	name := o.Name
	o.Compression = []record.Codec{record.None, record.None, record.Snappy, record.LZ4, record.Zstd}[d.rng.IntN(5)]
	if _, ok := d.model.topics[name]; !ok {
		d.filling.topics[name] = modelTopic{0, o.Partitions}
	}
	d.note("topic %s with %d partitions", name, o.Partitions)
	var t *Topic
	d.during(creating, func() {
		var err error
		t, err = d.log.CreateTopic(o)
		if d.refused(err) {
			delete(d.filling.topics, name)
		}
	})
	if t == nil {
		return
	}
	d.tuneTopics()
	for _, m := range d.model.topics {
		if m.id == t.id && d.model.topics[name].id != t.id {
			d.fail("topic %s has the id %d of another one", name, t.id)
		}
	}
	d.model.topics[name] = modelTopic{t.id, o.Partitions}
}

// close stops the log cleanly.
func (d *crashDriver) close() {
	d.note("close")
	for !d.log.active.empty() {
		d.commit()
	}
	if d.taken != nil {
		d.finishCheckpoint()
	}
	close(d.log.clockDone)
	close(d.log.commitDone)
	close(d.log.appendDone)
	close(d.log.checkpointDone)
	d.log.refuse(causeClosed, &refusal{kind: ErrClosed})
	d.mustNot(d.log.finish())
}

// readSome reads from anywhere.
func (d *crashDriver) readSome() {
	p := d.partition()
	m := d.model.parts[p.String()]
	offset := p.StartOffset()
	offset += d.rng.Int64N(p.HighWatermark() + 1 - offset)
	got := d.readOnce(p, offset, 1+d.rng.IntN(3000))
	want := m.from(offset)
	d.note("read %s at %d: %d records", p, offset, len(got))
	if len(got) > len(want) || len(got) == 0 && len(want) > 0 {
		d.fail("read %s at %d: %d records, want %d", p, offset, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			d.fail("read %s at %d: %.30q at offset %d, want %.30q at %d", p, offset, got[i].value, got[i].offset, want[i].value, want[i].offset)
		}
	}
}

func (p *modelPart) from(offset int64) []modelRecord {
	for i, r := range p.records {
		if r.offset >= offset {
			return p.records[i:]
		}
	}
	return nil
}
