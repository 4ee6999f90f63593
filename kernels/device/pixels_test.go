package device_test

import (
	"fmt"
	"math"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
)

// TestPixelsAreExact multiplies batches of images by small integers, forward and backward: no precision
// rounds a pixel, whether a batch is a gathered view or not.
func TestPixelsAreExact(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (device.Queue, allocator.Driver){
		"host": func(*testing.T) (device.Queue, allocator.Driver) {
			return new(device.HostQueue), device.NewHostDriver()
		},
		"host bf16": func(*testing.T) (device.Queue, allocator.Driver) {
			return &device.HostQueue{Precision: kernels.BF16}, device.NewHostDriver()
		},
		"bf16": func(t *testing.T) (device.Queue, allocator.Driver) {
			kerneltest.RequireGPU(t)
			q, err := device.NewCUDAQueue(kernels.BF16)
			if err != nil {
				t.Fatal(err)
			}
			return q, cudadriver.Driver{}
		},
		"tf32": func(t *testing.T) (device.Queue, allocator.Driver) {
			kerneltest.RequireGPU(t)
			q, err := device.NewCUDAQueue(kernels.TF32)
			if err != nil {
				t.Fatal(err)
			}
			return q, cudadriver.Driver{}
		},
	} {
		for _, rows := range []int{64, 200} {
			t.Run(fmt.Sprint(name, " ", rows), func(t *testing.T) {
				q, driver := open(t)
				pixelsAreExact(t, device.New(q, newPool(t, driver, allocator.PoolOptions{}), true), rows, q.Values() == device.BF16)
			})
		}
	}
}

func pixelsAreExact(t *testing.T, d *device.Device, rows int, bf16 bool) {
	const pixels, outputs = 24, 20
	images, labels, indices := make([]uint8, rows*pixels), make([]uint8, rows), make([]int32, rows)
	w, dy := make([]float32, pixels*outputs), make([]float32, rows*outputs)
	for i := range images {
		images[i] = uint8(i * 37)
	}
	for i := range indices {
		indices[i] = int32(rows - 1 - i)
	}
	for i := range w {
		w[i] = float32(i%5 - 1)
	}
	for i := range dy {
		if dy[i] = float32(i%7 - 2); bf16 {
			dy[i] = max(0, dy[i]) // for ReLU
		}
	}
	dense := func(shape []int, data any) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
	}
	must := func(x device.Tensor, err error) device.Tensor {
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	put := func(shape []int, data any) device.Tensor { return must(d.FromDense("x", dense(shape, data))) }
	weights, zeros := must(d.Weights("w", dense([]int{pixels, outputs}, w))), must(d.Weights("dw", dense([]int{pixels, outputs}, make([]float32, len(w)))))
	x, _ := d.Gather(put([]int{rows, pixels}, images), put([]int{rows}, labels), put([]int{rows}, indices), 0, rows)
	gradient := put([]int{rows, outputs}, dy)
	if bf16 {
		gradient = d.Activate(gradient) // as values
	}
	y, err := d.Dense(d.Linear(x, weights))
	if err != nil {
		t.Fatal(err)
	}
	d.Backward([]device.Tensor{zeros}, []device.Tensor{x}, gradient, device.Tensor{}, -1)
	if err := d.EndStep(); err != nil {
		t.Fatal(err)
	}
	dw, err := d.Dense(zeros)
	if err != nil {
		t.Fatal(err)
	}
	pixel := func(row, col int) float64 { return float64(images[int(indices[row])*pixels+col]) }
	check := func(name string, got []float32, cols, terms int, term func(i, j, k int) float64) {
		t.Helper()
		for at, v := range got {
			var want, size float64
			for k := range terms {
				x := term(at/cols, at%cols, k) / 255
				want, size = want+x, size+math.Abs(x)
			}
			if math.Abs(float64(v)-want) > 1e-6*size {
				t.Fatalf("%s: element %d is %v, want %v", name, at, v, want)
			}
		}
	}
	check("x·w", y.Float32s(), outputs, pixels, func(i, j, k int) float64 { return pixel(i, k) * float64(w[k*outputs+j]) })
	check("xᵀ·dy", dw.Float32s(), outputs, rows, func(i, j, k int) float64 { return pixel(k, i) * float64(dy[k*outputs+j]) })
}
