package kernels_test

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

func TestError(t *testing.T) {
	var err error = &kernels.Error{Op: "GEMM", Code: 1, Name: "cudaErrorInvalidValue"}
	if got, want := err.Error(), "kernels: GEMM: cudaErrorInvalidValue (CUDA error 1)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Without a device every call returns an error that says why.
func TestNoDevice(t *testing.T) {
	err := kernels.Available()
	if err == nil {
		t.Skip("there is a device")
	}
	t.Log(err)
	if e := (*kernels.Error)(nil); errors.As(err, &e) && e.Name == "cudaErrorInsufficientDriver" && !strings.Contains(err.Error(), "driver is missing or too old") {
		t.Errorf("%q does not say what is missing", err)
	}
	if _, err := kernels.NewStream(); err == nil {
		t.Error("NewStream: no error")
	}
	if _, err := kernels.Device(); err == nil {
		t.Error("Device: no error")
	}
	if err := kernels.Stream(0).GEMM(kernels.FP32, kernels.GEMM{M: 1, N: 1, K: 1}); err == nil {
		t.Error("GEMM: no error")
	}
}

func Test(t *testing.T) {
	kerneltest.RequireGPU(t)
	kerneltest.Run(t, kerneltest.CUDA(kernels.FP32), kerneltest.Tolerance)
}

func TestBF16(t *testing.T) {
	kerneltest.RequireGPU(t)
	kerneltest.Run(t, kerneltest.CUDA(kernels.BF16), kerneltest.ToleranceBF16)
}

func TestTF32(t *testing.T) {
	kerneltest.RequireGPU(t)
	kerneltest.RunGEMM(t, kerneltest.CUDA(kernels.TF32), 4e-4)
}

func Test3xTF32(t *testing.T) {
	kerneltest.RequireGPU(t)
	kerneltest.RunGEMM(t, kerneltest.CUDA(kernels.TF32X3), kerneltest.Tolerance)
}

func TestParsePrecision(t *testing.T) {
	for _, p := range []kernels.Precision{kernels.FP32, kernels.TF32, kernels.TF32X3, kernels.BF16} {
		if q, err := kernels.ParsePrecision(p.String()); q != p || err != nil {
			t.Errorf("%v is parsed as %v, %v", p, q, err)
		}
	}
	if _, err := kernels.ParsePrecision("fp16"); err == nil {
		t.Error("fp16: no error")
	}
	if err := kernels.Precision(4).Usable(); err == nil {
		t.Error("Precision(4) is usable")
	}
}

func TestDevice(t *testing.T) {
	kerneltest.RequireGPU(t)
	d, err := kernels.Device()
	must.OK(t, err)
	t.Logf("%+v", d)
	if d.Name == "" || d.Major == 0 || d.SMs == 0 || d.Memory == 0 || d.DriverVersion == 0 || d.RuntimeVersion == 0 {
		t.Errorf("something is missing in %+v", d)
	}
}

// TestToolkit needs no device, but the kernels.
func TestToolkit(t *testing.T) {
	toolkit := kernels.Toolkit()
	switch d, err := kernels.Device(); {
	case errors.Is(err, kernels.ErrNoCUDA):
		if toolkit != 0 {
			t.Errorf("toolkit %d of a program without CUDA", toolkit)
		}
	case toolkit < 11080 || err == nil && toolkit != d.RuntimeVersion:
		t.Errorf("toolkit %d, want %d", toolkit, d.RuntimeVersion)
	}
}

// want checks an error's code.
func want(t *testing.T, err error, code int) {
	t.Helper()
	var e *kernels.Error
	if !errors.As(err, &e) || e.Code != code || e.OutOfMemory() != (code == 2) {
		t.Errorf("error %v, want code %d", err, code)
	}
}

func newStream(t testing.TB) kernels.Stream {
	s, err := kernels.NewStream()
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

func malloc(t testing.TB, bytes int) uintptr {
	p, err := cudadriver.Driver{}.Malloc(int64(bytes))
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, cudadriver.Driver{}.Free(p)) })
	return p
}

