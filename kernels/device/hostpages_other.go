//go:build !linux

package device

import (
	"errors"
	"fmt"
)

// hostPages is nothing where host memory cannot be mapped twice.
type hostPages struct{}

var errNoPages = fmt.Errorf("device: host memory can be mapped only on Linux: %w", errors.ErrUnsupported)

// PageSize and the other methods: see [allocator.PageDriver].
func (d *HostDriver) PageSize() (int64, error)                    { return 0, errNoPages }
func (d *HostDriver) ReserveRange(int64) (uintptr, error)         { return 0, errNoPages }
func (d *HostDriver) ReleaseRange(uintptr, int64) error           { return errNoPages }
func (d *HostDriver) CreatePages(int64) (uintptr, error)          { return 0, errNoPages }
func (d *HostDriver) ReleasePages(uintptr) error                  { return errNoPages }
func (d *HostDriver) MapPages(addr, pages uintptr, _ int64) error { return errNoPages }
func (d *HostDriver) UnmapPages(uintptr, int64) error             { return errNoPages }
