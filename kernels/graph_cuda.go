//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

// BeginCapture makes the stream keep the work that is queued on it from here on,
// rather than do it, until EndCapture. Memory that a pool of the driver hands out on
// it is then the graph's, and is to be freed within it. To wait for the stream is an error, and
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
