//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"syscall"
)

// lock locks f until it is closed, also by the end of the process. It does not
// wait: the error is errLocked where another has the lock, and is
// errors.ErrUnsupported where the file system has no locks.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		return errLocked
	}
	return os.NewSyscallError("flock "+f.Name(), err)
}
