package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluicemq/sluice/broker/auth"
)

type passwdCommand struct {
	File       string `arg:"" help:"Password file; made if there is none." placeholder:"FILE"`
	User       string `arg:"" help:"User's name." placeholder:"USER"`
	Delete     bool   `help:"Take the user out of the file."`
	Algorithm  string `help:"pbkdf2, argon2id or sha512: mosquitto 2.0 reads the first and the last." enum:"pbkdf2,argon2id,sha512" default:"pbkdf2" placeholder:"NAME"`
	Iterations int    `help:"Of pbkdf2: what each guess costs who has the file, and each password once the broker." default:"100000" placeholder:"N"`
}

var algorithms = map[string]auth.Algorithm{"pbkdf2": auth.PBKDF2, "argon2id": auth.Argon2id, "sha512": auth.SHA512}

// Help is what --help adds.
func (*passwdCommand) Help() string {
	return `The file is mosquitto's. On a terminal the password is asked for twice and not shown; otherwise it is the first line of the standard input. It is never an argument, which every user of the machine could see.

A running broker takes the change up by itself: clients of a user who was deleted, or has another password now, are closed. The file is replaced as a whole; its owner and group keep their permissions, others get none.`
}

// Run writes the file, or says why not.
func (p *passwdCommand) Run(output) error {
	if p.Delete {
		return auth.DeleteUser(p.File, p.User)
	}
	password, err := askPassword(os.Stdin, os.Stderr)
	if err != nil {
		return err
	}
	defer clear(password)
	return auth.SetPassword(p.File, p.User, algorithms[p.Algorithm], p.Iterations, password)
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
