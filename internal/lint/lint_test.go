package lint

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestHouse is the gate: every Go file of the module keeps the rules.
func TestHouse(t *testing.T) {
	files := moduleFiles(t)
	if len(files) < 10 {
		t.Fatalf("found only %d files; the walk is broken", len(files))
	}
	for _, f := range files {
		findings, err := Check(f)
		if err != nil {
			t.Error(err)
		}
		for _, finding := range findings {
			t.Error(finding)
		}
	}
}

// moduleFiles reads the module's Go files, not those of modules inside it.
func moduleFiles(t *testing.T) (files []File) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && rel != "." {
				return fs.SkipDir
			}
			if base := entry.Name(); rel != "." && (strings.HasPrefix(base, ".") || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		source, err := os.ReadFile(name)
		files = append(files, File{Name: filepath.ToSlash(rel), Source: source})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestArrowsPointDown: the table itself has no cycle and names only packages that it knows.
func TestArrowsPointDown(t *testing.T) {
	const busy, done = 1, 2
	state := make(map[string]int)
	var visit func(dir string, trail []string)
	visit = func(dir string, trail []string) {
		if state[dir] == busy {
			t.Errorf("a cycle: %s", strings.Join(append(trail, dir), " → "))
		}
		if state[dir] != 0 {
			return
		}
		state[dir] = busy
		for _, to := range arrows[dir] {
			if to == anything {
				continue
			}
			if _, known := arrows[to]; !known {
				t.Errorf("%s points to %s, which the table doesn't know", dir, to)
			}
			visit(to, append(trail, dir))
		}
		state[dir] = done
	}
	for dir := range arrows {
		visit(dir, nil)
	}
}

// Each rule has to find what it is for, where it is, and let the like of it pass.
func TestPlanted(t *testing.T) {
	long := func(lines int) string {
		return "package p\n\nfunc f() {\n" + strings.Repeat("\t_ = 0\n", lines-2) + "}\n"
	}
	tests := []struct {
		name, file, source string
		want               string // "line: rule" of the only finding; empty: none
	}{
		{"arrow up", "segment/a.go", "package segment\n\nimport \"github.com/sluicemq/sluice/broker\"\n\nvar _ broker.Options\n", "3: arrows"},
		{"arrow up from a test", "segment/a_test.go", "package segment\n\nimport _ \"github.com/sluicemq/sluice/mirror\"\n", "3: arrows"},
		{"arrow sideways", "broker/admission/a.go", "package admission\n\nimport _ \"github.com/sluicemq/sluice/broker/mqtt\"\n", "3: arrows"},
		{"state may not know segment", "segment/state/a.go", "package state\n\nimport _ \"github.com/sluicemq/sluice/segment\"\n", "3: arrows"},
		{"renamed import", "mirror/a.go", "package mirror\n\nimport (\n\t\"fmt\"\n\tx \"github.com/sluicemq/sluice/broker\"\n)\n\nvar _ = fmt.Sprint(x.Options{})\n", "5: arrows"},
		{"arrow down", "broker/a.go", "package broker\n\nimport _ \"github.com/sluicemq/sluice/segment\"\n", ""},
		{"a test's own package", "segment/a_test.go", "package segment_test\n\nimport _ \"github.com/sluicemq/sluice/segment\"\n", ""},
		{"vfs in a test", "mirror/a_test.go", "package mirror\n\nimport _ \"github.com/sluicemq/sluice/internal/vfs\"\n", ""},
		{"vfs outside a test", "mirror/a.go", "package mirror\n\nimport _ \"github.com/sluicemq/sluice/internal/vfs\"\n", "3: arrows"},
		{"the demo", "cmd/sluice-demo/a.go", "package main\n\nimport _ \"github.com/sluicemq/sluice/mirror\"\n", ""},
		{"unknown package", "helpers/a.go", "package helpers\n", "1: arrows"},

		{"client in broker", "broker/a.go", "package broker\n\nimport _ \"github.com/twmb/franz-go/pkg/kgo\"\n", "3: kafka"},
		{"messages in segment", "segment/a.go", "package segment\n\nimport _ \"github.com/twmb/franz-go/pkg/kmsg\"\n", "3: kafka"},
		{"stand-in in mirror", "mirror/a.go", "package mirror\n\nimport _ \"github.com/twmb/franz-go/pkg/kfake\"\n", "3: kafka"},
		{"client in mirror", "mirror/a.go", "package mirror\n\nimport _ \"github.com/twmb/franz-go/pkg/kgo\"\n", ""},
		{"stand-in in a test", "mirror/a_test.go", "package mirror\n\nimport _ \"github.com/twmb/franz-go/pkg/kfake\"\n", ""},
		{"stand-in in the demo", "cmd/sluice-demo/a.go", "package main\n\nimport _ \"github.com/twmb/franz-go/pkg/kfake\"\n", ""},

		{"sleep", "mirror/a_test.go", "package mirror\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n", "6: sleep"},
		{"sleep under another name", "mirror/a_test.go", "package mirror\n\nimport t \"time\"\n\nfunc f() {\n\tt.Sleep(1)\n}\n", "6: sleep"},
		{"sleep without a reason", "mirror/a_test.go", "package mirror\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1) //lint:sleep\n}\n", "6: sleep"},
		{"sleep with a reason", "mirror/a_test.go", "package mirror\n\nimport \"time\"\n\nfunc f() {\n\t//lint:sleep another process\n\ttime.Sleep(1)\n}\n", ""},
		{"sleep behind a bubble", "mirror/a_test.go", "package mirror\n\nimport (\n\t\"testing\"\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nfunc f(t *testing.T) {\n\tsynctest.Test(t, func(t *testing.T) {})\n\ttime.Sleep(1)\n}\n", "11: sleep"},
		{"sleep in a bubble", "mirror/a_test.go", "package mirror\n\nimport (\n\t\"testing\"\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nfunc f(t *testing.T) {\n\tsynctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() })\n}\n", ""},
		{"sleep outside a test", "mirror/a.go", "package mirror\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n", ""},

		{"fatal", "broker/a.go", "package broker\n\nimport \"log\"\n\nfunc f() {\n\tlog.Fatalf(\"no\")\n}\n", "6: exit"},
		{"fatal in a test", "broker/a_test.go", "package broker\n\nimport \"log\"\n\nfunc f() {\n\tlog.Fatal(\"no\")\n}\n", "6: exit"},
		{"exit", "configs/a.go", "package configs\n\nimport \"os\"\n\nfunc f() {\n\tos.Exit(1)\n}\n", "6: exit"},
		{"exit in cmd", "cmd/sluice/a.go", "package main\n\nimport \"os\"\n\nfunc f() {\n\tos.Exit(1)\n}\n", ""},

		{"91 lines", "broker/a.go", long(91), "3: length"},
		{"90 lines", "broker/a.go", long(90), ""},
		{"a long test", "broker/a_test.go", long(200), ""},

		{"plain atomic", "broker/a.go", "package broker\n\nimport \"sync/atomic\"\n\nvar n int64\n\nfunc f() { atomic.AddInt64(&n, 1) }\n", "7: atomic"},
		{"plain atomic in a test", "broker/a_test.go", "package broker\n\nimport \"sync/atomic\"\n\nvar n uint64\n\nvar _ = atomic.LoadUint64(&n)\n", "7: atomic"},
		{"typed atomic", "broker/a.go", "package broker\n\nimport \"sync/atomic\"\n\nvar n atomic.Int64\n\nvar p atomic.Pointer[int]\n", ""},

		{"mmap", "segment/files/a.go", "package files\n\nimport \"syscall\"\n\nvar _ = syscall.Mmap\n", "5: mmap"},
		{"mmap by number", "segment/files/a.go", "package files\n\nimport \"golang.org/x/sys/unix\"\n\nvar _ = unix.SYS_MMAP\n", "5: mmap"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			findings, err := Check(File{Name: test.file, Source: []byte(test.source)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				got = append(got, fmt.Sprintf("%d: %s", f.Line, f.Rule))
				if !strings.HasPrefix(f.String(), test.file+":") {
					t.Errorf("finding %q doesn't begin with its file", f)
				}
			}
			if s := strings.Join(got, ", "); s != test.want {
				t.Errorf("found %q, want %q (%v)", s, test.want, findings)
			}
		})
	}
}
