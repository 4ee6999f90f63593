package kerneltest

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

var (
	dgrad       = kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward}
	wgrad       = kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD}
	wgradImages = kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD, Indices: 1}
)

// gemms are all kinds of GEMMs. Indices marks those of images.
var gemms = []kernels.GEMM{
	{Layout: kernels.NN, Epilogue: kernels.None},
	{Layout: kernels.NT, Epilogue: kernels.None},
	{Layout: kernels.TN, Epilogue: kernels.None},
	{Layout: kernels.NN, Epilogue: kernels.Activate},
	dgrad,
	wgrad,
	{Layout: kernels.NN, Epilogue: kernels.None, Indices: 1},
	{Layout: kernels.TN, Epilogue: kernels.None, Indices: 1},
	{Layout: kernels.NN, Epilogue: kernels.Activate, Indices: 1},
	wgradImages,
}

// largeGEMMs are of sizes that training meets, and near them.
func (s *suite) largeGEMMs() {
	for _, g := range gemms {
		for _, z := range [][3]int{
			{64, 784, 784}, {32, 784, 784}, {784, 784, 64}, {784, 784, 32}, {64, 10, 784}, {64, 784, 10}, {784, 10, 64},
			{65, 1000, 333}, {1000, 65, 1000}, {333, 334, 61}, {130, 257, 129}, {1000, 784, 7}, {64, 2048, 300}, {200, 72, 2000},
			{250, 1532, 200}, {61, 2047, 301},
		} {
			s.gemm(g, z[0], z[1], z[2])
		}
	}
}

// smallGEMMs checks all combinations of sizes up to 32768 multiplications.
func (s *suite) smallGEMMs() {
	for _, g := range gemms {
		for _, m := range sizes {
			for _, n := range sizes {
				for _, k := range sizes {
					if m*n*k <= 1<<15 {
						s.gemm(g, m, n, k)
					}
				}
			}
		}
	}
}

// fewGEMMs has a size for each case of a kernel.
func (s *suite) fewGEMMs() {
	few := [][3]int{{33, 20, 300}, {20, 10, 100}, {7, 10, 140}, {65, 40, 64}, {20, 1030, 70}, {129, 57, 300}, {40, 33, 10}, {20, 48, 1008}, {116, 120, 100}, {60, 132, 132}, {700, 830, 20}, {700, 832, 36}}
	if s.bf16 { // rows of whole chunks of eight
		few = append(few, [][3]int{{260, 104, 136}, {72, 136, 264}, {24, 10, 264}, {328, 328, 40}}...)
	}
	for _, g := range gemms {
		for _, z := range few {
			s.gemm(g, z[0], z[1], z[2])
			if g.Layout == kernels.NN && g.Indices == 0 {
				s.nanGEMM(g, z[0], z[1], z[2])
			}
		}
	}
	s.group([3]int{33, 20, 300}, [3]int{40, 33, 10}, [3]int{129, 57, 65}, [3]int{113, 96, 64})
	s.group([3]int{116, 120, 100}, [3]int{228, 60, 128}, [3]int{116, 10, 100})
	s.group([3]int{7, 10, 140})
}

// groups are wgrads of training steps, and odd ones.
func (s *suite) groups() {
	for _, z := range [][][3]int{
		{{784, 10, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}}, {{784, 10, 32}, {784, 784, 32}},
		{{784, 784, 64}, {784, 784, 1}, {784, 784, 61}, {784, 784, 65}, {784, 784, 128}, {784, 784, 129}},
		{{336, 10, 61}, {336, 336, 61}, {784, 336, 61}}, {{300, 2048, 64}, {2048, 2048, 64}, {2048, 10, 64}}, {{1, 1, 1}, {333, 334, 61}}, {{1000, 7, 1}, {130, 257, 129}},
		{{1000, 65, 1000}, {61, 13, 1000}, {31, 37, 41}, {43, 47, 53}}, {{0, 5, 5}, {40, 33, 10}, {5, 0, 5}, {20, 33, 0}}, {{5, 0, 5}}, {}, {{784, 48, 0}, {48, 10, 0}, {20, 33, 0}, {20, 24, 1}},
		slices.Repeat([][3]int{{40, 48, 10}}, kernels.MaxGroup),
		{{784, 784, 1024}, {784, 784, 1024}, {784, 10, 1024}}, {{336, 336, 1000}, {784, 336, 1000}}, {{784, 784, 200}, {130, 260, 129}},
		{{132, 228, 129}, {64, 112, 160}, {200, 20, 300}, {40, 48, 10}, {100, 20, 128}, {60, 116, 131}, {130, 33, 150}, {20, 10, 200}},
		slices.Repeat([][3]int{{20, 24, 132}, {20, 24, 12}}, kernels.MaxGroup/2),
	} {
		large := slices.ContainsFunc(z, func(z [3]int) bool { return z[0]*z[1]*z[2] > 4e6 })
		if !large || !s.slow() {
			s.group(z...)
		}
	}
	// Enough to fill a GPU, for which there is a kernel: alone, and among others.
	full := [][3]int{{784, 784, 131}, {784, 784, 129}, {500, 300, 150}, {1040, 20, 133}, {340, 336, 161}, {132, 228, 200}, {20, 20, 300}}
	s.groupOnce(false, 0, false, full)
	s.groupOnce(true, 0, false, append(full, [3]int{40, 48, 10}, [3]int{200, 10, 129}))
}

