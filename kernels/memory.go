package kernels

import "math"

// MemPoolOptions are the settings of a [MemPool].
type MemPoolOptions struct {
	// ReleaseThreshold is how many bytes the pool keeps when a stream, an event
	// or the device is waited for; unused memory beyond it goes back.
	ReleaseThreshold int64

	// The policies by which memory freed on one stream serves another. With none
	// of them it serves its own stream until the host has waited for it.

	// FollowEvents takes memory from a stream that an event orders before the
	// one that asks: cudaMemPoolReuseFollowEventDependencies.
	FollowEvents bool
	// Opportunistic takes memory whose last work is found to be done:
	// cudaMemPoolReuseAllowOpportunistic.
	Opportunistic bool
	// InternalDependencies takes any memory and makes the stream that asks wait:
	// cudaMemPoolReuseAllowInternalDependencies.
	InternalDependencies bool
}

// DefaultMemPoolOptions has every policy and releases nothing before it is
// trimmed.
func DefaultMemPoolOptions() MemPoolOptions {
	return MemPoolOptions{math.MaxInt64, true, true, true}
}

// MemInfo returns the bytes free on the device and in all, as that of [Driver].
func (p MemPool) MemInfo() (free, total int64, err error) { return Driver{}.MemInfo() }

// NewEvent and the methods after it are those of [Driver], so that a pool's user
// can order the streams that share a block.
func (p MemPool) NewEvent() (event uintptr, err error) { return Driver{}.NewEvent() }

// RecordEvent marks the work queued on stream so far.
func (p MemPool) RecordEvent(event, stream uintptr) error { return Driver{}.RecordEvent(event, stream) }

// WaitEvent makes work queued on stream from now on wait for the event.
func (p MemPool) WaitEvent(stream, event uintptr) error { return Driver{}.WaitEvent(stream, event) }

// SyncEvent waits on the host.
func (p MemPool) SyncEvent(event uintptr) error { return Driver{}.SyncEvent(event) }

// FreeEvent destroys the event.
func (p MemPool) FreeEvent(event uintptr) error { return Driver{}.FreeEvent(event) }
