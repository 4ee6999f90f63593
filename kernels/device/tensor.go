// Package device computes with tensors on a device: a GPU through package
// kernels, or host memory through package ref.
//
// A [Tensor] is a shape and a block of memory. Every operation of a [Device] allocates its
// output from the device's allocator, on the device's stream, and then queues the kernel that
// fills it. The outputs of a step live until EndStep, which frees them in stream order,
// without waiting.
package device

import (
	"fmt"

	"gorgonia.org/tensor"

	"mlpool/allocator"
)

// Kind is the type of a tensor's elements.
type Kind uint8

// The kinds of element that the kernels know.
const (
	Float32 Kind = iota
	Int32
	Uint8
	BF16
)

// Size returns the bytes of an element.
func (k Kind) Size() int {
	switch k {
	case Uint8:
		return 1
	case BF16:
		return 2
	}
	return 4
}

// Tensor is a dense row-major matrix on a device; a vector of n elements has n rows and one
// column. It is a small value, since the hot path makes one for each output. Device.Dense
// copies it to a *tensor.Dense of the host.
//
// A gathered view stands for rows of a table of bytes that indices select. It has no memory,
// and only operations that say so accept one.
type Tensor struct {
	block      allocator.Block // of a gathered view: the table's
	rows, cols int
	kind       Kind
	pixels     bool            // elements are 0 to 255, each of which counts as 1/255 of that
	rounded    allocator.Block // of weights on a device of bf16 values: their copy that GEMMs read
	indices    uintptr         // the int32 indices of the rows of a gathered view, or 0
}

// Shape returns the numbers of rows and columns.
func (t Tensor) Shape() (rows, cols int) { return t.rows, t.cols }

// Len returns the number of elements.
func (t Tensor) Len() int { return t.rows * t.cols }

func (t Tensor) addr() uintptr { return t.block.Addr }

func (t Tensor) bytes() int { return t.Len() * t.kind.Size() }

// at returns the address of element i.
func (t Tensor) at(i int) uintptr { return t.block.Addr + uintptr(i*t.kind.Size()) }

// view returns the n rows of t that the indices at an address select.
func (t Tensor) view(indices uintptr, n int) Tensor {
	t.rows, t.indices = n, indices
	return t
}

// has reports whether t has elements of a kind, and is neither pixels nor a gathered view.
func (t Tensor) has(k Kind) bool { return t.kind == k && !t.pixels && t.indices == 0 }

// batch reports whether t can be the input of a layer: a gathered view of uint8 images, pixels, or values
// of a kind.
func (t Tensor) batch(values Kind) bool {
	if t.indices != 0 {
		return t.kind == Uint8
	}
	return t.kind == values
}

// operand returns the address of weights as GEMMs read them.
func (t Tensor) operand() uintptr {
	if t.rounded.Addr != 0 {
		return t.rounded.Addr
	}
	return t.addr()
}

func (t Tensor) String() string {
	if t.indices != 0 {
		return fmt.Sprintf("view[%d,%d]", t.rows, t.cols)
	}
	return fmt.Sprintf("[%d,%d]", t.rows, t.cols)
}

// hostView returns the elements of d as bytes, its kind, and its shape as a
// matrix.
func hostView(d *tensor.Dense) (raw []byte, kind Kind, rows, cols int, err error) {
	switch data := d.Data().(type) {
	case []float32:
		raw, kind = asBytes(data), Float32
	case []int32:
		raw, kind = asBytes(data), Int32
	case []uint8:
		raw, kind = data, Uint8
	default:
		return nil, 0, 0, 0, fmt.Errorf("device: no kernel computes with %v", d.Dtype())
	}
	switch s := d.Shape(); s.Dims() {
	case 1:
		return raw, kind, s[0], 1, nil
	case 2:
		return raw, kind, s[0], s[1], nil
	default:
		return nil, 0, 0, 0, fmt.Errorf("device: a tensor has one or two dimensions, not %v", s)
	}
}

// newDense makes a host tensor of t's shape and kind, which is not BF16, and returns its bytes too.
func newDense(t Tensor) (*tensor.Dense, []byte) {
	shape := tensor.WithShape(t.rows, t.cols)
	switch t.kind {
	case Int32:
		data := make([]int32, t.Len())
		return tensor.New(shape, tensor.WithBacking(data)), asBytes(data)
	case Uint8:
		data := make([]uint8, t.Len())
		return tensor.New(shape, tensor.WithBacking(data)), data
	default:
		data := make([]float32, t.Len())
		return tensor.New(shape, tensor.WithBacking(data)), asBytes(data)
	}
}

// gradient is the gradient of a layer's output, and, if not 0, the address of its transpose.
type gradient struct {
	Tensor
	t uintptr
}
