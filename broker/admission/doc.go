// Package admission keeps the broker within its means: it knows how much memory there is, and it accounts for every message
// that was turned away.
package admission
