package device

import "fmt"

// tap is a queue that calls around for every operation, which does it with f.
// Operations that it does not know pass it by.
type tap struct {
	Queue
	around func(w work, f func() error) error
}

// work is what an operation comes to.
type work struct {
	name  string
	shape string
	flops float64 // 0 where the bytes are what counts
	bytes float64 // of its operands and results, each counted once
}

// product is the work of c[m,n] = a[m,k]·b[k,n] and of what else the epilogue
// does, which has extra more operands of c's shape.
func product(name string, m, n, k, extra int) work {
	fm, fn, fk := float64(m), float64(n), float64(k)
	return work{name, fmt.Sprintf("[%d,%d]·[%d,%d]", m, k, k, n), 2 * fm * fn * fk, 4 * (fm*fk + fk*fn + fm*fn*float64(1+extra))}
}

// pass is the work of an operation on so many bytes for each of rows·cols
// elements.
func pass(name string, rows, cols int, bytes float64) work {
	return work{name, fmt.Sprintf("[%d,%d]", rows, cols), 0, float64(rows) * float64(cols) * bytes}
}

func (t *tap) MatMul(c, a, b uintptr, m, n, k int) error {
	return t.around(product("matmul", m, n, k, 0), func() error { return t.Queue.MatMul(c, a, b, m, n, k) })
}

func (t *tap) MatMulNT(c, a, b uintptr, m, n, k int) error {
	return t.around(product("matmul nt", m, n, k, 0), func() error { return t.Queue.MatMulNT(c, a, b, m, n, k) })
}

func (t *tap) MatMulTN(c, a, b uintptr, m, n, k int) error {
	return t.around(product("matmul tn", m, n, k, 0), func() error { return t.Queue.MatMulTN(c, a, b, m, n, k) })
}

func (t *tap) MatMulReLU(c, a, b uintptr, m, n, k int) error {
	return t.around(product("matmul+relu", m, n, k, 0), func() error { return t.Queue.MatMulReLU(c, a, b, m, n, k) })
}

func (t *tap) MatMulNTMask(c, a, b, y uintptr, m, n, k int) error {
	return t.around(product("matmul+mask", m, n, k, 1), func() error { return t.Queue.MatMulNTMask(c, a, b, y, m, n, k) })
}

func (t *tap) MatMulTNAdd(c, a, b uintptr, alpha float32, m, n, k int) error {
	return t.around(product("matmul+sgd", m, n, k, 1), func() error { return t.Queue.MatMulTNAdd(c, a, b, alpha, m, n, k) })
}

func (t *tap) ReLU(y, x uintptr, n int) error {
	return t.around(pass("relu", n, 1, 8), func() error { return t.Queue.ReLU(y, x, n) })
}

func (t *tap) ReLUBackward(dx, dy, y uintptr, n int) error {
	return t.around(pass("relu backward", n, 1, 12), func() error { return t.Queue.ReLUBackward(dx, dy, y, n) })
}

func (t *tap) Softmax(p, x uintptr, rows, cols int) error {
	return t.around(pass("softmax", rows, cols, 8), func() error { return t.Queue.Softmax(p, x, rows, cols) })
}

func (t *tap) CrossEntropy(loss, hit, p, labels uintptr, rows, cols int) error {
	return t.around(pass("cross-entropy", rows, cols, 4), func() error { return t.Queue.CrossEntropy(loss, hit, p, labels, rows, cols) })
}

func (t *tap) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return t.around(pass("softmax backward", rows, cols, 8), func() error { return t.Queue.SoftmaxCrossEntropyBackward(dx, p, labels, rows, cols) })
}

func (t *tap) SoftmaxCrossEntropy(dx, out, x, labels uintptr, rows, cols int) error {
	return t.around(pass("softmax+loss", rows, cols, 8), func() error { return t.Queue.SoftmaxCrossEntropy(dx, out, x, labels, rows, cols) })
}

func (t *tap) Scale(x uintptr, alpha float32, n int) error {
	return t.around(pass("scale", n, 1, 8), func() error { return t.Queue.Scale(x, alpha, n) })
}

func (t *tap) Axpy(y, x uintptr, alpha float32, n int) error {
	return t.around(pass("sgd", n, 1, 12), func() error { return t.Queue.Axpy(y, x, alpha, n) })
}

func (t *tap) Sum(out, x uintptr, n int) error {
	return t.around(pass("sum", n, 1, 4), func() error { return t.Queue.Sum(out, x, n) })
}

func (t *tap) Gather(x, y, images, labels, order uintptr, rows, cols int) error {
	return t.around(pass("gather", rows, cols, 5), func() error { return t.Queue.Gather(x, y, images, labels, order, rows, cols) })
}
