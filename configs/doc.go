// Package configs is the broker's configuration: what can be set, what it is when nothing is set, how a file is read and
// which values are refused.
//
// A file is read strictly. A key that doesn't exist, a key given twice, a value of the wrong type, an unset environment
// variable and a value out of its range are errors that name file, line, key, value, what is allowed and what to do; all
// of them are reported together, one line each, and nothing starts. A setting that was silently ignored would be found out
// only when the gateway is out in the field.
package configs
