package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/sluicemq/sluice/broker/auth"
)

var passwdCommand = subcommand{
	name: "passwd", arguments: []string{"FILE", "USER"}, help: "Set a user's password in a password file, or delete a user.",
	more: `The file is mosquitto's. On a terminal the password is asked for twice and not shown; otherwise it
is the first line of the standard input. It is never an argument, which every user of the machine
could see.

A running broker takes the change up by itself: clients of a user who was deleted, or has another
password now, are closed. The file is replaced as a whole; its owner and group keep their
permissions, others get none.`,
	new: func(f *pflag.FlagSet) runner {
		var remove bool
		var iterations int
		f.BoolVar(&remove, "delete", false, "take the user out of the file")
		algorithm := choose(f, "algorithm", "`NAME` of the hash, pbkdf2, argon2id or sha512: mosquitto 2.0 reads the first and the last", "pbkdf2", "argon2id", "sha512")
		f.IntVar(&iterations, "iterations", 100_000, "`N` of pbkdf2: what each guess costs who has the file, and each password once the broker")
		return func(_ output, args []string) error {
			if remove {
				return auth.DeleteUser(args[0], args[1])
			}
			return setPassword(args[0], args[1], algorithms[*algorithm], iterations)
		}
	},
}

var algorithms = map[string]auth.Algorithm{"pbkdf2": auth.PBKDF2, "argon2id": auth.Argon2id, "sha512": auth.SHA512}

// setPassword asks for the password and writes the file, which is made if there is none.
func setPassword(file, user string, algorithm auth.Algorithm, iterations int) error {
	password, err := askPassword(os.Stdin, os.Stderr)
	if err != nil {
		return err
	}
	defer clear(password)
	return auth.SetPassword(file, user, algorithm, iterations, password)
}

var errTwoPasswords = errors.New("the two passwords are not the same; nothing was changed")

// askPassword reads a password: twice, with prompts and without an echo, from a terminal, once from anything else.
func askPassword(in *os.File, prompts io.Writer) ([]byte, error) {
	lines := bufio.NewReader(in)
	restore, terminal, err := hideInput(in)
	if err != nil {
		return nil, err
	}
	if !terminal {
		return readPassword(lines)
	}
	defer restore()
	ask := func(prompt string) ([]byte, error) {
		fmt.Fprint(prompts, prompt)
		defer fmt.Fprintln(prompts)
		return readPassword(lines)
	}
	first, err := ask("Password: ")
	if err != nil {
		return nil, err
	}
	second, err := ask("Again: ")
	if err != nil {
		return nil, err
	}
	defer clear(second)
	if !bytes.Equal(first, second) {
		return nil, errTwoPasswords
	}
	return first, nil
}

// readPassword reads a line, which need not end if the input does.
func readPassword(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) <= auth.MaxPasswordBytes+2 {
		c, err := in.ReadByte()
		if err == io.EOF && len(line) > 0 || err == nil && c == '\n' {
			break
		}
		if err == io.EOF {
			return nil, errors.New("there is no password on the standard input; nothing was changed")
		}
		if err != nil {
			return nil, fmt.Errorf("read the password: %w", err)
		}
		line = append(line, c)
	}
	return bytes.TrimSuffix(line, []byte("\r")), nil
}
