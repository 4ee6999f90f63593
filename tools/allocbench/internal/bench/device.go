package bench

import (
	"errors"

	"mlpool/allocator"
)

// A Machine is where the scenarios run.
type Machine struct {
	Name string
	Note string // limits of its figures
	// Addresses is true without a GPU: the driver is a table of addresses.
	Addresses bool
	// Open returns a device with nothing in use.
	Open func() (Device, error)
	// Wrap, if not nil, wraps the allocators that scenarios use.
	Wrap func(Device, allocator.Allocator) allocator.Allocator
}

// A Device is the device that one allocator is measured on.
type Device interface {
	allocator.Driver
	// Pool opens the driver's own stream-ordered pool.
	Pool() (allocator.AsyncDriver, error)
	NewStream() (allocator.Stream, error)
	// Prepare prepares Work, or returns ErrNoKernels.
	Prepare() error
	// Work queues work on s that keeps a small part of the device busy for about
	// half a millisecond and then writes 4 bytes to addr.
	Work(s allocator.Stream, addr uintptr) error
	// Synchronize waits for the work on all streams.
	Synchronize() error
	// Close also waits, and destroys the streams.
	Close() error
}

var ErrNoKernels = errors.New("needs kernels to run, and so a GPU")

// AddressesOnly is a note in a CSV of figures without a GPU.
const AddressesOnly = "the driver is a table of addresses"
