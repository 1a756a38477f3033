// Package lint is the house rules that a compiler doesn't know, as a test: which package may import which, where the Kafka
// client may appear, and what code here never does. The test in this package runs over the whole module.
package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strconv"
	"strings"
)

const module = "github.com/sluicemq/sluice"

// maxFunctionLines is the wall for functions outside tests; most should stay below 70.
const maxFunctionLines = 90

// arrows lists what each package may import of this module. A package that isn't here has no place in the house yet.
// anything stands for no limit. Test files may import internal packages besides, and follow the arrows otherwise.
var arrows = map[string][]string{
	"cmd/sluice":            {"configs", "broker", "broker/auth", "segment", "segment/record"},
	"cmd/sluice-demo":       {anything},
	"configs":               {"broker", "broker/mqtt", "broker/mqtt/topics", "broker/auth", "mirror", "segment", "segment/record"},
	"broker":                {"broker/mqtt", "broker/mqtt/topics", "broker/auth", "broker/admission", "mirror", "segment", "segment/record"},
	"broker/auth":           {"broker/mqtt/topics"},
	"broker/mqtt":           {"broker/mqtt/wire", "broker/mqtt/topics", "broker/mqtt/retained", "broker/mqtt/websocket", "broker/auth", "broker/admission", "segment", "segment/record"},
	"broker/mqtt/wire":      {},
	"broker/mqtt/topics":    {},
	"broker/mqtt/retained":  {"broker/mqtt/topics", "segment/record"},
	"broker/mqtt/websocket": {},
	"broker/admission":      {"segment"},
	"mirror":                {"mirror/mm2", "segment", "segment/record"},
	"mirror/mm2":            {},
	"segment":               {"segment/journal", "segment/record", "segment/files", "segment/state", "internal/vfs"},
	"segment/files":         {"segment/record", "internal/vfs"},
	"segment/state":         {},
	"segment/journal":       {"internal/vfs"},
	"segment/record":        {},
	"internal/vfs":          {},
	"internal/lint":         {},
	"internal/mosquitto":    {},
	"scripts/benchtable":    {},
	"scripts/offlineload":   {"broker/mqtt/wire"},
	"scripts/tlsminimum":    {},
	"scripts/weartable":     {"segment", "segment/record", "internal/vfs"},
}

const anything = "*"

// File is one Go file of the module.
type File struct {
	// Name is the path from the module's root, with slashes.
	Name   string
	Source []byte
}

// Finding is one broken rule.
type Finding struct {
	Name    string
	Line    int
	Rule    string
	Message string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.Name, f.Line, f.Rule, f.Message)
}

// Check returns what is wrong in a file. The error is a syntax error.
func Check(file File) ([]Finding, error) {
	c := &checker{
		name: file.Name,
		dir:  path.Dir(file.Name),
		test: strings.HasSuffix(file.Name, "_test.go"),
		set:  token.NewFileSet(),
	}
	tree, err := parser.ParseFile(c.set, file.Name, file.Source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	c.tree = tree
	c.imports()
	c.functions()
	c.calls()
	return c.findings, nil
}

// checker is one file in hand.
type checker struct {
	name, dir string
	test      bool
	set       *token.FileSet
	tree      *ast.File
	packages  map[string]string // local name → import path
	findings  []Finding
}

func (c *checker) add(at ast.Node, rule, format string, args ...any) {
	c.findings = append(c.findings, Finding{c.name, c.line(at.Pos()), rule, fmt.Sprintf(format, args...)})
}

func (c *checker) line(pos token.Pos) int { return c.set.Position(pos).Line }

// imports checks the arrows and who may speak to Kafka.
func (c *checker) imports() {
	c.packages = make(map[string]string)
	allowed, known := arrows[c.dir]
	if !known {
		c.add(c.tree.Name, "arrows", "package %s is not in the table of arrows; say there what it may import", c.dir)
	}
	for _, spec := range c.tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		c.packages[name] = imported
		if room, ours := strings.CutPrefix(imported, module+"/"); ours && known && !c.mayImport(allowed, room) {
			c.add(spec, "arrows", "%s may not import %s", c.dir, room)
		}
		c.kafka(spec, imported)
	}
}

