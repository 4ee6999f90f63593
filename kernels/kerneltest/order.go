package kerneltest

import (
	"math"
	"slices"

	"mlpool/kernels"
)

// A splitK is an order in which a kernel sums over k. Each of ranks CTAs has a part of k, in whole
// multiples of align. Of that, each of slices has every slices-th chunk, in ascending order; if chunk is 0, the
// slices are side by side, in whole multiples of 16. A CTA adds the sums of its slices, the first to the last, and
// then those of the CTAs are added likewise.
type splitK struct{ ranks, align, slices, chunk int }

// sum returns the sum of float32 products in that order.
func (o splitK) sum(products []float32) float32 {
	var sum float32
	k := len(products)
	part := (k + o.ranks*o.align - 1) / (o.ranks * o.align) * o.align
	slices := make([]float32, o.slices)
	for k0 := 0; k0 < k; k0 += part {
		clear(slices)
		mine, chunk := products[k0:min(k0+part, k)], o.chunk
		if chunk == 0 {
			chunk = (len(mine) + 16*o.slices - 1) / (16 * o.slices) * 16
		}
		for i, v := range mine {
			slices[i/chunk%o.slices] += v
		}
		var cta float32
		for _, v := range slices {
			cta += v
		}
		sum += cta
	}
	return sum
}

// splits returns the orders of all kernels of a precision.
func splits(p kernels.Precision) (all []splitK) {
	slices := [][2]int{{1, 1}, {2, 1}, {4, 1}, {4, 4}, {8, 1}, {8, 4}, {28, 4}}
	aligns := []int{4}
	if p != kernels.FP32 {
		slices = [][2]int{{1, 1}, {2, 16}, {2, 32}, {4, 16}, {4, 32}, {7, 16}, {8, 16}, {16, 16}}
		aligns = []int{8, 128}
	}
	if p == kernels.BF16 {
		slices = append(slices, [][2]int{{2, 0}, {4, 0}, {7, 0}}...)
		aligns = []int{16, 64, 128}
	}
	for _, z := range slices {
		for _, align := range aligns {
			for _, ranks := range []int{1, 2, 4, 8} {
				all = append(all, splitK{ranks, align, z[0], z[1]})
			}
		}
	}
	return all
}

// orders checks that GEMMs have the bits of sums over k in the order of one of the kernels: that split-K
// adds its parts from the first to the last.
func (s *suite) orders() {
	d, onGPU := s.impl.(cuda)
	if !onGPU || d.precision != kernels.FP32 && !Emulated() {
		return // how the tensor cores round is not specified
	}
	for _, z := range []struct {
		layout  kernels.Layout
		m, n, k int
	}{
		{kernels.NN, 20, 48, 448}, {kernels.NT, 20, 48, 448}, // skinny
		{kernels.NN, 20, 48, 1104}, {kernels.NT, 20, 48, 1104}, {kernels.NN, 132, 24, 1040},
		{kernels.NN, 20, 10, 784}, {kernels.TN, 20, 10, 784}, // ten classes
		{kernels.TN, 64, 32, 1000}, {kernels.TN, 64, 80, 200}, {kernels.TN, 64, 32, 100},
		{kernels.NN, 20, 33, 601}, {kernels.NT, 20, 33, 601}, {kernels.TN, 20, 33, 601}, // unaligned
		{kernels.NN, 64, 48, 2560}, {kernels.NT, 64, 48, 2560}, {kernels.TN, 64, 48, 1024}, // in bf16 of few rows, and medium
	} {
		g := kernels.GEMM{Layout: z.layout, M: z.m, N: z.n, K: z.k, Alpha: 1}
		a, rows := s.exponents(g)
		c := Call{op: gemmOp(g), arrays: arrays{output(z.m * z.n), nil, s.values(a), s.values(ones(z.n * z.k)), nil, nil, nil}}
		s.inOrder(c, rows, z.n)
	}
	if g := dgrad; d.precision == kernels.TF32 {
		g.M, g.N, g.K = 62, 1060, 1156 // of about the least weights of which there is a kernel; with Alpha 0 they remain
		a, rows := s.exponents(g)
		s.inOrder(Call{op: dgradWgradOp(g), arrays: arrays{output(g.M * g.N), ones(g.N * g.K), nil, a, ones(g.M * g.N)}}, rows, g.N)
	}
}

func ones(n int) []float32 { return padded(slices.Repeat([]float32{1}, n)) }

// exponents returns a GEMM's a, and its rows. Of 32 k in a row at most one is not zero. It has 8 bits,
// exact in every precision, and is so different in size from others that most sums of two are rounded.
func (s *suite) exponents(g kernels.GEMM) (a []float32, rows [][]float32) {
	a = make([]float32, g.M*g.K)
	for i := range g.M {
		row := make([]float32, g.K)
		for k := s.r.IntN(32); k < g.K; k += 32 + s.r.IntN(32) {
			row[k] = float32(math.Ldexp(float64((129+2*s.r.IntN(64))*(1-2*s.r.IntN(2))), s.r.IntN(30)))
			if g.Layout == kernels.TN {
				a[k*g.M+i] = row[k]
			} else {
				a[i*g.K+k] = row[k]
			}
		}
		rows = append(rows, row)
	}
	return padded(a), rows
}

// inOrder does a call, and checks that each element of its output, of n columns, is its row's sum in one
// order.
func (s *suite) inOrder(c Call, rows [][]float32, n int) {
	s.t.Helper()
	if err := s.impl.Do(c); err != nil {
		s.fail(c, "%v", err)
		return
	}
	out, most, of := c.f32(0), 0, splitK{}
	for _, o := range splits(s.impl.(cuda).precision) {
		right := 0
		for i, row := range rows {
			want := o.sum(row)
			for j := range n {
				if out[i*n+j] == want {
					right++
				}
			}
		}
		if right == len(rows)*n {
			return
		}
		if right > most {
			most, of = right, o
		}
	}
	s.fail(c, "sums over k in no order that a kernel has: %d of %d elements are those of %+v", most, len(rows)*n, of)
}
