//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// The kernels are compiled by nvcc, out of go's sight. kernels.mk does it, and
// writes archive_cuda.go: how to link the archive, and its checksum, so that go
// links again when it changes.
var archive = run_make_kernels_before_building_with_tag_cuda

// check makes an error of what a C function returned.
func check(op string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &Error{Op: op, Code: int(code), Name: C.GoString(C.kernels_error_name(code))}
}

// checked is check for a C function that also returns a value.
func checked(op string, r C.kernels_value) (uintptr, error) {
	if r.code == 0 {
		return uintptr(r.value), nil
	}
	return 0, check(op, r.code)
}

// Available returns nil if a CUDA device can be used, else an error that says
// why not in one line.
func Available() error {
	if err := check("Available", C.kernels_available()); err != nil {
		return fmt.Errorf("no CUDA device can be used: %w", err)
	}
	return nil
}

// Device returns what is known of the device.
func Device() (Info, error) {
	var d C.kernels_info
	if err := check("Device", C.kernels_device(&d)); err != nil {
		return Info{}, err
	}
	return Info{
		Name:  C.GoString(&d.name[0]),
		Major: int(d.major), Minor: int(d.minor), SMs: int(d.sms),
		Memory: int64(d.memory), L2: int64(d.l2),
		DriverVersion: int(d.driver), RuntimeVersion: int(d.runtime),
	}, nil
}

// A Stream is a cudaStream_t: work on it runs in the order of the calls. Its
// methods are operations on device memory. Every argument of type uintptr is
// the address of a dense row-major array of float32, except where said
// otherwise. Calls return when the work is queued; a size below zero is an
// error, and an array of no elements may have any address. The zero Stream is
// CUDA's default stream.
type Stream uintptr

// NewStream returns a stream that does not wait for the default stream.
func NewStream() (Stream, error) {
	s, err := checked("NewStream", C.kernels_stream_new())
	return Stream(s), err
}

// Close waits for the stream's work, and frees the stream.
func (s Stream) Close() error {
	return check("Close", C.kernels_stream_free(C.uintptr_t(s)))
}

// Handle is the cudaStream_t.
func (s Stream) Handle() uintptr { return uintptr(s) }

// Synchronize waits for all work of the stream and reports its faults.
func (s Stream) Synchronize() error {
	return check("Synchronize", C.kernels_stream_sync(C.uintptr_t(s)))
}

// Upload copies src to the device and returns when that is done.
func (s Stream) Upload(dst uintptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return check("Upload", C.kernels_upload(C.uintptr_t(s), C.uintptr_t(dst), unsafe.Pointer(&src[0]), C.int64_t(len(src))))
}

// Download fills dst from the device and returns when that is done.
func (s Stream) Download(dst []byte, src uintptr) error {
	if len(dst) == 0 {
		return nil
	}
	return check("Download", C.kernels_download(C.uintptr_t(s), unsafe.Pointer(&dst[0]), C.uintptr_t(src), C.int64_t(len(dst))))
}

// Fill sets bytes bytes from dst on to value.
func (s Stream) Fill(dst uintptr, value byte, bytes int) error {
	return check("Fill", C.kernels_fill(C.uintptr_t(s), C.uintptr_t(dst), C.int(value), C.int64_t(bytes)))
}

// The numbers of forms, epilogues and operands are those of kernels.h: else this
// does not compile.
var _ = [1]struct{}{}[(int(NT)-C.KERNELS_NT)|(int(TN)-C.KERNELS_TN)|
	(int(ReLU)-C.KERNELS_RELU)|(int(Mask)-C.KERNELS_MASK)|(int(Add)-C.KERNELS_ADD)|
	(int(EarlyA)-C.KERNELS_EARLY_A)|(int(EarlyB)-C.KERNELS_EARLY_B)|(int(EarlyC)-C.KERNELS_EARLY_C)|(MostUpdates-C.KERNELS_MOST_UPDATES)]

func (p Product) c() C.kernels_product {
	return C.kernels_product{
		c: C.uintptr_t(p.C), a: C.uintptr_t(p.A), b: C.uintptr_t(p.B), y: C.uintptr_t(p.Y), order: C.uintptr_t(p.Order),
		m: C.int64_t(p.M), n: C.int64_t(p.N), k: C.int64_t(p.K), alpha: C.float(p.Alpha),
		form: C.int(p.Form), epilogue: C.int(p.Epilogue), early: C.int(p.Early),
	}
}

// MatMul does a matrix product.
func (s Stream) MatMul(precision Precision, p Product) error {
	return check("MatMul", C.kernels_matmul(C.uintptr_t(s), C.int(precision), p.c()))
}

// Step does a matrix product, NT with Mask, and then b += alpha·yᵀ·a, in place: c is
// made of the b before that. EarlyB is for b, which is written all the same. c must not
// overlap the others, nor b.
func (s Stream) Step(precision Precision, p Product) error {
	return check("Step", C.kernels_step(C.uintptr_t(s), C.int(precision), p.c()))
}

// StepsAtOnce says whether [Stream.Step] does both parts of p in one launch, in less
// time than MatMul and Updates would take.
func StepsAtOnce(precision Precision, p Product) bool {
	return C.kernels_steps(C.int(precision), p.c()) != 0
}

