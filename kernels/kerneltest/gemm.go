package kerneltest

import (
	"math"
	"slices"

	"mlpool/kernels"
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
	if s.slow() {
		s.t.Skip("takes minutes on an emulated GPU, and package ref computes all sizes alike")
	}
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

// smallGEMMs checks all combinations of sizes up to 32768 multiplications. On an emulated GPU it has exact
// sums alone: they find every wrong index, and no kernel depends on the numbers.
func (s *suite) smallGEMMs() {
	for _, g := range gemms {
		for _, m := range sizes {
			for _, n := range sizes {
				for _, k := range sizes {
					switch {
					case m*n*k > 1<<15:
					case s.onGPU() && Emulated():
						s.single(s.operands(g, m, n, k, true), s.r.IntN(3) == 0)
					default:
						s.gemm(g, m, n, k)
					}
				}
			}
		}
	}
}

// fewGEMMs has a size for each case of a kernel.
func (s *suite) fewGEMMs() {
	few := [][3]int{{33, 20, 300}, {20, 10, 100}, {7, 10, 140}, {65, 40, 64}, {20, 1030, 70}, {129, 57, 300}, {40, 33, 10}, {20, 48, 1008}, {20, 48, 776}, {116, 120, 100}, {60, 132, 132}, {700, 830, 20}, {700, 832, 36}, {13, 72, 1064}, {16, 1096, 1064}, {17, 2760, 1032}, {61, 2760, 136}, {2130, 16, 16}, {1070, 32, 24}, {4300, 40, 20}, {4300, 36, 36}}
	if s.bf16 { // rows of whole chunks of eight
		few = append(few, [][3]int{{260, 104, 136}, {72, 136, 264}, {24, 10, 264}, {328, 328, 40}}...)
	}
	if !s.onGPU() {
		few = slices.DeleteFunc(few, large)
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

// large reports whether a GEMM has a size for which kernels have ways of their own, and package ref has none.
func large(z [3]int) bool { return z[0]*z[1]*z[2] > 4e6 }

// groups are wgrads of training steps, and odd ones.
func (s *suite) groups() {
	for _, z := range [][][3]int{
		{{784, 10, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}, {784, 784, 64}}, {{784, 10, 32}, {784, 784, 32}},
		{{784, 784, 64}, {784, 784, 1}, {784, 784, 61}, {784, 784, 65}, {784, 784, 128}, {784, 784, 129}},
		{{336, 10, 61}, {336, 336, 61}, {784, 336, 61}}, {{300, 2048, 64}, {2048, 2048, 64}, {2048, 10, 64}}, {{1, 1, 1}, {333, 334, 61}}, {{1000, 7, 1}, {130, 257, 129}},
		{{1000, 65, 1000}, {61, 13, 1000}, {31, 37, 41}, {43, 47, 53}}, {{0, 5, 5}, {40, 33, 10}, {5, 0, 5}, {20, 33, 0}}, {{5, 0, 5}}, {}, {{784, 48, 0}, {48, 10, 0}, {20, 33, 0}, {20, 24, 1}},
		slices.Repeat([][3]int{{40, 48, 10}}, kernels.MaxGroup),
		{{784, 784, 1024}, {784, 784, 1024}, {784, 10, 1024}}, {{336, 336, 1000}, {784, 336, 1000}}, {{784, 784, 200}, {130, 260, 129}},
		{{336, 10, 256}, {336, 336, 256}, {784, 336, 256}, {336, 336, 256}}, {{136, 136, 264}, {136, 160, 264}},
		{{132, 228, 129}, {64, 112, 160}, {200, 20, 300}, {40, 48, 10}, {100, 20, 128}, {60, 116, 131}, {130, 33, 150}, {20, 10, 200}},
		slices.Repeat([][3]int{{20, 24, 132}, {20, 24, 12}}, kernels.MaxGroup/2),
		{{232, 120, 5}, {120, 120, 8}, {120, 10, 5}},
		{{129, 57, 516}}, {{333, 333, 400}, {390, 522, 200}}, // of 8, 6 and 3 CTAs a tile
		slices.Repeat([][3]int{{32, 24, 1100}}, 9), {{72, 16, 1030}, {16, 16, 1030}, {16, 8, 1030}, {16, 10, 1030}}, {{100, 40, 600}, {40, 40, 280}, {40, 10, 600}},
	} {
		if !s.slow() || !slices.ContainsFunc(z, large) {
			s.group(z...)
		}
	}
	if !s.onGPU() {
		return
	}
	// Enough to fill a GPU, for which there is a kernel: alone, and among others.
	full := [][3]int{{784, 784, 261}, {784, 784, 259}, {500, 300, 280}, {1040, 20, 263}, {340, 336, 291}, {132, 228, 330}, {20, 20, 300}}
	s.groupOnce(false, 0, false, full)
	s.groupOnce(true, 0, false, append(full, [3]int{40, 48, 10}, [3]int{200, 10, 259}))
}

// dgradWgrads has sizes with and without a fused kernel.
func (s *suite) dgradWgrads() {
	sizes := [][3]int{{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {7, 10, 20}, {61, 33, 70}, {64, 100, 100}}
	if !s.slow() {
		sizes = append(sizes, [][3]int{{64, 784, 784}, {64, 2048, 2048}, {61, 1500, 1500}, {33, 1280, 1416}, {1, 1300, 2051}, {65, 1300, 1300}}...)
	}
	for _, z := range sizes {
		s.dgradWgrad(z[0], z[1], z[2], false)
		s.dgradWgrad(z[0], z[1], z[2], true)
	}
	if s.onGPU() {
		for _, z := range [][3]int{{61, 1064, 1800}, {62, 1892, 1028}, {27, 1028, 1064}, {32, 1064, 1032}, {13, 1064, 1288}, {16, 1160, 1032}, {5, 1064, 1288}, {8, 1032, 1032}} {
			s.dgradWgrad(z[0], z[1], z[2], false)
		}
	}
}

// dgradWgrad compares a dgrad and its wgrad, as one operation.
func (s *suite) dgradWgrad(m, n, k int, unaligned bool) {
	for _, exact := range []bool{true, false} {
		d := s.operands(dgrad, m, n, k, exact)
		b := d.in.f32(1)
		w := operands{out: b, want: make([]float64, n*k), exact: exact}
		if s.bf16 { // to which weights are rounded that are a little larger
			w.rounded = d.in[1]
			for i := range b {
				b[i] *= 1 + 1./2048
			}
		}
		d.g.Alpha = rate
		_, w.g = d.g.Parts()
		multiply(w.want, d.in.f32(2), d.in.f32(0), true, false, n, k, m)
		w.add(b)
		c := Call{op: dgradWgradOp(d.g), arrays: arrays{d.out, b, w.rounded, d.in[0], d.in[2]}, unaligned: unaligned}
		s.do(c, 3)
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

// emptyGEMMs checks that GEMMs of nothing are 0, and that nothing is written otherwise. Rows of 16 are aligned
// in every precision. Which kernel computes a GEMM depends also on the number of rows, and on ten classes.
func (s *suite) emptyGEMMs() {
	for _, g := range gemms {
		for _, z := range [][3]int{
			{0, 5, 5}, {5, 0, 5}, {5, 5, 0}, {0, 0, 0}, {0, 16, 16}, {16, 0, 16}, {16, 16, 0}, {0, 0, 16},
			{16, 10, 0}, {5, 10, 0}, {272, 16, 0}, {271, 17, 0}, {272, 784, 0}, {784, 784, 0},
		} {
			o := s.operands(g, z[0], z[1], z[2], true)
			c := Call{op: gemmOp(o.g), arrays: append(arrays{o.out, o.rounded}, o.in...)}
			s.do(c, 2)
			s.equal(c, floatsOf(o.out), o.want)
		}
	}
}
