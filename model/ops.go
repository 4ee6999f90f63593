// Package model has the multilayer perceptron and trains it.
//
// It defines what is computed; [Ops], an interface that it declares, defines how. The model
// knows no device, no kernel and no allocator.
package model

import (
	"time"

	"gorgonia.org/tensor"
)

// Ops computes with tensors of type T, matrices of float32 unless a comment says otherwise. In mixed
// precision the batch x, the outputs of Hidden, dlogits, dy and dx are of a smaller type.
// Operations are queued in order, and their outputs live until EndStep, which frees all of
// them. They return no errors: after the first fault the rest of the step does nothing, and
// EndStep returns it.
type Ops[T any] interface {
	// Gather makes a batch: x[i,:] = images[indices[start+i],:]/255 and
	// y[i] = labels[indices[start+i]] for i < n, from uint8 images and labels
	// and int32 indices. It may leave the work to the operations that read them: x is for
	// Hidden and Backward, y for Classifier and Evaluate.
	Gather(images, labels, indices T, start, n int) (x, y T)
	// Hidden is hidden layers, each the ReLU of x·w and the x of the next. It returns the output of each,
	// in an array that the next call overwrites.
	Hidden(x T, w ...T) []T
	// Classifier writes the cross-entropy of each row of softmax(x·w) to results[0,:]
	// from column start on, and to results[1,:] 1 if its prediction is correct, else 0. It
	// returns the gradients of the mean of these losses: dlogits of x·w, and dx of the input
	// of the ReLU whose output x is.
	Classifier(x, w, labels, results T, start int) (dlogits, dx T)
	// Evaluate is Classifier without the gradients.
	Evaluate(x, w, labels, results T, start int)
	// Backward goes down the layers of weights w and inputs x, from the last one on, and
	// updates all weights. dy is the gradient of the last layer's output and dx that of its
	// input, as Classifier returns them. At each layer w -= rate·xᵀ·dy. The dy of the layer below
	// is dx = dy·wᵀ, of the old w, through the ReLU.
	Backward(w, x []T, dy, dx T, rate float32)
	// DataParallel names the weights that Backward changes by the gradients of all ranks, so
	// that they stay equal on all ranks; EndDataParallel frees its memory. Both may change the
	// elements of w, which are the weights from then on. The rate of Backward must then be the
	// training's times the rank's share of the batch, which may be 0. rows is the largest batch
	// size. EndDataParallel returns the weights of the last Dense or Checksum of weights; after
	// a later step a rank may have changed only its part of them.
	DataParallel(w []T, rows int) error
	EndDataParallel() error
	// AllReduce adds up rows of t over the ranks, in place. With one it does nothing.
	AllReduce(t T, row, rows int) error
	// TimeAllReduce makes the next Backward time the moves of its updates. AllReduceTimes returns
	// their total time, and the part for which the device waited for them, once its work is done.
	TimeAllReduce()
	AllReduceTimes() (total, exposed time.Duration, err error)
	// ReduceLoss reduces columns start to start+rows of results by batches: row slot+i of
	// out[:,2] is the mean loss and the number of correct predictions of the i-th batch
	// columns. The last batch may be short.
	ReduceLoss(out T, slot int, results T, start, rows, batch int)
	// EndStep frees the outputs of the step and returns its first fault.
	EndStep() error

	// Replay runs f, which must always do the same steps on the same tensors for one key. It may call
	// f once for each key, and afterwards repeat the recorded operations until Forget.
	Replay(key int, f func() error) error
	Forget() error

	// FromDense copies h to a tensor that lives until Free; the tag names it. Weights does so with
	// weights, of which it may keep a copy in a smaller type as well.
	FromDense(tag string, h *tensor.Dense) (T, error)
	Weights(tag string, h *tensor.Dense) (T, error)
	// Width returns the width to pad inputs or a hidden layer of some units to, at least as many, so that rows are
	// fast to read.
	Width(units int) int
	// Write copies h over a tensor of its shape.
	Write(t T, h *tensor.Dense) error
	// Dense copies a tensor back, after the work queued so far. All ranks call it together for weights that
	// changed since the last Dense or Checksum of weights.
	Dense(t T) (*tensor.Dense, error)
	// Checksum is a sum of the bits of a tensor, after the work queued so far. Ranks call it for
	// weights as they call Dense.
	Checksum(t T) (uint64, error)
	Free(t T) error

	// Mark records when the work queued so far is done, but for updates of several ranks that no
	// operation has needed yet. Elapsed returns the time between two marks, once the work is done.
	Mark(i int) error
	Elapsed(from, to int) (time.Duration, error)
	// RowsAfter copies rows of t back as they were at Mark(i). It does not wait for work that was
	// queued later, which must not change them.
	RowsAfter(i int, t T, row, rows int) ([]float32, error)
	// Synchronize waits for all queued work and returns its faults.
	Synchronize() error
}
