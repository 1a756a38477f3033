package mirror

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// metadataAge is when a busy sender has the metadata refreshed, to see topics that were created anew. An idle link stays idle.
const metadataAge = 5 * time.Minute

// manage keeps lanes and brokers matched until Close.
func (m *Mirror) manage() {
	defer m.wg.Done()
	retry := m.newBackoff()
	for {
		wait, err := m.refresh()
		switch {
		case m.stopping.Err() != nil:
			return
		case err != nil:
			m.setState(Unreachable, err)
			if !m.pause(retry.next(), nil) {
				return
			}
		default:
			retry.reset()
			m.setState(Up, nil)
			if !m.pause(wait, m.look) {
				return
			}
		}
	}
}

// refresh asks for the metadata, creates what is missing, and gives each lane its broker. wait is when to look again,
// negative when there is no need to.
func (m *Mirror) refresh() (wait time.Duration, err error) {
	m.mu.Lock()
	m.adoptLocked()
	names := make([]string, 0, len(m.topics))
	for _, t := range m.topics {
		names = append(names, t.remote)
	}
	m.mu.Unlock()
	meta, err := m.region.metadata(m.stopping, names)
	if err != nil {
		return 0, err
	}
	missing := m.apply(meta)
	if len(missing) > 0 {
		if err := m.create(missing); err != nil {
			return 0, err
		}
	}
	return m.nextLook(), nil
}

// apply takes over what the metadata says and returns the missing topics whose turn it is.
func (m *Mirror) apply(meta *kmsg.MetadataResponse) map[string]int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.asked = now
	m.applyClusterLocked(meta)
	missing := map[string]int32{}
	for i := range meta.Topics {
		mt := &meta.Topics[i]
		if mt.Topic == nil || m.byName[*mt.Topic] == nil {
			continue
		}
		t := m.byName[*mt.Topic]
		if mt.ErrorCode == kerr.UnknownTopicOrPartition.Code {
			m.missingLocked(t)
			if !now.Before(t.notBefore) {
				missing[t.remote] = int32(len(t.lanes))
			}
			continue
		}
		m.applyTopicLocked(t, mt, now)
	}
	m.startSendersLocked()
	return missing
}

func (m *Mirror) applyClusterLocked(meta *kmsg.MetadataResponse) {
	m.brokers = make(map[int32]string, len(meta.Brokers))
	for _, b := range meta.Brokers {
		m.brokers[b.NodeID] = fmt.Sprintf("%s:%d", b.Host, b.Port)
	}
	if meta.ClusterID == nil || *meta.ClusterID == m.cluster {
		return
	}
	if m.cluster != "" {
		m.lg.Warn("mirror: another cluster answers under the region's addresses; going on there from the cursors",
			"cluster", *meta.ClusterID, "before", m.cluster)
	}
	m.cluster = *meta.ClusterID
}

// missingLocked takes the lanes of a topic that the region doesn't have out of service.
func (m *Mirror) missingLocked(t *topic) {
	if t.known {
		m.lg.Warn("mirror: topic was deleted in the region; creating it again", "topic", t.remote)
		t.known = false
	}
	for _, l := range t.lanes {
		l.leader = -1
	}
	if t.trouble == "" {
		t.trouble = "not there yet"
	}
}

func (m *Mirror) applyTopicLocked(t *topic, mt *kmsg.MetadataResponseTopic, now time.Time) {
	if err := kerr.ErrorForCode(mt.ErrorCode); err != nil && mt.ErrorCode != kerr.LeaderNotAvailable.Code {
		m.troubleLocked(t, explain(err), now)
		return
	}
	m.seenLocked(t, mt.TopicID)
	leaders := make(map[int32]int32, len(mt.Partitions))
	for i := range mt.Partitions {
		leaders[mt.Partitions[i].Partition] = mt.Partitions[i].Leader
	}
	without, absent := 0, 0
	for _, l := range t.lanes {
		leader, ok := leaders[l.id]
		switch {
		case !ok:
			leader = -1
			absent++
		case leader < 0:
			without++
		}
		l.leader = leader
	}
	switch {
	case absent > 0 && len(leaders) > 0:
		m.troubleLocked(t, fmt.Sprintf("has %d partitions in the region, the log has %d: those beyond wait (remedy: kafka-topics.sh --alter --topic %s --partitions %d)",
			len(leaders), len(t.lanes), t.remote, len(t.lanes)), now)
	case without > 0 || absent > 0:
		t.trouble = "no leader for a partition"
		t.notBefore = now.Add(t.retry.next())
		if t.retry.failures > quietFailures {
			m.logTroubleLocked(t, t.trouble)
		}
	default:
		t.trouble = ""
		t.retry.reset()
		m.wellLocked(t)
	}
}

