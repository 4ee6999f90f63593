package kernels_test

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestChain wants the results of a chain to be those of its GEMMs one by one, bit for bit, also of rows that are not
// finite, and an error of a group that is none.
func TestChain(t *testing.T) {
	kerneltest.RequireGPU(t)
	if d, err := kernels.Device(); err != nil || d.Major < 8 {
		t.Skip("no chains: ", err)
	}
	widths := [][]int{{8, 8, 8, 8}, {16, 16, 8}, {24, 8, 32, 16, 8}, {64, 40, 64}, slices.Repeat([]int{64}, 8), slices.Repeat([]int{16}, kernels.MaxGroup+1)}
	for _, precision := range []kernels.Precision{kernels.FP32, kernels.TF32, kernels.BF16} {
		for _, layer := range []kernels.GEMM{{Layout: kernels.NN, Epilogue: kernels.Activate}, {Layout: kernels.NT, Epilogue: kernels.ActivateBackward}} {
			t.Run(fmt.Sprint(precision, layer.Layout), func(t *testing.T) {
				s := newStream(t)
				for _, m := range []int{1, 33, 300, 20000} {
					for _, width := range widths {
						if side := slices.Max(width); m*side*side > 1<<21 && (precision == kernels.BF16 || side > 32) {
							continue // other kernels are faster
						}
						var chain []kernels.GEMM
						a, weights := integers(t, s, precision, m*width[0]), integers
						if width[0] == 8 { // infinity, in bf16 after a zero, by ones
							must.OK(t, s.Upload(a, []byte{0, 0, 0x80, 0x7f}))
							weights = func(t *testing.T, s kernels.Stream, precision kernels.Precision, n int) uintptr {
								return operand(t, s, precision, slices.Repeat([]float32{1}, n))
							}
						}
						for i, n := range width[1:] {
							g := layer
							g.M, g.N, g.K, g.A, g.Prefetch = m, n, width[i], a, kernels.PrefetchB
							g.B, g.Y, g.C = weights(t, s, precision, g.N*g.K), integers(t, s, precision, m*n), malloc(t, 4*m*n)
							chain, a = append(chain, g), g.C
						}
						results := func(launch func() error) (all [][]byte) {
							for _, g := range chain {
								must.OK(t, s.Fill(g.C, 0xff, 4*m*g.N))
							}
							must.OK(t, launch())
							for _, g := range chain {
								c := make([]byte, 4*m*g.N)
								must.OK(t, s.Download(c, g.C))
								all = append(all, c)
							}
							return all
						}
						if !kernels.Chains(precision, chain[0]) {
							t.Errorf("%d rows, widths %v: no chain", m, width)
							continue
						}
						want := results(func() (err error) {
							for _, g := range chain {
								if err == nil {
									err = s.GEMM(precision, g)
								}
							}
							return err
						})
						if got := results(func() error { return s.GroupedGEMM(precision, chain) }); !slices.EqualFunc(got, want, slices.Equal) {
							t.Errorf("%d rows, widths %v: other bits", m, width)
						}
						broken := slices.Clone(chain)
						if broken[1].A = chain[0].A; s.GroupedGEMM(precision, broken) == nil {
							t.Errorf("no error, though the second GEMM does not read the result of the first")
						}
					}
				}
			})
		}
	}
}
