// Package kernels drives a CUDA device: hand-written kernels on (address, sizes,
// stream), and streams, copies, graphs and events. Memory comes from package
// allocator/cudadriver. It uses cgo only with the build tag cuda; without it everything
// compiles and every call returns [ErrNoCUDA].
//
// It has no C interface for other programs. Another Go module imports it by a replace directive that
// names a checkout, where make kernels has built the kernels.
//
// The package uses device 0; the environment variable CUDA_VISIBLE_DEVICES
// chooses which card that is. Calls may come from any goroutine.
//
// The environment variable MLPOOL_COMPUTE_CAPABILITY has a GPU stand in for one of another compute
// capability, for tests and measurements: with 8.6 an H200 runs the kernels that a GPU of compute
// capability 8.6 would run, without TMA, warpgroup MMA, clusters and PDL, and with 99 KiB of shared
// memory for a CTA. [Info] then has that compute capability. The number of SMs and all speeds stay
// those of the GPU. It may be 8.0 or later, but not 9.x; anything else has no effect, nor has it any
// on a GPU older than 8.0.
//
// # What is fused
//
// These parts of a training step are one launch each, where package device fuses:
//
//   - a hidden layer: [GEMM] NN with the epilogue Activate. It also gathers: A may be a table of
//     uint8 images and the batch's indices. There are no biases.
//   - the last layer, softmax, cross-entropy, their gradients, and the gradient through the
//     activation below: [Classifier]. A GPU takes up to 16 classes; how many there are is a
//     property of the data set, data.Classes.
//   - dgrad and the gradient through the activation: GEMM NT with ActivateBackward, which may
//     also store the transpose that the next wgrad reads.
//   - wgrad and plain SGD: GEMM TN with SGD, and the wgrads of all layers as a GroupedGEMM.
//   - dgrad, wgrad and SGD of one layer: DgradWgrad, where [FusesWgrad] says so.
//   - hidden layers of up to 64 units, or their dgrads: a GroupedGEMM that is a chain, where [Chains] says so.
//   - the losses of many batches: ReduceLoss, once for each report.
//
// # A new operation
//
// CONTRIBUTING.md lists the files of a new operation, and how to run its test on the emulated GPU.
//
// # Words
//
// A GEMM is a matrix multiplication. Its layout, NN, NT or TN, says which operand is transposed, and
// its epilogue is the operation on the result before it is stored. A skinny GEMM has few rows. A
// dgrad computes the gradient of a layer's input, dy·wᵀ, a wgrad that of its weights, xᵀ·dy. Split-K
// divides the sum over k among warps or CTAs; a k-tile is the part of k in one pipeline stage. A
// grouped GEMM is several in one launch. The classifier is the last layer with softmax and
// cross-entropy. TF32 has 11 bits of mantissa; 3xTF32 splits each operand into two such numbers, hi
// and lo. A value is an element that training passes from operation to operation, float32 or in mixed
// precision bf16, where weights are float32, and GEMMs read a rounded copy of them.
//
// An SM is a multiprocessor, a CTA a block of threads on one SM, a cluster a group of CTAs that reach
// each other's shared memory (DSMEM). TMA copies a tile for one instruction, by a tensor map; multicast
// copies it to several CTAs. An mbarrier is a barrier in shared memory that also counts arriving
// bytes. SIMT kernels compute on CUDA cores; tensor op is mma.sync, warpgroup MMA is wgmma, an
// instruction of four warps. With programmatic dependent launch (PDL) a kernel starts before the one
// ahead of it has ended.
package kernels

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoCUDA is returned by every call in a program built without the tag cuda.
var ErrNoCUDA = errors.New("built without CUDA (build tag cuda)")

// An Error is a call of the CUDA runtime or a kernel launch that failed. A kernel may fail after
// its launch: the next call that waits for it returns the error, and the device is unusable.
type Error struct {
	Op   string // the function of this package, "GEMM"
	Code int    // cudaError_t, 2
	Name string // its name, "cudaErrorMemoryAllocation"
}

