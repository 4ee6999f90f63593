package kernels

// A GEMM is the matrix product c = epilogue(op(a)·op(b)). The layout NN takes the epilogues None and
// Activate, NT takes None and ActivateBackward, TN takes None and SGD. TN multiplies the product by Alpha.
type GEMM struct {
	Layout   Layout
	Epilogue Epilogue
	// C, A, B and Y are addresses of dense row-major arrays. C must not overlap the others. Only
	// ActivateBackward reads Y. The arrays are float32. In [BF16], A, B and Y are bf16, and C is bf16 after
	// Activate and ActivateBackward.
	C, A, B, Y uintptr
	// Rounded, if not 0, is the address of a bf16 array, to which SGD also stores c[m,n], and
	// [Stream.DgradWgrad] b[n,k]. Only BF16 has it.
	Rounded uintptr
	// T, if not 0, is the address of a transposed gradient, as [Stream.Transpose] makes it. NT also stores cᵀ
	// there. TN finds bᵀ there and may read it instead of b, since k is contiguous: see [WantsTransposed]. In
	// BF16 it is 0.
	T uintptr
	// Indices, if not 0, is the address of int32 indices into a table of uint8 images at A, and a is a
	// gathered view: row i of a is images[indices[i],:]/255. NN has m indices, and images of k columns. TN
	// has k indices, and images of m columns. NT has no indices.
	Indices uintptr
	// Stride, if not 0, is the number of elements from a row of A to the next. Only TN may have one, and not every
	// such GEMM: see [TakesStride].
	Stride int
	// Pixels says that A holds pixels, the values 0 to 255 that [Stream.Gather] makes; a is A/255. Every
	// precision represents them exactly. NT has no pixels.
	Pixels   bool
	Alpha    float32 // for TN, and [Stream.DgradWgrad]
	M, N, K  int
	Prefetch Prefetch
	// Beside says that an [Exchange] runs at the same time. In tf32 and 3xtf32 NN then leaves shared memory
	// for the CTAs of the exchange, unless it divides K among CTAs.
	Beside bool
}

// TransposedStride returns the stride, in floats, of the transpose of a matrix of rows: rows, rounded up to
// 16 bytes, as TMA needs it. What follows the rows in a line is undefined.
func TransposedStride(rows int) int { return (rows + 3) / 4 * 4 }

// MaxGroup is how many GEMMs one call of [Stream.GroupedGEMM] takes.
const MaxGroup = 16

// A Layout says which operands of a GEMM are transposed in memory.
type Layout uint8

const (
	NN Layout = iota // c[m,n] = a[m,k]·b[k,n]: a layer forward
	NT               // c[m,n] = a[m,k]·b[n,k]ᵀ: dgrad
	TN               // c[m,n] = a[k,m]ᵀ·b[k,n]: wgrad
)

// An Epilogue is applied to the elements of a·b before they are stored to c.
type Epilogue uint8

const (
	None             Epilogue = iota // c = a·b; TN: c = alpha·a·b
	Activate                         // c = ReLU(a·b)
	ActivateBackward                 // c = the gradient a·b through the ReLU whose output is y[m,n]
	SGD                              // c += alpha·a·b, in place
)

// Prefetch names operands that a kernel may read before griddepcontrol.wait, while the kernel queued just
// before it still runs (programmatic dependent launch). The kernel before must not write these operands. 0 is
// always correct. Tables of images and labels, and their indices, are always prefetched: no kernel may write
// them.
type Prefetch uint8

const (
	PrefetchA Prefetch = 1 << iota // a
	PrefetchB                      // b
	PrefetchC                      // y, or the c to which SGD adds
)

// Parts returns the two GEMMs that [Stream.DgradWgrad] of g does.
func (g GEMM) Parts() (dgrad, wgrad GEMM) {
	wgrad = GEMM{Layout: TN, Epilogue: SGD, C: g.B, Rounded: g.Rounded, A: g.Y, B: g.A, Alpha: g.Alpha, M: g.N, N: g.K, K: g.M}
	if g.Rounded != 0 {
		g.B, g.Rounded = g.Rounded, 0
	}
	return g, wgrad
}

// Scales returns the factors of g as C = alpha·A·B + beta·C, which leaves out ReLU and its gradient.
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

// Valid reports whether the sizes are valid, and the layout takes the epilogue and the operands.
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
