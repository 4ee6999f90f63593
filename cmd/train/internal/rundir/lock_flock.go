//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package rundir

import (
	"os"
	"syscall"
)

// lock locks f until it is closed, or the process ends. It does not wait: the error is errLocked if
// another process has the lock, and errors.ErrUnsupported if the file system has no locks.
func lock(f *os.File) error { return flock(f, syscall.LOCK_EX) }

// share is lock for f open to read, which others may share. NFS has no other lock for such a file.
func share(f *os.File) error { return flock(f, syscall.LOCK_SH) }

// hold waits for the lock of a folder. It does nothing if the file system has no locks for folders.
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
