package kernels_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// inChild is in the environment of what again starts.
const inChild = "KERNELS_TEST_CHILD"

// again runs tests of this program in a process of its own, on an emulated GPU that the environment
// describes.
func again(t *testing.T, test string, env ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+test+"$")
	cmd.Env = append(append(os.Environ(), inChild+"=1"), env...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+test+" ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOtherGPUs runs tests on GPUs that have more or less than an H200 of what decides on a kernel.
func TestOtherGPUs(t *testing.T) {
	kerneltest.RequireGPU(t)
	if !kerneltest.Emulated() {
		t.Skip("there is one GPU")
	}
	for _, c := range []struct {
		gpu, test string
		env       []string
	}{
		{"H100 PCIe", "TestFusesWgrad", []string{"EMULATOR_SMS=114"}},
		{"20 SMs", "TestWgradSplitK", []string{"EMULATOR_SMS=20"}},
		{"compute capability 5.0", "TestClassifierSizes", []string{"EMULATOR_MAJOR=5", "EMULATOR_SHARED=49152"}},
		{"compute capability 7.5", "TestClassifierSizes", []string{"EMULATOR_MAJOR=7", "EMULATOR_SHARED=65536"}},
		{"compute capability 8.0", "TestClassifierSizes", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=166912"}},
		{"compute capability 8.6", "TestClassifierSizes", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=101376"}},
		{"compute capability 8.6, 84 SMs", "TestTensorCores", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=101376", "EMULATOR_SMS=84"}},
		{"compute capability 8.9, few SMs", "TestTensorCores", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=101376", "EMULATOR_SMS=2"}},
		{"compute capability 12.0", "TestTensorCores", []string{"EMULATOR_MAJOR=12", "EMULATOR_SHARED=101376", "EMULATOR_SMS=10"}},
		{"compute capability 10.0", "TestTensorCores", []string{"EMULATOR_MAJOR=10", "EMULATOR_SMS=148"}},
		{"stand-in for 8.6", "TestTensorCores", []string{"MLPOOL_COMPUTE_CAPABILITY=8.6", "EMULATOR_SHARED=101376"}},
	} {
		t.Run(c.gpu, func(t *testing.T) { again(t, c.test, c.env...) })
	}
}

// TestStandIn has one GPU stand in for others: it then is of their compute capability, and has TMA only if
// they do.
func TestStandIn(t *testing.T) {
	kerneltest.RequireGPU(t)
	if !kerneltest.Emulated() {
		t.Skip("the GPU may be of any compute capability")
	}
	const capability, want = "MLPOOL_COMPUTE_CAPABILITY", "KERNELS_TEST_WANT"
	if os.Getenv(inChild) == "" {
		for _, c := range []struct{ gpu, standIn, want string }{
			{"9", "", "9.0"}, {"9", "8.0", "8.0"}, {"9", "8.6", "8.6"}, {"9", "10.0", "10.0"}, {"9", "12.0", "12.0"},
			{"9", "9.0", "9.0"}, {"9", "7.5", "9.0"}, {"9", "eight", "9.0"}, {"12", "9.0", "12.0"}, {"7", "8.6", "7.0"},
		} {
			t.Run(c.gpu+" as "+c.standIn, func(t *testing.T) {
				again(t, "TestStandIn", "EMULATOR_MAJOR="+c.gpu, capability+"="+c.standIn, want+"="+c.want)
			})
		}
		return
	}
	d, err := kernels.Device()
	must.OK(t, err)
	if got := fmt.Sprintf("%d.%d", d.Major, d.Minor); got != os.Getenv(want) {
		t.Errorf("compute capability %s, want %s", got, os.Getenv(want))
	}
	dgrad := kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: 1 << 12, A: 1 << 12, B: 1 << 12, Y: 1 << 12, M: 64, N: 2048, K: 2048}
	tma := d.Major == 9 && os.Getenv("EMULATOR_WITHOUT_TMA") == ""
	if got := kernels.FusesWgrad(kernels.TF32, dgrad); got != tma {
		t.Errorf("kernels by TMA: %v, want %v", got, tma)
	}
}

// TestCompiledForOlder has kernels that were compiled for a GPU without tensor cores of TF32, on one that has
// them: a precision is usable where its GEMMs can be launched.
func TestCompiledForOlder(t *testing.T) {
	kerneltest.RequireGPU(t)
	if !kerneltest.Emulated() {
		t.Skip("the kernels were compiled for the GPU")
	}
	if os.Getenv(inChild) == "" {
		again(t, t.Name(), "EMULATOR_MAJOR=8", "EMULATOR_SHARED=166912", "EMULATOR_COMPILED_FOR=700")
		return
	}
	const n = 8
	s := newStream(t)
	p := malloc(t, 3*4*n*n)
	must.OK(t, s.Fill(p, 0, 3*4*n*n))
	for precision, usable := range map[kernels.Precision]bool{kernels.FP32: true, kernels.TF32: false, kernels.TF32X3: false, kernels.BF16: false} {
		launch := s.GEMM(precision, kernels.GEMM{C: p, A: p + 4*n*n, B: p + 8*n*n, M: n, N: n, K: n})
		if err := precision.Usable(); (err == nil) != usable || (launch == nil) != usable {
			t.Errorf("%v: usable %v, launched %v", precision, err, launch)
		}
	}
	must.OK(t, s.Synchronize())
}

// TestClassifierSizes has inputs and classes whose weights fit the shared memory of few GPUs.
func TestClassifierSizes(t *testing.T) {
	kerneltest.RequireGPU(t)
	const maxClasses, maxInputs = 16, 8192
	s := newStream(t)
	x, w, label := malloc(t, 4*maxInputs), malloc(t, 4*maxClasses*maxInputs), malloc(t, 8)
	dx, out := malloc(t, 4*maxInputs), malloc(t, 4*(2+maxClasses))
	must.OK(t, s.Fill(label, 0, 8))
	for _, classes := range []int{1, 10, maxClasses} {
		for _, k := range []int{1, 1024, 2048, maxInputs} {
			ones, weights := slices.Repeat([]float32{1}, k), make([]float32, k*classes)
			for i := range k {
				weights[i*classes] = 1 / float32(k)
			}
			must.OK(t, s.Upload(x, bytesOf(ones)), s.Upload(w, bytesOf(weights)), s.Classifier(kernels.FP32, kernels.Classifier{
				Loss: out, Correct: out + 4, DLogits: out + 8, DX: dx, X: x, W: w, Labels: label, Indices: label + 4, Rows: 1, Classes: classes, K: k,
			}))
			got, gradients := make([]float32, 2), make([]float32, k)
			must.OK(t, s.Download(bytesOf(got), out), s.Download(bytesOf(gradients), dx))
			likely := math.E / (math.E + float64(classes-1)) // class 0, which has the logit 1, the others 0
			if math.Abs(float64(got[0])+math.Log(likely)) > 1e-5 || got[1] != 1 {
				t.Errorf("%d classes of %d inputs: loss %v, correct %v", classes, k, got[0], got[1])
			}
			for i, g := range gradients {
				if want := (likely - 1) / float64(k); math.Abs(float64(g)-want) > 1e-5/float64(k) {
					t.Fatalf("%d classes of %d inputs: gradient %d is %v, want %v", classes, k, i, g, want)
				}
			}
		}
	}
}

// TestLoadedLater launches kernels for the first time where all memory is in use: what the driver
// cannot load then it can once some is free.
func TestLoadedLater(t *testing.T) {
	kerneltest.RequireGPU(t)
	if !kerneltest.Emulated() {
		t.Skip("takes all memory of the GPU")
	}
	if os.Getenv(inChild) == "" {
		again(t, t.Name()) // where no other test has loaded a kernel
		return
	}
	const n = 64
	s := newStream(t)
	p := malloc(t, 4*4*n*n)
	must.OK(t, s.Fill(p, 0, 4*4*n*n))
	gemm := kernels.GEMM{C: p, A: p + 4*n*n, B: p + 8*n*n, Y: p + 12*n*n, M: n, N: n, K: n}
	unaligned, wgrad := gemm, gemm
	unaligned.K, wgrad.Layout = n-1, kernels.TN
	classifier := kernels.Classifier{Loss: gemm.C, Correct: gemm.C + 4*n, X: gemm.A, W: gemm.B, Labels: gemm.Y, Indices: gemm.Y, Rows: 1, Classes: 10, K: n}
	launches := map[string]func() error{
		"ReLU":        func() error { return s.Activate(kernels.FP32, gemm.C, gemm.A, n) },
		"GEMM":        func() error { return s.GEMM(kernels.TF32, gemm) },
		"unaligned":   func() error { return s.GEMM(kernels.TF32, unaligned) },
		"FP32":        func() error { return s.GEMM(kernels.FP32, unaligned) },
		"GroupedGEMM": func() error { return s.GroupedGEMM(kernels.FP32, []kernels.GEMM{wgrad}) },
		"Classifier":  func() error { return s.Classifier(kernels.FP32, classifier) },
	}
	free, _, err := cudadriver.Driver{}.MemInfo()
	must.OK(t, err)
	rest, err := cudadriver.Driver{}.Malloc(free)
	must.OK(t, err)
	for name, launch := range launches {
		t.Run(name, func(t *testing.T) { want(t, launch(), 2) })
	}
	must.OK(t, cudadriver.Driver{}.Free(rest))
	for name, launch := range launches {
		if err := launch(); err != nil {
			t.Errorf("%s, once memory is free: %v", name, err)
		}
	}
	must.OK(t, s.Synchronize())
}
