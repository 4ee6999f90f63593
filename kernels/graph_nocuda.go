//go:build !cuda

package kernels

// BeginCapture makes the stream keep the work that is queued on it from here on,
// rather than do it, until EndCapture. Memory from MallocAsync is then the
// graph's, and is to be freed within it. To wait for the stream is an error, and
// spoils the capture.
func (s Stream) BeginCapture() error { return ErrNoCUDA }

// EndCapture returns the work that was kept. After an error there is no graph,
// and the stream can be used on.
func (s Stream) EndCapture() (Graph, error) { return 0, ErrNoCUDA }

// A Graph is a cudaGraphExec_t: work with all its arguments, queued by one call.
type Graph uintptr

// Launch queues the graph's work on s.
func (g Graph) Launch(s Stream) error { return ErrNoCUDA }

// Close frees the graph, whose work must be done.
func (g Graph) Close() error { return ErrNoCUDA }

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
func (p GraphPool) PoolReserved() (current, peak int64, err error) { return 0, 0, ErrNoCUDA }

// ResetPoolPeak makes the peak what graphs hold now.
func (p GraphPool) ResetPoolPeak() error { return ErrNoCUDA }

// TrimPool releases what no graph uses at the moment, whatever keep is.
func (p GraphPool) TrimPool(keep int64) error { return ErrNoCUDA }
