package mirror

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicemq/sluice/segment/record"
)

func TestBackoffIsFullJitter(t *testing.T) {
	for _, tt := range []struct {
		failures int
		bound    time.Duration
	}{{0, 250 * time.Millisecond}, {1, 500 * time.Millisecond}, {6, 16 * time.Second}, {7, 30 * time.Second}, {500, 30 * time.Second}} {
		least, most := time.Hour, time.Duration(0)
		for range 2000 {
			b := backoff{min: 250 * time.Millisecond, max: 30 * time.Second, failures: tt.failures}
			d := b.next()
			least, most = min(least, d), max(most, d)
		}
		if least <= 0 || least > tt.bound/50 || most > tt.bound || most < tt.bound*49/50 {
			t.Errorf("after %d failures delays are %v to %v, want all of 0 to %v", tt.failures, least, most, tt.bound)
		}
	}
	b := backoff{min: time.Second, max: time.Minute, failures: 9}
	b.reset()
	if d := b.next(); d > time.Second {
		t.Errorf("%v after a reset", d)
	}
}

// An hour without a region: tries at random moments, never further apart than the bound, and one line in the log.
func TestAnHourAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions("kafka:9092")
		o.MinBackoff, o.MaxBackoff = 250*time.Millisecond, 30*time.Second
		var mu sync.Mutex
		var tries []time.Time
		o.Dial = func(context.Context, string, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Now())
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("network is unreachable")}
		}
		log := newMemLog()
		ps := log.topic("mqtt", 4)
		g := newRig(t, o, log)
		g.Start()
		for range 3600 {
			ps[0].store(record.None, "kept")
			time.Sleep(time.Second)
		}
		g.close()
		if n := len(tries); n < 150 || n > 400 {
			t.Errorf("%d tries in an hour, want about 240", n)
		}
		for i := 1; i < len(tries); i++ {
			if gap := tries[i].Sub(tries[i-1]); gap > 31*time.Second {
				t.Errorf("%v between two tries", gap)
			}
		}
		if st := g.Status(); st.State != Unreachable || st.LagRecords != 3600 || g.out.count("level=WARN") != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// With nothing to send nothing is sent, and a lone record leaves at once.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var mu sync.Mutex
		requests := map[kmsg.Key]int{}
		c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
			mu.Lock()
			defer mu.Unlock()
			requests[kmsg.Key(req.Key())]++
			return nil, nil, false
		})
		log := newMemLog()
		ps := log.topic("mqtt", 4)
		o := testOptions(c.ListenAddrs()...)
		o.Dial, o.Linger = network.DialContext, 20*time.Millisecond
		g := newRig(t, o, log)
		g.Start()
		time.Sleep(time.Second)
		mu.Lock()
		clear(requests)
		mu.Unlock()
		time.Sleep(50 * time.Minute)
		mu.Lock()
		if len(requests) > 0 {
			t.Errorf("requests while idle: %v", requests)
		}
		mu.Unlock()

		begun := time.Now()
		ps[2].store(record.None, "alone")
		synctest.Wait()
		if st := g.Status(); st.Totals.Records != 1 || time.Since(begun) > 0 {
			t.Errorf("a lone record waits: %+v", st.Totals)
		}
		for range 1000 { // a steady stream for a second is grouped by the linger
			ps[2].store(record.None, "one of many")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if st := g.Status(); st.Totals.Records != 1001 || st.Totals.Requests < 40 || st.Totals.Requests > 60 {
			t.Errorf("a stream of a thousand records: %+v", st.Totals)
		}
		g.close()
	})
}

// A partition whose offsets end in a hole waits for a record without asking for it over and over.
func TestHoleAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		log := newMemLog()
		ps := log.topic("mqtt", 1)
		ps[0].store(record.None, "before")
		ps[0].hole(10)
		o := testOptions(c.ListenAddrs()...)
		o.Dial, o.MinBackoff, o.MaxBackoff = network.DialContext, time.Second, 30*time.Second
		g := newRig(t, o, log)
		g.Start()
		time.Sleep(time.Hour)
		ps[0].mu.Lock()
		if n := ps[0].reads; n > 400 {
			t.Errorf("%d reads in an hour", n)
		}
		ps[0].mu.Unlock()
		begun := time.Now()
		ps[0].store(record.None, "behind")
		synctest.Wait()
		if st := g.Status(); st.Totals.Records != 2 || st.LagRecords != 0 || time.Since(begun) > 0 || g.out.count("level=WARN") > 0 {
			t.Errorf("%+v", st)
		}
		g.close()
	})
}

// When the region comes back everything goes on at once, although each sender's own delay has grown meanwhile.
func TestBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		log := newMemLog()
		ps := log.topic("mqtt", 1)
		o := testOptions(c.ListenAddrs()...)
		o.MinBackoff, o.MaxBackoff = 250*time.Millisecond, 30*time.Second
		var mu sync.Mutex
		away := false
		var conns []net.Conn
		o.Dial = func(ctx context.Context, n, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return nil, &net.OpError{Op: "dial", Net: n, Err: errors.New("network is unreachable")}
			}
			conn, err := network.DialContext(ctx, n, addr)
			conns = append(conns, conn)
			return conn, err
		}
		g := newRig(t, o, log)
		g.Start()
		for range 8 {
			ps[0].store(record.None, "before")
			time.Sleep(time.Second)
			mu.Lock()
			away = true
			for _, conn := range conns {
				conn.Close()
			}
			conns = nil
			mu.Unlock()
			ps[0].store(record.None, "meanwhile")
			time.Sleep(10 * time.Minute)
			mu.Lock()
			away = false
			mu.Unlock()
			for g.Status().State != Up {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			if st := g.Status(); st.LagRecords != 0 {
				t.Fatalf("a second after the region came back: %+v", st)
			}
		}
		g.close()
	})
}
