package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

type versionCommand struct{}

// Run prints version, revision where it is known, Go's version and the platform.
func (versionCommand) Run(o output) error {
	name, revision := version, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if name == "" {
			name = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = ", revision " + s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				revision += " with changes"
			}
		}
	}
	if name == "" {
		name = "(devel)"
	}
	_, err := fmt.Fprintf(o.out, "sluice %s%s, %s, %s/%s\n", name, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
