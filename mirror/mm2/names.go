// Package mm2 knows the names that MirrorMaker 2 gives to topics, so that its readers and ours agree.
//
// Names follow DefaultReplicationPolicy and ReplicationPolicy of Apache Kafka's connect/mirror-client.
package mm2

import "strings"

// Separator stands between the alias of the source cluster and the topic (replication.policy.separator).
const Separator = "."

// MaxTopicBytes is the longest topic name that a Kafka cluster accepts (Topic.MAX_NAME_LENGTH).
const MaxTopicBytes = 249

// DefaultExclude is MirrorMaker's default for topics.exclude.
var DefaultExclude = []string{`.*[\-\.]internal`, `.*\.replica`, `__.*`}

// RemoteTopic is the name in the region of a topic of the cluster called alias.
func RemoteTopic(alias, topic string) string { return alias + Separator + topic }

// Internal tells whether a topic belongs to Kafka, to Connect or to a mirror itself. Such a topic is never mirrored,
// whatever the filters say: two mirrors would feed each other.
func Internal(topic string) bool {
	return strings.HasPrefix(topic, "__") || strings.HasPrefix(topic, ".") ||
		strings.HasSuffix(topic, ".internal") || strings.HasSuffix(topic, "-internal")
}

// ValidName tells whether a Kafka cluster accepts the name for a topic: 1 to 249 of [a-zA-Z0-9._-], not "." or "..".
func ValidName(topic string) bool {
	if topic == "" || len(topic) > MaxTopicBytes || topic == "." || topic == ".." {
		return false
	}
	for i := range len(topic) {
		c := topic[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
