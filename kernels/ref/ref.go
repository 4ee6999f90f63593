// Package ref holds the functions of package kernels in plain Go on slices: the
// CPU backend, and what the kernels are compared with.
//
// Matrices are dense and row-major. A slice may be longer than the sizes say;
// what lies beyond them is neither read nor written. A slice that is too short
// panics, as an index out of range does. Arrays that are written must not
// overlap those that are read, except where a function says that it works in
// place. Equal calls give equal bits on one machine.
package ref

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// MatMul: c[m,n] = a[m,k]·b[k,n].
func MatMul(c, a, b []float32, m, n, k int) {
	gemm(blas.NoTrans, blas.NoTrans, 1, matrix(a, m, k), matrix(b, k, n), 0, matrix(c, m, n))
}

// MatMulNT: c[m,n] = a[m,k]·b[n,k]ᵀ.
func MatMulNT(c, a, b []float32, m, n, k int) {
	gemm(blas.NoTrans, blas.Trans, 1, matrix(a, m, k), matrix(b, n, k), 0, matrix(c, m, n))
}

// MatMulTN: c[m,n] = a[k,m]ᵀ·b[k,n].
func MatMulTN(c, a, b []float32, m, n, k int) {
	gemm(blas.Trans, blas.NoTrans, 1, matrix(a, k, m), matrix(b, k, n), 0, matrix(c, m, n))
}

// MatMulReLU: c[m,n] = max(0, a[m,k]·b[k,n]).
func MatMulReLU(c, a, b []float32, m, n, k int) {
	MatMul(c, a, b, m, n, k)
	ReLU(c, c, m*n)
}

// MatMulNTMask: c[m,n] = a[m,k]·b[n,k]ᵀ where y[m,n] > 0, else 0.
func MatMulNTMask(c, a, b, y []float32, m, n, k int) {
	MatMulNT(c, a, b, m, n, k)
	ReLUBackward(c, c, y, m*n)
}

// MatMulTNAdd: c[m,n] += alpha·a[k,m]ᵀ·b[k,n], in place.
func MatMulTNAdd(c, a, b []float32, alpha float32, m, n, k int) {
	gemm(blas.Trans, blas.NoTrans, alpha, matrix(a, k, m), matrix(b, k, n), 1, matrix(c, m, n))
}

// matrix is the rows×cols matrix at the start of x.
func matrix(x []float32, rows, cols int) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: max(1, cols), Data: x[:rows*cols]}
}

// gemm is blas32.Gemm without the shapes that gonum refuses or that have no
// elements.
func gemm(ta, tb blas.Transpose, alpha float32, a, b blas32.General, beta float32, c blas32.General) {
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	if len(a.Data) == 0 || len(b.Data) == 0 { // k is 0: an empty sum
		if beta == 0 {
			clear(c.Data)
		}
		return
	}
	blas32.Gemm(ta, tb, alpha, a, b, beta, c)
}

// ReLU: y[n] = max(0, x[n]), NaN where x is NaN. y may be x.
func ReLU(y, x []float32, n int) {
	y, x = y[:n], x[:n]
	for i, v := range x {
		if v < 0 {
			v = 0
		}
		y[i] = v
	}
}

// ReLUBackward: dx[n] = dy[n] where y[n] > 0, else 0. dx may be dy.
func ReLUBackward(dx, dy, y []float32, n int) {
	dx, dy, y = dx[:n], dy[:n], y[:n]
	for i, v := range y {
		if v > 0 {
			dx[i] = dy[i]
		} else {
			dx[i] = 0
		}
	}
}

// Softmax: p[rows,cols], each row exp(x - max)/Σ exp(x - max).
func Softmax(p, x []float32, rows, cols int) {
	for i := range rows {
		softmaxRow(p[i*cols:(i+1)*cols], x[i*cols:(i+1)*cols])
	}
}

// softmaxRow: p may be x.
func softmaxRow(p, x []float32) {
	largest, sum := expSum(x)
	for j, v := range x {
		p[j] = exp(v-largest) / sum
	}
}

// expSum returns the maximum of x and Σ exp(x - max), in a fixed order.
func expSum(x []float32) (largest, sum float32) {
	largest = float32(math.Inf(-1))
	for _, v := range x {
		largest = max(largest, v)
	}
	for _, v := range x {
		sum += exp(v - largest)
	}
	return largest, sum
}

func exp(x float32) float32 { return float32(math.Exp(float64(x))) }
func log(x float32) float32 { return float32(math.Log(float64(x))) }

