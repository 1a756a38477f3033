package segment

import (
	"slices"
	"strings"
)

var segmentRows = []row{
	{"segment, last log", "missing", edit(active, gone), ""},
	{"segment, last log", "empty", edit(active, empty), ""},
	{"segment, last log", "truncated at every byte of the last two batches", truncated(active, lastBatches), ""},
	{"segment, last log", "zeros from every byte of the last two batches on", zeroed(active, lastBatches), ""},
	{"segment, last log", "a bit in each field and the body of the last batch", flipAt(active, func(s *scene) []int64 { return places(s.batches[1].at, batchFields...) }), ""},
	{"segment, last log", "a bit in each field and the body of the batch before", flipAt(active, func(s *scene) []int64 { return places(s.batches[0].at, batchFields...) }), ""},
	{"segment, last log", "stale batches after the tail", one(func(r *ruin) {
		r.edit(active(r.scene), func(b []byte) []byte { return append(b, r.read(r.t, r.logs[0])[:2000]...) })
	}), ""},
	{"segment, last log", "zeros after the tail", edit(active, func(b []byte) []byte { return append(b, make([]byte, 5000)...) }), ""},
	{"segment, last log", "other content", edit(active, text), ""},
	{"segment, sealed log", "missing", edit(sealed, gone), ""},
	{"segment, sealed log", "empty", edit(sealed, empty), ""},
	{"segment, sealed log", "truncated at every byte of the last two batches' headers and some of their bodies", truncated(sealed, lastSealedBatches), ""},
	{"segment, sealed log", "zeros from every byte of the last two batches' headers and some of their bodies on", zeroed(sealed, lastSealedBatches), ""},
	{"segment, sealed log", "a bit in each field and the body of a batch in the middle", flipAt(sealed, func(s *scene) []int64 { return places(batchesOf(s, sealed(s))[1].at, batchFields...) }), ""},
	{"segment, sealed log", "other content", edit(sealed, text), ""},
	{"segment, sealed log", "swapped with one of the same partition", one(func(r *ruin) { r.swap(r.logs[0], r.logs[1]) }), ""},
	{"segment, sealed log", "swapped with one of another partition", one(func(r *ruin) { r.swap(r.logs[1], strings.Replace(r.logs[0], "a-0", "b-0", 1)) }), ""},
	{"segment, directory", "missing", one(func(r *ruin) {
		for _, path := range r.glob(r.t, "topics/a-0/*") {
			r.edit(path, gone)
		}
	}), ""},
}

func indexOf(log func(*scene) string, suffix string) func(*scene) string {
	return func(s *scene) string { return strings.TrimSuffix(log(s), ".log") + suffix }
}

// lastEntries are the bytes of an index's last two entries.
func lastEntries(path func(*scene) string, entry int64) func(*scene) []int64 {
	return func(s *scene) (at []int64) {
		size := sizeOf(s, path(s))
		for i := max(0, size-2*entry); i < size; i++ {
			at = append(at, i)
		}
		return at
	}
}

func indexTable(name string, log func(*scene) string, suffix string, entry int64) []row {
	path := indexOf(log, suffix)
	other := indexOf(log, map[string]string{".index": ".timeindex", ".timeindex": ".index"}[suffix])
	file := "index, " + name + suffix
	return []row{
		{file, "missing", edit(path, gone), ""},
		{file, "empty", edit(path, empty), ""},
		{file, "truncated at every byte of the last two entries", truncated(path, lastEntries(path, entry)), ""},
		{file, "zeros from every byte of the last two entries on", zeroed(path, lastEntries(path, entry)), ""},
		{file, "a bit in every byte of the last two entries", flipAt(path, lastEntries(path, entry)), ""},
		{file, "stale entries after the last", one(func(r *ruin) {
			r.edit(path(r.scene), func(b []byte) []byte { return append(b, b[:min(len(b), int(entry))]...) })
		}), ""},
		{file, "swapped with the other index", one(func(r *ruin) { r.swap(path(r.scene), other(r.scene)) }), ""},
		{file, "other content", edit(path, func([]byte) []byte { return []byte("not what it was\n") }), ""},
	}
}

var indexRows = slices.Concat(
	indexTable("last ", active, ".index", 8), indexTable("last ", active, ".timeindex", 12),
	indexTable("sealed ", sealed, ".index", 8), indexTable("sealed ", sealed, ".timeindex", 12))

func newestState(s *scene) string { return s.states[0] }
func olderState(s *scene) string  { return s.states[1] }

// stateBytes are some bytes of every page.
func stateBytes(path func(*scene) string) func(*scene) []int64 {
	return func(s *scene) (at []int64) {
		for i := int64(0); i < sizeOf(s, path(s)); i += 509 {
			at = append(at, i)
		}
		return at
	}
}

func stateTable(name string, path func(*scene) string) []row {
	file := "state, " + name
	return []row{
		{file, "missing", edit(path, gone), ""},
		{file, "empty", edit(path, empty), ""},
		{file, "truncated", truncated(path, func(s *scene) []int64 { return []int64{1, 4096, 8192, sizeOf(s, path(s)) / 2, sizeOf(s, path(s)) - 1} }), ""},
		{file, "zeros from each page on", zeroed(path, func(s *scene) []int64 { return []int64{0, 4096, 8192, 12288} }), ""},
		{file, "a bit in the newest meta page", one(func(r *ruin) {
			r.edit(path(r.scene), func(b []byte) []byte { return flip(b, newestMeta(b)+40) })
		}), "opened at the transaction before"},
		{file, "a bit in both meta pages", edit(path, func(b []byte) []byte { return flip(flip(b, 40), 4096+40) }), ""},
		{file, "a bit in every 509th byte", flipAt(path, stateBytes(path)), ""},
		{file, "of an older checkpoint", one(func(r *ruin) {
			r.edit(path(r.scene), func([]byte) []byte { return r.past[path(r.scene)] })
		}), ""},
		{file, "other content", edit(path, text), ""},
	}
}

func bothStates(change func([]byte) []byte) func(*scene) []func(*ruin) {
	return one(func(r *ruin) {
		for _, path := range r.states {
			r.edit(path, change)
		}
	})
}

var stateRows = slices.Concat(stateTable("newest file", newestState), stateTable("older file", olderState), []row{
	{"state, both files", "swapped", one(func(r *ruin) { r.swap(r.states[0], r.states[1]) }), "names mean nothing"},
	{"state, both files", "missing", bothStates(gone), ""},
	{"state, both files", "other content", bothStates(text), ""},
	{"state, both files", "of an older checkpoint", one(func(r *ruin) {
		for _, path := range r.states {
			r.edit(path, func([]byte) []byte { return r.past[path] })
		}
	}), "records are found by scanning the segments on from there"},
	{"state, both files", "missing, and the journal", one(func(r *ruin) {
		for _, path := range append(r.glob(r.t, "journal/*"), r.states[:]...) {
			r.edit(path, gone)
		}
	}), ""},
})

func lockFile(*scene) string { return "lock" }

var lockRows = []row{
	{"lock", "missing", edit(lockFile, gone), "made anew"},
	{"lock", "other content", edit(lockFile, func([]byte) []byte { return []byte("4711\n") }), "nobody reads it"},
	{"lock", "swapped with a state file", one(func(r *ruin) { r.swap("lock", r.states[0]) }), ""},
}
