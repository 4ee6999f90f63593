package kernels

import "time"

// A Stream is a cudaStream_t: work on it runs in the order of the calls. Its
// methods are operations on device memory. Every argument of type uintptr is
// the address of a dense row-major array of float32, except where said
// otherwise. Arrays that are written must not overlap those that are read, except
// where an operation says that it works in place. Calls return when the work is
// queued; a size below zero is an error, and an array of no elements may have any
// address. The zero Stream is CUDA's default stream.
//
// What a launch computes is said here and nowhere else. To add an operation see
// ARCHITECTURE.md.
type Stream uintptr

// NewStream returns a stream that does not wait for the default stream.
func NewStream() (Stream, error) { return newStream(false) }

// NewHighPriorityStream returns a stream of the highest priority: its CTAs come to a free SM
// before those of streams of [NewStream], also of kernels that were launched sooner.
func NewHighPriorityStream() (Stream, error) { return newStream(true) }

// Close waits for the stream's work, and frees the stream.
func (s Stream) Close() error { return s.close() }

// Handle is the cudaStream_t.
func (s Stream) Handle() uintptr { return uintptr(s) }

// Synchronize waits for all work of the stream and reports its faults.
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

// GEMM does a matrix product with its epilogue.
func (s Stream) GEMM(precision Precision, g GEMM) error { return s.gemm(precision, g) }

// GroupedGEMM does GEMMs, at most [MaxGroup], in any order or at once. They are TN; none
// writes what another reads or writes.
func (s Stream) GroupedGEMM(precision Precision, group []GEMM) error {
	return s.groupedGEMM(precision, group)
}

// DgradWgrad does g, NT with ActivateBackward, and then b += alpha·yᵀ·a, in place: g's wgrad with
// the epilogue SGD. c is computed from b as it was before the update. PrefetchB is for b,
// which is written all the same. c must not overlap the others, nor b. T must be 0.
func (s Stream) DgradWgrad(precision Precision, g GEMM) error { return s.dgradWgrad(precision, g) }

// FusesWgrad says whether [Stream.DgradWgrad] does both parts of g in one launch, in
// less time than GEMM and GroupedGEMM would take.
func FusesWgrad(precision Precision, g GEMM) bool { return fusesWgrad(precision, g) }

// WantsTransposed says whether g, a wgrad, takes less time with b transposed at T.
func WantsTransposed(precision Precision, g GEMM) bool { return wantsTransposed(precision, g) }

// Transpose: t[cols,rows] = x[rows,cols]ᵀ.
func (s Stream) Transpose(t, x uintptr, rows, cols int) error { return s.transpose(t, x, rows, cols) }

// ReLU: y[n] = max(0, x[n]), NaN where x is NaN. y may be x.
func (s Stream) ReLU(y, x uintptr, n int) error { return s.relu(y, x, n) }

// ReLUBackward: dx[n] = dy[n] where y[n] > 0, else 0. dx may be dy.
func (s Stream) ReLUBackward(dx, dy, y uintptr, n int) error { return s.reluBackward(dx, dy, y, n) }

// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
func (s Stream) Softmax(p, x uintptr, rows, cols int) error { return s.softmax(p, x, rows, cols) }

// CrossEntropy: loss[rows] = ln Σ exp(x - max) - (x[i,labels[i]] - max) of the logits
// x[rows,cols], which stays finite where a probability would be 0; correct[rows] = 1
// where the first largest of row i of x is labels[i], else 0. labels is int32; a label
// outside 0..cols-1 gives a NaN loss and is not correct.
func (s Stream) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return s.crossEntropy(loss, correct, x, labels, rows, cols)
}

// SoftmaxCrossEntropyBackward: dx[rows,cols] = (p - onehot(labels))/rows.
func (s Stream) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return s.softmaxCrossEntropyBackward(dx, p, labels, rows, cols)
}

// A Classifier is the last layer of a network and its loss: linear, softmax and
// cross-entropy.
type Classifier struct {
	// DLogits[rows,classes] and DX[rows,k] are the gradients of the mean loss. With
	// both 0 none are made.
	DLogits, DX uintptr
	// Loss[rows] is in nats, Correct[rows] 1 where the prediction is the label, else 0.
	Loss, Correct    uintptr
	X, W             uintptr // X[rows,k], which came out of a ReLU, and W[k,classes]
	Labels, Indices  uintptr // uint8 labels, and rows int32 indices: row i's is labels[indices[i]]
	Rows, Classes, K int
	Prefetch         Prefetch // only PrefetchB counts: W
}

// Classifier does the last layer and its loss at once, in float32 whatever the
// precision: logits = x·w; loss and correct are [Stream.CrossEntropy] of them; dlogits =
// (softmax - onehot)/rows; dx = dlogits·wᵀ where x > 0, else 0. A GPU takes 1 to 16 classes.
func (s Stream) Classifier(c Classifier) error { return s.classifier(c) }

// ReduceLoss: out[i,0] = the mean of loss and out[i,1] = the sum of correct over rows
// i·batch to (i+1)·batch, of which the last may be fewer; out has a row for each
// batch of rows. Additions are in an order that depends on the sizes alone.
func (s Stream) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return s.reduceLoss(out, loss, correct, rows, batch)
}

// Axpy: y[n] += alpha·x[n], in place.
func (s Stream) Axpy(y, x uintptr, alpha float32, n int) error { return s.axpy(y, x, alpha, n) }

// Updates are what ranks add to weights W[N]: one of N elements for each of Ranks, the first
// at X, each Stride elements behind the one before.
type Updates struct {
	W, X             uintptr
	N, Ranks, Stride int // a GPU takes up to 2^30 elements of up to 23 ranks
}

// AddUpdates does for each of at most [MaxGroup] weights: w[n] += the sum of the updates,
// added up in the order of the ranks. Its CTAs are small enough to run beside the largest GEMMs,
// on another stream.
func (s Stream) AddUpdates(all []Updates) error { return s.addUpdates(all) }

// Gather makes a batch: the pixels x[rows,cols] = images[indices[i],:] and
// y[rows] = labels[indices[i]], from uint8 images and labels through int32
// indices[rows] to float32 x and int32 y. With y 0 there are only images.
func (s Stream) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return s.gather(x, y, images, labels, indices, rows, cols)
}

// WaitEvent makes the work that is queued on the stream from here on come after what e marks.
// In a capture that joins both streams: e is of one that is captured, and then this one is
// too, until that one has waited for it in turn.
func (s Stream) WaitEvent(e Event) error { return s.waitEvent(e) }

// BeginCapture makes the stream keep the work that is queued on it from here on,
// rather than do it, until EndCapture. Memory from MallocAsync is then the
// graph's, and is to be freed within it. To wait for the stream is an error, and
// spoils the capture.
func (s Stream) BeginCapture() error { return s.beginCapture() }

// EndCapture returns the work that was kept. After an error there is no graph,
// and the stream can be used on.
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

// NewUntimedEvent is NewEvent for [Stream.WaitEvent] alone, which takes less then.
func NewUntimedEvent() (Event, error) { return newEvent(false) }

// Record marks the work queued on s so far.
func (e Event) Record(s Stream) error { return e.record(s) }

// RecordExternal is Record for times alone: in a capture (cudaEventRecordExternal) it marks
// the work of each launch of the graph, and no stream can wait for it.
func (e Event) RecordExternal(s Stream) error { return e.recordExternal(s) }

// Since waits for e, and returns the device's time from start to e, to about
// half a microsecond.
func (e Event) Since(start Event) (time.Duration, error) { return e.since(start) }

// Close frees the event.
func (e Event) Close() error { return e.close() }
