package kerneltest

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// operands has a GEMM, its operands, and its result.
type operands struct {
	g       kernels.GEMM
	out     any    // C
	rounded any    // Rounded, or nil
	in      arrays // A, B, Y, Indices, T
	want    []float64
	exact   bool // the sums are
}

func (s *suite) operands(g kernels.GEMM, m, n, k int, exact bool) operands {
	draw := s.floats
	if exact {
		draw = s.integers
	}
	g.M, g.N, g.K = m, n, k
	g.Prefetch = kernels.Prefetch(s.r.IntN(8))
	// Some of those that may have pixels have.
	g.Pixels = g.Layout != kernels.NT && g.Indices == 0 && s.r.IntN(4) == 0
	o := operands{g: g, out: output(m * n), want: make([]float64, m*n), in: make(arrays, 5), exact: exact}
	if g.Epilogue == kernels.Activate || g.Epilogue == kernels.ActivateBackward {
		o.out = s.outputValues(m * n)
	}
	a, b := draw(m*k), draw(k*n)
	if images := g.Indices != 0; images || g.Pixels {
		rows, cols := m, k
		if g.Layout == kernels.TN {
			rows, cols = k, m
		}
		table, indices := s.images(cols), s.labels(rows, tableRows)
		ref.Images(a, table, indices, rows, cols)
		if images {
			o.in[0], o.in[3] = table, indices
		}
	}
	if o.in[1] = s.values(b); o.in[0] == nil {
		o.in[0] = s.values(a)
	}
	multiply(o.want, a, b, g.Layout == kernels.TN, g.Layout == kernels.NT, m, n, k)
	if o.images() {
		for i := range o.want {
			o.want[i] /= 255
		}
	}
	switch g.Epilogue {
	case kernels.Activate:
		for i := range o.want {
			o.want[i] = max(0, o.want[i])
		}
	case kernels.ActivateBackward:
		y := draw(m * n)
		o.in[2] = s.values(y)
		for i := range o.want {
			if y[i] <= 0 {
				o.want[i] = 0
			}
		}
	}
	if g.Layout == kernels.TN {
		o.g.Alpha = rate
		was := make([]float32, m*n)
		if g.Epilogue == kernels.SGD {
			copy(was, draw(m*n))
			copy(o.out.([]float32), was)
			if s.bf16 {
				o.rounded = s.outputValues(m * n)
			}
		}
		o.add(was)
	}
	return o
}

// images reports whether a is pixels/255.
func (o *operands) images() bool { return o.g.Indices != 0 || o.g.Pixels }

// rate is the alpha of wgrads; a multiplication by it is exact.
const rate = -0.125

// add adds c to want, which is a·b.
func (o *operands) add(c []float32) {
	for i := range o.want {
		o.want[i] = float64(c[i]) + float64(o.g.Alpha)*o.want[i]
	}
}

func (s *suite) compare(c Call, o operands) {
	s.t.Helper()
	out, tolerance := floatsOf(o.out), s.tolerance
	_, rounds := o.out.([]ref.BF16)
	if s.bf16 && !rounds {
		tolerance = bf16Sums
	}
	if to, ok := o.rounded.([]ref.BF16); ok {
		want := make([]ref.BF16, len(o.want))
		ref.Round(want, out, len(want))
		if !slices.Equal(to[:len(want)], want) {
			s.fail(c, "its rounded result is not that of its result")
		}
	}
	if o.exact && !o.images() {
		want := o.want
		if rounds {
			want = slices.Clone(want)
			for i, w := range want {
				want[i] = float64(ref.ToBF16(float32(w)).Float32())
			}
		}
		s.equal(c, out, want)
		return
	}
	// Where few sums nearly cancel, their error is measured against
	// the size that such sums have: |a·b| is 1/3 in the mean square.
	m, n, k := o.g.M, o.g.N, o.g.K
	few := float64(max(1, min(m*n, m*k, k*n)))
	if o.images() {
		few /= 7 // images are never negative: their rounding is alike in every row
	}
	if o.exact && !rounds { // but for the division by 255: a precision rounds neither pixels nor small integers
		tolerance = Tolerance
	}
	s.near(c, out, o.want, tolerance*scatter(few), math.Sqrt(float64(m*n*k))/3/2)
	if !o.exact && !o.images() {
		s.unbiased(c, o, out, tolerance)
	}
}

// bf16Sums is the tolerance of sums in float32 of products of bf16: tensor cores truncate them.
const bf16Sums = 1e-4

// unbiased checks that the errors of many results do not lean towards zero, as where operands are
// truncated, or away from it. On a real GPU they may: tensor cores truncate their sums.
func (s *suite) unbiased(c Call, o operands, out []float32, tolerance float64) {
	s.t.Helper()
	many := min(o.g.M*o.g.N, o.g.M*o.g.K, o.g.K*o.g.N) >= 10000 // roundings of operands, too: of a few the mean is not 0
	if !many || s.onGPU() && !Emulated() {
		return
	}
	var bias, size float64
	for i, w := range o.want {
		if math.IsNaN(w) {
			continue
		}
		bias += math.Copysign(1, w) * (float64(out[i]) - w)
		size += math.Abs(w)
	}
	if !(math.Abs(bias) <= tolerance/20*size) { // also NaN
		s.fail(c, "results are %.2g of their size too large", bias/size)
	}
}

// multiply: want[m,n] = a·b in float64, from a[m,k] or, if ta, a[k,m], and b[k,n]
// or, if tb, b[n,k].
func multiply(want []float64, a, b []float32, ta, tb bool, m, n, k int) {
	if m*n*k == 0 {
		return // which gonum refuses
	}
	blas64.Gemm(transpose(ta), transpose(tb), 1, matrix(a, m, k, ta), matrix(b, k, n, tb), 0,
		blas64.General{Rows: m, Cols: n, Stride: n, Data: want})
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}

func matrix(x []float32, rows, cols int, transposed bool) blas64.General {
	if transposed {
		rows, cols = cols, rows
	}
	data := make([]float64, rows*cols)
	for i := range data {
		data[i] = float64(x[i])
	}
	return blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: data}
}
