package kernels_test

import (
	"fmt"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// splitKCase is a group of equal wgrads on a GPU with sms SMs. One CTA computes each of the first whole
// tiles of the group; ctas share the k of each later one. Of a CTA's k-tiles, slices groups of threads take turns.
type splitKCase struct {
	precision      kernels.Precision
	sms            int
	count, m, n, k int
	whole, ctas    int
	slices         int // 0: by warpgroup MMA, or of rows that are not whole float4
}

var splitKCases = []splitKCase{
	{kernels.TF32, 132, 1, 1024, 512, 512, 0, 2, 0},
	{kernels.TF32, 132, 1, 384, 384, 1536, 0, 4, 0},
	{kernels.TF32, 132, 1, 384, 384, 1664, 0, 4, 0}, // 13 k-tiles each
	{kernels.TF32X3, 132, 1, 384, 384, 1664, 0, 4, 0},
	{kernels.TF32X3, 132, 1, 1024, 512, 512, 0, 2, 0},
	{kernels.TF32X3, 132, 1, 384, 384, 1536, 0, 4, 0},
	// Rows that are not whole float4, in tiles of 128×56 by mma.sync.
	{kernels.TF32, 132, 1, 333, 333, 384, 0, 6, 0},
	{kernels.TF32, 132, 2, 390, 522, 192, 0, 3, 0},
	{kernels.TF32X3, 132, 1, 333, 333, 384, 0, 6, 0},
	{kernels.TF32X3, 132, 1, 129, 57, 512, 0, 8, 0},
	// Small weights by mma.sync, and narrow ones.
	{kernels.TF32, 132, 3, 64, 80, 1024, 0, 8, 2},
	{kernels.TF32X3, 132, 3, 64, 80, 1024, 0, 8, 2},
	{kernels.TF32, 132, 3, 16, 16, 2048, 0, 8, 4},
	{kernels.TF32X3, 132, 3, 16, 16, 2048, 0, 8, 4},
	{kernels.TF32, 20, 1, 784, 260, 1024, 0, 1, 0}, // 14 tiles of 256 columns
	{kernels.TF32, 20, 1, 256, 640, 1280, 0, 2, 0},
	{kernels.TF32, 20, 1, 256, 256, 3072, 0, 4, 0},
	{kernels.TF32X3, 20, 1, 768, 384, 704, 0, 1, 0}, // 18 tiles
	{kernels.TF32X3, 20, 1, 784, 260, 1024, 20, 4, 0},
	{kernels.TF32X3, 20, 2, 784, 256, 1024, 20, 2, 0}, // 14 and 14 tiles
}

// TestWgradSplitK has sums that tell how many CTAs share them: 2^24 in the first k-tile, and 1 in each
// later one. 2^24 plus 1 is 2^24 in float32, so the ones that the first CTA adds to it are lost: all of its
// part or, where slices take turns, those of the first slice. The ones of other slices and CTAs, which add
// them up first, are not. If these sums are odd, each addition to the first CTA's rounds, so that the order
// shows. Rows and columns have signs, to tell elements apart.
func TestWgradSplitK(t *testing.T) {
	kerneltest.RequireGPU(t)
	d, err := kernels.Device()
	must.OK(t, err)
	for _, c := range splitKCases {
		if c.sms != d.SMs || !hasWarpgroup(d) {
			continue
		}
		t.Run(fmt.Sprintf("%v %d of %d×%d×%d", c.precision, c.count, c.m, c.n, c.k), func(t *testing.T) { c.run(t) })
	}
}

const (
	kTile, wgradTile = 32, 128 // of warpgroup MMA
	half             = 1 << 12
)

func (c splitKCase) run(t *testing.T) {
	s := newStream(t)
	var group []kernels.GEMM
	for range c.count {
		g := kernels.GEMM{
			Layout: kernels.TN, Epilogue: kernels.SGD, Alpha: -1, C: malloc(t, 4*c.m*c.n), A: malloc(t, 4*c.k*c.m), B: malloc(t, 4*c.k*c.n),
			T: malloc(t, 4*kernels.TransposedStride(c.k)*c.n), M: c.m, N: c.n, K: c.k,
		}
		if wants := kernels.WantsTransposed(c.precision, g); wants != (c.n%4 == 0 && c.slices == 0) {
			t.Errorf("by warpgroup MMA: %v", wants)
		}
		must.OK(t, s.Upload(g.A, bytesOf(c.operand(c.m))), s.Upload(g.B, bytesOf(c.operand(c.n))),
			s.Transpose(g.T, g.B, c.k, c.n), s.Fill(g.C, 0, 4*c.m*c.n))
		group = append(group, g)
	}
	must.OK(t, s.GroupedGEMM(c.precision, group))
	for i, g := range group {
		got := make([]float32, c.m*c.n)
		must.OK(t, s.Download(bytesOf(got), g.C))
		for j, v := range got {
			x, y := j/c.n, j%c.n
			ctas := c.share(i, x/wgradTile, y/wgradTile)
			if want := -sign(x) * sign(y) * c.sum(ctas); v != want {
				t.Fatalf("element %d,%d of %d is %.0f, want %.0f, the sum of %d CTAs", x, y, i, v, want, ctas)
			}
		}
	}
}

// share returns how many CTAs share a tile of the i-th wgrad.
func (c splitKCase) share(i, row, column int) int {
	rows, columns := (c.m+wgradTile-1)/wgradTile, (c.n+wgradTile-1)/wgradTile
	if i*rows*columns+column*rows+row < c.whole {
		return 1
	}
	return c.ctas
}

// operand returns k rows: of each k-tile the first row has ones, but 2^12 in the first k-tile, and the
// others zeros.
func (c splitKCase) operand(columns int) []float32 {
	v := make([]float32, c.k*columns)
	for k := 0; k < c.k; k += kTile {
		for i := range columns {
			v[k*columns+i] = sign(i)
			if k == 0 {
				v[i] *= half
			}
		}
	}
	return v
}

// sum returns an element of a tile that ctas CTAs share, without its sign.
func (c splitKCase) sum(ctas int) float32 {
	ones := c.k / kTile / ctas // of a CTA
	sum := float32(half * half)
	if c.slices > 0 {
		sum += float32(ones - ones/c.slices)
	}
	for range ctas - 1 {
		sum += float32(ones)
	}
	return sum
}

func sign(i int) float32 { return float32(1 - 2*(i/3%2)) }
