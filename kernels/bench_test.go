package kernels_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mlpool/internal/must"
	"mlpool/internal/program"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

// BenchmarkKernels times the kernels of a training step with events around 500
// of each, back to back: queued behind a long one, so that the device does not
// wait for the host. host-µs is what a launch costs the caller.
func BenchmarkKernels(b *testing.B) {
	kerneltest.RequireGPU(b)
	for _, shape := range []struct{ batch, width int }{
		{64, 784}, {64, 2048}, {1024, 784}, {61, 333}, {64, 100}, {64, 1024}, {1, 784}, {7, 784}, {256, 784}, {4096, 784}, {1000, 2048},
	} {
		for _, p := range []kernels.Precision{kernels.FP32, kernels.TF32X3, kernels.TF32, kernels.BF16} {
			b.Run(fmt.Sprintf("batch=%d/width=%d/%v", shape.batch, shape.width, p), func(b *testing.B) {
				benchmarkShape(b, p, shape.batch, shape.width)
			})
		}
	}
}

func benchmarkShape(b *testing.B, p kernels.Precision, m, w int) {
	s := newStream(b)
	array := func(n int) uintptr { return waves(b, s, n) }
	rounded := func(n int) (floats, values uintptr) {
		if floats = array(n); p != kernels.BF16 {
			return floats, 0
		}
		values = malloc(b, 2*n)
		must.OK(b, s.Round(p, values, floats, n))
		return floats, values
	}
	values := func(n int) uintptr {
		floats, values := rounded(n)
		return cmp.Or(values, floats)
	}
	x, y, z, above := values(m*w), values(m*w), values(m*w), array(w*w)
	weights, copied := rounded(w * w)
	losses, correct, dlogits, last, out := array(m), array(m), values(m*10), array(w*10), array(2)
	long := malloc(b, busyBytes)
	bytes, labels, indices := malloc(b, m*w), malloc(b, 4*m), malloc(b, 4*m)
	must.OK(b, s.Fill(long, 0, busyBytes), s.Fill(bytes, 3, m*w), s.Fill(labels, 0, 4*m), s.Fill(indices, 0, 4*m))
	c := kernels.Classifier{Loss: losses, Correct: correct, X: x, W: values(w * 10), Labels: bytes, Indices: indices, Rows: m, Classes: 10, K: w}
	gemm := func(g kernels.GEMM) func() error { return func() error { return s.GEMM(p, g) } }
	lastWgrad := kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, C: last, A: x, B: dlogits, Alpha: -1e-9, M: w, N: 10, K: m}
	dgrad := kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: z, A: y, B: cmp.Or(copied, weights), Y: x, M: m, N: w, K: w}
	both := dgrad
	both.B, both.Rounded, both.Alpha = weights, copied, -1e-9
	wgrad := kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, C: above, A: x, B: y, Alpha: -1e-9, M: w, N: w, K: m}
	group := []kernels.GEMM{lastWgrad} // of four layers
	for range 4 {
		g := wgrad
		g.C = array(w * w)
		group = append(group, g)
	}
	for _, k := range []struct {
		name  string
		flops int // 0 where bytes count
		f     func() error
	}{
		{"forward", 2 * m * w * w, gemm(kernels.GEMM{Epilogue: kernels.Activate, C: y, A: x, B: dgrad.B, M: m, N: w, K: w})},
		{"forward-images", 2 * m * w * w, gemm(kernels.GEMM{Epilogue: kernels.Activate, C: y, A: bytes, Indices: indices, B: dgrad.B, M: m, N: w, K: w})},
		{"classifier", 4 * m * w * 10, func() error { c := c; c.DLogits, c.DX = dlogits, z; return s.Classifier(p, c) }},
		{"evaluate", 2 * m * w * 10, func() error { return s.Classifier(p, c) }},
		{"loss-reduction", 0, func() error { return s.ReduceLoss(out, losses, correct, m, m) }},
		{"classifier-wgrad", 2 * m * w * 10, gemm(lastWgrad)},
		{"dgrad", 2 * m * w * w, gemm(dgrad)},
		{"wgrad", 2 * m * w * w, gemm(wgrad)},
		{"dgrad-wgrad", 4 * m * w * w, func() error { return s.DgradWgrad(p, both) }},
		{"wgrad-images", 2 * m * w * w, gemm(kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, C: above, A: bytes, Indices: indices, B: y, Alpha: -1e-9, M: w, N: w, K: m})},
		{"wgrads", 8*m*w*w + 2*m*w*10, func() error { return s.GroupedGEMM(p, group) }},
		{"gather", 0, func() error { return s.Gather(p, x, labels, bytes, bytes, indices, m, w) }},
	} {
		b.Run(k.name, func(b *testing.B) { benchmarkKernel(b, s, long, k.flops, k.f) })
	}
}