// firstLargest is the index of the first largest of x; -1 when all are NaN.
func firstLargest(x []float32) int {
	best, at := float32(math.Inf(-1)), -1
	for j, v := range x {
		if v > best || at < 0 && v == best {
			best, at = v, j
		}
	}
	return at
}

// CrossEntropy: loss[rows] = -ln p[i,labels[i]], hit[rows] = 1 where the first
// largest of row i of p is labels[i], else 0. A label outside 0..cols-1 gives
// a NaN loss and no hit.
func CrossEntropy(loss, hit, p []float32, labels []int32, rows, cols int) {
	for i := range rows {
		row, label := p[i*cols:(i+1)*cols], int(labels[i])
		loss[i], hit[i] = float32(math.NaN()), 0
		if label < 0 || label >= cols {
			continue
		}
		loss[i] = -log(row[label])
		if firstLargest(row) == label {
			hit[i] = 1
		}
	}
}

// SoftmaxCrossEntropyBackward: dx[rows,cols] = (p - onehot(labels))/rows.
func SoftmaxCrossEntropyBackward(dx, p []float32, labels []int32, rows, cols int) {
	scale := 1 / float32(rows)
	for i := range rows {
		for j := range cols {
			d := p[i*cols+j]
			if j == int(labels[i]) {
				d--
			}
			dx[i*cols+j] = d * scale
		}
	}
}

// Head does the last layer and its loss at once: logits = x[rows,k]·w[k,classes];
// loss[rows] = their cross-entropy in nats against labels[order[i]]; hit[rows] = 1
// where the first largest logit is the label's, else 0; grad[rows,classes] =
// (softmax - onehot)/rows; dx[rows,k] = grad·wᵀ where x > 0, else 0. The loss is
// ln Σ exp(x - max) - (x[label] - max), and so stays finite where a probability
// would be 0. A label that is no class gives a NaN loss and no hit. With grad and
// dx nil no gradients are made.
func Head(grad, dx, loss, hit, x, w []float32, labels []uint8, order []int32, rows, classes, k int) {
	logits := grad
	if grad == nil {
		logits = make([]float32, rows*classes)
	}
	MatMul(logits, x, w, rows, classes, k)
	scale := 1 / float32(rows)
	for i := range rows {
		row, label := logits[i*classes:(i+1)*classes], int(labels[order[i]])
		largest, sum := expSum(row)
		loss[i], hit[i] = float32(math.NaN()), 0
		if label < classes {
			loss[i] = log(sum) - (row[label] - largest)
			if firstLargest(row) == label {
				hit[i] = 1
			}
		}
		if grad == nil {
			continue
		}
		for j, v := range row {
			d := exp(v-largest) / sum
			if j == label {
				d--
			}
			row[j] = d * scale
		}
	}
	if grad != nil {
		MatMulNTMask(dx, grad, w, x, rows, k, classes)
	}
}

// Means: out[i,0] = the mean of loss and out[i,1] = the sum of hit over rows
// i·batch to (i+1)·batch, of which the last may be fewer; out has a row for each
// batch of rows.
func Means(out, loss, hit []float32, rows, batch int) {
	for i := 0; i*batch < rows; i++ {
		var losses, hits float64
		first, end := i*batch, min((i+1)*batch, rows)
		for j := first; j < end; j++ {
			losses += float64(loss[j])
			hits += float64(hit[j])
		}
		out[2*i], out[2*i+1] = float32(losses/float64(end-first)), float32(hits)
	}
}

// Axpy: y[n] += alpha·x[n], in place.
func Axpy(y, x []float32, alpha float32, n int) {
	y, x = y[:n], x[:n]
	for i, v := range x {
		y[i] += alpha * v
	}
}

// Gather makes a batch: x[rows,cols] = images[order[i],:]/255 and
// y[rows] = labels[order[i]].
func Gather(x []float32, y []int32, images, labels []uint8, order []int32, rows, cols int) {
	Images(x, images, order, rows, cols)
	for i := range rows {
		y[i] = int32(labels[order[i]])
	}
}

// Images is the part of Gather on images: x[rows,cols] = images[order[i],:]/255.
func Images(x []float32, images []uint8, order []int32, rows, cols int) {
	for i := range rows {
		at := int(order[i])
		row := x[i*cols : (i+1)*cols]
		for j, v := range images[at*cols : (at+1)*cols] {
			row[j] = float32(v) / 255
		}
	}
}
