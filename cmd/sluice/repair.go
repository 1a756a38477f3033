package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/segment"
)

var repairCommand = subcommand{
	name: "repair", arguments: []string{"DIR"}, help: "Mend a data directory that no broker uses.",
	more: `It makes indexes anew, takes damaged bytes out of segments and keeps them in a file beside, brings
back what the journal has of them, makes a bad state file anew from the good one, and does what
the broker does at each start. Batches keep their offsets; what is lost leaves a hole. sluice
verify finds nothing wrong then.

A crash in the middle loses nothing: run it again. Exit code 0: repaired, or nothing to do. 1: it
failed, or a broker uses the directory. 2: wrong command line, or a directory of a newer release.`,
	new: func(f *pflag.FlagSet) runner {
		o := segment.RepairOptions{}
		f.BoolVar(&o.DryRun, "dry-run", false, "say what would be done and write nothing")
		f.BoolVar(&o.RemoveSetAside, "remove-set-aside", false,
			"also delete the copies of damaged parts that earlier starts and repairs have kept (.aside, .damaged)")
		return func(out output, args []string) error {
			o.Dir = args[0]
			return repair(o, out)
		}
	},
}

// repair prints each action, then what is lost.
func repair(r segment.RepairOptions, o output) error {
	var failed error
	done, err := segment.Repair(r, func(a segment.RepairAction) {
		line := within(r.Dir, a.Path)
		if where := offsets(a.Topic, a.Partition, a.From, a.To); where != "" {
			line += "  " + where
		}
		if _, err := fmt.Fprintf(o.out, "%s: %s\n", line, printable(a.What)); err != nil && failed == nil {
			failed = err // the repair goes on: better whole and unsaid than half
		}
	})
	for _, l := range done.Losses {
		for _, lost := range l.Offsets {
			fmt.Fprintf(o.out, "lost: %s: %s\n", offsets(l.Topic, l.Partition, lost.From, lost.To), count(lost.To-lost.From, "record"))
		}
		if l.Beyond >= 0 {
			fmt.Fprintf(o.out, "lost: %s: it is unknown how many records\n", offsets(l.Topic, l.Partition, l.Beyond, -1))
		}
	}
	switch {
	case errors.Is(err, segment.ErrLocked):
		return fmt.Errorf("repair: data directory %s is locked by a broker; stop it first", r.Dir)
	case err != nil:
		return fmt.Errorf("repair: %w", err)
	case done.Actions == 0:
		_, err = fmt.Fprintf(o.out, "%s: nothing to repair\n", r.Dir)
	case r.DryRun:
		_, err = fmt.Fprintf(o.out, "%s: a dry run, nothing was done; what is behind a damage may be seen only when that is repaired\n", r.Dir)
	default:
		_, err = fmt.Fprintf(o.out, "%s: repaired\n", r.Dir)
	}
	return errors.Join(failed, err)
}
