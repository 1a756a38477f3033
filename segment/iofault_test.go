package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicemq/sluice/internal/vfs"
	"github.com/sluicemq/sluice/segment/record"
)

// ioKinds are the kinds of operation that a running log makes.
var ioKinds = []vfs.Op{vfs.OpOpen, vfs.OpRead, vfs.OpWrite, vfs.OpTruncate, vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove, vfs.OpRename, vfs.OpMkdir}

var ioErrors = []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS}

// script is a run of a log in which everything happens once: appends, state changes, rolls, checkpoints, a new segment, a new
// topic. What it does next depends on nothing but what was done before.
type script struct {
	t     *testing.T
	disk  *disk
	l     *Log
	acked map[string][]string
	state map[string]string
	heard map[string]bool // refusals
}

func newScript(t *testing.T, seed uint64) *script {
	s := &script{t: t, acked: map[string][]string{}, state: map[string]string{}, heard: map[string]bool{}}
	s.disk = &disk{FS: nosync{vfs.OS}, rng: rand.New(rand.NewPCG(seed, 3)), count: map[vfs.Op]int{}, files: map[string]*unsynced{}}
	o := testOptions(filepath.Join(t.TempDir(), "data"))
	o.FS = s.disk
	o.MaxDelay = 0
	s.l = openLog(t, o)
	s.topic("t", 2)
	clear(s.disk.count)
	return s
}

// run is the script. It goes on until everything is acknowledged, however often it is refused.
func (s *script) run() {
	for i := range 24 {
		s.write("t-0", i, 4000)
		s.write("t-1", i, 100)
		switch i {
		case 6, 14, 20:
			s.checkpoint()
		case 10:
			s.topic("u", 1)
		case 12:
			s.write("u-0", i, 100)
		}
		if i%8 == 7 {
			s.read()
		}
	}
}

// checkpoint asks for one until it is made.
func (s *script) checkpoint() {
	before := s.l.Status().Checkpoints
	for i := 0; s.l.Status().Checkpoints == before || !s.l.checkpoints.idle(); i++ {
		if i%20 == 0 {
			s.l.askForRoll()
		}
		if i > 6000 {
			s.t.Fatal("no checkpoint")
		}
		time.Sleep(10 * time.Millisecond) //lint:sleep in a synctest bubble
	}
}

// acknowledged waits for a group. One that takes long is waiting for the disk, and whoever comes meanwhile is told.
func (s *script) acknowledged(ticket Ticket) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	err := ticket.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		if err := s.l.NewWriter(nil).Begin(); !errors.Is(err, ErrUnavailable) {
			s.t.Fatalf("not refused although nothing is acknowledged for a second: %v", err)
		} else {
			s.heard[err.Error()] = true
		}
		err = ticket.Wait(s.t.Context())
	}
	if err != nil {
		s.t.Fatalf("a group was given up: %v", err)
	}
}

// patiently tries until fn succeeds. What it is refused with has to be the right kind of error, naming the place.
func (s *script) patiently(what string, fn func() error) {
	s.t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s: still refused: %v", what, err)
		}
		if errors.Is(err, ErrUnavailable) {
			s.heard[err.Error()] = true
		}
		time.Sleep(50 * time.Millisecond) //lint:sleep in a synctest bubble
	}
}

func (s *script) topic(name string, partitions int32) {
	s.patiently("topic", func() error {
		_, err := s.l.CreateTopic(TopicOptions{Name: name, Partitions: partitions, Compression: record.None, SegmentBytes: 64 << 10})
		return err
	})
}

// write adds a record and a state value in one group, and takes note of it once it is acknowledged.
func (s *script) write(partition string, i, size int) {
	p := s.l.partitionNamed(partition)
	value := fmt.Sprintf("%s %d %s", partition, len(s.acked[partition]), strings.Repeat("x", size))
	w := s.l.NewWriter(nil)
	s.patiently("write", w.Begin)
	w.Append(p, &record.Record{Timestamp: int64(i), Value: []byte(value)})
	key := fmt.Sprintf("s/%d", i%5)
	w.Put([]byte(key), []byte(value[:10]))
	ticket := s.l.endWithTicket(w, p, 0)
	s.acknowledged(ticket)
	if got, want := ticket.Offset(), int64(len(s.acked[partition])); got != want {
		s.t.Fatalf("offset %d, want %d", got, want)
	}
	s.acked[partition] = append(s.acked[partition], value)
	s.state[key] = value[:10]
}

