//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package rundir

import (
	"errors"
	"os"
)

// lock, share and hold are not to be had here.
func lock(*os.File) error  { return errors.ErrUnsupported }
func share(*os.File) error { return errors.ErrUnsupported }
func hold(*os.File)        {}
