package mirror

import (
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	good := Options{Alias: "gw-1", Brokers: []string{"kafka:9092", "[::1]:9092"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no brokers":       {func(o *Options) { o.Brokers = nil }, "HOST:PORT"},
		"no port":          {func(o *Options) { o.Brokers = []string{"kafka"} }, `"kafka": write it as HOST:PORT`},
		"port 0":           {func(o *Options) { o.Brokers = []string{"kafka:0"} }, `"kafka:0"`},
		"port by name":     {func(o *Options) { o.Brokers = []string{"kafka:x"} }, `"kafka:x"`},
		"no host":          {func(o *Options) { o.Brokers = []string{":9092"} }, `":9092"`},
		"no alias":         {func(o *Options) { o.Alias = "" }, "alias"},
		"bad alias":        {func(o *Options) { o.Alias = "a/b" }, `"a/b"`},
		"bad expression":   {func(o *Options) { o.Topics = []string{"ok", "a("} }, `"a(" is not a regular expression`},
		"look-ahead":       {func(o *Options) { o.Exclude = []string{"(?!x)"} }, "exclude"},
		"small batches":    {func(o *Options) { o.BatchBytes = 100 }, "batch_bytes 100"},
		"request < batch":  {func(o *Options) { o.RequestBytes = 1000 }, "request_bytes 1000"},
		"back-off":         {func(o *Options) { o.MinBackoff, o.MaxBackoff = time.Second, time.Millisecond }, "back-off"},
		"negative backoff": {func(o *Options) { o.MinBackoff = -1 }, "back-off"},
		"timeout":          {func(o *Options) { o.RequestTimeout = time.Millisecond }, "timeout"},
	} {
		o := good
		tt.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.want)
		}
	}
}

func TestFilter(t *testing.T) {
	for _, tt := range []struct {
		include, exclude []string
		topic            string
		want             bool
	}{
		{[]string{".*"}, nil, "mqtt", true},
		{[]string{".*"}, nil, "x.internal", false},
		{[]string{".*"}, nil, "__x", false},
		{[]string{"mqtt"}, nil, "mqtt", true},
		{[]string{"mqtt"}, nil, "mqtt2", false},
		{[]string{"mqtt"}, nil, "my-mqtt", false},
		{[]string{"a|b"}, nil, "b", true},
		{[]string{"a|bc"}, nil, "abc", false},
		{[]string{"x", "telemetry.*"}, nil, "telemetry.raw", true},
		{[]string{"^mqtt$"}, nil, "mqtt", true},
		{[]string{".*"}, []string{`.*\.replica`}, "a.replica", false},
		{[]string{".*"}, []string{`replica`}, "a.replica", true},
		{nil, nil, "mqtt", false},
	} {
		f, err := newFilter(tt.include, tt.exclude)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.match(tt.topic); got != tt.want {
			t.Errorf("include %q, exclude %q: %q %v, want %v", tt.include, tt.exclude, tt.topic, got, tt.want)
		}
	}
}