// BenchmarkClassifier times classifier and gradients, of shapes on both sides of where other kernels begin.
func BenchmarkClassifier(b *testing.B) {
	kerneltest.RequireGPU(b)
	const most = 8192 * 12288
	s := newStream(b)
	values := make([]float32, most) // outputs of a ReLU
	for i := range values {
		values[i] = max(0, rand.Float32()-0.5)
	}
	rounded := make([]ref.BF16, most)
	ref.Round(rounded, values, most)
	x, dx, w, losses := malloc(b, 4*most), malloc(b, 4*most), malloc(b, 4*16*12288), malloc(b, 4*18*8192)
	labels, long := malloc(b, 4*8192), malloc(b, busyBytes)
	must.OK(b, s.Fill(labels, 0, 4*8192), s.Fill(long, 0, busyBytes))
	for _, p := range []kernels.Precision{kernels.TF32, kernels.BF16} {
		bytes := bytesOf(values)
		if p == kernels.BF16 {
			bytes = bytesOf(rounded)
		}
		must.OK(b, s.Upload(x, bytes), s.Upload(w, bytes[:len(bytes)/most*16*12288]))
		for _, shape := range []struct{ rows, classes int }{{64, 10}, {2048, 10}, {8192, 10}, {2048, 7}, {2048, 16}} {
			for _, k := range []int{64, 784, 2048, 4096, 4098, 5120, 6144, 8192, 12288} {
				c := kernels.Classifier{
					DLogits: losses + 8*8192, DX: dx, Loss: losses, Correct: losses + 4*8192, X: x, W: w, Labels: labels, Indices: labels,
					Rows: shape.rows, Classes: shape.classes, K: k, Prefetch: kernels.PrefetchB,
				}
				b.Run(fmt.Sprintf("rows=%d/classes=%d/k=%d/%v", shape.rows, shape.classes, k, p), func(b *testing.B) {
					benchmarkKernel(b, s, long, 4*shape.rows*k*shape.classes, func() error { return s.Classifier(p, c) })
				})
			}
		}
	}
}

// BenchmarkGEMMs times the GEMMs of a hidden layer for tools/gemms.py, which times the same products in cuBLASLt. Numbers
// are random. The launches take turns on operands that together exceed L2. Training pads 3000 units to 3008; here they stay.
func BenchmarkGEMMs(b *testing.B) {
	kerneltest.RequireGPU(b)
	const rotated, most, block = 128 << 20, 128<<20 + 5*4*8192*8192, 32 << 20
	fmt.Println("build:", program.Facts())
	s := newStream(b)
	arena, long := malloc(b, most), malloc(b, busyBytes)
	must.OK(b, s.Fill(long, 0, busyBytes))
	floats, rounded := make([]float32, block), make([]ref.BF16, block)
	for i := range floats {
		floats[i] = 2*rand.Float32() - 1
	}
	ref.Round(rounded, floats, block)
	for _, p := range []kernels.Precision{kernels.TF32, kernels.BF16} {
		values := bytesOf(floats)
		if p == kernels.BF16 {
			values = bytesOf(rounded)
		}
		for _, shape := range []struct{ width, batch int }{
			{784, 64}, {2048, 64}, {3000, 700}, {4096, 8192}, {5120, 2048}, {6144, 2048}, {8192, 8192},
		} {
			for _, name := range []string{"forward", "dgrad", "wgrad"} {
				b.Run(fmt.Sprintf("%dx%d/%s/%v", shape.width, shape.batch, name, p), func(b *testing.B) {
					var gemms []kernels.GEMM
					at := 0
					for at <= rotated {
						gemms = append(gemms, hiddenGEMM(p, name, shape.batch, shape.width, func(bytes int) uintptr {
							array := arena + uintptr(at)
							at += (bytes + 255) &^ 255
							return array
						}))
					}
					for from := 0; from < at; from += len(values) {
						must.OK(b, s.Upload(arena+uintptr(from), values[:min(len(values), most-from)]))
					}
					i := 0
					launch := func() error { i++; return s.GEMM(p, gemms[i%len(gemms)]) }
					must.OK(b, launch()) // which loads the kernel
					benchmarkKernel(b, s, long, 2*shape.batch*shape.width*shape.width, launch)
				})
			}
		}
	}
}