// dgradWgrads has sizes with and without a fused kernel.
func (s *suite) dgradWgrads() {
	if s.bf16 {
		return // there is none
	}
	sizes := [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {7, 10, 20}, {61, 33, 70}, {64, 100, 100}}
	if !s.slow() {
		sizes = append(sizes, [][3]int{{64, 784, 784}, {64, 2048, 2048}, {61, 1500, 1500}, {33, 1280, 1412}, {1, 1300, 2051}, {65, 1300, 1300}}...)
	}
	for _, z := range sizes {
		s.dgradWgrad(z[0], z[1], z[2], false)
		s.dgradWgrad(z[0], z[1], z[2], true)
	}
	s.dgradWgrad(5, 1060, 1156, false)
	s.dgradWgrad(62, 1892, 1028, false)
}

// dgradWgrad compares a dgrad and its wgrad, as one operation.
func (s *suite) dgradWgrad(m, n, k int, unaligned bool) {
	for _, exact := range []bool{true, false} {
		d := s.operands(dgrad, m, n, k, exact)
		a, b, y := d.in[0].([]float32), d.in[1].([]float32), d.in[2].([]float32)
		d.g.Alpha = rate
		w := operands{g: d.g.Wgrad(), out: b, want: make([]float64, n*k), exact: exact}
		multiply(w.want, y, a, true, false, n, k, m)
		w.add(b)
		c := Call{op: dgradWgradOp(d.g), arrays: arrays{d.out, b, a, y}, unaligned: unaligned}
		s.do(c, 2)
		s.compare(c, d)
		s.compare(c, w)
	}
}

// gemm compares one GEMM, first on numbers whose sums are exact, then on others.
func (s *suite) gemm(g kernels.GEMM, m, n, k int) {
	for _, exact := range []bool{true, false} {
		o := s.operands(g, m, n, k, exact)
		s.single(o, s.r.IntN(3) == 0)
	}
}

// single compares one GEMM.
func (s *suite) single(o operands, unaligned bool) {
	c := Call{op: gemmOp(o.g), arrays: append(arrays{o.out, o.rounded}, o.in...), unaligned: unaligned}
	s.do(c, 2)
	s.compare(c, o)
}

// nanGEMM checks that a NaN in a row of x makes all of that row of y NaN, and no other. A ReLU by fmaxf
// would make it 0, and hide that training has diverged.
func (s *suite) nanGEMM(g kernels.GEMM, m, n, k int) {
	o := s.operands(g, m, n, k, false)
	row := s.r.IntN(m)
	o.in[:1].write(0, func(a []float32) { a[row*k+s.r.IntN(k)] = nan })
	for j := range n {
		o.want[row*n+j] = math.NaN()
	}
	s.single(o, s.r.IntN(3) == 0)
}

// group compares wgrads of these m, n and k, as one operation.
func (s *suite) group(sizes ...[3]int) {
	for _, exact := range []bool{true, false} {
		s.groupOnce(exact, 1./3, s.r.IntN(4) == 0, sizes)
	}
}

// groupOnce is group once, with images for some of the wgrads.
func (s *suite) groupOnce(exact bool, images float64, unaligned bool, sizes [][3]int) {
	var all []operands
	for _, z := range sizes {
		g := wgrad
		if s.r.Float64() < images {
			g = wgradImages
		}
		if s.r.IntN(3) == 0 {
			g.Epilogue = kernels.None
		}
		all = append(all, s.operands(g, z[0], z[1], z[2], exact))
	}
	s.grouped(all, unaligned)
}

// grouped compares wgrads, as one operation.
func (s *suite) grouped(all []operands, unaligned bool) {
	var group []kernels.GEMM
	var out, rounded, in arrays
	for _, o := range all {
		group = append(group, o.g)
		out, rounded, in = append(out, o.out), append(rounded, o.rounded), append(in, o.in...)
	}
	c := Call{op: groupOp(group), arrays: slices.Concat(out, rounded, in), unaligned: unaligned}
	s.do(c, 2*len(all))
	for _, o := range all {
		s.compare(c, o)
	}
}

// emptyGEMMs checks that GEMMs of nothing are 0, and that nothing is written otherwise.
func (s *suite) emptyGEMMs() {
	for _, g := range gemms {
		for _, z := range [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {0, 0, 0}} {
			o := s.operands(g, z[0], z[1], z[2], true)
			c := Call{op: gemmOp(o.g), arrays: append(arrays{o.out, o.rounded}, o.in...)}
			s.do(c, 2)
			s.equal(c, floatsOf(o.out), o.want)
		}
	}
}

// operands has a GEMM, its operands, and its result.
type operands struct {
	g       kernels.GEMM
	out     any    // C
	rounded any    // Rounded, or nil
	in      arrays // A, B, Y, Indices
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
	o := operands{g: g, out: output(m * n), want: make([]float64, m*n), in: make(arrays, 4), exact: exact}
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
	if _, onGPU := s.impl.(cuda); !many || onGPU && !Emulated() {
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
