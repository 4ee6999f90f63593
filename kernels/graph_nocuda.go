//go:build !cuda

package kernels

// BeginCapture makes the stream keep the work that is queued on it from here on,
// rather than do it, until EndCapture. Memory that a pool of the driver hands out on
// it is then the graph's, and is to be freed within it. To wait for the stream is an error, and
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
