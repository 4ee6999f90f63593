package cudadriver

import "math"

// A MemPool is a cudaMemPool_t other than the device's default pool. Its [Events] order
// the streams that share a block.
type MemPool struct {
	Events
	handle uintptr // CUmemoryPool
}

// MemPoolOptions are the settings of a [MemPool].
type MemPoolOptions struct {
	// ReleaseThreshold is how many bytes the pool keeps when the host waits for a
	// stream, an event or the device. It releases unused memory beyond that.
	ReleaseThreshold int64
	// Device has the pool's memory.
	Device int

	// The policies by which memory freed on one stream serves another. Without them
	// it serves only its own stream until the host has waited for the free.

	// FollowEvents reuses memory of a stream that an event orders before the
	// requesting one: CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES.
	FollowEvents bool
	// Opportunistic reuses memory whose last work is done:
	// CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC.
	Opportunistic bool
	// InternalDependencies reuses any memory and makes the requesting stream wait:
	// CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.
	InternalDependencies bool
}

// DefaultMemPoolOptions returns options for device 0 with every policy, under which only
// TrimPool releases memory.
func DefaultMemPoolOptions() MemPoolOptions {
	return MemPoolOptions{
		ReleaseThreshold: math.MaxInt64,
		FollowEvents:     true, Opportunistic: true, InternalDependencies: true,
	}
}

// NewMemPool returns an empty pool with [DefaultMemPoolOptions].
func NewMemPool() (MemPool, error) { return newMemPool("NewMemPool", DefaultMemPoolOptions()) }

// NewMemPoolWith returns an empty pool with options o. A negative ReleaseThreshold is an
// error.
func NewMemPoolWith(o MemPoolOptions) (MemPool, error) { return newMemPool("NewMemPoolWith", o) }

func newMemPool(op string, o MemPoolOptions) (MemPool, error) {
	if err := exists(op, o.Device); err != nil {
		return MemPool{}, err
	}
	p, code := rawNewPool(o)
	if err := check(op, code); err != nil {
		return MemPool{}, err
	}
	return MemPool{Events{o.Device}, p}, nil
}

// MallocAsync returns bytes > 0 bytes of device memory for work queued on stream from
// now on.
func (p MemPool) MallocAsync(bytes int64, stream uintptr) (addr uintptr, err error) {
	counts.mallocAsync.Add(1)
	addr, code := rawMallocAsync(p.device, p.handle, bytes, stream)
	return addr, check("MallocAsync", code)
}

// FreeAsync frees memory of MallocAsync once the work queued on stream so far is done.
func (p MemPool) FreeAsync(addr, stream uintptr) error {
	counts.freeAsync.Add(1)
	return check("FreeAsync", rawFreeAsync(p.device, addr, stream))
}

// PoolReserved returns the pool's current and peak bytes.
func (p MemPool) PoolReserved() (current, peak int64, err error) {
	current, peak, code := rawPoolReserved(p.device, p.handle)
	return current, peak, check("PoolReserved", code)
}

// ResetPoolPeak sets the peak to the current bytes.
func (p MemPool) ResetPoolPeak() error {
	return check("ResetPoolPeak", rawResetPoolPeak(p.device, p.handle))
}

// TrimPool releases unused memory until the pool holds keep >= 0 bytes.
func (p MemPool) TrimPool(keep int64) error {
	return check("TrimPool", rawTrimPool(p.device, p.handle, keep))
}

// ClosePool destroys the pool. All of its memory must have been freed.
func (p MemPool) ClosePool() error { return check("ClosePool", rawClosePool(p.device, p.handle)) }

// A GraphPool is a MemPool for captures. A captured MallocAsync takes memory from all
// graphs of the device, not from the pool, so the other methods are about that memory.
type GraphPool struct{ MemPool }

// NewGraphPool returns an empty pool of a device.
func NewGraphPool(device int) (GraphPool, error) {
	const op = "NewGraphPool"
	if err := exists(op, device); err != nil {
		return GraphPool{}, err
	}
	if _, _, code := rawGraphReserved(device); code != 0 {
		return GraphPool{}, check(op, code) // before CUDA 11.4 pools are not for captures
	}
	o := DefaultMemPoolOptions()
	o.Device = device
	p, err := newMemPool(op, o)
	return GraphPool{p}, err
}

// PoolReserved returns the current and peak bytes of all graphs.
func (p GraphPool) PoolReserved() (current, peak int64, err error) {
	current, peak, code := rawGraphReserved(p.device)
	return current, peak, check("PoolReserved", code)
}

// ResetPoolPeak sets the peak to the current bytes of all graphs.
func (p GraphPool) ResetPoolPeak() error { return check("ResetPoolPeak", rawResetGraphPeak(p.device)) }

// TrimPool releases all memory that no graph uses now. It ignores keep.
func (p GraphPool) TrimPool(keep int64) error { return check("TrimPool", rawTrimGraphs(p.device)) }