func bytesOf[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

// A bad call is an error, and does not stay for the next call to return.
func TestErrorsDoNotStay(t *testing.T) {
	kerneltest.RequireGPU(t)
	s := newStream(t)
	p := malloc(t, 4096)
	fails := func(err error) {
		t.Helper()
		want(t, err, 1)
		must.OK(t, s.Activate(kernels.FP32, p, p, 16), s.Synchronize())
	}
	must.OK(t, s.Fill(p, 0, 4096))
	fails(s.GEMM(kernels.FP32, kernels.GEMM{C: p, A: p, B: p, M: -1, N: 4, K: 4}))
	fails(s.GEMM(kernels.FP32, kernels.GEMM{C: p, A: p, B: p, M: 1 << 30, N: 1 << 30})) // more tiles than a grid has CTAs
	fails(s.Softmax(p, p, 4, -4))
	fails(s.GEMM(kernels.FP32, kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.Activate, C: p, A: p, B: p, M: 1, N: 1, K: 1}))
	fails(s.DgradWgrad(kernels.FP32, kernels.GEMM{Layout: kernels.NT, C: p, A: p, B: p, M: 1, N: 1, K: 1}))
	fails(s.GroupedGEMM(kernels.FP32, []kernels.GEMM{{C: p, A: p, B: p, M: 1, N: 1, K: 1}}))
	fails(s.GroupedGEMM(kernels.FP32, make([]kernels.GEMM, kernels.MaxGroup+1)))
	fails(s.Classifier(kernels.FP32, kernels.Classifier{Loss: p, Correct: p, X: p, W: p, Labels: p, Indices: p, Rows: 1, Classes: 17, K: 1}))
	fails(s.ReduceLoss(p, p, p, 1, 0))
}

// TestFusesWgrad says of which dgrads there is a kernel with their wgrad.
func TestFusesWgrad(t *testing.T) {
	kerneltest.RequireGPU(t)
	d, err := kernels.Device()
	must.OK(t, err)
	tma := d.Major == 9 && d.RuntimeVersion >= 12010 && os.Getenv("EMULATOR_WITHOUT_TMA") == ""
	const ctas = 2 * 2048 / 32 // of the dgrad below: in 3xtf32 nearly one for each SM is needed
	oneWave := ctas <= d.SMs && 10*ctas >= 9*d.SMs
	dgrad := kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: 1 << 12, A: 1 << 12, B: 1 << 12, Y: 1 << 12, M: 64, N: 2048, K: 2048}
	answers(t, kernels.FusesWgrad, dgrad, []answer{
		{"tf32", kernels.TF32, func(*kernels.GEMM) {}, tma},
		{"3xtf32", kernels.TF32X3, func(*kernels.GEMM) {}, tma && oneWave},
		{"bf16", kernels.BF16, func(*kernels.GEMM) {}, tma},
		{"bf16, rows that are not whole chunks", kernels.BF16, func(g *kernels.GEMM) { g.K += 4 }, false},
		{"fp32", kernels.FP32, func(*kernels.GEMM) {}, false},
		{"no epilogue", kernels.TF32, func(g *kernels.GEMM) { g.Epilogue = kernels.None }, false},
		{"another layout", kernels.TF32, func(g *kernels.GEMM) { g.Layout, g.Epilogue = kernels.NN, kernels.Activate }, false},
		{"no GEMM", kernels.TF32, func(g *kernels.GEMM) { g.M = -1 }, false},
		{"many rows", kernels.TF32, func(g *kernels.GEMM) { g.M = 1024 }, false},
		{"few weights", kernels.TF32, func(g *kernels.GEMM) { g.N, g.K = 100, 100 }, false},
		{"unaligned", kernels.TF32, func(g *kernels.GEMM) { g.B += 4 }, false},
		{"unaligned rows", kernels.TF32, func(g *kernels.GEMM) { g.K++ }, false},
	})
}

// hasWarpgroup reports whether there is warpgroup MMA.
func hasWarpgroup(d kernels.Info) bool {
	return d.Major == 9 && d.Minor == 0 && d.RuntimeVersion >= 12010 && os.Getenv("EMULATOR_WITHOUT_TMA") == ""
}