// hiddenGEMM returns a GEMM of a hidden layer with what it does beside the product in training, in arrays of its own.
func hiddenGEMM(p kernels.Precision, name string, batch, width int, array func(bytes int) uintptr) kernels.GEMM {
	size := 4
	if p == kernels.BF16 {
		size = 2
	}
	x, w := size*batch*width, size*width*width
	wgrad := kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, Alpha: -1e-9, M: width, N: width, K: batch}
	transposed := uintptr(0)
	if name != "forward" && kernels.WantsTransposed(p, wgrad) {
		transposed = array(4 * width * kernels.TransposedStride(batch))
	}
	switch name {
	case "forward":
		return kernels.GEMM{Epilogue: kernels.Activate, C: array(x), A: array(x), B: array(w), M: batch, N: width, K: width}
	case "dgrad":
		return kernels.GEMM{
			Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: array(x), A: array(x), B: array(w), Y: array(x), T: transposed,
			M: batch, N: width, K: width,
		}
	}
	wgrad.C, wgrad.A, wgrad.B, wgrad.T = array(4*width*width), array(x), array(x), transposed
	if p == kernels.BF16 {
		wgrad.Rounded = array(w)
	}
	return wgrad
}

// benchmarkKernel times launches behind work on the memory at long. flops is what one does, or 0.
func benchmarkKernel(b *testing.B, s kernels.Stream, long uintptr, flops int, launch func() error) {
	const n = 500
	start, err := kernels.NewEvent()
	end, err2 := kernels.NewEvent()
	must.OK(b, err, err2)
	b.Cleanup(func() { must.OK(b, start.Close(), end.Close()) })
	var device, host time.Duration
	for b.Loop() {
		must.OK(b, s.Synchronize())
		busy(b, s, long)
		must.OK(b, start.Record(s))
		t := time.Now()
		for range n {
			must.OK(b, launch())
		}
		host += time.Since(t)
		must.OK(b, end.Record(s))
		d, err := end.Since(start)
		must.OK(b, err)
		device += d
	}
	us := float64(device.Nanoseconds()) / 1e3 / float64(b.N) / n
	b.ReportMetric(us, "µs")
	b.ReportMetric(float64(host.Nanoseconds())/1e3/float64(b.N)/n, "host-µs")
	if flops > 0 {
		b.ReportMetric(float64(flops)/us/1e6, "TFLOP/s")
	}
}

// BenchmarkLaunch is the host's price of the smallest operation.
func BenchmarkLaunch(b *testing.B) {
	kerneltest.RequireGPU(b)
	s := newStream(b)
	p := malloc(b, 4)
	for b.Loop() {
		must.OK(b, s.Activate(kernels.FP32, p, p, 1))
	}
	must.OK(b, s.Synchronize())
}

// waves returns n numbers on the GPU.
func waves(t testing.TB, s kernels.Stream, n int) uintptr {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i*i))) / 16
	}
	p := malloc(t, 4*n)
	must.OK(t, s.Upload(p, bytesOf(x)))
	return p
}
