package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sluicemq/sluice/broker"
	"github.com/sluicemq/sluice/configs"
	"github.com/sluicemq/sluice/segment"
)

// The exit codes. A service manager need not try again after exitConfig.
const (
	exitOK     = 0
	exitFailed = 1
	exitConfig = 2 // of the command line, the configuration, or a data directory of a newer release
)

// commands is the command line.
type commands struct {
	Run     runCommand     `cmd:"" help:"Run the broker."`
	Dump    dumpCommand    `cmd:"" help:"Print what a data directory holds, also while a broker uses it."`
	Verify  verifyCommand  `cmd:"" help:"Check everything in a data directory and change nothing, also while a broker uses it. Exit code 1 for damage or faults."`
	Repair  repairCommand  `cmd:"" help:"Mend a data directory that no broker uses."`
	Config  configCommand  `cmd:"" help:"Look at configurations."`
	Passwd  passwdCommand  `cmd:"" help:"Set a user's password in a password file, or delete a user."`
	Version versionCommand `cmd:"" help:"Print the version."`
}

// output is where a subcommand writes: results to out, everything else to err.
type output struct{ out, err io.Writer }

// exited carries kong's wish to end the process (after --help) out of its parser.
type exited int

// execute runs one command line and returns the exit code. An error is one line on stderr for each thing that is wrong.
func execute(args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	var cli commands
	parser, err := kong.New(&cli,
		kong.Name("sluice"),
		kong.Description("An MQTT broker for gateways: every message in partitioned logs on flash, mirrored to a Kafka cluster."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		panic(err) // the tags above are wrong: found by any test
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "sluice: %v; see sluice --help\n", err)
		return exitConfig
	}
	if err := ctx.Run(output{stdout, stderr}); err != nil {
		report(stderr, err)
		return exitCode(err)
	}
	return exitOK
}

// report writes an error, one line for each problem in it.
func report(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(w, "sluice: %s\n", line)
	}
}

// usageError is a wrong command line, or a configuration that can't be read.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var usage usageError
	var problems configs.Problems
	var config *broker.ConfigError
	if errors.Is(err, segment.ErrNewerFormat) || errors.As(err, &usage) || errors.As(err, &problems) || errors.As(err, &config) {
		return exitConfig
	}
	return exitFailed
}