// seenLocked notes the topic's id. Another one than before means that the topic was created anew: sequences and offsets
// of the old one mean nothing there.
func (m *Mirror) seenLocked(t *topic, id [16]byte) {
	before, was := t.id, t.known
	if !was {
		for _, l := range t.lanes {
			if !l.has && l.producer.cluster != "" { // from the cursor of an earlier run
				before, was = l.producer.topic, l.producer.cluster == m.cluster
				break
			}
		}
	}
	t.id, t.known = id, true
	if was && before != id && before != [16]byte{} {
		m.lg.Warn("mirror: topic was deleted and created anew in the region; going on from the cursor, what it had before is not sent again",
			"topic", t.remote)
	}
}

// quietFailures is how many times something that leader elections and restarts bring along is tried again without a line.
const quietFailures = 3

// troubleLocked notes that a topic can't be used, wholly or in part, and when to look again.
func (m *Mirror) troubleLocked(t *topic, text string, now time.Time) {
	t.trouble = text
	t.notBefore = now.Add(t.retry.next())
	m.logTroubleLocked(t, text)
}

func (m *Mirror) logTroubleLocked(t *topic, text string) {
	if _, ok := t.logged[text]; ok {
		return
	}
	t.logged[text] = struct{}{}
	m.lg.Warn("mirror: topic waits, its records are kept", "topic", t.remote, "reason", text)
}

// wellLocked tells once when nothing of a topic waits any more.
func (m *Mirror) wellLocked(t *topic) {
	if len(t.logged) == 0 || t.trouble != "" {
		return
	}
	for _, l := range t.lanes {
		if l.problem != "" {
			return
		}
	}
	clear(t.logged)
	m.lg.Info("mirror: topic goes on", "topic", t.remote)
}

// create has the region make the missing topics. A refusal concerns that topic only.
func (m *Mirror) create(missing map[string]int32) error {
	results, err := m.region.createTopics(m.stopping, missing)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for name := range missing {
		t := m.byName[name]
		switch err, ok := results[name]; {
		case !ok:
			m.troubleLocked(t, "the region didn't answer its creation", now)
		case err == nil:
			m.lg.Info("mirror: topic created", "topic", name, "partitions", len(t.lanes))
			t.trouble = "just created"
			t.retry.reset()
			t.notBefore = now.Add(t.retry.next()) // brokers learn of it a moment later
		case kerr.ErrorForCode(kerr.TopicAlreadyExists.Code) == err || isCode(err, kerr.TopicAlreadyExists):
			t.notBefore = now.Add(t.retry.next())
		default:
			m.troubleLocked(t, "can't be created: "+explain(err), now)
		}
	}
	return nil
}

// nextLook is the time until a topic in trouble wants another look, negative for none.
func (m *Mirror) nextLook() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := time.Duration(-1)
	for _, t := range m.topics {
		if t.trouble == "" {
			continue
		}
		if d := max(time.Until(t.notBefore), 0); wait < 0 || d < wait {
			wait = d
		}
	}
	return wait
}

// startSendersLocked gives each leader of a lane its sender, and wakes them all.
func (m *Mirror) startSendersLocked() {
	if m.stopping.Err() != nil {
		return
	}
	for _, t := range m.topics {
		for _, l := range t.lanes {
			if l.leader >= 0 && m.senders[l.leader] == nil {
				s := newSender(m, l.leader)
				m.senders[l.leader] = s
				m.wg.Add(1)
				go s.run()
			}
		}
	}
	for _, s := range m.senders {
		signal(s.wake)
	}
}