// Updates does products, at most [MostUpdates], in any order or at once. They are TN
// with Add; none writes what another reads or writes.
func (s Stream) Updates(precision Precision, products []Product) error {
	list := C.kernels_product_list{count: C.int(len(products))}
	for i, p := range products[:min(len(products), MostUpdates)] {
		list.products[i] = p.c()
	}
	return check("Updates", C.kernels_updates(C.uintptr_t(s), C.int(precision), list))
}

// ReLU: y[n] = max(0, x[n]), NaN where x is NaN. y may be x.
func (s Stream) ReLU(y, x uintptr, n int) error {
	return check("ReLU", C.kernels_relu(C.uintptr_t(s), C.uintptr_t(y), C.uintptr_t(x), C.int64_t(n)))
}

// ReLUBackward: dx[n] = dy[n] where y[n] > 0, else 0. dx may be dy.
func (s Stream) ReLUBackward(dx, dy, y uintptr, n int) error {
	return check("ReLUBackward", C.kernels_relu_backward(C.uintptr_t(s), C.uintptr_t(dx), C.uintptr_t(dy), C.uintptr_t(y), C.int64_t(n)))
}

// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
func (s Stream) Softmax(p, x uintptr, rows, cols int) error {
	return check("Softmax", C.kernels_softmax(C.uintptr_t(s), C.uintptr_t(p), C.uintptr_t(x), C.int64_t(rows), C.int64_t(cols)))
}

// CrossEntropy: loss[rows] = -ln p[i,labels[i]], hit[rows] = 1 where the first
// largest of row i of p is labels[i], else 0. labels is int32; a label outside
// 0..cols-1 gives a NaN loss and no hit.
func (s Stream) CrossEntropy(loss, hit, p, labels uintptr, rows, cols int) error {
	return check("CrossEntropy", C.kernels_cross_entropy(C.uintptr_t(s), C.uintptr_t(loss), C.uintptr_t(hit), C.uintptr_t(p),
		C.uintptr_t(labels), C.int64_t(rows), C.int64_t(cols)))
}

// SoftmaxCrossEntropyBackward: dx[rows,cols] = (p - onehot(labels))/rows.
func (s Stream) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return check("SoftmaxCrossEntropyBackward", C.kernels_softmax_cross_entropy_backward(C.uintptr_t(s), C.uintptr_t(dx),
		C.uintptr_t(p), C.uintptr_t(labels), C.int64_t(rows), C.int64_t(cols)))
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
	return check("Head", C.kernels_head(C.uintptr_t(s), C.uintptr_t(grad), C.uintptr_t(dx), C.uintptr_t(loss), C.uintptr_t(hit),
		C.uintptr_t(x), C.uintptr_t(w), C.uintptr_t(labels), C.uintptr_t(order), C.int64_t(rows), C.int64_t(classes), C.int64_t(k), C.int(early)))
}

// Means: out[i,0] = the mean of loss and out[i,1] = the sum of hit over rows
// i·batch to (i+1)·batch, of which the last may be fewer; out has a row for each
// batch of rows. Additions are in an order that depends on the sizes alone.
func (s Stream) Means(out, loss, hit uintptr, rows, batch int) error {
	return check("Means", C.kernels_means(C.uintptr_t(s), C.uintptr_t(out), C.uintptr_t(loss), C.uintptr_t(hit), C.int64_t(rows), C.int64_t(batch)))
}

// Axpy: y[n] += alpha·x[n], in place.
func (s Stream) Axpy(y, x uintptr, alpha float32, n int) error {
	return check("Axpy", C.kernels_axpy(C.uintptr_t(s), C.uintptr_t(y), C.uintptr_t(x), C.float(alpha), C.int64_t(n)))
}

// Gather makes a batch: x[rows,cols] = images[order[i],:]/255 and
// y[rows] = labels[order[i]], from uint8 images and labels through the int32
// indices order[rows] to float32 x and int32 y. With y 0 there are only images.
func (s Stream) Gather(x, y, images, labels, order uintptr, rows, cols int) error {
	return check("Gather", C.kernels_gather(C.uintptr_t(s), C.uintptr_t(x), C.uintptr_t(y), C.uintptr_t(images),
		C.uintptr_t(labels), C.uintptr_t(order), C.int64_t(rows), C.int64_t(cols)))
}

// An Event marks a point in a stream's work, with its time.
type Event uintptr

// NewEvent returns an event that has not been recorded.
func NewEvent() (Event, error) {
	e, err := checked("NewEvent", C.kernels_event_new())
	return Event(e), err
}

// Record marks the work queued on s so far.
func (e Event) Record(s Stream) error {
	return check("Record", C.kernels_event_record(C.uintptr_t(e), C.uintptr_t(s)))
}

// Since waits for e, and returns the device's time from start to e, to about
// half a microsecond.
func (e Event) Since(start Event) (time.Duration, error) {
	var ms C.float
	err := check("Since", C.kernels_event_elapsed(&ms, C.uintptr_t(start), C.uintptr_t(e)))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// Close frees the event.
func (e Event) Close() error { return check("Close", C.kernels_event_free(C.uintptr_t(e))) }
