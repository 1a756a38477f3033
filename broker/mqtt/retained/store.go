package retained

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Limits bound a Store. What is staged counts as if it were settled; beside that only what a commit group replaces is in memory.
type Limits struct {
	Messages int
	Bytes    int64 // by Message.Size
}

// Store holds one message for each topic. All methods may be called from any goroutine, but that Stage's calls need an
// order: the caller has the log's lock.
type Store struct {
	limits Limits

	unsettled atomic.Int32  // changes that are staged and neither settled nor undone
	settled   atomic.Uint64 // the last group that was settled or undone

	mu       sync.RWMutex
	root     node
	messages int
	bytes    int64
	expiring int       // messages that have an expiry
	count    uint64    // of changes; gives them their order
	clock    uint64    // of cuts and marks
	staged   []*Change // in order
}

// entry is a topic's place.
type entry struct {
	visible *Message // what subscribers get, nil: nothing
	newest  *Message // what that will be once all changes are settled
	order   uint64   // of the change that made visible what it is
	latest  uint64   // of the newest change
	cut     uint64   // of the newest change: who subscribed before gets it as a live message
	staged  int32    // changes
}

// Change is one change on its way. Only the Store looks into it.
type Change struct {
	topic   string
	message *Message // nil: the topic is cleared
	group   uint64
	order   uint64
	atOnce  bool
	shown   bool // atOnce: is visible
	settled bool // its group is durable
	lost    bool // its group is not
}

// New makes an empty store.
func New(l Limits) *Store { return &Store{limits: l} }

// Load puts a message in whatever the limits say: it is durable already. The store must not have changes of its topic.
func (s *Store) Load(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.root.open(m.Topic)
	s.setNewestLocked(e, m)
	e.visible = m
}

// Set makes a message visible now, without regard to any group or limit, and returns false if nothing changed. For what is not kept.
func (s *Store) Set(m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.root.open(m.Topic)
	if e.visible != nil && string(e.visible.Payload) == string(m.Payload) {
		return false
	}
	s.clock++
	s.setNewestLocked(e, m)
	e.visible, e.cut = m, s.clock
	return true
}

// Stage takes note of a change that is in a commit group: m becomes the topic's message, or, when it is nil, the topic has none any
// more. ok is false when there is no room. atOnce says that the message goes to subscribers before its group is durable: the
// caller calls Show then, just before. Stage is called under the log's lock.
func (s *Store) Stage(group uint64, topic string, m *Message, atOnce bool) (c *Change, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m != nil && !s.roomLocked(topic, m) {
		return nil, false
	}
	e := s.root.open(topic)
	s.count++
	c = &Change{topic: topic, message: m, group: group, order: s.count, atOnce: atOnce}
	if !atOnce {
		s.clock++
		e.cut = s.clock
	}
	s.setNewestLocked(e, m)
	e.latest = c.order
	e.staged++
	s.staged = append(s.staged, c)
	s.unsettled.Add(1)
	return c, true
}

// roomLocked says whether m fits in, in place of what its topic has.
func (s *Store) roomLocked(topic string, m *Message) bool {
	messages, bytes := s.messages+1, s.bytes+m.Size()
	if e := s.root.find(topic); e != nil && e.newest != nil {
		messages--
		bytes -= e.newest.Size()
	}
	return messages <= s.limits.Messages && bytes <= s.limits.Bytes
}

// setNewestLocked keeps the sums.
func (s *Store) setNewestLocked(e *entry, m *Message) {
	if old := e.newest; old != nil {
		s.messages--
		s.bytes -= old.Size()
		if old.HasExpiry {
			s.expiring--
		}
	}
	if m != nil {
		s.messages++
		s.bytes += m.Size()
		if m.HasExpiry {
			s.expiring++
		}
	}
	e.newest = m
}

// Show makes a change visible that Stage was told is handed on at once.
func (s *Store) Show(c *Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.shown = true; c.lost {
		return
	}
	e := s.root.find(c.topic)
	if c.order == e.latest { // what is newer has a cut of its own
		s.clock++
		e.cut = s.clock
	}
	s.applyLocked(e, c)
	if c.settled {
		s.releaseLocked(c.topic, e)
	}
}

func (s *Store) applyLocked(e *entry, c *Change) {
	if c.order > e.order {
		e.visible, e.order = c.message, c.order
	}
}

// releaseLocked lets a change of the topic go.
func (s *Store) releaseLocked(topic string, e *entry) {
	s.unsettled.Add(-1)
	if e.staged--; e.staged == 0 && e.visible == nil && e.newest == nil {
		s.root.remove(topic, true)
	}
}

// Unsettled says whether changes wait for their group. It takes no lock.
func (s *Store) Unsettled() bool { return s.unsettled.Load() > 0 }

// Settle makes the changes of a group visible that has become durable, and of those before it.
func (s *Store) Settle(group uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for ; n < len(s.staged) && s.staged[n].group <= group; n++ {
		c := s.staged[n]
		e := s.root.find(c.topic)
		if c.settled = true; c.atOnce && !c.shown {
			continue // Show does it
		}
		s.applyLocked(e, c)
		s.releaseLocked(c.topic, e)
	}
	s.dropStagedLocked(n)
}