// read compares all that is acknowledged with what is there. A disk that fails a read may do so once, or until its fault ends.
func (s *script) read() {
	s.t.Helper()
	for name, want := range s.acked {
		p := s.l.partitionNamed(name)
		for offset := int64(0); offset < int64(len(want)); {
			var b []byte
			s.patiently("read", func() (err error) {
				if b, err = p.Read(nil, offset, 10000); errors.Is(err, ErrOffsetOutOfRange) || err == nil && len(b) == 0 {
					s.t.Fatalf("read %s at %d: %d bytes, %v", p, offset, len(b), err)
				}
				return err
			})
			offset = s.check(b, offset, want)
		}
	}
	for key, want := range s.state {
		if v, ok, err := s.l.Get([]byte(key)); !ok || string(v) != want || err != nil {
			s.t.Fatalf("state %s is %q, %v, want %q", key, v, err, want)
		}
	}
}

// check compares batches that were read at offset with what was acknowledged, and returns the offset behind them.
func (s *script) check(b []byte, offset int64, want []string) int64 {
	s.t.Helper()
	d := record.NewDecoder(1 << 20)
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err == nil {
			err = d.Records(batch, func(r *record.Record) error {
				if r.Offset < int64(len(want)) && string(r.Value) != want[r.Offset] {
					return fmt.Errorf("offset %d holds %.20q, want %.20q", r.Offset, r.Value, want[r.Offset])
				}
				return nil
			})
		}
		if err != nil || batch.NextOffset() <= offset {
			s.t.Fatalf("at offset %d: %v", offset, err)
		}
		b, offset = rest, batch.NextOffset()
	}
	return offset
}

// over is the end: the log takes everything again by itself, and it all survives a power cut.
func (s *script) over() {
	s.t.Helper()
	s.disk.disarm()
	eventually(s.t, "writers are welcome", func() bool { return s.l.Status().Refusing == nil })
	s.write("t-0", 99, 10)
	s.read()
	eventually(s.t, "the log to come to rest", func() bool { return s.l.fullest() == nil && s.l.checkpoints.idle() })
	s.read()
	for heard := range s.heard {
		if !strings.Contains(heard, s.l.o.Dir) || !strings.Contains(heard, "; ") {
			s.t.Errorf("a refusal without file or remedy: %s", heard)
		}
	}
	dir := s.l.o.Dir
	crashed := crashCopy(s.t, dir)
	s.disk.move(dir, crashed)
	if err := s.l.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.disk.cutPower(s.t)
	for _, d := range []string{crashed, dir} {
		o := s.l.o
		o.Dir, o.FS = d, nosync{vfs.OS}
		s.l = openLog(s.t, o)
		s.read()
		if r := s.l.Recovered(); len(r.Damages) > 0 {
			s.t.Fatalf("damages %q", r.Damages)
		}
		if err := s.l.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestEachOperationFailsOnce fails each single operation of the script in turn: nothing that wasn't synced is acknowledged,
// nothing that was is lost, and the log goes on by itself.
func TestEachOperationFailsOnce(t *testing.T) {
	counts := map[vfs.Op]int{}
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t, 1)
		s.run()
		for op, n := range s.disk.count {
			counts[op] = n
		}
		s.over()
	})
	step := 1
	if raceEnabled || testing.Short() {
		step = 11
	}
	struck, refused := 0, 0
	for _, op := range ioKinds {
		for n := 0; n < counts[op]; n += step {
			err := ioErrors[n/step%len(ioErrors)]
			name := fmt.Sprintf("%s %d of %d: %v", op, n, counts[op], err)
			synctest.Test(t, func(t *testing.T) {
				t.Log(name)
				s := newScript(t, uint64(n))
				s.disk.fault = &plan{op: op, err: err, skip: n}
				s.run()
				s.over()
				struck += s.disk.hits
				refused += min(1, len(s.heard))
			})
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
	t.Logf("operations: %v; %d faults struck, %d of them made writers be refused", counts, struck, refused)
	if struck == 0 || refused == 0 && step == 1 { // it takes the right operations
		t.Error("no fault struck")
	}
}

// TestOperationsFailForAWhile is the same with faults that last: a full disk, one that fails, one that turned read-only. Writes
// are refused meanwhile, reads are not, and when it is over the log goes on by itself.
func TestOperationsFailForAWhile(t *testing.T) {
	skips := []int{0, 5, 40}
	if raceEnabled || testing.Short() {
		skips = []int{5}
	}
	for _, err := range ioErrors {
		for _, op := range ioKinds {
			for _, skip := range skips {
				t.Run(fmt.Sprintf("%v %v from %d on", op, err, skip), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newScript(t, uint64(skip))
						s.disk.fault = &plan{op: op, err: err, skip: skip, lasts: true}
						time.AfterFunc(3*time.Second, s.disk.disarm)
						s.run()
						s.over()
						if skip < 40 && s.disk.hits > 0 && len(s.heard) == 0 && (op == vfs.OpWrite || op == vfs.OpSync) {
							t.Error("nobody was refused")
						}
						for heard := range s.heard {
							t.Log(heard)
						}
					})
				})
			}
		}
	}
}
