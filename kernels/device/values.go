package device

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"mlpool/kernels/ref"
)

// Width returns units, rounded up so that rows of values are whole multiples of 16 bytes, which a GPU reads
// faster.
func (d *Device) Width(units int) int {
	whole := 16 / d.values.Size()
	return (units + whole - 1) / whole * whole
}

// Weights is FromDense of float32 weights, which operations may keep a copy of, rounded to values.
func (d *Device) Weights(tag string, h *tensor.Dense) (Tensor, error) {
	t, err := d.FromDense(tag, h)
	if err != nil || d.values == Float32 {
		return t, err
	}
	rounded, err := d.alloc.Alloc(int64(t.Len()*d.values.Size()), d.stream, tag+", rounded")
	if err != nil {
		return Tensor{}, errors.Join(fmt.Errorf("%s: %w", tag, err), d.Free(t))
	}
	t.rounded = rounded
	if err := d.round(t); err != nil {
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
