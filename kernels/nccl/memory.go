package nccl

import (
	"errors"
	"fmt"
)

// Register registers memory for all-reduces. If ranks reach each other's memory, NCCL then need not
// copy it to its own buffers. It needs NCCL 2.19. The error is [errors.ErrUnsupported] if the library
// is too old, as it is for the functions below.
func (c *Comm) Register(addr uintptr, bytes int64) (deregister func() error, err error) {
	return c.register("Register", rawRegister, rawDeregister, addr, bytes)
}

// RegisterWindow registers memory of [Alloc] as a symmetric window (ncclCommWindowRegister, NCCL
// 2.27), for which NCCL has faster kernels. All ranks call it together, at the same offset.
func (c *Comm) RegisterWindow(addr uintptr, bytes int64) (deregister func() error, err error) {
	return c.register("RegisterWindow", rawNewWindow, rawFreeWindow, addr, bytes)
}

func (c *Comm) register(op string, raw func(comm, addr uintptr, bytes int64) (uintptr, int), undo func(comm, handle uintptr) int, addr uintptr, bytes int64) (deregister func() error, err error) {
	var handle uintptr
	if err := c.use(func() error {
		var code int
		handle, code = raw(c.handle, addr, bytes)
		if code == 0 && handle == 0 {
			return fmt.Errorf("nccl: %s: %w between these GPUs", op, errors.ErrUnsupported)
		}
		return check(op, code, c.handle)
	}); err != nil {
		return nil, err
	}
	return func() error {
		return c.use(func() error { return check(op+", undone", undo(c.handle, handle), c.handle) })
	}, nil
}

// Alloc is ncclMemAlloc: memory that can be shared with other GPUs.
func Alloc(bytes int64) (addr uintptr, err error) {
	addr, code := rawAlloc(bytes)
	return addr, check("Alloc", code, 0)
}

// Free frees memory of Alloc.
func Free(addr uintptr) error { return check("Free", rawFree(addr), 0) }
