package kerneltest

import "mlpool/kernels"

// candidates checks GEMMs with each kernel that can compute them, whatever the table prefers.
func (s *suite) candidates() {
	d, onGPU := s.impl.(cuda)
	if !onGPU {
		return
	}
	const aligned = 1 << 12
	tried := map[string]bool{}
	for _, g := range gemms {
		for _, z := range [][3]int{{40, 48, 64}, {64, 104, 200}, {129, 57, 40}, {264, 272, 288}} {
			g.M, g.N, g.K, g.C, g.A, g.B, g.Y = z[0], z[1], z[2], aligned, aligned, aligned, aligned
			if g.Indices != 0 {
				g.Indices = aligned
			}
			for _, name := range kernels.Candidates(d.precision, g) {
				tried[name] = true
				s.withKernel(g, name)
			}
		}
	}
	if len(tried) < 2 {
		s.t.Errorf("only %v can compute anything", tried)
	}
}

// withKernel checks a GEMM with a kernel.
func (s *suite) withKernel(g kernels.GEMM, name string) {
	s.t.Helper()
	p := s.impl.(cuda).precision
	if err := kernels.Choose(p, g, name); err != nil {
		s.t.Fatalf("kernel %s: %v", name, err)
	}
	defer func() {
		if err := kernels.Choose(p, g, ""); err != nil {
			s.t.Error(err)
		}
	}()
	failed := s.t.Failed()
	for _, exact := range []bool{true, false} {
		s.single(s.operands(g, g.M, g.N, g.K, exact), false)
	}
	if s.t.Failed() && !failed {
		s.t.Errorf("the GEMMs above were computed by kernel %s", name)
	}
}
