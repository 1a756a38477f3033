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
	name, revision := versionName(), ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = ", revision " + s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				revision += " with changes"
			}
		}
	}
	_, err := fmt.Fprintf(o.out, "sluice %s%s, %s, %s/%s\n", name, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// versionName is the version in one word.
func versionName() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
