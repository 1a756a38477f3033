//go:build linux && race

package main_test

// raceEnabled says that the binary under test is to be built with the race detector, as the test is.
const raceEnabled = true
