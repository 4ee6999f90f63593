package kerneltest

import (
	"fmt"
	"math"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// classifierOp is [kernels.Stream.Classifier]; the arrays are its addresses, in order.
func classifierOp(rows, classes, k int, prefetch kernels.Prefetch) op {
	early := []int{6, 7}
	if prefetch&kernels.PrefetchB != 0 {
		early = append(early, 5)
	}
	return op{
		name: fmt.Sprintf("Classifier[%d,%d,%d] prefetch=%d", rows, classes, k, prefetch),
		launch: func(d cuda, p []uintptr) error {
			return d.s.Classifier(d.precision, kernels.Classifier{
				DLogits: p[0], DX: p[1], Loss: p[2], Correct: p[3], X: p[4], W: p[5], Labels: p[6], Indices: p[7],
				Rows: rows, Classes: classes, K: k, Prefetch: prefetch,
			})
		},
		early: early,
		ref: func(a arrays) {
			a.write(0, func(dlogits []float32) {
				a.write(1, func(dx []float32) {
					ref.Classifier(dlogits, dx, a.f32(2), a.f32(3), a.f32(4), a.f32(5), a.u8(6), a.i32(7), rows, classes, k)
				})
			})
		},
	}
}

// classifiers checks all combinations of some rows, classes and lengths.
func (s *suite) classifiers() {
	most := 1 << 16 // of an emulated GPU
	if s.bf16 {
		most = 1 << 13 // the kernels are those of float32
	}
	for _, rows := range []int{1, 2, 7, 32, 61, 64, 65, 264, 265, 300} {
		for _, classes := range []int{1, 2, 10, 16} {
			for _, k := range []int{1, 2, 7, 33, 100, 784, 1000, 2048, 3000, 4096, 4100, 8192, 12288} {
				if !s.slow() || rows*classes*k <= most {
					s.classifier(rows, classes, k)
				}
			}
		}
	}
	// Every number of classes, with long rows and about twice as many rows as an H200 has SMs.
	for classes := 1; classes <= 16; classes++ {
		if s.bf16 && s.slow() && classes%3 != 1 {
			continue
		}
		for _, c := range []struct{ rows, k int }{{1, 8192}, {1, 12288}, {264, 36}, {265, 36}} {
			s.classifier(c.rows, classes, c.k)
		}
	}
	s.classifier(3, 10, 12290) // rows that are no whole float4
	s.classifier(4097, 10, 13)
	s.classifier(2113, 10, 36) // by warps that have two rows each
	s.classifierTies()
}

// classifier checks the last layer and its loss, with and without the gradients. One
// label in fifty is out of range.
func (s *suite) classifier(rows, classes, k int) {
	// An output of a ReLU: half of it is 0. A few rows are so large that exp
	// would overflow.
	x, w := s.floats(rows*k), s.floats(k*classes)
	for i := range rows * k {
		x[i] = max(0, x[i])
		if i/k%7 == 3 {
			x[i] *= 100
		}
	}
	for i := range k * classes {
		w[i] *= float32(3 / math.Sqrt(float64(k)))
	}
	xs, ws := s.values(x), s.values(w)
	labels, indices := make([]uint8, tableRows+guard), s.labels(rows, tableRows)
	for i := range labels {
		labels[i] = uint8(s.r.IntN(classes))
	}
	labels[7] = uint8(classes + s.r.IntN(256-classes))

	want := classified(x, w, labels, indices, rows, classes, k)
	for _, gradient := range []bool{true, false} {
		var dlogits, dx any
		if gradient {
			dlogits, dx = s.outputValues(rows*classes), s.outputValues(rows*k)
		}
		loss, correct := output(rows), output(rows)
		c := Call{op: classifierOp(rows, classes, k, kernels.Prefetch(s.r.IntN(8))),
			arrays: arrays{dlogits, dx, loss, correct, xs, ws, labels, indices}, unaligned: s.r.IntN(3) == 0}
		s.do(c, 4)
		s.predictions(c, want, loss, correct, labels, indices, classes)
		if gradient {
			n := float64(rows)
			s.near(c, floatsOf(dlogits), want.dlogits, s.valueTolerance(2*Tolerance*want.size), 1e-2/math.Sqrt(n))
			s.near(c, floatsOf(dx), want.dx, s.valueTolerance(4*Tolerance*want.size), 1e-2/math.Sqrt(n))
		}
	}
}

// A classification has the results of a classifier in float64.
type classification struct {
	logits, loss, dlogits, dx []float64
	size                      float64 // of a logit, and 1
}

func classified(x, w []float32, labels []uint8, indices []int32, rows, classes, k int) classification {
	c := classification{make([]float64, rows*classes), make([]float64, rows), make([]float64, rows*classes), make([]float64, rows*k), 0}
	multiply(c.logits, x, w, false, false, rows, classes, k)
	for i := range rows {
		p, logSum := softmaxRow(c.logits[i*classes : (i+1)*classes])
		label := int(labels[indices[i]])
		c.loss[i] = math.NaN()
		if label < classes {
			c.loss[i] = logSum - c.logits[i*classes+label]
			p[label]--
		}
		for j, v := range p {
			c.dlogits[i*classes+j] = v / float64(rows)
			// A GEMM's rounding errors go with its size.
			c.size += c.logits[i*classes+j] * c.logits[i*classes+j]
		}
		for l := range k {
			if x[i*k+l] > 0 {
				for j := range classes {
					c.dx[i*k+l] += c.dlogits[i*classes+j] * float64(w[l*classes+j])
				}
			}
		}
	}
	c.size = math.Sqrt(c.size/float64(rows*classes)) + 1
	return c
}

// predictions compares losses and predictions.
func (s *suite) predictions(c Call, want classification, loss, correct []float32, labels []uint8, indices []int32, classes int) {
	s.t.Helper()
	var losses []float64
	var got []float32
	rows := len(want.loss)
	for i := range rows {
		row, label := want.logits[i*classes:(i+1)*classes], int(labels[indices[i]])
		if label >= classes {
			if loss[i] == loss[i] || correct[i] != 0 {
				s.fail(c, "label %d of row %d gave the loss %v and correct %v", label, i, loss[i], correct[i])
			}
			continue
		}
		losses, got = append(losses, want.loss[i]), append(got, loss[i])
		right := float32(0)
		if firstLargest(row) == label {
			right = 1
		}
		// It is not defined if the two largest of a row are nearly equal.
		if correct[i] != right && (!nearTie(row, 1e-5*want.size) || correct[i] != 1-right) {
			s.fail(c, "row %d: correct %v", i, correct[i])
		}
	}
	s.near(c, got, losses, Tolerance*scatter(max(1, float64(rows)/7)), want.size*math.Sqrt(float64(rows))) // one row in seven is large
}

// nearTie reports whether the two largest of a row are within a distance.
func nearTie(row []float64, distance float64) bool {
	at := firstLargest(row)
	for j, v := range row {
		if j != at && row[at]-v <= distance {
			return true
		}
	}
	return false
}

// classifierTies checks that the first of equal logits is the prediction.
func (s *suite) classifierTies() {
	const rows, classes, k = 5, 10, 3
	x, w := padded(make([]float32, rows*k)), padded(make([]float32, k*classes))
	x[1*k], x[2*k+1], x[3*k+2] = 1, 1, 1
	w[4], w[9] = 1, 1                                        // row 1: two largest
	w[classes+9] = 1                                         // row 2: the last
	w[2*classes+0], w[2*classes+3], w[2*classes+5] = 1, 1, 2 // row 3: neither of the two equal
	labels, indices := append([]uint8{0, 4, 9, 5, 9}, make([]uint8, guard)...), append([]int32{0, 1, 2, 3, 4}, make([]int32, guard)...)
	correct := output(rows)
	c := Call{op: classifierOp(rows, classes, k, 0), arrays: arrays{s.outputValues(rows * classes), s.outputValues(rows * k), output(rows), correct, s.values(x), s.values(w), labels, indices}}
	s.do(c, 4)
	s.equal(c, correct, []float64{1, 1, 1, 1, 0})
}
