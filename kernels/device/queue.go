package device

import (
	"time"

	"mlpool/kernels"
)

// A Queue runs operations in order on memory of one device: a CUDA stream on a
// GPU, the calling goroutine on host memory. Every argument of type uintptr is the
// address of a dense row-major array; arrays that are written must not overlap
// those that are read, except where an operation says that it works in place.
// Calls return when the work is queued, not when it is done, and report
// faults of the launch itself; Synchronize reports those of the work.
//
// Elements are float32 unless said otherwise. Any size is valid; an operation
// on no elements does nothing.
type Queue interface {
	// MatMul does a matrix product.
	MatMul(p kernels.Product) error
	// Step does a matrix product, NT with Mask, and then b += alpha·yᵀ·a, in place: c
	// is made of the b before that. EarlyB is for b, which is written all the same. StepsAtOnce says whether
	// this is one launch, and faster than MatMul and Updates.
	Step(p kernels.Product) error
	StepsAtOnce(p kernels.Product) bool
	// Updates does products, at most kernels.MostUpdates, in any order or at once.
	// They are TN with Add; none writes what another reads or writes.
	Updates(products []kernels.Product) error

	// ReLU: y[n] = max(0, x[n]).
	ReLU(y, x uintptr, n int) error
	// ReLUBackward: dx[n] = dy[n] where y[n] > 0, else 0.
	ReLUBackward(dx, dy, y uintptr, n int) error

	// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
	Softmax(p, x uintptr, rows, cols int) error
	// CrossEntropy: loss[rows] = -ln p[i,labels[i]], hit[rows] = 1 where the
	// first largest of row i of p is labels[i], else 0. labels is int32.
	CrossEntropy(loss, hit, p, labels uintptr, rows, cols int) error
	// SoftmaxCrossEntropyBackward: dx[rows,cols] = (p - onehot(labels))/rows.
	SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error
	// Head does the last layer and its loss at once, in float32 whatever the
	// precision: logits = x[rows,k]·w[k,classes]; loss[rows] = their cross-entropy
	// in nats against labels[order[i]], uint8 labels through int32 indices;
	// hit[rows] = 1 where the first largest logit is the label's, else 0;
	// grad[rows,classes] = (softmax - onehot)/rows; dx[rows,k] = grad·wᵀ where
	// x > 0, else 0. With grad and dx 0 no gradients are made. A GPU takes 1 to 16
	// classes. Of early only EarlyB counts: w.
	Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early kernels.Early) error
	// Means: out[i,0] = the mean of loss and out[i,1] = the sum of hit over rows
	// i·batch to (i+1)·batch, of which the last may be fewer.
	Means(out, loss, hit uintptr, rows, batch int) error

	// Axpy: y[n] += alpha·x[n], in place.
	Axpy(y, x uintptr, alpha float32, n int) error
	// Gather makes a batch: x[rows,cols] = images[order[i],:]/255 and
	// y[rows] = labels[order[i]], from uint8 images and labels through the
	// int32 indices order[rows] to float32 x and int32 y. With y 0 there are
	// only images.
	Gather(x, y, images, labels, order uintptr, rows, cols int) error

	// Fill sets bytes bytes from dst on to value.
	Fill(dst uintptr, value byte, bytes int) error
	// Upload copies src to the device, Download the other way; both return
	// when the copy is done.
	Upload(dst uintptr, src []byte) error
	Download(dst []byte, src uintptr) error

	// Mark notes when the work queued so far is done, under a number from 0
	// on, which costs memory when it is first used; Elapsed gives the time from
	// one mark to another, after a Synchronize.
	Mark(i int) error
	Elapsed(from, to int) (time.Duration, error)

	// BeginCapture makes the queue keep the operations from here on, rather than
	// do them, until EndCapture returns them as a Graph. Uploads, downloads and
	// what else waits for the queue are errors meanwhile, and spoil the capture;
	// after an error of EndCapture there is no graph, and the queue can be used on.
	BeginCapture() error
	EndCapture() (Graph, error)

	// Synchronize waits for all that was queued and reports its faults.
	Synchronize() error
	// Handle is what an allocator knows this queue by.
	Handle() uintptr
	Close() error
}

// A Graph is operations that a Queue has kept, with all their arguments.
type Graph interface {
	// Launch queues them on the queue that they were captured from.
	Launch() error
	// Close frees the graph; its work must be done.
	Close() error
}
