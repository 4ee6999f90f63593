package device

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"mlpool/kernels/ref"
)

// Width returns units, rounded up so that rows of values are whole lines of 128 bytes, or whole multiples of 64 or 32
// bytes, if that adds at most one unit in 100, or else of 16 bytes. A GPU reads them faster.
func (d *Device) Width(units int) int {
	size := d.values.Size()
	for _, bytes := range []int{128, 64, 32} {
		if padded := roundUp(units, bytes/size); 100*(padded-units) <= units {
			return padded
		}
	}
	return roundUp(units, 16/size)
}

// Weights is FromDense of float32 weights, which operations may keep a copy of, rounded to values.
func (d *Device) Weights(tag string, h *tensor.Dense) (Tensor, error) {
	t, err := d.FromDense(tag, h)
	if err != nil || d.values == Float32 {
		return t, err
	}
	t.rounded, err = d.alloc.Alloc(int64(t.Len()*d.values.Size()), d.stream, tag+", rounded")
	if err == nil {
		err = d.round(t)
	}
	if err != nil {
		return Tensor{}, errors.Join(fmt.Errorf("%s: %w", tag, err), d.Free(t))
	}
	return t, nil
}

// round renews the rounded copy of weights, if they have one.
func (d *Device) round(w Tensor) error {
	if w.rounded.Addr == 0 {
		return nil
	}
	d.last.forget()
	return d.queue.Round(w.rounded.Addr, w.addr(), w.Len())
}

// widened is Dense of bf16, as float32.
func (d *Device) widened(t Tensor) (*tensor.Dense, error) {
	data, values := make([]float32, t.Len()), make([]ref.BF16, t.Len())
	if err := errors.Join(d.ranks.waitAll(), d.queue.Download(asBytes(values), t.addr()), d.ranks.comm.Err()); err != nil {
		return nil, err
	}
	ref.Widen(data, values, len(data))
	return tensor.New(tensor.WithShape(t.rows, t.cols), tensor.WithBacking(data)), nil
}
