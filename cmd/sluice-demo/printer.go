package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// maxShown is how much of a key or value is printed.
const maxShown = 200

// printer reads the gateway's topics in the region and prints their records.
type printer struct {
	client *kgo.Client

	mu  sync.Mutex // one line at a time
	out io.Writer
}

func newPrinter(out io.Writer, alias string, region []string) (*printer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(region...),
		kgo.ConsumeTopics(alias+`\..*`), kgo.ConsumeRegex(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMaxAge(200*time.Millisecond), kgo.MetadataMinAge(200*time.Millisecond), // topics appear soon
		kgo.FetchMaxWait(200*time.Millisecond),
	)
	if err != nil {
		return nil, fmt.Errorf("read the region: %w", err)
	}
	return &printer{client: client, out: out}, nil
}

func (p *printer) close() { p.client.Close() }

// run prints until ctx is done, and tells how many records there were.
func (p *printer) run(ctx context.Context) (arrived int, err error) {
	for ctx.Err() == nil {
		fetches := p.client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			arrived++
			p.say("%s/%d@%d\t%s\t%s", r.Topic, r.Partition, r.Offset, shown(r.Key), shown(r.Value))
		})
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.Canceled) && !errors.Is(e.Err, context.DeadlineExceeded) {
				p.say("reading %s: %v", e.Topic, e.Err)
			}
		}
	}
	return arrived, nil
}

func (p *printer) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// shown makes bytes that anybody may have published fit for a terminal.
func shown(b []byte) string {
	tail := ""
	if len(b) > maxShown {
		b, tail = b[:maxShown], "…"
	}
	quoted := strconv.QuoteToGraphic(string(b))
	plain := quoted[1 : len(quoted)-1]
	if plain == string(b) || strconv.CanBackquote(string(b)) {
		return string(b) + tail
	}
	return quoted + tail
}
