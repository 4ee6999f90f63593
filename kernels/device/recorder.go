package device

import (
	"fmt"
	"strings"

	"mlpool/kernels"
)

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

// product is the work of p. Of an epilogue with an operand, that is counted too.
func product(p kernels.Product) work {
	w := work{name: "matmul", shape: fmt.Sprintf("[%d,%d]·[%d,%d]", p.M, p.K, p.K, p.N)}
	switch {
	case p.Epilogue == kernels.ReLU:
		w.name = "matmul+relu"
	case p.Epilogue == kernels.Mask:
		w.name = "matmul+mask"
	case p.Epilogue == kernels.Add:
		w.name = "matmul+sgd"
	case p.Form == kernels.NT:
		w.name = "matmul nt"
	case p.Form == kernels.TN:
		w.name = "matmul tn"
	}
	m, n, k := float64(p.M), float64(p.N), float64(p.K)
	w.flops = 2 * m * n * k
	w.bytes = 4 * (m*k + k*n + m*n)
	if p.Epilogue == kernels.Mask || p.Epilogue == kernels.Add {
		w.bytes += 4 * m * n
	}
	if p.Order != 0 {
		w.name = "gather+" + w.name
		w.bytes -= 3 * m * k
	}
	return w
}

// pass is the work of an operation on so many bytes for each of rows·cols
// elements.
func pass(name string, rows, cols int, bytes float64) work {
	return work{name, fmt.Sprintf("[%d,%d]", rows, cols), 0, float64(rows) * float64(cols) * bytes}
}

func (t *tap) MatMul(p kernels.Product) error {
	return t.around(product(p), func() error { return t.Queue.MatMul(p) })
}

func (t *tap) Step(p kernels.Product) error {
	w := product(p)
	w.name += "+sgd"
	w.flops *= 2
	w.bytes += 4 * float64(p.N) * float64(p.K) // b is written, too
	return t.around(w, func() error { return t.Queue.Step(p) })
}

func (t *tap) Updates(products []kernels.Product) error {
	all := work{name: "matmul+sgd"}
	var shapes []string
	for i, n := 0, 0; i < len(products); i += n {
		w := product(products[i])
		for n = 1; i+n < len(products) && product(products[i+n]).shape == w.shape; n++ {
		}
		all.flops += float64(n) * w.flops
		all.bytes += float64(n) * w.bytes
		if n > 1 {
			w.shape = fmt.Sprintf("%d×%s", n, w.shape)
		}
		shapes = append(shapes, w.shape)
	}
	all.shape = strings.Join(shapes, ", ")
	return t.around(all, func() error { return t.Queue.Updates(products) })
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

func (t *tap) Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early kernels.Early) error {
	v := product(kernels.Product{M: rows, N: classes, K: k})
	v.name = "head"
	if grad != 0 {
		v.name = "head+gradients"
		v.flops *= 2
		v.bytes += 4 * float64(rows) * float64(k)
	}
	return t.around(v, func() error {
		return t.Queue.Head(grad, dx, loss, hit, x, w, labels, order, rows, classes, k, early)
	})
}

func (t *tap) Means(out, loss, hit uintptr, rows, batch int) error {
	return t.around(pass("means", rows, 1, 8), func() error { return t.Queue.Means(out, loss, hit, rows, batch) })
}

func (t *tap) Axpy(y, x uintptr, alpha float32, n int) error {
	return t.around(pass("sgd", n, 1, 12), func() error { return t.Queue.Axpy(y, x, alpha, n) })
}

func (t *tap) Gather(x, y, images, labels, order uintptr, rows, cols int) error {
	return t.around(pass("gather", rows, cols, 5), func() error { return t.Queue.Gather(x, y, images, labels, order, rows, cols) })
}
