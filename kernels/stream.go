package kernels

import "time"

// A Stream is a cudaStream_t: work on it runs in the order of the calls, which return when it
// is queued. [Launches] says what its operations compute. The zero Stream is CUDA's default
// stream.
type Stream uintptr

// NewStream returns a stream that does not wait for the default stream.
func NewStream() (Stream, error) { return newStream(false) }

// NewHighPriorityStream returns a stream of the highest priority: its CTAs get a free SM before
// those of streams of [NewStream], even of kernels that were launched earlier.
func NewHighPriorityStream() (Stream, error) { return newStream(true) }

// Close waits for the stream's work, and frees the stream.
func (s Stream) Close() error { return s.close() }

// Handle returns the cudaStream_t.
func (s Stream) Handle() uintptr { return uintptr(s) }

// Synchronize waits for all work of the stream and returns its faults.
func (s Stream) Synchronize() error { return s.synchronize() }

// Upload copies src to the device and returns when that is done.
func (s Stream) Upload(dst uintptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return s.upload(dst, src)
}

// Download fills dst from the device and returns when that is done.
func (s Stream) Download(dst []byte, src uintptr) error {
	if len(dst) == 0 {
		return nil
	}
	return s.download(dst, src)
}

// Fill sets n bytes at dst to value.
func (s Stream) Fill(dst uintptr, value byte, n int) error { return s.fill(dst, value, n) }

// FusesWgrad reports whether [Stream.DgradWgrad] computes both parts of g in one launch, and faster than GEMM
// and GroupedGEMM do.
func FusesWgrad(precision Precision, g GEMM) bool { return fusesWgrad(precision, g) }

// WantsTransposed reports whether g, a wgrad, is faster with b transposed at T. If so, GEMM and
// GroupedGEMM read T and not b, whatever else is in the group.
func WantsTransposed(precision Precision, g GEMM) bool { return wantsTransposed(precision, g) }

// TakesStride reports whether there is a kernel for g, a wgrad with a stride.
func TakesStride(precision Precision, g GEMM) bool { return takesStride(precision, g) }

// Chains reports whether [Stream.GroupedGEMM] takes g in a chain.
func Chains(precision Precision, g GEMM) bool { return chains(precision, g) }

// WaitEvent makes work that is queued on the stream from now on wait for the work that e marks. If
// e is of a stream that is being captured, this stream joins the capture, until that one has
// waited for it in turn.
func (s Stream) WaitEvent(e Event) error { return s.waitEvent(e) }

// BeginCapture makes the stream record work rather than do it, until EndCapture. Memory from
// MallocAsync then belongs to the graph, which must free it. Waiting for the stream is an error
// and invalidates the capture.
func (s Stream) BeginCapture() error { return s.beginCapture() }

// EndCapture returns the recorded work. After an error there is no graph, and the stream works
// on.
func (s Stream) EndCapture() (Graph, error) { return s.endCapture() }

// A Graph is a cudaGraphExec_t: work with all its arguments, queued by one call.
type Graph uintptr

// Launch queues the graph's work on s.
func (g Graph) Launch(s Stream) error { return g.launch(s) }

// Close frees the graph, whose work must be done.
func (g Graph) Close() error { return g.close() }

// An Event marks a point in a stream's work, with its time.
type Event uintptr

// NewEvent returns an event that has not been recorded.
func NewEvent() (Event, error) { return newEvent(true) }

// NewUntimedEvent is NewEvent without a time, only for [Stream.WaitEvent], which is then cheaper.
func NewUntimedEvent() (Event, error) { return newEvent(false) }

// Record marks the work queued on s so far.
func (e Event) Record(s Stream) error { return e.record(s) }

// RecordExternal is Record, but in a capture (cudaEventRecordExternal) e marks the work of each launch of the
// graph. Then e is only for times: no stream can wait for it.
func (e Event) RecordExternal(s Stream) error { return e.recordExternal(s) }

// Since waits for e, and returns the device's time from start to e, to about
// half a microsecond.
func (e Event) Since(start Event) (time.Duration, error) { return e.since(start) }

// Close frees the event.
func (e Event) Close() error { return e.close() }
