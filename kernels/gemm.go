package kernels

import (
	"fmt"
	"slices"
)

// A GEMM is c = epilogue(op(a)·op(b)). NN takes None or Activate, NT None or
// ActivateBackward, TN None or SGD, and of TN the product is times Alpha.
type GEMM struct {
	Layout   Layout
	Epilogue Epilogue
	// C, A, B and Y are addresses of dense row-major arrays of float32. C must
	// not overlap the others. Y is for ActivateBackward only. In [BF16], A, B and Y are bf16, and C
	// is with Activate and ActivateBackward.
	C, A, B, Y uintptr
	// Rounded, if not 0, is the address of a bf16 array to which SGD also stores c[m,n]. Only for BF16.
	Rounded uintptr
	// T, if not 0, is the address of a transposed gradient. NT also stores cᵀ to T[n,m]. TN has bᵀ
	// in T[n,k] and may read it instead of b, since k is then contiguous. See [WantsTransposed]. 0 in
	// BF16.
	T uintptr
	// Indices, if not 0, make A a table of uint8 images, of k columns for NN and m
	// for TN; NT has none. Row i of a is then images[indices[i],:]/255, a gathered
	// view. The indices are int32, m of them for NN, k for TN.
	Indices uintptr
	// Pixels says that A holds pixels, 0 to 255 as values, as [Stream.Gather] makes them;
	// a is A/255. They are exact in every precision. NT has none.
	Pixels   bool
	Alpha    float32 // for TN, and [Stream.DgradWgrad]
	M, N, K  int
	Prefetch Prefetch
	// Beside says that an [Exchange] runs meanwhile. NN in tf32 and 3xtf32 then leaves shared memory for its CTAs, unless
	// it divides K among CTAs.
	Beside bool
}

// MaxGroup is how many GEMMs one call of [Stream.GroupedGEMM] takes.
const MaxGroup = 16

// A Layout says which operands of a GEMM are transposed in memory.
type Layout uint8

const (
	NN Layout = iota // c[m,n] = a[m,k]·b[k,n]: a layer forward
	NT               // c[m,n] = a[m,k]·b[n,k]ᵀ: dgrad
	TN               // c[m,n] = a[k,m]ᵀ·b[k,n]: wgrad
)

var layouts, epilogues = []string{"nn", "nt", "tn"}, []string{"none", "activate", "activate-backward", "sgd"}

// MarshalText returns "nn", "nt" or "tn", which UnmarshalText reads.
func (l Layout) MarshalText() ([]byte, error) { return []byte(layouts[l]), nil }

func (l *Layout) UnmarshalText(text []byte) error { return unmarshal(l, text, layouts) }

// MarshalText returns "none", "activate", "activate-backward" or "sgd", which UnmarshalText reads.
func (e Epilogue) MarshalText() ([]byte, error) { return []byte(epilogues[e]), nil }

func (e *Epilogue) UnmarshalText(text []byte) error { return unmarshal(e, text, epilogues) }

// unmarshal sets to to the index of a name.
func unmarshal[T ~uint8](to *T, text []byte, names []string) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %v", text, names)
	}
	*to = T(i)
	return nil
}

// An Epilogue is applied to the elements of a·b before they are stored to c.
type Epilogue uint8

const (
	None             Epilogue = iota // c = a·b; of TN alpha·a·b
	Activate                         // c = ReLU(a·b)
	ActivateBackward                 // c = the gradient a·b through the ReLU whose output is y[m,n]
	SGD                              // c += alpha·a·b, in place
)

// Prefetch names operands that a kernel may read before griddepcontrol.wait, while the
// kernel queued just before it still runs (programmatic dependent launch): those that
// that kernel does not write. 0 is always correct. Tables of images and labels and their
// indices are prefetched in any case: no kernel may write those.
type Prefetch uint8

const (
	PrefetchA Prefetch = 1 << iota // a
	PrefetchB                      // b
	PrefetchC                      // y, or the c to which SGD adds
)

// Wgrad is the GEMM that [Stream.DgradWgrad] does after g, which is NT with ActivateBackward.
func (g GEMM) Wgrad() GEMM {
	return GEMM{Layout: TN, Epilogue: SGD, C: g.B, A: g.Y, B: g.A, Alpha: g.Alpha, M: g.N, N: g.K, K: g.M}
}

// Scales returns the factors of C = alpha·A·B + beta·C, without an activation and its gradient.
func (g GEMM) Scales() (alpha, beta float32) {
	alpha = 1
	if g.Layout == TN {
		alpha = g.Alpha
	}
	if g.Pixels || g.Indices != 0 {
		alpha /= 255
	}
	if g.Epilogue == SGD {
		beta = 1
	}
	return alpha, beta
}

// Valid reports whether there is such a GEMM.
func (g GEMM) Valid() bool {
	if g.M < 0 || g.N < 0 || g.K < 0 {
		return false
	}
	switch g.Layout {
	case NN:
		return g.Epilogue == None || g.Epilogue == Activate
	case NT:
		return (g.Epilogue == None || g.Epilogue == ActivateBackward) && g.Indices == 0 && !g.Pixels
	case TN:
		return g.Epilogue == None || g.Epilogue == SGD
	}
	return false
}
