// Package undo gives things back to a driver, which may refuse some of them, and makes one
// error of several.
package undo

import (
	"errors"
	"fmt"
	"slices"
)

// Add adds err to errs unless it is nil.
func Add(errs *[]error, err error) {
	if err != nil {
		*errs = append(*errs, err)
	}
}

// GiveBack passes every handle to free and returns those that it refused.
func GiveBack(handles []uintptr, free func(uintptr) error, errs *[]error) []uintptr {
	var kept []uintptr
	for _, h := range handles {
		if err := free(h); err != nil {
			kept = append(kept, h)
			*errs = append(*errs, err)
		}
	}
	return kept
}

// Both returns err and another error, each of which may be nil, as one whose text has one
// line.
func Both(err, other error) error {
	switch {
	case err == nil:
		return other
	case other == nil:
		return err
	}
	return fmt.Errorf("%w; %w", err, other)
}

// First returns the first error, since a lost device has the same for each call.
func First(errs []error) error {
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// OneOrJoined returns the only error among errs as it is, several joined. It overwrites errs, some of which may be nil.
func OneOrJoined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
