package journal

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// A damaged frame that others follow was acknowledged. Its batches have checksums of their own, so what is good in it need
// not be lost with what is bad; of what is bad the offsets, at least, must not be given again. State changes have no
// checksum but the frame's and are not handed on.

// salvageBytes is how much of a damaged stretch is looked through.
const salvageBytes = 32 << 20

// resembles says whether b begins with a frame's header that is the wanted one but for a few bits.
func resembles(b []byte, lsn, epoch uint64) bool {
	wrong := bits.OnesCount32(binary.BigEndian.Uint32(b) ^ frameMagic)
	wrong += bits.OnesCount64(binary.BigEndian.Uint64(b[8:]) ^ lsn)
	wrong += bits.OnesCount64(binary.BigEndian.Uint64(b[16:]) ^ epoch)
	return wrong <= 8 // an epoch that is another random number differs in 32
}

// salvage hands on what can be made out of the frames first to last, which lie between two places in the file and are
// damaged.
func (s *scanner) salvage(f *use, from, to int64, first, last uint64) error {
	if !s.salvaging || last <= s.after || first > last {
		return nil
	}
	b := make([]byte, min(to-from, salvageBytes))
	n, _ := f.f.ReadAt(b, from) // what can't be read is damaged, too
	b = b[:n]
	for at := 0; at+frameHeaderBytes <= len(b) && first <= last; at += blockBytes {
		lsn := first
		for at > 0 && lsn <= last && lsn-first < 64 && !resembles(b[at:], lsn, f.header.epoch) {
			lsn++
		}
		if lsn > last || lsn-first == 64 {
			continue
		}
		first = lsn + 1
		if lsn <= s.after {
			continue
		}
		for _, e := range batches(b[at+frameHeaderBytes:]) {
			if err := s.fn(lsn, &e); err != nil {
				return fmt.Errorf("journal: %s: frame %d: %w", f.f.Name(), lsn, err)
			}
		}
	}
	return nil
}

// batches are the entries of that kind up to the first that is none. A frame has one of each partition: where two say
// that they are of the same, one of them is not.
func batches(b []byte) (found []Entry) {
	type partition struct {
		topic string
		id    int32
	}
	seen := map[partition]int{}
	for {
		var e Entry
		rest, err := parseEntry(b, &e)
		if err != nil {
			break
		}
		b = rest
		if e.Kind == KindBatch {
			e.Salvaged = true
			found = append(found, e)
			seen[partition{string(e.Topic), e.Partition}]++
		}
	}
	kept := found[:0]
	for _, e := range found {
		if seen[partition{string(e.Topic), e.Partition}] == 1 {
			kept = append(kept, e)
		}
	}
	return kept
}

// blankBytes of zeros at its beginning tell a file that was never used: no flash page is that large.
const blankBytes = 64 << 10

// adopt gives a file whose header is damaged, in both copies, the one that its frames tell of: those of the newest use,
// which have the highest LSNs. A file that was being recycled when the power failed may look the same, but all its frames
// are covered by checkpoints then and replay passes them over.
func (f *file) adopt() {
	size, err := f.f.Size()
	if err != nil || f.blank() {
		return
	}
	first, begin, err := newestUse(f.f, min(size, 1<<30))
	if err != nil {
		f.note = fmt.Sprintf("%s has neither a header nor frames of a journal: what it held, if anything, is not known", f.f.Name())
		return
	}
	f.header = header{epoch: first.epoch, firstLSN: first.lsn, prevLSN: first.lsn - 1, size: size}
	f.used, f.begin = true, begin
	f.note = fmt.Sprintf("%s: both copies of its header are damaged; it was read by its frames, from %d on", f.f.Name(), first.lsn)
}

func (f *file) blank() bool {
	b := make([]byte, blankBytes)
	n, err := f.f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return false
	}
	for _, x := range b[:n] {
		if x != 0 {
			return false
		}
	}
	return true
}

// newestUse finds the first valid frame of the use that has the newest ones.
func newestUse(f io.ReaderAt, size int64) (first frameHeader, begin int64, err error) {
	var buf []byte
	newest := uint64(0)
	for at := int64(framesAt); at+frameHeaderBytes <= size; {
		h, err := readFrame(f, at, size, &buf)
		if err != nil {
			at += blockBytes
			continue
		}
		if begin == 0 || h.lsn > newest && h.epoch != first.epoch {
			first, begin = h, at
		}
		newest = max(newest, h.lsn)
		at += int64(padded(frameHeaderBytes + int(h.bytes)))
	}
	if begin == 0 {
		return first, 0, errNoFrame
	}
	return first, begin, nil
}
