package cudadriver

import "math"

// A MemPool is a cudaMemPool_t of its own, not the device's default pool. With it comes
// [Events], so that a pool's user can order the streams that share a block.
type MemPool struct {
	Events
	handle uintptr // CUmemoryPool
}

// MemPoolOptions are the settings of a [MemPool].
type MemPoolOptions struct {
	// ReleaseThreshold is how many bytes the pool keeps when a stream, an event
	// or the device is waited for; unused memory beyond it goes back.
	ReleaseThreshold int64

	// The policies by which memory freed on one stream serves another. With none
	// of them it serves its own stream until the host has waited for it.

	// FollowEvents takes memory from a stream that an event orders before the
	// one that asks: CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES.
	FollowEvents bool
	// Opportunistic takes memory whose last work is found to be done:
	// CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC.
	Opportunistic bool
	// InternalDependencies takes any memory and makes the stream that asks wait:
	// CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.
	InternalDependencies bool
}

// DefaultMemPoolOptions has every policy and releases nothing before it is
// trimmed.
func DefaultMemPoolOptions() MemPoolOptions {
	return MemPoolOptions{math.MaxInt64, true, true, true}
}

// NewMemPool makes an empty pool with [DefaultMemPoolOptions].
func NewMemPool() (MemPool, error) { return newMemPool("NewMemPool", DefaultMemPoolOptions()) }

// NewMemPoolWith makes an empty pool with settings of its own. A release threshold below
// zero is an error.
func NewMemPoolWith(o MemPoolOptions) (MemPool, error) { return newMemPool("NewMemPoolWith", o) }

func newMemPool(op string, o MemPoolOptions) (MemPool, error) {
	p, code := rawNewPool(o)
	return MemPool{handle: p}, check(op, code)
}

// MallocAsync returns bytes > 0 bytes of device memory for work queued on stream from
// now on.
func (p MemPool) MallocAsync(bytes int64, stream uintptr) (addr uintptr, err error) {
	counts.mallocAsync.Add(1)
	addr, code := rawMallocAsync(p.handle, bytes, stream)
	return addr, check("MallocAsync", code)
}

// FreeAsync frees what MallocAsync returned once the work queued on stream so
// far is done.
func (p MemPool) FreeAsync(addr, stream uintptr) error {
	counts.freeAsync.Add(1)
	return check("FreeAsync", rawFreeAsync(addr, stream))
}

// PoolReserved returns the bytes that the pool holds now and at its peak.
func (p MemPool) PoolReserved() (current, peak int64, err error) {
	current, peak, code := rawPoolReserved(p.handle)
	return current, peak, check("PoolReserved", code)
}

// ResetPoolPeak makes the peak what the pool holds now.
func (p MemPool) ResetPoolPeak() error { return check("ResetPoolPeak", rawResetPoolPeak(p.handle)) }

// TrimPool releases unused memory until the pool holds keep >= 0 bytes.
func (p MemPool) TrimPool(keep int64) error { return check("TrimPool", rawTrimPool(p.handle, keep)) }

// ClosePool destroys the pool; what was allocated from it must have been freed.
func (p MemPool) ClosePool() error { return check("ClosePool", rawClosePool(p.handle)) }

// A GraphPool is a MemPool for use within captures, where the memory of
// MallocAsync is not the pool's but of all graphs on the device: that is what
// the other methods are about.
type GraphPool struct{ MemPool }

// NewGraphPool makes a pool from which nothing has been captured.
func NewGraphPool() (GraphPool, error) {
	const op = "NewGraphPool"
	if _, _, code := rawGraphReserved(); code != 0 {
		return GraphPool{}, check(op, code) // before CUDA 11.4 pools are not for captures
	}
	p, err := newMemPool(op, DefaultMemPoolOptions())
	return GraphPool{p}, err
}

// PoolReserved returns the bytes that graphs hold now and at their peak.
func (p GraphPool) PoolReserved() (current, peak int64, err error) {
	current, peak, code := rawGraphReserved()
	return current, peak, check("PoolReserved", code)
}

// ResetPoolPeak makes the peak what graphs hold now.
func (p GraphPool) ResetPoolPeak() error { return check("ResetPoolPeak", rawResetGraphPeak()) }

// TrimPool releases what no graph uses at the moment, whatever keep is.
func (p GraphPool) TrimPool(keep int64) error { return check("TrimPool", rawTrimGraphs()) }
