//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rundir

import (
	"errors"
	"os"
)

// This system has no lock, share or hold.
func lock(*os.File) error  { return errors.ErrUnsupported }
func share(*os.File) error { return errors.ErrUnsupported }
func hold(*os.File)        {}
