package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/pflag"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

var versionCommand = subcommand{name: "version", help: "Print the version.", new: func(*pflag.FlagSet) runner {
	return func(o output, _ []string) error { return printVersion(o.out) }
}}

// printVersion prints version, revision where it is known, Go's version and the platform.
func printVersion(w io.Writer) error {
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
	_, err := fmt.Fprintf(w, "sluice %s%s, %s, %s/%s\n", name, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
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