// dropStagedLocked forgets the first n changes.
func (s *Store) dropStagedLocked(n int) {
	if n == 0 {
		return
	}
	s.settled.Store(s.staged[n-1].group)
	rest := copy(s.staged, s.staged[n:])
	clear(s.staged[rest:])
	s.staged = s.staged[:rest]
	if cap(s.staged) > 64 && rest == 0 {
		s.staged = nil
	}
}

// Undo takes the changes of a group back that is finally not stored, and of those before it. durable says what of a topic is, nil for
// nothing; when it fails, what is visible stays. It returns durable's errors.
func (s *Store) Undo(group uint64, durable func(topic string) (*Message, error)) (errs []error) {
	s.mu.Lock()
	n := 0
	var topics []string
	for ; n < len(s.staged) && s.staged[n].group <= group; n++ {
		if t := s.staged[n].topic; !slices.Contains(topics, t) {
			topics = append(topics, t)
		}
	}
	lost := slices.Clone(s.staged[:n])
	s.mu.Unlock()
	was := make([]*Message, len(topics)) // read without the lock: publishers need it
	failed := make([]bool, len(topics))
	for i, t := range topics {
		m, err := durable(t)
		if was[i] = m; err != nil {
			errs, failed[i] = append(errs, err), true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropStagedLocked(n)
	for i, t := range topics {
		s.restoreLocked(t, was[i], failed[i], lost)
	}
	return errs
}

// restoreLocked makes a topic what it was before the changes that are lost.
func (s *Store) restoreLocked(topic string, durable *Message, keep bool, lost []*Change) {
	e := s.root.find(topic)
	last := uint64(0)
	for _, c := range lost {
		if c.topic == topic {
			c.lost = true
			e.staged--
			s.unsettled.Add(-1)
			last = c.order
		}
	}
	if keep {
		durable = e.visible
	}
	if e.order <= last {
		e.visible = durable
	}
	if e.latest <= last {
		s.setNewestLocked(e, durable)
		e.cut = 0
	}
	if e.staged == 0 && e.visible == nil && e.newest == nil {
		s.root.remove(topic, true)
	}
}

// Mark is the point in the order of changes that a subscription begins at which is made now, and the newest group that it has to
// wait for, 0 for none: what that changes was published before.
func (s *Store) Mark() (mark, group uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range slices.Backward(s.staged) {
		if !c.atOnce { // what is, is either visible already or will arrive live
			return s.clock, c.group
		}
	}
	return s.clock, 0
}

// Settled is the newest group whose changes have been settled or undone. It takes no lock.
func (s *Store) Settled() uint64 { return s.settled.Load() }

// walkNodes is how many nodes Next looks at before it gives others a turn.
const walkNodes = 1000

// Next is the first message behind a position whose topic the filter matches and that was retained before mark. m may be nil
// when there is more: then it has looked at enough for one call. filter is a valid one without $share.
func (s *Store) Next(filter string, from Position, mark uint64) (m *Message, at Position, more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, at, more := s.root.next(filter, from, walkNodes, func(e *entry) bool { return e.visible != nil && e.cut <= mark })
	if e != nil {
		m = e.visible
	}
	return m, at, more
}

// Get is the message that Next would give of one topic, nil for none.
func (s *Store) Get(topic []byte, mark uint64) *Message {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.root.find(unsafe.String(unsafe.SliceData(topic), len(topic))); e != nil && e.cut <= mark {
		return e.visible
	}
	return nil
}

// Expired are topics, at most n, whose message has expired and isn't being changed.
func (s *Store) Expired(n int, age func(stamp int64) time.Duration) (topics []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.expiring == 0 {
		return nil
	}
	expired := func(e *entry) bool {
		if e.staged > 0 || e.visible == nil {
			return false
		}
		_, ok := e.visible.Left(age)
		return !ok
	}
	for at, more := (Position{}), true; more && len(topics) < n; {
		var e *entry
		if e, at, more = s.root.next("#", at, walkNodes, expired); e != nil {
			topics = append(topics, e.visible.Topic)
		}
	}
	return topics
}

// Expire is Stage for the end of a message that has expired. It does nothing, and returns false, if the message isn't that of the
// topic any more. It is called under the log's lock.
func (s *Store) Expire(group uint64, topic string, age func(stamp int64) time.Duration) bool {
	s.mu.RLock()
	e := s.root.find(topic)
	gone := e == nil || e.staged > 0 || e.visible == nil
	if !gone {
		_, ok := e.visible.Left(age)
		gone = ok
	}
	s.mu.RUnlock()
	if gone {
		return false
	}
	s.Stage(group, topic, nil, false)
	return true
}

// Len is the number of messages and what they take in bytes, staged ones included.
func (s *Store) Len() (messages int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.messages, s.bytes
}
