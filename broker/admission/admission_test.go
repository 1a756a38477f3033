package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestDrops(t *testing.T) {
	var d Drops
	if len(d.Snapshot()) != 0 || d.Total() != 0 {
		t.Error("a new one isn't empty")
	}
	buf := []byte("b/topic")
	d.Count(string(buf), "slow subscriber", 2)
	d.Count("a", "slow subscriber", 1)
	d.Count("a", "full", 1)
	d.Count("a", "full", 4)
	want := []Drop{{"a", "full", 5}, {"a", "slow subscriber", 1}, {"b/topic", "slow subscriber", 2}}
	if got := d.Snapshot(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if d.Total() != 8 {
		t.Errorf("total %d, want 8", d.Total())
	}
}

// A client that invents topics fills one bucket, and the sum stays right.
func TestDropsBounded(t *testing.T) {
	var d Drops
	const topics = 3 * maxPairs
	for i := range topics {
		d.Count(fmt.Sprintf("made/up/%d", i), "full", 1)
	}
	got := d.Snapshot()
	if len(got) > maxPairs+1 {
		t.Errorf("%d pairs, more than %d", len(got), maxPairs+1)
	}
	var sum, other int64
	for _, drop := range got {
		sum += drop.Messages
		if drop.Topic == Other {
			other = drop.Messages
		}
	}
	if sum != topics || other != topics-maxPairs {
		t.Errorf("sum %d, other %d", sum, other)
	}
	d.Count("made/up/0", "full", 1) // a known pair keeps its counter
	if d.Snapshot()[1].Messages != 2 {
		t.Errorf("the first pair has %+v", d.Snapshot()[1])
	}
}

func TestDropsConcurrent(t *testing.T) {
	var d Drops
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				d.Count(fmt.Sprintf("t%d", i%50), "full", 1)
				if i%100 == 0 {
					d.Snapshot()
				}
			}
		})
	}
	wg.Wait()
	var sum int64
	for _, drop := range d.Snapshot() {
		sum += drop.Messages
	}
	if sum != 8000 || d.Total() != 8000 {
		t.Errorf("sum %d, total %d, want 8000", sum, d.Total())
	}
}

func TestDropsDoNotAllocate(t *testing.T) {
	var d Drops
	d.Count("a/b", "full", 1)
	if n := testing.AllocsPerRun(100, func() { d.Count("a/b", "full", 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCgroupMemory(t *testing.T) {
	tests := []struct {
		name, membership string
		files            map[string]string // below the mount
		want             int64
		source           string
	}{
		{"none", "0::/a\n", nil, 0, ""},
		{"version 2", "0::/a\n", map[string]string{"a/memory.max": "1000\n"}, 1000, "a/memory.max"},
		{"unlimited", "0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0, ""},
		{"high is tighter", "0::/a\n", map[string]string{"a/memory.max": "1000\n", "a/memory.high": "900\n"}, 900, "a/memory.high"},
		{"parent is tighter", "0::/a/b/c\n", map[string]string{"a/b/c/memory.max": "1000\n", "a/memory.max": "500\n"}, 500, "a/memory.max"},
		{"container's root", "0::/host/path\n", map[string]string{"memory.max": "700\n"}, 700, "memory.max"},
		{"version 1", "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n", map[string]string{"memory/a/memory.limit_in_bytes": "800\n"}, 800, "memory/a/memory.limit_in_bytes"},
		{"version 1 unlimited", "4:memory:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, 0, ""},
		{"other controller", "4:cpu:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "800\n"}, 0, ""},
		{"nonsense", "nonsense\n::\n0::/a\n", map[string]string{"a/memory.max": "lots\n"}, 0, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			membership := filepath.Join(dir, "cgroup")
			mount := filepath.Join(dir, "fs")
			write(t, membership, test.membership)
			for name, content := range test.files {
				write(t, filepath.Join(mount, name), content)
			}
			got := cgroupMemory(membership, mount)
			source := test.source
			if source != "" {
				source = filepath.Join(mount, source)
			}
			if got.Bytes != test.want || got.Source != source {
				t.Errorf("got %+v, want %d of %q", got, test.want, source)
			}
		})
	}
	if got := cgroupMemory(filepath.Join(t.TempDir(), "absent"), "/"); got != (Memory{}) {
		t.Errorf("without /proc: %+v", got)
	}
}

func TestFindMemory(t *testing.T) {
	m := FindMemory()
	if m.Bytes < 1<<20 || m.Source == "" {
		t.Errorf("this machine has more than %+v", m)
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
