//go:build !cuda

package kernels

import "time"

// Available returns nil if a CUDA device can be used, else an error that says
// why not in one line.
func Available() error { return ErrNoCUDA }

// Device returns what is known of the device.
func Device() (Info, error) { return Info{}, ErrNoCUDA }

// A Stream is a cudaStream_t: work on it runs in the order of the calls. Its
// methods are operations on device memory. Every argument of type uintptr is
// the address of a dense row-major array of float32, except where said
// otherwise. Calls return when the work is queued; a size below zero is an
// error, and an array of no elements may have any address. The zero Stream is
// CUDA's default stream.
type Stream uintptr

// NewStream returns a stream that does not wait for the default stream.
func NewStream() (Stream, error) { return 0, ErrNoCUDA }

// Close waits for the stream's work, and frees the stream.
func (s Stream) Close() error { return ErrNoCUDA }

// Handle is the cudaStream_t.
func (s Stream) Handle() uintptr { return uintptr(s) }

// Synchronize waits for all work of the stream and reports its faults.
func (s Stream) Synchronize() error { return ErrNoCUDA }

// Upload copies src to the device and returns when that is done.
func (s Stream) Upload(dst uintptr, src []byte) error { return ErrNoCUDA }

// Download fills dst from the device and returns when that is done.
func (s Stream) Download(dst []byte, src uintptr) error { return ErrNoCUDA }

// Fill sets bytes bytes from dst on to value.
func (s Stream) Fill(dst uintptr, value byte, bytes int) error { return ErrNoCUDA }

// MatMul does a matrix product.
func (s Stream) MatMul(precision Precision, p Product) error { return ErrNoCUDA }

// Step does a matrix product, NT with Mask, and then b += alpha·yᵀ·a, in place: c is
// made of the b before that. EarlyB is for b, which is written all the same. c must not
// overlap the others, nor b.
func (s Stream) Step(precision Precision, p Product) error { return ErrNoCUDA }

// StepsAtOnce says whether [Stream.Step] does both parts of p in one launch, in less
// time than MatMul and Updates would take.
func StepsAtOnce(precision Precision, p Product) bool { return false }

// Updates does products, at most [MostUpdates], in any order or at once. They are TN
// with Add; none writes what another reads or writes.
func (s Stream) Updates(precision Precision, products []Product) error { return ErrNoCUDA }

// ReLU: y[n] = max(0, x[n]), NaN where x is NaN. y may be x.
func (s Stream) ReLU(y, x uintptr, n int) error { return ErrNoCUDA }

// ReLUBackward: dx[n] = dy[n] where y[n] > 0, else 0. dx may be dy.
func (s Stream) ReLUBackward(dx, dy, y uintptr, n int) error { return ErrNoCUDA }

// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
func (s Stream) Softmax(p, x uintptr, rows, cols int) error { return ErrNoCUDA }

// CrossEntropy: loss[rows] = -ln p[i,labels[i]], hit[rows] = 1 where the first
// largest of row i of p is labels[i], else 0. labels is int32; a label outside
// 0..cols-1 gives a NaN loss and no hit.
func (s Stream) CrossEntropy(loss, hit, p, labels uintptr, rows, cols int) error { return ErrNoCUDA }

// SoftmaxCrossEntropyBackward: dx[rows,cols] = (p - onehot(labels))/rows.
func (s Stream) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return ErrNoCUDA
}

// Head does the last layer and its loss at once, all in float32: logits =
// x[rows,k]·w[k,classes]; loss[rows] = their cross-entropy in nats against
// labels[order[i]], uint8 labels through int32 indices; hit[rows] = 1 where the
// first largest logit is the label's, else 0; grad[rows,classes] =
// (softmax - onehot)/rows; dx[rows,k] = grad·wᵀ where x > 0, else 0. The loss is
// ln Σ exp(x - max) - (x[label] - max), and so stays finite where a probability
// would be 0. A label that is no class gives a NaN loss and no hit. With grad and
// dx 0 no gradients are made. A GPU takes 1 to 16 classes. Of early only EarlyB
// counts: w.
func (s Stream) Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early Early) error {
	return ErrNoCUDA
}

// Means: out[i,0] = the mean of loss and out[i,1] = the sum of hit over rows
// i·batch to (i+1)·batch, of which the last may be fewer; out has a row for each
// batch of rows. Additions are in an order that depends on the sizes alone.
func (s Stream) Means(out, loss, hit uintptr, rows, batch int) error { return ErrNoCUDA }

// Axpy: y[n] += alpha·x[n], in place.
func (s Stream) Axpy(y, x uintptr, alpha float32, n int) error { return ErrNoCUDA }

// Gather makes a batch: x[rows,cols] = images[order[i],:]/255 and
// y[rows] = labels[order[i]], from uint8 images and labels through the int32
// indices order[rows] to float32 x and int32 y. With y 0 there are only images.
func (s Stream) Gather(x, y, images, labels, order uintptr, rows, cols int) error { return ErrNoCUDA }

// An Event marks a point in a stream's work, with its time.
type Event uintptr

// NewEvent returns an event that has not been recorded.
func NewEvent() (Event, error) { return 0, ErrNoCUDA }

// Record marks the work queued on s so far.
func (e Event) Record(s Stream) error { return ErrNoCUDA }

// Since waits for e, and returns the device's time from start to e, to about
// half a microsecond.
func (e Event) Since(start Event) (time.Duration, error) { return 0, ErrNoCUDA }

// Close frees the event.
func (e Event) Close() error { return ErrNoCUDA }
