package configs

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder puts a parsed file into a Config. It goes on after a problem, so that one run reports all of them.
type decoder struct {
	source   string
	lookup   func(string) (string, bool)
	config   *Config
	problems Problems
}

func (d *decoder) at(n ast.Node) Position { return tokenPosition(d.source, firstToken(n)) }

// decodeMapping reads keys into the struct that target points to.
func (d *decoder) decodeMapping(target any, m *ast.MappingNode, path string) {
	v := reflect.ValueOf(target).Elem()
	seen := make(map[string]Position)
	for _, kv := range m.Values {
		at := d.at(kv.Key)
		key := kv.Key.GetToken().Value
		keyPath := join(path, key)
		if kv.Key.IsMergeKey() {
			d.problems.add(at, "", "merge keys (<<) are not read here; write the keys out")
			continue
		}
		field, ok := fieldByKey(v, key)
		if !ok {
			d.unknownKey(target, key, path, at)
			continue
		}
		if first, twice := seen[key]; twice {
			d.problems.add(at, keyPath, "is set twice, the first time in line %d; keep one", first.Line)
			continue
		}
		seen[key] = at
		if kv.Value.Type() == ast.NullType {
			d.problems.add(at, keyPath, "has no value; give it %s, or take the key out", wanted(field))
			continue
		}
		d.config.source[keyPath] = d.at(kv.Value)
		d.decodeValue(field, kv.Value, keyPath)
	}
}

func (d *decoder) unknownKey(target any, key, path string, at Position) {
	where := ""
	if path != "" {
		where = " in " + path
	}
	hint := ""
	if s := suggest(key, keysOf(target)); s != "" {
		hint = fmt.Sprintf("; did you mean %q?", s)
	}
	d.problems.add(at, "", "unknown key %q%s%s (allowed: %s)", key, where, hint, allowedKeys(target))
}

func (d *decoder) decodeValue(field reflect.Value, n ast.Node, path string) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.problems.add(d.at(n), path, "anchors, aliases and tags are not read here; write the value out")
		return
	case *ast.NullNode:
		d.problems.add(d.at(n), path, "has no value; give it %s, or take the entry out", wanted(field))
		return
	}
	switch field.Interface().(type) {
	case FileMode:
		decodeUnit(d, field, n, path, ParseFileMode)
		return
	case Size:
		decodeUnit(d, field, n, path, ParseSize)
		return
	case Duration:
		decodeUnit(d, field, n, path, ParseDuration)
		return
	}
	switch field.Kind() {
	case reflect.Struct:
		if m, ok := asMapping(n); ok {
			d.decodeMapping(field.Addr().Interface(), m, path)
			return
		}
		d.wrongType(field, n, path)
	case reflect.Pointer: // a section that may be missing altogether
		section := reflect.New(field.Type().Elem())
		if s, ok := section.Interface().(interface{ setDefaults() }); ok {
			s.setDefaults()
		}
		field.Set(section)
		d.decodeValue(section.Elem(), n, path)
	case reflect.Slice:
		d.decodeList(field, n, path)
	case reflect.String:
		d.decodeString(field, n, path)
	case reflect.Int:
		d.decodeInt(field, n, path)
	case reflect.Bool:
		d.decodeBool(field, n, path)
	default:
		panic(fmt.Sprintf("configs: no decoder for %s at %s", field.Type(), path))
	}
}

func (d *decoder) decodeList(field reflect.Value, n ast.Node, path string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.wrongType(field, n, path)
		return
	}
	list := reflect.MakeSlice(field.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		element := list.Index(i)
		if e, ok := element.Addr().Interface().(interface{ setDefaults() }); ok {
			e.setDefaults()
		}
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		d.config.source[itemPath] = d.at(item)
		d.decodeValue(element, item, itemPath)
	}
	field.Set(list)
}

func (d *decoder) decodeString(field reflect.Value, n ast.Node, path string) {
	text, _, ok := d.scalar(n, path)
	if !ok {
		return
	}
	if n.Type() != ast.StringType && n.Type() != ast.LiteralType {
		d.wrongType(field, n, path)
		return
	}
	field.SetString(text)
}

