// Package allocatortest tests allocators. [Run] is one suite for every implementation. Its
// device is a [Fake], whose package lists the faults that it finds, and a [Guard] tells the
// device of each block that an allocator hands out. Package hostile runs random programs on
// them.
package allocatortest

import (
	"mlpool/allocator"
	"mlpool/allocator/allocatortest/fake"
)

// Fake is the device of all tests, and Chance and Fault are what it does at random and finds.
type (
	Fake   = fake.Device
	Chance = fake.Chance
	Fault  = fake.Fault
	Owner  = fake.Owner
)

// NewFake and the others are those of package fake.
var (
	NewFake     = fake.New
	NewFault    = fake.NewFault
	ErrInjected = fake.ErrInjected
)

var (
	_ allocator.PageDriver  = (*Fake)(nil)
	_ allocator.HostCopier  = (*Fake)(nil)
	_ allocator.AsyncDriver = (*Fake)(nil)
	_ allocator.Filler      = (*Fake)(nil)
)