func (e *Error) Error() string {
	return fmt.Sprintf("kernels: %s: %s (CUDA error %d)", e.Op, e.Name, e.Code)
}

// OutOfMemory reports whether the device had too little memory; the call may be
// tried again once some is freed.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

// Is makes cudaErrorNotSupported an errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported && e.Code == 801 }

// Available returns nil if a CUDA device can be used, else an error that says
// why not in one line.
func Available() error { return available() }

// Device describes the device.
func Device() (Info, error) { return device() }

// Toolkit returns the version of the CUDA toolkit that the program was built with,
// 1000·major + 10·minor, or 0 if it was built without CUDA. It needs no device.
func Toolkit() int { return toolkit() }

// Info describes a device.
type Info struct {
	Name           string
	UUID           string // as nvidia-smi -L has it
	Major, Minor   int    // compute capability, 9 and 0 for an H200, or that of MLPOOL_COMPUTE_CAPABILITY
	SMs            int    // streaming multiprocessors
	Memory         int64  // bytes
	DriverVersion  int    // the newest CUDA of the driver, 1000·major + 10·minor; 0 without a driver
	RuntimeVersion int    // the CUDA that the program was built with, likewise
}

// FastTF32 reports whether the tensor cores multiply in TF32 more than three times as fast as the CUDA
// cores in float32, so that TF32X3 takes less time than FP32. By NVIDIA's data sheets they are at most
// twice as fast on compute capability 8.6, 8.9 and 12 (RTX 30, 40 and 50, A10, L4, L40S), and as fast on
// the GeForce cards of these. No such card was measured.
func (i Info) FastTF32() bool {
	small := i.Major == 8 && (i.Minor == 6 || i.Minor == 9) || i.Major == 12
	return i.Major >= 8 && !small
}

// A Precision says how GEMMs are computed, and of what type the values are that training passes from
// operation to operation: float32, but in BF16. Every GPU of compute capability 8.0 or later has all of
// them. On 9.0 they multiply by warpgroup MMA, on others by mma.sync. No real GPU of compute capability
// 8.6, 8.9, 10 or 12 ever ran the kernels: an emulator did.
type Precision uint8

const (
	FP32 Precision = iota // on the CUDA cores
	TF32                  // on the tensor cores, operands rounded to 11 bits of mantissa
	// TF32X3 is on the tensor cores, with operands as sums of two such numbers. It is as exact as FP32, but
	// gives NaN where FP32 gives an infinity.
	TF32X3
	// BF16 is mixed precision, on the tensor cores. Values are bf16, of 2 bytes: activations, gradients of
	// them, pixels, and the copies of the weights that GEMMs read. Weights, their gradients, sums, logits
	// and losses are float32. Values are rounded to the nearest, of two equally near to the even one.
	BF16
)

var precisions = []string{"fp32", "tf32", "3xtf32", "bf16"}

// ParsePrecision returns the precision that a configuration names.
func ParsePrecision(name string) (Precision, error) {
	i := slices.Index(precisions, name)
	if i < 0 {
		return 0, fmt.Errorf("unknown precision %q: use one of %s", name, strings.Join(precisions, ", "))
	}
	return Precision(i), nil
}

func (p Precision) String() string {
	if int(p) < len(precisions) {
		return precisions[p]
	}
	return fmt.Sprintf("Precision(%d)", uint8(p))
}

// Usable returns nil if the device can compute in this precision, else an error
// that says why not in one line.
func (p Precision) Usable() error {
	d, err := Device()
	if err != nil {
		return err
	}
	if int(p) >= len(precisions) {
		return fmt.Errorf("unknown precision %v", p)
	}
	if p != FP32 && d.Major < 8 {
		return fmt.Errorf("%v needs tensor cores of compute capability 8.0 or newer, and %s has %d.%d: use fp32", p, d.Name, d.Major, d.Minor)
	}
	if !p.has() {
		return fmt.Errorf("%v needs kernels that were compiled for compute capability 8.0 or newer, and those for %s are older: run make without CUDA_ARCH, or use fp32", p, d.Name)
	}
	return nil
}
