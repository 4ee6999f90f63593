package kerneltest

import (
	"fmt"
	"math"

	"mlpool/kernels/ref"
)

// reduceLossOp is [kernels.Stream.ReduceLoss].
func reduceLossOp(rows, batch int) op {
	return op{
		name:   fmt.Sprintf("ReduceLoss[%d]/%d", rows, batch),
		launch: func(d cuda, p []uintptr) error { return d.s.ReduceLoss(p[0], p[1], p[2], rows, batch) },
		ref:    func(a arrays) { ref.ReduceLoss(a.f32(0), a.f32(1), a.f32(2), rows, batch) },
	}
}

func (s *suite) reduceLosses() {
	for _, rows := range []int{1, 2, 31, 32, 33, 64, 1000, 4097, 60_000} {
		for _, batch := range []int{1, 7, 32, 64, 100, 1000, 100_000, math.MaxInt} {
			if !s.slow() || rows/batch <= 1000 {
				s.reduceLoss(rows, batch)
			}
		}
	}
}

func (s *suite) reduceLoss(rows, batch int) {
	loss, correct := s.floats(rows), padded(make([]float32, rows))
	for i := range rows {
		correct[i] = float32(s.r.IntN(2))
	}
	n := (rows-1)/batch + 1
	out, want, wantCorrect := output(2*n), make([]float64, n), make([]float64, n)
	squares := 0.
	for i := range rows {
		in := min(batch, rows-i/batch*batch)
		want[i/batch] += float64(loss[i]) / float64(in)
		wantCorrect[i/batch] += float64(correct[i])
		squares += float64(loss[i]) * float64(loss[i]) / float64(in)
	}
	c := Call{op: reduceLossOp(rows, batch), arrays: arrays{out, loss, correct}, unaligned: s.r.IntN(2) == 0}
	s.do(c, 1)
	var gotLoss, gotCorrect []float32
	for i := range n {
		gotLoss, gotCorrect = append(gotLoss, out[2*i]), append(gotCorrect, out[2*i+1])
	}
	s.near(c, gotLoss, want, Tolerance, math.Sqrt(squares))
	s.equal(c, gotCorrect, wantCorrect)
}
