package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	dialTimeout     = 10 * time.Second
	connIdleTimeout = 5 * time.Minute // a new connection costs a lane several round trips
	keepAlive       = time.Minute
)

// region is the remote cluster as raw requests. Of the client library it uses connections, versions and the list of
// brokers; the library's own producer would assign sequences and batches itself. Safe for concurrent use.
type region struct {
	client  *kgo.Client
	timeout time.Duration
}

func newRegion(o Options) (*region, error) {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: limitUnacknowledged}).DialContext
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(o.Brokers...),
		kgo.ClientID("sluice-"+o.Alias),
		kgo.SoftwareNameAndVersion("sluice", "1"),
		kgo.Dialer(dial),
		// The library overwrites what a raw request asks for with its own acks, and derives its deadlines from these.
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RequestTimeoutOverhead(o.RequestTimeout),
		kgo.ConnIdleTimeout(connIdleTimeout),
		// Tries and delays are the mirror's; the two here let a request go on to the next of several addresses.
		kgo.RequestRetries(min(len(o.Brokers), 3)-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		// The library's own refresh knows no topic of ours; it would only use the link.
		kgo.MetadataMaxAge(metadataIdle), kgo.MetadataMinAge(metadataIdle),
		kgo.DisableClientMetrics(),
		// Answers are small. The library wants room for fetches, which are never made.
		kgo.BrokerMaxReadBytes(8<<20), kgo.FetchMaxBytes(1<<20), kgo.FetchMaxPartitionBytes(1<<20),
	)
	if err != nil {
		return nil, fmt.Errorf("mirror: region %s: %w", o.Region, err)
	}
	return &region{client: client, timeout: o.RequestTimeout}, nil
}

// metadataIdle is the longest that the library takes.
const metadataIdle = time.Hour

func (r *region) close() { r.client.Close() }

// metadata asks for the topics, and for none when there are none.
func (r *region) metadata(ctx context.Context, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.Topics = make([]kmsg.MetadataRequestTopic, 0, len(topics)) // nil would ask for all
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := r.client.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	meta := resp.(*kmsg.MetadataResponse)
	if err := kerr.ErrorForCode(meta.ErrorCode); err != nil {
		return nil, err
	}
	return meta, nil
}

// createTopics asks for topics of the given partition counts, with the region's default replication, and tells the error
// of each: nil where it was created.
func (r *region) createTopics(ctx context.Context, partitions map[string]int32) (map[string]error, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(min(r.timeout, 30*time.Second).Milliseconds())
	for name, n := range partitions {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, n, -1
		// Any other value has the region recompress our batches.
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = "compression.type", kmsg.StringPtr("producer")
		t.Configs = append(t.Configs, c)
		req.Topics = append(req.Topics, t)
	}
	resp, err := r.client.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	results := make(map[string]error, len(partitions))
	for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if err != nil && t.ErrorMessage != nil && *t.ErrorMessage != "" {
			err = &refusal{err, *t.ErrorMessage}
		}
		results[t.Topic] = err
	}
	return results, nil
}

// producerID gets a new idempotent producer.
func (r *region) producerID(ctx context.Context) (id int64, epoch int16, err error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := r.client.Request(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	answer := resp.(*kmsg.InitProducerIDResponse)
	return answer.ProducerID, answer.ProducerEpoch, kerr.ErrorForCode(answer.ErrorCode)
}

// produce sends one request to one broker, once. After an error nobody knows whether it was carried out.
func (r *region) produce(ctx context.Context, node int32, req *kmsg.ProduceRequest) (*kmsg.ProduceResponse, error) {
	req.Acks = -1
	req.TimeoutMillis = int32(min(r.timeout/2, 30*time.Second).Milliseconds())
	resp, err := r.client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.ProduceResponse), nil
}

// refusal is an answer of the region that says more than its code.
type refusal struct {
	code error
	text string
}

func (r *refusal) Error() string { return r.code.Error() + ": " + r.text }
func (r *refusal) Unwrap() error { return r.code }

// unreachable puts a failed connection into words, with the remedy. A region that was reached before has no wrong port.
func unreachable(err error, reached bool) string {
	text := strings.TrimSpace(err.Error())
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return text + " (the name does not resolve: check the broker address and DNS)"
	case errors.Is(err, io.EOF) && !reached:
		return text + " (the broker closed the connection: check that the port is a plain Kafka listener without TLS or SASL)"
	}
	return text
}

// remedies say what to do about an answer that won't change by itself.
var remedies = map[int16]string{
	kerr.TopicAuthorizationFailed.Code:           "grant Create, Describe and Write on the topic",
	kerr.ClusterAuthorizationFailed.Code:         "grant IdempotentWrite on the cluster or Write on the topic; Create on the cluster to have topics created",
	kerr.PolicyViolation.Code:                    "the region's create or alter policy refuses it: create the topic by hand",
	kerr.InvalidTopicException.Code:              "the name isn't accepted: choose another alias or topic name",
	kerr.InvalidReplicationFactor.Code:           "too few brokers, or no default replication factor (Kafka 2.4 or newer): create the topic by hand",
	kerr.InvalidPartitions.Code:                  "the region refuses this number of partitions: create the topic by hand",
	kerr.InvalidConfig.Code:                      "the region refuses compression.type=producer: create the topic by hand",
	kerr.InvalidRequest.Code:                     "create the topic by hand",
	kerr.MessageTooLarge.Code:                    "a single record is above the topic's max.message.bytes: raise it on the topic",
	kerr.RecordListTooLarge.Code:                 "a single record is above the broker's segment size: raise segment.bytes on the topic",
	kerr.InvalidTimestamp.Code:                   "record times are outside of message.timestamp.before/after.max.ms: widen them on the topic, and check the gateway's clock",
	kerr.InvalidRecord.Code:                      "the topic's rules refuse a record, such as a missing key under cleanup.policy=compact: change the topic",
	kerr.UnsupportedCompressionType.Code:         "the broker is too old for the codec: choose another compression",
	kerr.UnsupportedForMessageFormat.Code:        "set the topic's message.format.version to 0.11 or newer",
	kerr.CorruptMessage.Code:                     "the broker finds the batch damaged: check what lies between gateway and region",
	kerr.NotEnoughReplicas.Code:                  "too few replicas are in sync: bring the region's brokers back",
	kerr.NotEnoughReplicasAfterAppend.Code:       "too few replicas are in sync: bring the region's brokers back",
	kerr.UnsupportedVersion.Code:                 "the broker is too old: Kafka 0.11 or newer is needed",
	kerr.TransactionalIDAuthorizationFailed.Code: "grant Write on the topic",
}

// explain puts an answer of the region into words, with the remedy where there is one.
func explain(err error) string {
	var code *kerr.Error
	if !errors.As(err, &code) {
		return err.Error()
	}
	text := code.Message
	var r *refusal
	if errors.As(err, &r) {
		text += ": " + r.text
	}
	if remedy := remedies[code.Code]; remedy != "" {
		text += " (" + remedy + ")"
	}
	return text
}