// TestWantsTransposed says which wgrads take less time with a transposed dy.
func TestWantsTransposed(t *testing.T) {
	kerneltest.RequireGPU(t)
	d, err := kernels.Device()
	must.OK(t, err)
	warpgroup := hasWarpgroup(d)
	wgrad := kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, C: 1 << 12, A: 1 << 12, B: 1 << 12, M: 2048, N: 2048, K: 1024}
	answers(t, kernels.WantsTransposed, wgrad, []answer{
		{"tf32", kernels.TF32, func(*kernels.GEMM) {}, warpgroup},
		{"3xtf32", kernels.TF32X3, func(*kernels.GEMM) {}, warpgroup},
		{"no epilogue", kernels.TF32, func(g *kernels.GEMM) { g.Epilogue = kernels.None }, warpgroup},
		{"fp32", kernels.FP32, func(*kernels.GEMM) {}, false},
		{"another layout", kernels.TF32, func(g *kernels.GEMM) { g.Layout, g.Epilogue = kernels.NT, kernels.None }, false},
		{"no GEMM", kernels.TF32, func(g *kernels.GEMM) { g.M = -1 }, false},
		{"images", kernels.TF32, func(g *kernels.GEMM) { g.Indices = 1 << 12 }, false},
		{"few rows", kernels.TF32, func(g *kernels.GEMM) { g.K = 132 }, warpgroup},
		{"a small batch", kernels.TF32, func(g *kernels.GEMM) { g.K = 128 }, false},
		{"any number of rows", kernels.TF32, func(g *kernels.GEMM) { g.K-- }, warpgroup},
		{"little work", kernels.TF32, func(g *kernels.GEMM) { g.M, g.N = 256, 256 }, false},
		{"small weights", kernels.TF32, func(g *kernels.GEMM) { g.M, g.N, g.K = 160, 160, 8192 }, warpgroup && 480*d.SMs <= 160*160},
		{"weights that are large for an H200", kernels.TF32, func(g *kernels.GEMM) { g.M, g.N, g.K = 256, 256, 4096 }, warpgroup && 480*d.SMs <= 256*256},
		{"unaligned", kernels.TF32, func(g *kernels.GEMM) { g.C += 4 }, false},
	})
}

// An answer is the expected answer for a GEMM after a change.
type answer struct {
	name      string
	precision kernels.Precision
	change    func(*kernels.GEMM)
	want      bool
}

func answers(t *testing.T, ask func(kernels.Precision, kernels.GEMM) bool, g kernels.GEMM, want []answer) {
	t.Helper()
	for _, a := range want {
		changed := g
		a.change(&changed)
		if got := ask(a.precision, changed); got != a.want {
			t.Errorf("%s: %v, want %v", a.name, got, a.want)
		}
	}
}

// TestNewThreads makes a GEMM the first call of an operating system's thread, which
// a goroutine may be moved to at any time.
func TestNewThreads(t *testing.T) {
	kerneltest.RequireGPU(t)
	const rows, n = 64, 112
	s := newStream(t)
	x, y, w := malloc(t, 4*rows*n), malloc(t, 4*rows*n), malloc(t, 4*n*n)
	for _, p := range []kernels.Precision{kernels.FP32, kernels.TF32, kernels.TF32X3} {
		if p.Usable() != nil {
			continue
		}
		for _, g := range []kernels.GEMM{
			{C: y, A: x, B: w, M: rows, N: n, K: n},
			{Layout: kernels.NT, C: y, A: x, B: w, M: rows, N: n, K: n},
			{Layout: kernels.TN, Epilogue: kernels.SGD, C: w, A: x, B: y, M: n, N: n, K: rows},
		} {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // without an unlock the thread ends with the goroutine
				done <- s.GEMM(p, g)
			}()
			if err := <-done; err != nil {
				t.Errorf("%v, %v: %v", p, g.Layout, err)
			}
		}
	}
	must.OK(t, s.Synchronize())
}

// busy queues about 10 ms of work: GEMMs of 4096×4096 matrices.
func busy(t testing.TB, s kernels.Stream, p uintptr) {
	const n = 4096
	for range 2 {
		must.OK(t, s.GEMM(kernels.FP32, kernels.GEMM{C: p, A: p + 4*n*n, B: p + 8*n*n, M: n, N: n, K: n}))
	}
}

const busyBytes = 3 * 4 * 4096 * 4096

func TestEvents(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	s := newStream(t)
	p := malloc(t, busyBytes)
	must.OK(t, s.Fill(p, 0, busyBytes))
	start, err := kernels.NewEvent()
	end, err2 := kernels.NewEvent()
	must.OK(t, err, err2, start.Record(s))
	busy(t, s, p)
	must.OK(t, end.Record(s))
	took, err := end.Since(start)
	must.OK(t, err)
	if took < 100*time.Microsecond || took > 10*time.Second {
		t.Errorf("274 GFLOP took %v", took)
	}
	must.OK(t, start.Close(), end.Close())
}
