package kernels

// Launches are the operations on arrays. Each call queues the operation that its comment defines. [Stream]
// implements them for a GPU; its methods on values take a [Precision] first. Package device implements them
// for a GPU and for host memory.
//
// An argument of type uintptr is the address of a dense row-major array of float32, unless a comment says
// otherwise. Values are bf16 in [BF16], and float32 in other precisions. An array that an operation writes
// must not overlap one that it reads, unless the operation works in place. A negative size is an error. An
// array of no elements may have any address.
type Launches interface {
	// GEMM computes a matrix product with its epilogue.
	GEMM(g GEMM) error

	// GroupedGEMM computes up to [MaxGroup] GEMMs. If all are TN it computes them in any order, and none may write what
	// another one reads or writes. Otherwise they are a chain: all are NN or all NT, [Chains] takes each, and the A of each
	// is the C of the one before.
	GroupedGEMM(group []GEMM) error

	// DgradWgrad computes g, which is NT with ActivateBackward, and then b += alpha·yᵀ·a in place, which is
	// g's wgrad with the epilogue SGD. c comes from b as it was before the update. PrefetchB allows to
	// prefetch b, although DgradWgrad also writes it. c must not overlap the other arrays. T must be 0. In
	// BF16 b is float32, and c comes from b rounded; Rounded must hold these bits, and then those of the new b.
	DgradWgrad(g GEMM) error

	// Transpose: t[cols,stride] = x[rows,cols]ᵀ, with [TransposedStride].
	Transpose(t, x uintptr, rows, cols int) error

	// Activate is ReLU: values y[n] = max(0, x[n]), NaN where x is NaN. y may be x if values are
	// float32.
	Activate(y, x uintptr, n int) error

	// ActivateBackward is the gradient through ReLU: values dx[n] = dy[n] where its output, values
	// y[n], is above 0, else 0. dx may be dy if values are float32.
	ActivateBackward(dx, dy, y uintptr, n int) error

	// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
	Softmax(p, x uintptr, rows, cols int) error

	// CrossEntropy: loss[rows] = ln Σ exp(x - max) - (x[i,labels[i]] - max) of the logits
	// x[rows,cols], which stays finite where a probability would be 0; correct[rows] = 1 if the
	// first maximum of row i of x is at labels[i], else 0. labels is int32; a label outside
	// 0..cols-1 gives a NaN loss and is not correct.
	CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error

	// SoftmaxCrossEntropyBackward: values dx[rows,cols] = (p - onehot(labels))/rows.
	SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error

	// Classifier computes the last layer and its loss at once, with sums in float32: logits = x·w; loss and
	// correct are CrossEntropy of the logits; dlogits = (softmax - onehot)/rows; dx is the gradient
	// dlogits·wᵀ through ReLU.
	Classifier(c Classifier) error

	// ReduceLoss: out[i,0] = the mean of loss and out[i,1] = the sum of correct over rows i·batch to
	// (i+1)·batch. The last batch may be short. out has a row for each batch. The order of additions depends
	// only on the sizes.
	ReduceLoss(out, loss, correct uintptr, rows, batch int) error

	// Step is SGD: w[n] -= rate·dw[n].
	Step(w, dw uintptr, rate float32, n int) error

	// Round: values y[n] = x[n].
	Round(y, x uintptr, n int) error

	// Gather makes a batch: the pixels x[rows,cols] = images[indices[i],:] and y[rows] = labels[indices[i]].
	// images and labels are uint8, indices[rows] and y are int32, x are values. If y is 0, only images are
	// gathered.
	Gather(x, y, images, labels, indices uintptr, rows, cols int) error
}

// A Classifier is the last layer of a network and its loss: linear, softmax and
// cross-entropy.
type Classifier struct {
	// DLogits[rows,classes] and DX[rows,k] are the gradients of the mean loss, as values. If both are 0, the
	// classifier computes no gradients.
	DLogits, DX uintptr
	// Loss[rows] is in nats; Correct[rows] is 1 if the prediction is the label, else 0.
	Loss, Correct    uintptr
	X, W             uintptr  // values X[rows,k], an output of ReLU, and W[k,classes]
	Labels, Indices  uintptr  // uint8 labels, and rows int32 indices: row i's is labels[indices[i]]
	Rows, Classes, K int      // a GPU takes 1 to 16 classes
	Prefetch         Prefetch // only PrefetchB counts: W
}
