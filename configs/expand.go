package configs

import (
	"fmt"
	"strings"
)

// expand puts environment variables in place of ${NAME}. $${ stands for a literal ${, and a $ without a brace for itself.
// It works on values after the file was parsed, so that a variable's text can't become structure of the file.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1])
			b.WriteString("${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed {
			return "", fmt.Errorf("%q has no closing brace; write ${NAME}, or $${ for a literal ${", s[i:])
		}
		if !validVariable(name) {
			return "", fmt.Errorf("${%s} is not a variable's name (letters, digits and _); write $${ for a literal ${", name)
		}
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set; set it, or write $${ for a literal ${", name)
		}
		b.WriteString(value)
		s = rest
	}
}

func validVariable(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
