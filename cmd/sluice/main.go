// Command sluice is the broker, and the tools that go with it. Each subcommand has a file of its own.
package main

import "os"

func main() {
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}
