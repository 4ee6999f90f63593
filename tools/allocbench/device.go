package main

import (
	"errors"

	"mlpool/allocator"
)

// A machine is where the scenarios run.
type machine struct {
	name string
	note string // limits of its figures
	// addresses is true without a GPU: the driver is a table of addresses.
	addresses bool
	// open returns a device with nothing in use.
	open func() (device, error)
	// wrap, if not nil, wraps the allocators that scenarios use.
	wrap func(device, allocator.Allocator) allocator.Allocator
}

// A device is the device that one allocator is measured on.
type device interface {
	allocator.Driver
	// Pool opens the driver's own stream-ordered pool.
	Pool() (allocator.AsyncDriver, error)
	NewStream() (allocator.Stream, error)
	// Prepare prepares Work, or returns errNoKernels.
	Prepare() error
	// Work queues work on s that keeps a small part of the device busy for about
	// half a millisecond and then writes 4 bytes to addr.
	Work(s allocator.Stream, addr uintptr) error
	// Synchronize waits for the work on all streams.
	Synchronize() error
	// Close also waits, and destroys the streams.
	Close() error
}

var errNoKernels = errors.New("needs kernels to run, and so a GPU")

// addressesOnly is a note in a CSV of figures without a GPU.
const addressesOnly = "the driver is a table of addresses"
