package allreduce

import (
	"errors"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels/nccl"
)

// A source is where the memory of an all-reduce comes from. open returns memory, and a
// function that frees it.
type source struct {
	name string
	open func(bytes int64) (addr uintptr, done func() error, err error)
}

// sources returns all sources. They register memory before the clock starts.
func sources(comm *nccl.Comm, stream allocator.Stream) []source {
	plain := func(open func() (allocator.Allocator, error)) func(int64) (uintptr, func() error, error) {
		return func(bytes int64) (uintptr, func() error, error) {
			a, err := open()
			if err != nil {
				return 0, nil, err
			}
			b, err := a.Alloc(bytes, stream, "all-reduce")
			if err != nil {
				return 0, nil, errors.Join(err, a.Close())
			}
			return b.Addr, func() error { return errors.Join(a.Free(b, stream), a.Close()) }, nil
		}
	}
	pool := func(d allocator.Driver, segments string) func() (allocator.Allocator, error) {
		return func() (allocator.Allocator, error) {
			return allocator.NewPool(d, allocator.PoolOptions{Segments: segments})
		}
	}
	ncclMemory := func(bytes int64) (uintptr, func() error, error) {
		addr, err := nccl.Alloc(bytes)
		return addr, func() error { return nccl.Free(addr) }, err
	}
	driver := cudadriver.Driver{}
	malloc := plain(func() (allocator.Allocator, error) { return allocator.NewMalloc(driver), nil })
	async := plain(func() (allocator.Allocator, error) {
		p, err := cudadriver.NewMemPool()
		return allocator.NewAsync(p), err
	})
	virtual := plain(pool(driver, allocator.SegmentsVirtual))
	segments := &registering{Driver: driver, register: comm.Register}
	windows := &registering{Driver: ncclDriver{driver}, register: comm.RegisterWindow}
	return []source{
		{"cudaMalloc", malloc},
		{"cudaMalloc, registered", registered(malloc, comm.Register)},
		{"cudaMallocAsync", async},
		{"cudaMallocAsync, registered", registered(async, comm.Register)},
		{"pool, malloc segments", plain(pool(driver, allocator.SegmentsMalloc))},
		{"pool, registered segments", plain(pool(segments, allocator.SegmentsMalloc))},
		{"pool, virtual segments", virtual},
		{"pool, virtual, registered", registered(virtual, comm.Register)},
		{"ncclMemAlloc", ncclMemory},
		{"ncclMemAlloc, registered", registered(ncclMemory, comm.Register)},
		{"ncclMemAlloc, window", registered(ncclMemory, comm.RegisterWindow)},
		{"pool, segments are windows", plain(pool(windows, allocator.SegmentsMalloc))},
	}
}

// registered is memory that is registered block by block.
func registered(open func(int64) (uintptr, func() error, error), register func(uintptr, int64) (func() error, error)) func(int64) (uintptr, func() error, error) {
	return func(bytes int64) (uintptr, func() error, error) {
		addr, done, err := open(bytes)
		if err != nil {
			return 0, nil, err
		}
		deregister, err := register(addr, bytes)
		if err != nil {
			return 0, nil, errors.Join(err, done())
		}
		return addr, func() error { return errors.Join(deregister(), done()) }, nil
	}
}

// registering is a driver that registers memory when it allocates it: each segment of a pool once.
type registering struct {
	allocator.Driver
	register func(uintptr, int64) (func() error, error)
	undo     map[uintptr]func() error
}

// Malloc and Free: see [allocator.Driver].
func (r *registering) Malloc(bytes int64) (uintptr, error) {
	addr, err := r.Driver.Malloc(bytes)
	if err != nil {
		return 0, err
	}
	undo, err := r.register(addr, bytes)
	if err != nil {
		return 0, errors.Join(err, r.Driver.Free(addr))
	}
	if r.undo == nil {
		r.undo = map[uintptr]func() error{}
	}
	r.undo[addr] = undo
	return addr, nil
}

func (r *registering) Free(addr uintptr) error {
	undo := r.undo[addr]
	if undo == nil {
		return r.Driver.Free(addr)
	}
	delete(r.undo, addr)
	return errors.Join(undo(), r.Driver.Free(addr))
}

// ncclDriver is a driver that allocates with ncclMemAlloc.
type ncclDriver struct{ allocator.Driver }

func (ncclDriver) Malloc(bytes int64) (uintptr, error) { return nccl.Alloc(bytes) }
func (ncclDriver) Free(addr uintptr) error             { return nccl.Free(addr) }
