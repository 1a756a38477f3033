package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
)

// bbolt's pages carry no checksum, and a bad one makes it panic, fault at its memory map or run in circles. So
// every page that it could reach is looked at with plain reads first. The format (go.etcd.io/bbolt, internal/common), integers
// in the machine's byte order:
//
//	page    0 uint64 id | 8 uint16 flags | 10 uint16 count | 12 uint32 overflow pages that follow and belong to it
//	meta    at 16 of pages 0 and 1: uint32 magic, version, page size, flags | uint64 root bucket's page, its sequence,
//	        freelist page, number of pages in use, transaction id, FNV-1a of all before
//	branch  from 16 on, each 16 bytes: uint32 distance of the key from here, key size | uint64 child page
//	leaf    from 16 on, each 16 bytes: uint32 flags, distance of key and value from here, key size, value size
//	        flags bit 0: the value is a bucket: uint64 root page, sequence; root page 0: a leaf page follows in line
//	free    from 16 on: uint64 page ids; a count of 0xffff: the first is the count
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	flagBranch     = 0x01
	flagLeaf       = 0x02
	flagFreelist   = 0x10
	pageHeader     = 16
	elementBytes   = 16
	metaBytes      = 64
	bucketHeader   = 16
	noFreelist     = math.MaxUint64
	maxDepth       = 32
	maxPageSize    = 1 << 16
	inspectMaxFile = 1 << 31
)

var errEmptyFile = errors.New("file is empty")

// inspectFile checks that bbolt can work with the file.
func inspectFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return inspect(f, info.Size())
}

// oneMeta says whether only one of the file's two meta pages is good: bbolt opens it at that transaction without a word.
func oneMeta(path string) bool {
	_, good := metas(path)
	return good[0] != good[1]
}

// metas are the file's two meta pages, and which of them are good: none if neither is, or the file can't be read.
func metas(path string) (pages [2]boltMeta, good [2]bool) {
	f, err := os.Open(path)
	if err != nil {
		return pages, good
	}
	defer f.Close()
	x := inspector{f: f}
	if _, err := x.newestMeta(); err != nil {
		return pages, good
	}
	pages[0], _, good[0] = x.meta(0)
	pages[1], _, good[1] = x.meta(x.pageSize)
	return pages, good
}

type inspector struct {
	f        io.ReaderAt
	size     int64
	pageSize int64
	pages    uint64 // in use: higher ids are not
	seen     []uint64

	at     int64                                 // position of the page in hand
	bucket []byte                                // that is walked
	visit  func(bucket, key, value []byte) error // nil: nobody wants to see what is in them
}

type boltMeta struct{ root, freelist, pages, txid uint64 }

// inspect checks the newest valid meta page's tree: that it is one, in order, within the file, and apart from the free
// pages. Whether values are right is for their checksums.
func inspect(f io.ReaderAt, size int64) error {
	if size == 0 {
		return errEmptyFile
	}
	if size > inspectMaxFile {
		return fmt.Errorf("file of %d bytes is too large", size)
	}
	return (&inspector{f: f, size: size}).run()
}

func (x *inspector) run() error {
	meta, err := x.newestMeta()
	if err != nil {
		return err
	}
	x.pages = meta.pages
	if meta.pages < 2 || meta.pages > uint64(x.size/x.pageSize) {
		return fmt.Errorf("%d pages of %d bytes in a file of %d", meta.pages, x.pageSize, x.size)
	}
	x.seen = make([]uint64, meta.pages/64+1)
	if err := x.tree(meta.root, nil, nil, 0); err != nil {
		return err
	}
	return x.freelist(meta.freelist)
}

// newestMeta finds the page size and the meta page that bbolt will use.
func (x *inspector) newestMeta() (boltMeta, error) {
	var found bool
	var newest boltMeta
	try := func(at, pageSize int64) {
		if m, size, ok := x.meta(at); ok && (pageSize == 0 || size == pageSize) && (!found || m.txid > newest.txid) {
			newest, x.pageSize, found = m, size, true
		}
	}
	if try(0, 0); found {
		try(x.pageSize, x.pageSize)
		return newest, nil
	}
	for size := int64(1024); size <= maxPageSize && !found; size *= 2 {
		try(size, size)
	}
	if !found {
		return newest, errors.New("no valid meta page")
	}
	return newest, nil
}

func (x *inspector) meta(at int64) (m boltMeta, pageSize int64, ok bool) {
	p := make([]byte, pageHeader+metaBytes)
	if _, err := x.f.ReadAt(p, at); err != nil {
		return m, 0, false
	}
	p = p[pageHeader:]
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	sum := fnv.New64a()
	_, _ = sum.Write(p[:56])
	pageSize = int64(u32(p[8:]))
	if u32(p) != boltMagic || u32(p[4:]) != boltVersion || u64(p[56:]) != sum.Sum64() || pageSize < 1024 || pageSize > maxPageSize {
		return m, 0, false
	}
	return boltMeta{root: u64(p[16:]), freelist: u64(p[32:]), pages: u64(p[40:]), txid: u64(p[48:])}, pageSize, true
}

// page reads a page with its overflow, and takes note of it: no page belongs to two things.
func (x *inspector) page(id uint64) ([]byte, error) {
	if id < 2 || id >= x.pages {
		return nil, fmt.Errorf("page %d of %d", id, x.pages)
	}
	x.at = int64(id) * x.pageSize
	var header [pageHeader]byte
	if _, err := x.f.ReadAt(header[:], int64(id)*x.pageSize); err != nil {
		return nil, err
	}
	n := uint64(binary.NativeEndian.Uint32(header[12:])) + 1
	if got := binary.NativeEndian.Uint64(header[:]); got != id || n > x.pages-id {
		return nil, fmt.Errorf("page %d says it is %d with %d overflow pages", id, got, n-1)
	}
	for i := id; i < id+n; i++ {
		if err := x.see(i); err != nil {
			return nil, err
		}
	}
	p := make([]byte, int64(n)*x.pageSize)
	_, err := x.f.ReadAt(p, int64(id)*x.pageSize)
	return p, err
}

