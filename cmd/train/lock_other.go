//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package main

import (
	"errors"
	"os"
)

// lock is not to be had here.
func lock(*os.File) error { return errors.ErrUnsupported }
