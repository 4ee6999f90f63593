package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// Reference is package ref.
func Reference(testing.TB) Impl { return reference{} }

type reference struct{}

func (reference) Close() error { return nil }

func (reference) Do(c Call) error {
	f := func(i int) []float32 { x, _ := c.Arrays[i].([]float32); return x }
	l := func(i int) []int32 { return c.Arrays[i].([]int32) }
	b := func(i int) []uint8 { return c.Arrays[i].([]uint8) }
	z := c.Sizes
	switch c.Op {
	case "MatMul", "Updates":
		for i, p := range c.Products {
			out, a, b, y, order := c.operands(i)
			if images, ok := a.([]uint8); ok {
				rows, cols := p.M, p.K
				if p.Form == kernels.TN {
					rows, cols = p.K, p.M
				}
				x := make([]float32, rows*cols)
				ref.Images(x, images, order.([]int32), rows, cols)
				a = x
			}
			mask, _ := y.([]float32)
			multiply(p, out.([]float32), a.([]float32), b.([]float32), mask)
		}
	case "Step":
		p := c.Products[0]
		multiply(p, f(0), f(2), f(1), f(3))
		multiply(p.Update(), f(1), f(3), f(2), nil)
	case "ReLU":
		ref.ReLU(f(0), f(1), z[0])
	case "ReLUBackward":
		ref.ReLUBackward(f(0), f(1), f(2), z[0])
	case "Softmax":
		ref.Softmax(f(0), f(1), z[0], z[1])
	case "CrossEntropy":
		ref.CrossEntropy(f(0), f(1), f(2), l(3), z[0], z[1])
	case "SoftmaxCrossEntropyBackward":
		ref.SoftmaxCrossEntropyBackward(f(0), f(1), l(2), z[0], z[1])
	case "Head":
		ref.Head(f(0), f(1), f(2), f(3), f(4), f(5), b(6), l(7), z[0], z[1], z[2])
	case "Means":
		ref.Means(f(0), f(1), f(2), z[0], z[1])
	case "Axpy":
		ref.Axpy(f(0), f(1), c.Alpha, z[0])
	case "Gather":
		ref.Gather(f(0), l(1), b(2), b(3), l(4), z[0], z[1])
	default:
		return fmt.Errorf("no operation %q", c.Op)
	}
	return nil
}

// multiply does p with the function of package ref for it.
func multiply(p kernels.Product, c, a, b, y []float32) {
	switch {
	case p.Epilogue == kernels.ReLU:
		ref.MatMulReLU(c, a, b, p.M, p.N, p.K)
	case p.Epilogue == kernels.Mask:
		ref.MatMulNTMask(c, a, b, y, p.M, p.N, p.K)
	case p.Epilogue == kernels.Add:
		ref.MatMulTNAdd(c, a, b, p.Alpha, p.M, p.N, p.K)
	case p.Form == kernels.NN:
		ref.MatMul(c, a, b, p.M, p.N, p.K)
	case p.Form == kernels.NT:
		ref.MatMulNT(c, a, b, p.M, p.N, p.K)
	case p.Form == kernels.TN:
		ref.MatMulTN(c, a, b, p.M, p.N, p.K)
	}
}