func (c *checker) mayImport(allowed []string, room string) bool {
	if room == c.dir || c.test && strings.HasPrefix(room, "internal/") {
		return true // an external test package imports its own package
	}
	for _, a := range allowed {
		if a == anything || a == room {
			return true
		}
	}
	return false
}

func (c *checker) kafka(spec ast.Node, imported string) {
	if c.test || c.dir == "cmd/sluice-demo" || !strings.HasPrefix(imported, "github.com/twmb/franz-go") {
		return
	}
	mirror := c.dir == "mirror" || strings.HasPrefix(c.dir, "mirror/")
	if !mirror || strings.Contains(imported, "/kfake") {
		c.add(spec, "kafka", "%s may not import %s: the client belongs to mirror, the stand-in to the demo and to tests", c.dir, imported)
	}
}

// functions checks their length.
func (c *checker) functions() {
	if c.test {
		return
	}
	for _, decl := range c.tree.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		if n := c.line(f.End()) - c.line(f.Pos()) + 1; n > maxFunctionLines {
			c.add(f, "length", "%s has %d lines; the wall is %d", f.Name.Name, n, maxFunctionLines)
		}
	}
}

// atomicTypes is what may be used of sync/atomic: on 32-bit machines a plain int64 is only aligned by luck, these always are.
var atomicTypes = map[string]bool{
	"Bool": true, "Int32": true, "Int64": true, "Uint32": true, "Uint64": true, "Uintptr": true, "Pointer": true, "Value": true,
}

// calls checks which functions of other packages are used.
func (c *checker) calls() {
	bubbles := c.synctestBubbles()
	ast.Inspect(c.tree, func(n ast.Node) bool {
		use, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, ok := use.X.(*ast.Ident)
		if !ok {
			return true
		}
		imported, what := c.packages[name.Name], use.Sel.Name
		inCommand := c.tree.Name.Name == "main"
		switch {
		case imported == "sync/atomic" && !atomicTypes[what]:
			c.add(use, "atomic", "atomic.%s on a plain variable; use the types of sync/atomic", what)
		case imported == "log" && (strings.HasPrefix(what, "Fatal") || strings.HasPrefix(what, "Panic")) && !inCommand:
			c.add(use, "exit", "log.%s ends the process from inside a package; return an error", what)
		case imported == "os" && what == "Exit" && !inCommand && !c.test:
			c.add(use, "exit", "os.Exit outside a command; return an error")
		case (imported == "syscall" || imported == "golang.org/x/sys/unix") && strings.Contains(strings.ToLower(what), "mmap"):
			c.add(use, "mmap", "%s.%s: an I/O error on mapped memory is a fault, not an error; read and write", name.Name, what)
		case imported == "time" && what == "Sleep" && c.test && !within(bubbles, use) && !c.marked(use, "lint:sleep"):
			c.add(use, "sleep", "time.Sleep in a test outside synctest; wait for what you wait for, or give the reason: //lint:sleep reason")
		}
		return true
	})
}

// synctestBubbles are the functions given to synctest.Test, where time is not real.
func (c *checker) synctestBubbles() (bubbles []ast.Node) {
	ast.Inspect(c.tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		use, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if name, ok := use.X.(*ast.Ident); ok && c.packages[name.Name] == "testing/synctest" {
			for _, arg := range call.Args {
				if f, ok := arg.(*ast.FuncLit); ok {
					bubbles = append(bubbles, f)
				}
			}
		}
		return true
	})
	return bubbles
}

func within(outer []ast.Node, n ast.Node) bool {
	for _, o := range outer {
		if o.Pos() <= n.Pos() && n.End() <= o.End() {
			return true
		}
	}
	return false
}

// marked reports whether a comment "//marker reason", with a reason, stands on n's line or the one above.
func (c *checker) marked(n ast.Node, marker string) bool {
	for _, group := range c.tree.Comments {
		for _, comment := range group.List {
			reason, ok := strings.CutPrefix(comment.Text, "//"+marker+" ")
			if distance := c.line(n.Pos()) - c.line(comment.Pos()); ok && strings.TrimSpace(reason) != "" && (distance == 0 || distance == 1) {
				return true
			}
		}
	}
	return false
}
