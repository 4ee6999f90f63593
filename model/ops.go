// Package model holds the multilayer perceptron and trains it.
//
// It says what is computed and leaves how to [Ops], an interface that it
// declares itself: the model never hears of a device, a kernel or an allocator.
//
// Activations and update rules are values of package nn. Another one also has a key in package
// configs, and changes the model's copies: cmd/train/internal/predict and tools/torch_*.py.
package model

import (
	"time"

	"gorgonia.org/tensor"

	"mlpool/kernels/nn"
)

// Ops computes with tensors of type T, matrices of float32 unless said
// otherwise. Operations are queued, in order, and their outputs belong to the
// step: EndStep frees all of them, so none may be used after it. They report no
// error one by one; after the first fault the rest of the step does nothing,
// and EndStep returns it.
type Ops[T any] interface {
	// Gather makes a batch: x[i,:] = images[indices[start+i],:]/255 and
	// y[i] = labels[indices[start+i]] for i < n, from uint8 images and labels
	// and int32 indices. It may leave that to those that take them: x is for
	// Hidden and Backward, y for Classifier and Evaluate.
	Gather(images, labels, indices T, start, n int) (x, y T)
	// Hidden is a hidden layer, a(x·w).
	Hidden(a nn.Activation, x, w T) T
	// Classifier writes the cross-entropy of each row of softmax(x·w) to results[0,:]
	// from column start on, and to results[1,:] whether its prediction is correct, 1
	// or 0. It returns the gradients of the mean of these losses: dlogits of x·w, and
	// dx of what x was before its activation.
	Classifier(x, w, labels, results T, start int) (dlogits, dx T)
	// Evaluate is Classifier without the gradients.
	Evaluate(x, w, labels, results T, start int)
	// Backward goes down the layers of weights w and inputs x, from the last one on,
	// and steps all weights down their gradients. dy is the gradient of the last
	// layer's output and dx that of its input, as Classifier returns them. At each
	// layer w changes by xᵀ·dy as u says, with what a stateful rule keeps of it in state;
	// the dy of the one below is dx = dy·wᵀ, of w as it was before, through the activation.
	Backward(w, x, state []T, dy, dx T, u nn.Update)
	// DataParallel says which weights Backward steps down the gradients of all ranks of a
	// training, which then all have the same; EndDataParallel frees what that takes. The rate
	// of Backward is then the training's times the rank's share of the batch, which may be
	// none. rows is the largest batch size.
	DataParallel(w []T, rows int) error
	EndDataParallel() error
	// AllReduce adds up rows of t over the ranks, in place. With one it does nothing.
	AllReduce(t T, row, rows int) error
	// TimeAllReduce has what moves the updates of the next Backward timed. AllReduceTimes returns
	// what they took, and for how long of that the device waited for them, once its work is
	// done.
	TimeAllReduce()
	AllReduceTimes() (total, exposed time.Duration, err error)
	// ReduceLoss sums up columns start to start+rows of results by batches: row slot+i
	// of out[:,2] is the mean loss and the number of correct predictions of the i-th
	// batch columns, of which the last may be short.
	ReduceLoss(out T, slot int, results T, start, rows, batch int)
	// EndStep frees the outputs of the step and returns its first fault.
	EndStep() error

	// Replay runs f, which does the same steps on the same tensors whenever it is
	// called with key. It may run f the first time only, keep what f queues, and
	// queue that again, until Forget.
	Replay(key int, f func() error) error
	Forget() error

	// FromDense copies h to a tensor that lives until Free; the tag names it.
	FromDense(tag string, h *tensor.Dense) (T, error)
	// Write copies h over a tensor of its shape.
	Write(t T, h *tensor.Dense) error
	// Dense copies a tensor back, after the work queued so far.
	Dense(t T) (*tensor.Dense, error)
	// Checksum is a sum of the bits of a tensor, after the work queued so far.
	Checksum(t T) (uint64, error)
	Free(t T) error

	// Mark notes when the work queued so far is done, Elapsed the time from
	// one mark to another, once the work is known to be done.
	Mark(i int) error
	Elapsed(from, to int) (time.Duration, error)
	// RowsAfter copies rows of t back as they were at Mark(i). It waits for no work that was
	// queued later, which must not change them.
	RowsAfter(i int, t T, row, rows int) ([]float32, error)
	// Synchronize waits for all queued work and returns its faults.
	Synchronize() error
}
