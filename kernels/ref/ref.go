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

// GEMM: c[m,n] = alpha·a·b + beta·c, with a[m,k] or, if transA, a[k,m]ᵀ, and b[k,n]
// or, if transB, b[n,k]ᵀ. With beta 0 c is not read.
func GEMM(transA, transB bool, alpha float32, a, b []float32, beta float32, c []float32, m, n, k int) {
	if m == 0 || n == 0 {
		return // which gonum refuses
	}
	if k == 0 { // an empty sum
		if beta == 0 {
			clear(c[:m*n])
		}
		return
	}
	x, ta := matrix(a, m, k), blas.NoTrans
	if transA {
		x, ta = matrix(a, k, m), blas.Trans
	}
	y, tb := matrix(b, k, n), blas.NoTrans
	if transB {
		y, tb = matrix(b, n, k), blas.Trans
	}
	blas32.Gemm(ta, tb, alpha, x, y, beta, matrix(c, m, n))
}

// matrix is the rows×cols matrix at the start of x.
func matrix(x []float32, rows, cols int) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: cols, Data: x[:rows*cols]}
}

// Activate is ReLU: y[n] = max(0, x[n]), NaN where x is NaN. y may be x.
func Activate(y, x []float32, n int) {
	for i, v := range x[:n] {
		if v < 0 {
			v = 0
		}
		y[i] = v
	}
}

// ActivateBackward: dx[n] = dy[n] where ReLU's output y[n] is above 0, else 0. dx may be dy.
func ActivateBackward(dx, dy, y []float32, n int) {
	for i, v := range y[:n] {
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
		row := x[i*cols : (i+1)*cols]
		largest, sum := expSum(row)
		for j, v := range row {
			p[i*cols+j] = exp(v-largest) / sum
		}
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

// CrossEntropy: loss and correct of the logits x[rows,cols], see [mlpool/kernels.Launches].
func CrossEntropy(loss, correct, x []float32, labels []int32, rows, cols int) {
	for i := range rows {
		row := x[i*cols : (i+1)*cols]
		largest, sum := expSum(row)
		loss[i], correct[i] = crossEntropy(row, int(labels[i]), largest, sum)
	}
}

// crossEntropy is that of a row of logits, whose maximum and Σ exp(x - max) expSum gave.
func crossEntropy(row []float32, label int, largest, sum float32) (loss, correct float32) {
	if label < 0 || label >= len(row) {
		return float32(math.NaN()), 0
	}
	if firstLargest(row) == label {
		correct = 1
	}
	return log(sum) - (row[label] - largest), correct
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

// Classifier does the last layer and its loss at once, see [mlpool/kernels.Launches]: row i's
// label is labels[indices[i]]. With dlogits and dx nil no gradients are made.
func Classifier(dlogits, dx, loss, correct, x, w []float32, labels []uint8, indices []int32, rows, classes, k int) {
	logits := dlogits
	if dlogits == nil {
		logits = make([]float32, rows*classes)
	}
	GEMM(false, false, 1, x, w, 0, logits, rows, classes, k)
	scale := 1 / float32(rows)
	for i := range rows {
		row, label := logits[i*classes:(i+1)*classes], int(labels[indices[i]])
		largest, sum := expSum(row)
		loss[i], correct[i] = crossEntropy(row, label, largest, sum)
		if dlogits == nil {
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
	if dlogits != nil {
		GEMM(false, true, 1, dlogits, w, 0, dx, rows, k, classes)
		ActivateBackward(dx, dx, x, rows*k)
	}
}

// ReduceLoss: out has a row for each batch of rows, see [mlpool/kernels.Launches].
func ReduceLoss(out, loss, correct []float32, rows, batch int) {
	for i := 0; i*batch < rows; i++ {
		var losses, right float64
		first, end := i*batch, min((i+1)*batch, rows)
		for j := first; j < end; j++ {
			losses += float64(loss[j])
			right += float64(correct[j])
		}
		out[2*i], out[2*i+1] = float32(losses/float64(end-first)), float32(right)
	}
}

// Transpose: t[cols,stride] = x[rows,cols]ᵀ.
func Transpose(t, x []float32, rows, cols, stride int) {
	for r := range rows {
		for c := range cols {
			t[c*stride+r] = x[r*cols+c]
		}
	}
}

// Step is SGD: w[n] -= rate·dw[n].
func Step(w, dw []float32, rate float32, n int) {
	for i, v := range dw[:n] {
		w[i] += -rate * v
	}
}

// Checksum returns the sum, modulo 2^64, of splitmix64(index·2^32 + bits) over all elements.
func Checksum(x []float32) (sum uint64) {
	for i, v := range x {
		z := (uint64(i)<<32 | uint64(math.Float32bits(v))) + 0x9E3779B97F4A7C15
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		sum += z ^ z>>31
	}
	return sum
}

// Gather makes a batch: the pixels x[rows,cols] = images[indices[i],:] and
// y[rows] = labels[indices[i]].
func Gather(x []float32, y []int32, images, labels []uint8, indices []int32, rows, cols int) {
	Images(x, images, indices, rows, cols)
	for i := range rows {
		y[i] = int32(labels[indices[i]])
	}
}

// Images is the part of Gather on images: x[rows,cols] = images[indices[i],:].
func Images(x []float32, images []uint8, indices []int32, rows, cols int) {
	for i := range rows {
		at := int(indices[i])
		row := x[i*cols : (i+1)*cols]
		for j, v := range images[at*cols : (at+1)*cols] {
			row[j] = float32(v)
		}
	}
}
