package broker

import (
	"fmt"
	"strings"

	"github.com/sluicemq/sluice/broker/auth"
	"github.com/sluicemq/sluice/broker/mqtt"
	"github.com/sluicemq/sluice/mirror"
	"github.com/sluicemq/sluice/segment"
)

// Options say what the broker is made of.
type Options struct {
	// GatewayID names this gateway. Empty: a hash of the machine id, or one made up and kept in the log's state.
	GatewayID string
	// Log is the data directory.
	Log segment.Options
	// Topics are made at the start. Every topic that a route names has to be among them.
	Topics []segment.TopicOptions
	// Routes are tried in order. A message that none takes is not stored and counted as dropped, so the last one should take everything.
	Routes []Route
	// MQTT is the door. Its Incarnation and Access are filled in.
	MQTT mqtt.Options
	// Access says which files tell who may do what. Without any everybody may do everything.
	Access auth.Options
	// Mirrors are the regions. An empty alias becomes the gateway's id.
	Mirrors []mirror.Options
}

// Validate says what is wrong with the routes; the parts check their own options when they start.
func (o Options) Validate() error {
	topics := make(map[string]bool)
	for _, t := range o.Topics {
		topics[t.Name] = true
	}
	var lines []string
	for i, r := range o.Routes {
		for _, err := range r.Validate() {
			lines = append(lines, fmt.Sprintf("route %d: %v", i, err))
		}
		if !r.NotStored && !topics[r.Topic] {
			lines = append(lines, fmt.Sprintf("route %d: topic %q is not among the topics", i, r.Topic))
		}
	}
	if len(lines) > 0 {
		return &ConfigError{strings.Join(lines, "\n")}
	}
	return nil
}