func (d *decoder) decodeInt(field reflect.Value, n ast.Node, path string) {
	text, expanded, ok := d.scalar(n, path)
	if !ok {
		return
	}
	v, isNumber := integer(text)
	if !isNumber || (n.Type() == ast.StringType && !expanded) {
		d.wrongType(field, n, path)
		return
	}
	if v != int64(int(v)) {
		d.problems.add(d.at(n), path, "%s is too large", text)
		return
	}
	field.SetInt(v)
}

// decodeBool reads true or false. YAML's older words for them (yes, on) are texts here.
func (d *decoder) decodeBool(field reflect.Value, n ast.Node, path string) {
	text, expanded, ok := d.scalar(n, path)
	if !ok {
		return
	}
	if (text != "true" && text != "false") || (n.Type() != ast.BoolType && !expanded) {
		d.wrongType(field, n, path)
		return
	}
	field.SetBool(text == "true")
}

// decodeUnit reads a number with a unit. YAML sees 5ms as text and 5 as a number; both are the same to us.
func decodeUnit[T ~int64](d *decoder, field reflect.Value, n ast.Node, path string, parse func(string) (T, error)) {
	text, _, ok := d.scalar(n, path)
	if !ok {
		return
	}
	if t := n.Type(); t != ast.StringType && t != ast.IntegerType && t != ast.FloatType {
		d.wrongType(field, n, path)
		return
	}
	v, err := parse(text)
	if err != nil {
		d.problems.add(d.at(n), path, "%q %v", text, err)
		return
	}
	field.SetInt(int64(v))
}

// scalar is a plain value's text with variables expanded.
func (d *decoder) scalar(n ast.Node, path string) (text string, expanded, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		text = n.Value
	case *ast.LiteralNode:
		text = n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, false, true
	default:
		return "", false, true // a list or a mapping: the caller refuses it by its type
	}
	out, err := expand(text, d.lookup)
	if err != nil {
		d.problems.add(d.at(n), path, "%v", err)
		return "", false, false
	}
	return out, out != text, true
}

func (d *decoder) wrongType(field reflect.Value, n ast.Node, path string) {
	hint := ""
	if field.Kind() == reflect.String {
		switch n.Type() {
		case ast.IntegerType, ast.FloatType, ast.BoolType, ast.InfinityType, ast.NanType:
			hint = "; put it in quotes"
		}
	}
	d.problems.add(d.at(n), path, "%s where %s belongs%s", describe(n), wanted(field), hint)
}

// wanted says what a field takes.
func wanted(field reflect.Value) string {
	switch field.Interface().(type) {
	case FileMode:
		return "permissions such as 0660"
	case Size:
		return "a size such as 256KiB"
	case Duration:
		return "a duration such as 5ms"
	}
	switch field.Kind() {
	case reflect.Pointer:
		return wanted(reflect.New(field.Type().Elem()).Elem())
	case reflect.Struct:
		return "a mapping of " + allowedKeys(field.Addr().Interface())
	case reflect.Slice:
		if field.Type().Elem().Kind() == reflect.Struct {
			return "a list of entries with " + allowedKeys(reflect.New(field.Type().Elem()).Interface())
		}
		return "a list of texts"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	}
	return "text"
}

// describe says what a node is, with its value when it has one.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode:
		return fmt.Sprintf("the text %q", n.Value)
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.BoolNode:
		return "the truth value " + n.GetToken().Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "the number " + n.GetToken().Value
	}
	return "a " + n.Type().YAMLName()
}

// asMapping: the parser makes a lone pair a node of its own.
func asMapping(n ast.Node) (*ast.MappingNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n, true
	case *ast.MappingValueNode:
		return ast.Mapping(n.GetToken(), false, n), true
	}
	return nil, false
}

// integer reads plain decimal digits only: 010 and 0x10 mean different things to different readers of YAML.
func integer(text string) (int64, bool) {
	digits := strings.TrimPrefix(text, "-")
	if len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	v, err := strconv.ParseInt(text, 10, 64)
	return v, err == nil
}

// fieldByKey finds the struct field whose yaml tag is key.
func fieldByKey(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag != "" && tag == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(target any) (keys []string) {
	t := reflect.TypeOf(target).Elem()
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" {
			keys = append(keys, tag)
		}
	}
	return keys
}

func allowedKeys(target any) string { return strings.Join(keysOf(target), ", ") }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// firstToken is where a node begins. A block mapping's own token is the colon of its first pair.
func firstToken(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return n.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		return n.Key.GetToken()
	}
	return n.GetToken()
}
