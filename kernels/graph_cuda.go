//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

// BeginCapture makes the stream keep the work that is queued on it from here on,
// rather than do it, until EndCapture. Memory from MallocAsync is then the
// graph's, and is to be freed within it. To wait for the stream is an error, and
// spoils the capture.
func (s Stream) BeginCapture() error {
	return check("BeginCapture", C.kernels_capture_begin(C.uintptr_t(s)))
}

// EndCapture returns the work that was kept. After an error there is no graph,
// and the stream can be used on.
func (s Stream) EndCapture() (Graph, error) {
	g, err := checked("EndCapture", C.kernels_capture_end(C.uintptr_t(s)))
	return Graph(g), err
}

// A Graph is a cudaGraphExec_t: work with all its arguments, queued by one call.
type Graph uintptr

// Launch queues the graph's work on s.
func (g Graph) Launch(s Stream) error {
	return check("Launch", C.kernels_graph_launch(C.uintptr_t(g), C.uintptr_t(s)))
}

// Close frees the graph, whose work must be done.
func (g Graph) Close() error { return check("Close", C.kernels_graph_free(C.uintptr_t(g))) }

// A GraphPool is a MemPool for use within captures, where the memory of
// MallocAsync is not the pool's but of all graphs on the device: that is what
// the other methods are about.
type GraphPool struct{ MemPool }

// NewGraphPool makes a pool from which nothing has been captured.
func NewGraphPool() (GraphPool, error) {
	p, err := NewMemPool()
	return GraphPool{p}, err
}

// PoolReserved returns the bytes that graphs hold now and at their peak.
func (p GraphPool) PoolReserved() (current, peak int64, err error) {
	var c, h C.int64_t
	err = check("PoolReserved", C.kernels_graph_memory(&c, &h))
	return int64(c), int64(h), err
}

// ResetPoolPeak makes the peak what graphs hold now.
func (p GraphPool) ResetPoolPeak() error {
	return check("ResetPoolPeak", C.kernels_graph_memory_reset_peak())
}

// TrimPool releases what no graph uses at the moment, whatever keep is.
func (p GraphPool) TrimPool(keep int64) error {
	return check("TrimPool", C.kernels_graph_memory_trim())
}
