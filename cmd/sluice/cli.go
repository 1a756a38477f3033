package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

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

// subcommand is one of the subcommands, each of which has a file of its own.
type subcommand struct {
	name      string // one word or two
	arguments []string
	help      string
	more      string // what --help adds
	new       func(*pflag.FlagSet) runner
}

// runner does what a command does, with as many arguments as it has. Its flags are set by then.
type runner func(o output, arguments []string) error

func commands() []subcommand {
	return []subcommand{runCommand, dumpCommand, verifyCommand, repairCommand, checkCommand, passwdCommand, versionCommand}
}

// output is where a subcommand writes: results to out, everything else to err.
type output struct{ out, err io.Writer }

// execute runs one command line and returns the exit code. An error is one line on stderr for each thing that is wrong.
func execute(args []string, stdout, stderr io.Writer) (code int) {
	err := dispatch(args, output{stdout, stderr})
	if err == nil {
		return exitOK
	}
	report(stderr, err)
	return exitCode(err)
}

// dispatch finds the command, reads its flags, and runs it.
func dispatch(args []string, o output) error {
	if len(args) == 0 {
		return usageError{fmt.Errorf("no command; %s", oneOf(nil))}
	}
	if slices.Contains([]string{"-h", "--help", "help"}, args[0]) {
		return printOverview(o.out)
	}
	for _, c := range commands() {
		if words := strings.Fields(c.name); len(args) >= len(words) && slices.Equal(words, args[:len(words)]) {
			return c.execute(args[len(words):], o)
		}
	}
	if inside := oneOf(args[:1]); inside != "" {
		if slices.Contains(args[1:], "--help") || slices.Contains(args[1:], "-h") {
			return printOverview(o.out)
		}
		return usageError{fmt.Errorf("%s is no command; %s", strings.Join(args, " "), inside)}
	}
	return usageError{fmt.Errorf("%s is no command; %s", args[0], oneOf(nil))}
}

// oneOf lists the commands that begin with the words; "" if there is none.
func oneOf(words []string) string {
	var names []string
	for _, c := range commands() {
		if parts := strings.Fields(c.name); len(parts) > len(words) && slices.Equal(parts[:len(words)], words) {
			names = append(names, c.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("one of: %s; see sluice --help", strings.Join(names, ", "))
}

func (c subcommand) execute(args []string, o output) error {
	flags := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {}
	run := c.new(flags)
	err := flags.Parse(args)
	switch n := flags.NArg(); {
	case errors.Is(err, pflag.ErrHelp):
		return c.printHelp(o.out, flags)
	case err != nil:
	case n < len(c.arguments):
		err = fmt.Errorf("%s is missing", c.arguments[n])
	case n > len(c.arguments):
		err = fmt.Errorf("%q is one argument too many", flags.Arg(len(c.arguments)))
	}
	if err != nil {
		return usageError{fmt.Errorf("%w; see sluice %s --help", err, c.name)}
	}
	return run(o, flags.Args())
}

func printOverview(w io.Writer) error {
	fmt.Fprint(w, "Usage: sluice COMMAND\n\nAn MQTT broker for gateways: every message in partitioned logs on flash, mirrored to a Kafka cluster.\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(table, "  %s\t%s\n", c.name, c.help)
	}
	table.Flush()
	_, err := fmt.Fprint(w, "\nsluice COMMAND --help says more about each.\n")
	return err
}

func (c subcommand) printHelp(w io.Writer, flags *pflag.FlagSet) error {
	fmt.Fprintf(w, "Usage: sluice %s", strings.Join(append([]string{c.name}, c.arguments...), " "))
	if flags.HasFlags() {
		fmt.Fprint(w, " [flags]")
	}
	fmt.Fprintf(w, "\n\n%s\n", c.help)
	if c.more != "" {
		fmt.Fprintf(w, "\n%s\n", c.more)
	}
	_, err := fmt.Fprintf(w, "\n%s", flags.FlagUsagesWrapped(100))
	return err
}

// choice is a flag with a few values.
type choice struct {
	value   *string
	allowed []string
}

// choose defines a flag that takes one of the allowed values, the first unless it is given.
func choose(f *pflag.FlagSet, name, usage string, allowed ...string) *string {
	value := allowed[0]
	f.Var(choice{&value, allowed}, name, usage)
	return &value
}

func (c choice) String() string { return *c.value }
func (c choice) Type() string   { return "" }
func (c choice) Set(text string) error {
	if !slices.Contains(c.allowed, text) {
		return fmt.Errorf("allowed: %s", strings.Join(c.allowed, ", "))
	}
	*c.value = text
	return nil
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