// RequireGPU skips the test where no CUDA device can be used, or fails it if
// the environment has REQUIRE_GPU=1.
func RequireGPU(t testing.TB) {
	t.Helper()
	if err := kernels.Available(); err != nil {
		if os.Getenv("REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Emulated says whether the GPU is tools/emulator: slow, in the memory of this
// process, and done with all work before the host goes on.
func Emulated() bool {
	d, err := kernels.Device()
	return err == nil && d.Name == "emulated GPU"
}

// slow says whether the suite should spare what takes minutes.
func (s *suite) slow() bool {
	_, onGPU := s.impl.(cuda)
	return onGPU && Emulated()
}

// RequireRealGPU is RequireGPU for a test that an emulated one is no good for.
func RequireRealGPU(t testing.TB) {
	t.Helper()
	RequireGPU(t)
	if Emulated() {
		t.Skip("needs a real GPU")
	}
}

// CUDA returns what makes a stream, with an area of device memory, whose matrix
// products have a precision.
func CUDA(p kernels.Precision) func(testing.TB) Impl {
	return func(t testing.TB) Impl { return newCUDA(t, p) }
}

func newCUDA(t testing.TB, p kernels.Precision) Impl {
	RequireGPU(t)
	if err := p.Usable(); err != nil {
		t.Skip(err)
	}
	s, err := kernels.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	area, err := cudadriver.Driver{}.Malloc(areaBytes)
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	return cuda{s, p, area}
}

const areaBytes = 32 << 20

type cuda struct {
	s         kernels.Stream
	precision kernels.Precision
	area      uintptr
}

func (d cuda) Close() error { return errors.Join(d.s.Close(), cudadriver.Driver{}.Free(d.area)) }

// Do copies every array to the device and, after the operation, back.
func (d cuda) Do(c Call) error {
	p := make([]uintptr, len(c.Arrays))
	next := d.area
	for i, x := range c.Arrays {
		if x == nil {
			continue
		}
		p[i] = next
		if c.Unaligned {
			p[i] += 4
		}
		data := bytesOf(x)
		if next += uintptr(len(data)+256+255) &^ 255; next > d.area+areaBytes {
			return errors.New("the arrays do not fit the test's memory")
		}
		if err := d.s.Upload(p[i], data); err != nil {
			return err
		}
	}
	err := d.launch(c, p)
	for i, x := range c.Arrays {
		if x != nil {
			err = errors.Join(err, d.s.Download(bytesOf(x), p[i]))
		}
	}
	return err
}

func (d cuda) launch(c Call, p []uintptr) error {
	s, z := d.s, c.Sizes
	switch c.Op {
	case "MatMul":
		return s.MatMul(d.precision, placed(c.Products[0], p[0], p[1:]))
	case "Step":
		q := c.Products[0]
		q.C, q.B, q.A, q.Y = p[0], p[1], p[2], p[3]
		return s.Step(d.precision, q)
	case "Updates":
		var all []kernels.Product
		for i, q := range c.Products {
			all = append(all, placed(q, p[i], p[len(c.Products)+4*i:]))
		}
		return s.Updates(d.precision, all)
	case "ReLU":
		return s.ReLU(p[0], p[1], z[0])
	case "ReLUBackward":
		return s.ReLUBackward(p[0], p[1], p[2], z[0])
	case "Softmax":
		return s.Softmax(p[0], p[1], z[0], z[1])
	case "CrossEntropy":
		return s.CrossEntropy(p[0], p[1], p[2], p[3], z[0], z[1])
	case "SoftmaxCrossEntropyBackward":
		return s.SoftmaxCrossEntropyBackward(p[0], p[1], p[2], z[0], z[1])
	case "Head":
		return s.Head(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], z[0], z[1], z[2], c.Early)
	case "Means":
		return s.Means(p[0], p[1], p[2], z[0], z[1])
	case "Axpy":
		return s.Axpy(p[0], p[1], c.Alpha, z[0])
	case "Gather":
		return s.Gather(p[0], p[1], p[2], p[3], p[4], z[0], z[1])
	}
	return fmt.Errorf("no operation %q", c.Op)
}

// placed is p with its addresses: of C, and of A, B, Y and Order.
func placed(p kernels.Product, c uintptr, in []uintptr) kernels.Product {
	p.C, p.A, p.B, p.Y, p.Order = c, in[0], in[1], in[2], in[3]
	return p
}

func bytesOf(x any) []byte {
	switch x := x.(type) {
	case []float32:
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
	case []int32:
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
	case []uint8:
		return x
	}
	panic(fmt.Sprintf("an array of type %T", x))
}
