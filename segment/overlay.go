package segment

import (
	"maps"
	"slices"
	"sync"

	"github.com/sluicemq/sluice/segment/journal"
	"github.com/sluicemq/sluice/segment/state"
)

// overlay holds the state changes that are durable in the journal and not yet in the state files.
type overlay struct {
	mu     sync.Mutex
	fresh  map[string]change // since the last cut
	before map[string]change // up to the last cut, not stored yet
	taking map[string]change // being stored by the checkpointer
	bytes  int               // of fresh
}

type change struct {
	value   []byte
	deleted bool
}

func newOverlay() *overlay {
	return &overlay{fresh: map[string]change{}, before: map[string]change{}, taking: map[string]change{}}
}

// apply takes over a group's encoded changes, all at once.
func (o *overlay) apply(encoded []byte, count int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return journal.EachChange(encoded, count, o.applyLocked)
}

// put stores one value.
func (o *overlay) put(key string, value []byte) {
	o.applyEntry(&journal.Entry{Kind: journal.KindPut, Key: []byte(key), Value: value})
}

// applyEntry takes over one change that recovery found in the journal.
func (o *overlay) applyEntry(e *journal.Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.applyLocked(e)
}

func (o *overlay) applyLocked(e *journal.Entry) {
	old, ok := o.fresh[string(e.Key)]
	c := change{deleted: e.Kind == journal.KindDelete}
	if !c.deleted {
		c.value = append(old.value[:0], e.Value...)
	}
	o.bytes += len(c.value) - len(old.value)
	if !ok {
		o.bytes += len(e.Key) + 64 // about what a map entry takes
	}
	o.fresh[string(e.Key)] = c
}

// get looks a key up; known is false if no change of it is pending.
func (o *overlay) get(key []byte) (c change, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range []map[string]change{o.fresh, o.before, o.taking} {
		if c, ok := m[string(key)]; ok {
			return change{slices.Clone(c.value), c.deleted}, true
		}
	}
	return change{}, false
}

// collect returns the pending changes of all keys with the prefix.
func (o *overlay) collect(prefix []byte) map[string]change {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]change{}
	for _, m := range []map[string]change{o.taking, o.before, o.fresh} {
		for k, c := range m {
			if len(k) >= len(prefix) && k[:len(prefix)] == string(prefix) {
				all[k] = change{slices.Clone(c.value), c.deleted}
			}
		}
	}
	return all
}

func (o *overlay) pendingBytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// takenBytes is about how large the changes are that the next checkpoint stores.
func (o *overlay) takenBytes() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return sizeOfChanges(o.taking)
}

// allBytes is about how large all pending changes are.
func (o *overlay) allBytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return sizeOfChanges(o.taking) + sizeOfChanges(o.before) + sizeOfChanges(o.fresh)
}

func sizeOfChanges(m map[string]change) (n int) {
	for k, c := range m {
		n += len(k) + len(c.value) + 64
	}
	return n
}

// cut closes the fresh changes: those that follow belong to a later checkpoint.
func (o *overlay) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.before) == 0 {
		o.before, o.fresh = o.fresh, o.before
	} else {
		for k, c := range o.fresh {
			o.before[k] = c
		}
	}
	o.fresh, o.bytes = map[string]change{}, 0
}

// take marks everything up to the last cut as being stored.
func (o *overlay) take() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, c := range o.before {
		o.taking[k] = c
	}
	o.before = map[string]change{}
}

// taken lists what take marked and stored has not forgotten.
func (o *overlay) taken() []state.Change {
	o.mu.Lock()
	defer o.mu.Unlock()
	changes := make([]state.Change, 0, len(o.taking))
	for k, c := range o.taking {
		changes = append(changes, state.Change{Key: []byte(k), Value: c.value, Delete: c.deleted})
	}
	return changes
}

// stored forgets what taken gave: it is in the state files now.
func (o *overlay) stored() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taking = map[string]change{}
}

// Get reads a state value. It sees durable changes only. The value is the caller's.
func (l *Log) Get(key []byte) (value []byte, ok bool, err error) {
	if c, known := l.overlay.get(key); known {
		return c.value, !c.deleted, nil
	}
	return l.store.Get(key)
}

// Range calls fn for each key with the prefix, in no particular order, until fn returns false. It sees durable changes
// only; what changes meanwhile may be missed. The slices are the callee's.
func (l *Log) Range(prefix []byte, fn func(key, value []byte) bool) error {
	pending := l.overlay.collect(prefix)
	for _, k := range slices.Sorted(maps.Keys(pending)) { // in one order always, so that a test can repeat a recovery
		if c := pending[k]; !c.deleted && !fn([]byte(k), c.value) {
			return nil
		}
	}
	return l.store.Range(prefix, func(key, value []byte) bool {
		if _, newer := pending[string(key)]; newer {
			return true
		}
		return fn(key, value)
	})
}

// PutLazy stores a state value with the next group or checkpoint. It causes no sync of its own: a crash may undo the
// last seconds of it. The key has 1 to MaxKeyBytes bytes.
func (l *Log) PutLazy(key, value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.putLazyLocked(key, value)
}

func (l *Log) putLazyLocked(key, value []byte) {
	mustKey(key)
	b := l.lazy[string(key)][:0]
	if b == nil {
		b = make([]byte, 0, len(value)) // nil stands for a removal
	}
	l.lazy[string(key)] = append(b, value...)
}
