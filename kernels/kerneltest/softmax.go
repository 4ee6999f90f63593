package kerneltest

import (
	"fmt"
	"math"

	"mlpool/kernels/ref"
)

// softmaxOp is [kernels.Stream.Softmax].
func softmaxOp(rows, cols int) op {
	return op{
		name:   fmt.Sprintf("Softmax[%d,%d]", rows, cols),
		launch: func(d cuda, p []uintptr) error { return d.s.Softmax(p[0], p[1], rows, cols) },
		ref:    func(a arrays) { ref.Softmax(a.f32(0), a.f32(1), rows, cols) },
	}
}

// crossEntropyOp is [kernels.Stream.CrossEntropy].
func crossEntropyOp(rows, cols int) op {
	return op{
		name:   fmt.Sprintf("CrossEntropy[%d,%d]", rows, cols),
		launch: func(d cuda, p []uintptr) error { return d.s.CrossEntropy(p[0], p[1], p[2], p[3], rows, cols) },
		ref:    func(a arrays) { ref.CrossEntropy(a.f32(0), a.f32(1), a.f32(2), a.i32(3), rows, cols) },
	}
}

// softmaxCrossEntropyBackwardOp is [kernels.Stream.SoftmaxCrossEntropyBackward].
func softmaxCrossEntropyBackwardOp(rows, cols int) op {
	return op{
		name: fmt.Sprintf("SoftmaxCrossEntropyBackward[%d,%d]", rows, cols),
		launch: func(d cuda, p []uintptr) error {
			return d.s.SoftmaxCrossEntropyBackward(d.precision, p[0], p[1], p[2], rows, cols)
		},
		ref: func(a arrays) {
			a.write(0, func(dx []float32) { ref.SoftmaxCrossEntropyBackward(dx, a.f32(1), a.i32(2), rows, cols) })
		},
	}
}

func (s *suite) softmaxes() {
	for _, rows := range sizes {
		for _, cols := range append(sizes, 16, 17) {
			if rows*cols <= 1<<17 {
				s.apart(rows, cols)
			}
		}
	}
	s.extremes()
	s.ties()
}

// softmaxRow returns the probabilities and ln Σ exp(x - max) + max.
func softmaxRow[E float32 | float64](x []E) (p []float64, logSum float64) {
	largest, sum := math.Inf(-1), 0.
	for _, v := range x {
		largest = max(largest, float64(v))
	}
	for _, v := range x {
		p = append(p, math.Exp(float64(v)-largest))
		sum += p[len(p)-1]
	}
	for j := range p {
		p[j] /= sum
	}
	return p, math.Log(sum) + largest
}

func firstLargest[E float32 | float64](x []E) int {
	at := 0
	for j, v := range x {
		if v > x[at] {
			at = j
		}
	}
	return at
}

// apart checks softmax, cross-entropy, and the gradient on the float32 output of softmax.
func (s *suite) apart(rows, cols int) {
	x, labels, p := s.floats(rows*cols), s.labels(rows, cols), output(rows*cols)
	for i := range rows * cols { // some rows are so far apart that exp would overflow
		x[i] *= float32([]int{1, 10, 200}[i/cols%3])
	}
	c := Call{op: softmaxOp(rows, cols), arrays: arrays{p, x}, unaligned: s.r.IntN(2) == 0}
	var want []float64
	for i := range rows {
		row, _ := softmaxRow(x[i*cols : (i+1)*cols])
		want = append(want, row...)
	}
	s.do(c, 1)
	s.near(c, p, want, Tolerance, 0)

	s.crossEntropy(x, labels, rows, cols)

	dx := s.outputValues(rows * cols)
	for i := range want {
		want[i] = float64(p[i])
		if i%cols == int(labels[i/cols]) {
			want[i]--
		}
		want[i] /= float64(rows)
	}
	c = Call{op: softmaxCrossEntropyBackwardOp(rows, cols), arrays: arrays{dx, p, labels}}
	s.do(c, 1)
	s.near(c, floatsOf(dx), want, s.valueTolerance(Tolerance), 1e-7)
}

// crossEntropy checks the losses of logits, which are finite if the logits are. Labels may be out of
// range.
func (s *suite) crossEntropy(x []float32, labels []int32, rows, cols int) {
	loss, correct := output(rows), output(rows)
	wantLoss, wantCorrect := make([]float64, rows), make([]float64, rows)
	for i := range rows {
		row, label := x[i*cols:(i+1)*cols], int(labels[i])
		if label < 0 || label >= cols {
			wantLoss[i] = math.NaN()
			continue
		}
		_, logSum := softmaxRow(row)
		wantLoss[i] = logSum - float64(row[label])
		if firstLargest(row) == label {
			wantCorrect[i] = 1
		}
	}
	c := Call{op: crossEntropyOp(rows, cols), arrays: arrays{loss, correct, x, labels}}
	s.do(c, 2)
	s.near(c, loss, wantLoss, Tolerance, 1e-3)
	s.equal(c, correct, wantCorrect)
}

// extremes checks losses where the label's probability is 0 in float32.
func (s *suite) extremes() {
	for _, x := range [][]float32{{120, 0}, {-1e4, -2e4}, {1e30, -1e30}, {1e38, 0}, {0, -104}} {
		s.crossEntropy(padded(x), append([]int32{1}, make([]int32, guard)...), 1, 2)
		s.crossEntropy(padded(x), append([]int32{0}, make([]int32, guard)...), 1, 2)
		wide := padded(append(make([]float32, 67), x...)) // more than a class a lane
		s.crossEntropy(wide, append([]int32{68}, make([]int32, guard)...), 1, 69)
	}
}

// ties checks that the first of equal values is the prediction, and the results of labels out of range.
func (s *suite) ties() {
	const rows, cols = 6, 40
	x := padded(make([]float32, rows*cols))
	x[2*cols+7], x[2*cols+39] = 1, 1
	x[3*cols+39] = 1
	labels := append([]int32{0, 1, 7, 39, -1, cols}, make([]int32, guard)...)
	s.crossEntropy(x, labels, rows, cols)
}
