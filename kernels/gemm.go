package kernels

// A Product is a matrix product of m·n·k multiplications, and what becomes of its
// result. NN goes with Store and ReLU, NT with Store and Mask, TN with Store and
// Add.
type Product struct {
	Form     Form
	Epilogue Epilogue
	// C, A, B and Y are addresses of dense row-major arrays of float32. C must
	// not overlap the others. Y is for Mask only.
	C, A, B, Y uintptr
	// Order, if not 0, makes A a table of uint8 images, of k columns for NN and m
	// for TN; NT has none. Row i of a is then images[order[i],:]/255, through
	// int32 indices: m of them for NN, k for TN.
	Order   uintptr
	Alpha   float32 // for Add, and [Stream.Step]
	M, N, K int
	Early   Early
}

// MostUpdates is how many products one call of [Stream.Updates] takes.
const MostUpdates = 16

// A Form says which factors of a product are transposed in memory.
type Form uint8

const (
	NN Form = iota // c[m,n] = a[m,k]·b[k,n]
	NT             // c[m,n] = a[m,k]·b[n,k]ᵀ
	TN             // c[m,n] = a[k,m]ᵀ·b[k,n]
)

// An Epilogue is what happens to the elements of a product on their way to c.
type Epilogue uint8

const (
	Store Epilogue = iota // c = product
	ReLU                  // c = max(0, product)
	Mask                  // c = product where y[m,n] > 0, else 0
	Add                   // c += alpha·product, in place
)

// Early names operands of an operation that the one queued just before it did not
// write, so that a GPU may read them while that one still runs. 0 is always right, but
// for tables of images and labels and their order: no kernel may write those.
type Early uint8

const (
	EarlyA Early = 1 << iota // a; images and their order are read early in any case
	EarlyB                   // b
	EarlyC                   // y, or the c that is added to
)

// Update is the product after p, which is NT with Mask, in [Stream.Step].
func (p Product) Update() Product {
	return Product{Form: TN, Epilogue: Add, C: p.B, A: p.Y, B: p.A, Alpha: p.Alpha, M: p.N, N: p.K, K: p.M}
}

// Valid says whether there is such a product.
func (p Product) Valid() bool {
	if p.M < 0 || p.N < 0 || p.K < 0 {
		return false
	}
	switch p.Form {
	case NN:
		return p.Epilogue == Store || p.Epilogue == ReLU
	case NT:
		return (p.Epilogue == Store || p.Epilogue == Mask) && p.Order == 0
	case TN:
		return p.Epilogue == Store || p.Epilogue == Add
	}
	return false
}
