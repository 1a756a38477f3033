package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// hideInput stops a terminal from showing what is typed. ok is false when in is none. restore must be called; should the
// user end the program meanwhile, the terminal is restored all the same.
func hideInput(in *os.File) (restore func(), ok bool, err error) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, false, nil
	}
	hidden := *before
	hidden.Lflag &^= unix.ECHO
	hidden.Lflag |= unix.ICANON | unix.ISIG
	hidden.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &hidden); err != nil {
		return nil, false, fmt.Errorf("hide the password on the terminal: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	restore = sync.OnceFunc(func() {
		signal.Stop(signals)
		close(signals)
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before) // a terminal that is gone shows nothing
	})
	go func() {
		if _, interrupted := <-signals; interrupted {
			restore()
			os.Exit(exitFailed)
		}
	}()
	return restore, true, nil
}
