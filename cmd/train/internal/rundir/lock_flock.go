//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package rundir

import (
	"os"
	"syscall"
)

// lock locks f until it is closed, also by the end of the process. It does not
// wait: the error is errLocked where another has the lock, and is
// errors.ErrUnsupported where the file system has no locks.
func lock(f *os.File) error { return flock(f, syscall.LOCK_EX) }

// share is lock for f open to read, beside others that share it. NFS has no other lock
// for such a file.
func share(f *os.File) error { return flock(f, syscall.LOCK_SH) }

// hold locks a folder as lock does, and waits for who has the lock. Where the file system has none,
// or none for a folder, it does nothing.
func hold(dir *os.File) {
	for syscall.Flock(int(dir.Fd()), syscall.LOCK_EX) == syscall.EINTR {
	}
}

func flock(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		return errLocked
	}
	return os.NewSyscallError("flock "+f.Name(), err)
}