func (x *inspector) see(id uint64) error {
	if x.seen[id/64]&(1<<(id%64)) != 0 {
		return fmt.Errorf("page %d is used twice", id)
	}
	x.seen[id/64] |= 1 << (id % 64)
	return nil
}

// tree checks the pages from id down. All keys are from low, inclusive, to high; nil is no bound.
func (x *inspector) tree(id uint64, low, high []byte, depth int) error {
	if depth > maxDepth {
		return errors.New("tree is too deep")
	}
	p, err := x.page(id)
	if err != nil {
		return err
	}
	switch flags := binary.NativeEndian.Uint16(p[8:]); flags {
	case flagLeaf:
		return x.leaf(p, low, high, depth)
	case flagBranch:
		return x.branch(id, p, low, high, depth)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
}

func (x *inspector) branch(id uint64, p, low, high []byte, depth int) error {
	n := int(binary.NativeEndian.Uint16(p[10:]))
	if n == 0 {
		return fmt.Errorf("branch page %d is empty", id)
	}
	keys, children := make([][]byte, n+1), make([]uint64, n)
	for i := range n {
		e, err := element(p, i)
		if err != nil {
			return err
		}
		pos, size := binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:])
		if keys[i], err = slice(e, pos, size); err != nil {
			return err
		}
		if err := inOrder(keys[i], low, high, i > 0); err != nil {
			return err
		}
		low, children[i] = keys[i], binary.NativeEndian.Uint64(e[8:])
	}
	keys[n] = high
	for i, child := range children {
		if err := x.tree(child, keys[i], keys[i+1], depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (x *inspector) leaf(p, low, high []byte, depth int) error {
	n := int(binary.NativeEndian.Uint16(p[10:]))
	for i := range n {
		e, err := element(p, i)
		if err != nil {
			return err
		}
		u32 := binary.NativeEndian.Uint32
		flags, pos, keySize, valueSize := u32(e), u32(e[4:]), u32(e[8:]), u32(e[12:])
		key, err := slice(e, pos, keySize)
		if err != nil {
			return err
		}
		value, err := slice(e[int(pos)+len(key):], 0, valueSize)
		if err != nil {
			return err
		}
		if err := inOrder(key, low, high, i > 0); err != nil {
			return err
		}
		low = key
		if flags > 1 {
			return fmt.Errorf("key %q has flags %#x", key, flags)
		}
		if flags == 1 {
			if err := x.walkBucket(key, value, depth); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		} else if x.visit != nil {
			if err := x.visit(x.bucket, key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *inspector) walkBucket(name, value []byte, depth int) error {
	outer := x.bucket
	x.bucket = name
	defer func() { x.bucket = outer }()
	if len(value) < bucketHeader || depth > maxDepth {
		return errors.New("malformed bucket")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return x.tree(root, nil, nil, depth+1)
	}
	page := value[bucketHeader:]
	if len(page) < pageHeader || binary.NativeEndian.Uint16(page[8:]) != flagLeaf {
		return errors.New("malformed inline bucket")
	}
	return x.leaf(page, nil, nil, depth+1)
}

func (x *inspector) freelist(id uint64) error {
	if id == noFreelist {
		return nil
	}
	p, err := x.page(id)
	if err != nil {
		return fmt.Errorf("freelist: %w", err)
	}
	if flags := binary.NativeEndian.Uint16(p[8:]); flags != flagFreelist {
		return fmt.Errorf("freelist page %d has flags %#x", id, flags)
	}
	n, p := uint64(binary.NativeEndian.Uint16(p[10:])), p[pageHeader:]
	if n == math.MaxUint16 {
		n, p = binary.NativeEndian.Uint64(p), p[8:]
	}
	if n > uint64(len(p)/8) {
		return fmt.Errorf("freelist of %d pages in %d bytes", n, len(p))
	}
	for i := range int(n) {
		free := binary.NativeEndian.Uint64(p[8*i:])
		if free < 2 || free >= x.pages {
			return fmt.Errorf("free page %d of %d", free, x.pages)
		}
		if err := x.see(free); err != nil {
			return fmt.Errorf("free %w", err)
		}
	}
	return nil
}

// element is the page from element i on: distances count from there.
func element(p []byte, i int) ([]byte, error) {
	at := pageHeader + i*elementBytes
	if at+elementBytes > len(p) {
		return nil, fmt.Errorf("element %d in a page of %d bytes", i, len(p))
	}
	return p[at:], nil
}

func slice(p []byte, at, size uint32) ([]byte, error) {
	if uint64(at)+uint64(size) > uint64(len(p)) {
		return nil, fmt.Errorf("%d bytes at %d of %d", size, at, len(p))
	}
	return p[at : uint64(at)+uint64(size)], nil
}

// inOrder checks a key against its predecessor, which it may equal only if that is a bound from above, and high.
func inOrder(key, low, high []byte, strict bool) error {
	c := 1
	if low != nil {
		c = bytes.Compare(key, low)
	}
	if c < 0 || c == 0 && strict || high != nil && bytes.Compare(key, high) >= 0 {
		return fmt.Errorf("key %q is out of order", key)
	}
	return nil
}
