package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFileBytes bounds a configuration file; a larger one is some other file.
const maxFileBytes = 1 << 20

// Load reads and validates a file. The error is Problems, unless the file can't be read.
func Load(path string) (*Config, error) {
	c, err := Read(path)
	if err != nil {
		return nil, err
	}
	return c, c.Validate()
}

// Read reads a file, for a caller that changes something before it calls Validate. What the file doesn't say stays at its
// default. The error is Problems, unless the file can't be read.
func Read(path string) (*Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, readError(path, err)
	}
	if !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 {
		return nil, Problems{{At: Position{Source: path}, Message: "is not a file; name the configuration file itself"}}
	}
	if info.Size() > maxFileBytes {
		return nil, Problems{{At: Position{Source: path}, Message: fmt.Sprintf(
			"is %d bytes long, more than the %d that a configuration may have; is it the right file?", info.Size(), maxFileBytes)}}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, readError(path, err)
	}
	return Parse(path, data, os.LookupEnv)
}

func readError(path string, err error) error {
	remedy := "check the path"
	if errors.Is(err, fs.ErrPermission) {
		remedy = "let this user read it"
	}
	cause := err
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		cause = pathErr.Err
	}
	return fmt.Errorf("configuration %s: %w; %s", path, cause, remedy)
}

// Parse reads a file's content; source names it in messages and lookup gives environment variables. It doesn't Validate.
// The error is Problems: syntax, keys and types, all of them together unless the syntax or the version stops the reading.
func Parse(source string, data []byte, lookup func(string) (string, bool)) (*Config, error) {
	c := Default()
	c.file, c.source = source, make(map[string]Position)
	d := &decoder{source: source, lookup: lookup, config: c}
	body, problems := parseBody(source, data)
	if problems != nil {
		return nil, problems
	}
	if body == nil {
		return c, nil // an empty file, or one of comments only
	}
	mapping, ok := asMapping(body)
	if !ok {
		d.problems.add(d.at(body), "", "%s where the file should have keys; allowed: %s", describe(body), allowedKeys(c))
		return nil, d.problems.err()
	}
	if p, newer := d.newerVersion(mapping); newer {
		return nil, Problems{p}
	}
	d.decodeMapping(c, mapping, "")
	if err := d.problems.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parseBody returns the only document's content; nil when there is none.
func parseBody(source string, data []byte) (body ast.Node, problems Problems) {
	defer func() { // the parser has crashed on odd input before; a configuration must not take the broker's message with it
		if r := recover(); r != nil {
			body, problems = nil, Problems{{At: Position{Source: source}, Message: "can't be parsed as YAML; check its quotes and indentation"}}
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, Problems{syntaxProblem(source, err)}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentGroupType {
			continue
		}
		if body != nil {
			at := tokenPosition(source, firstToken(doc.Body))
			return nil, Problems{{At: at, Message: "a second document begins here; a configuration is one document"}}
		}
		body = doc.Body
	}
	if body != nil && body.Type() == ast.NullType {
		body = nil
	}
	return body, nil
}

func syntaxProblem(source string, err error) Problem {
	p := Problem{At: Position{Source: source}, Message: "not valid YAML: " + err.Error()}
	var located interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &located) {
		p.At = tokenPosition(source, located.GetToken())
		p.Message = "not valid YAML: " + located.GetMessage()
	}
	return p
}

func tokenPosition(source string, t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{Source: source}
	}
	return Position{Source: source, Line: t.Position.Line, Column: t.Position.Column}
}

// newerVersion is asked first: in a file of a later release other keys may mean other things, so nothing else in it is
// worth a message.
func (d *decoder) newerVersion(m *ast.MappingNode) (Problem, bool) {
	for _, kv := range m.Values {
		n, ok := kv.Value.(*ast.IntegerNode)
		if kv.Key.GetToken().Value != "version" || !ok {
			continue
		}
		if v, ok := integer(n.GetToken().Value); ok && v > Version {
			return Problem{At: d.at(n), Key: "version", Message: fmt.Sprintf(
				"this file is of version %d and this release reads up to %d; use a newer sluice, or a file of version %d", v, Version, Version)}, true
		}
	}
	return Problem{}, false
}
