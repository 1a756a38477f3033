package broker

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// One processor after three seconds of a light load, all of them at the first tick of a heavy one.
func TestProcessors(t *testing.T) {
	for _, test := range []struct {
		name    string
		percent []int
		want    []bool // one
	}{
		{"light", []int{1, 1, 34, 1, 1, 1, 1}, []bool{false, false, false, false, false, true, true}},
		{"not for long enough", []int{1, 1, 1, 1, 1, 35, 1, 1}, make([]bool, 8)},
		{"busy", []int{50, 150, 100, 36, 50, 40, 59, 35}, make([]bool, 8)},
		{"between the two it stays", []int{0, 0, 0, 0, 0, 0, 59, 40, 59, 59}, []bool{false, false, false, false, false, true, true, true, true, true}},
		{"heavy, and light again", []int{0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0}, []bool{
			false, false, false, false, false, true, false, false, false, false, false, false, true,
		}},
	} {
		var p processors
		var got []bool
		for i, percent := range test.percent {
			was := p.one
			if p.change(percent) != (p.one != was) {
				t.Errorf("%s, tick %d: a change that is none, or isn't told", test.name, i)
			}
			got = append(got, p.one)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// What Go would use is used again at the end, and GOMAXPROCS of the environment is left alone.
func TestUseProcessors(t *testing.T) {
	all := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(all)
	runtime.GOMAXPROCS(max(all, 2))
	for _, env := range []string{"", "2"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan bool)
			go func() {
				UseProcessors(ctx, func(string) string { return env }, slog.New(slog.DiscardHandler))
				close(ended)
			}()
			time.Sleep(time.Minute) // of which hardly any CPU was used
			if one := runtime.GOMAXPROCS(0) == 1; one != (env == "") {
				t.Errorf("GOMAXPROCS=%q: one processor: %v", env, one)
			}
			cancel()
			<-ended
			if env == "" && runtime.NumCPU() > 1 && runtime.GOMAXPROCS(0) == 1 {
				t.Error("still one processor at the end")
			}
		})
	}
}
